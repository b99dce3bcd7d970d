"""Outliers of a log: rows far from what the other rows predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from gpytorch.kernels import Kernel
from scipy.special import ndtri
from torch import Tensor

from tvbo.logs.dataset import DriftLog, Panel
from tvbo.logs.dense import DenseLikelihood, whiten

NORMAL_MAD = 1.4826
"""Standard deviation of a normal variable, as a multiple of its median absolute deviation (MAD)."""

CLIP = 4.0
"""Distance from the median, in standard deviations by the MAD, to which outcomes are moved for the
first fit. Hardly any outcome of a log without outliers is further out."""

WINDOW, MARGIN = 1000, 250
"""Most rows that predict each other together, and rows at each end of such a window that only
predict. A prediction from part of a log is exact for that part, so the rate of false alarms is."""

MAX_PANEL = 3000
"""Rows of a full panel up to which outliers are searched unasked; without some cells a fit of it is
slower."""

SHARE = 0.05
"""Share of outliers above which they are said to look like heavy tails."""

NAMED = 5
"""Outliers that a message names; ``DriftFit.outliers`` has all."""


@dataclass(frozen=True)
class OutlierSearch:
    r"""A search for rows that the others of the log do not explain.

    A row is an outlier if its outcome is more than :meth:`threshold` standard deviations from its
    prediction by all other rows that are none (leave-one-out; Rasmussen, Williams, 2006,
    Section 5.4.2), with the parameters fitted to these rows. Fit and prediction are repeated until
    the same rows are found again, so that a row which only looked bad beside a worse one returns.
    The first fit is of outcomes moved to within four standard deviations of the median, both
    robust.

    Args:
        false_alarm_rate: Probability that any row of a log without outliers is named; approximate,
            since the parameters are estimated from the same rows.
        max_refits: Refits after which the search ends; a message says so.

    Raises:
        ValueError: if ``false_alarm_rate`` lies outside (0, 1) or ``max_refits`` is not positive.
    """

    false_alarm_rate: float = 0.01
    max_refits: int = 10

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not 0 < self.false_alarm_rate < 1 or self.max_refits < 1:
            raise ValueError(
                "Expected false_alarm_rate in (0, 1) and max_refits >= 1. "
                f"Got {self.false_alarm_rate}, {self.max_refits}."
            )

    @classmethod
    def asked(cls, outliers: bool | OutlierSearch, log: DriftLog) -> OutlierSearch | None:
        """Return how outliers of a log are searched; None if they are not.

        Args:
            outliers: Whether they are searched, where that is fast; or how.
            log: The observations.
        """
        if not isinstance(outliers, bool):
            return outliers
        if not outliers or (len(log) > MAX_PANEL and Panel.from_log(log) is not None):
            return None
        return cls()

    def threshold(self, n: int) -> float:
        """Return the standardized residual above which one of ``n`` rows is an outlier.

        A normal variable exceeds it with probability ``false_alarm_rate / n`` (Bonferroni).
        """
        return -float(ndtri(0.5 * self.false_alarm_rate / n))

    def among(self, residuals: Tensor, kept: Tensor) -> Tensor:
        """Return which rows are outliers, a mask.

        Args:
            residuals: ``n`` standardized residuals. Where the kept ones vary by more than one, as
                they do in a model with too little noise, all are divided by their spread.
            kept: ``n``, a mask of the rows to which the model was fitted.
        """
        spread = max(1.0, NORMAL_MAD * residuals[kept].abs().median().item())
        return residuals.abs() > spread * self.threshold(len(residuals))


@dataclass(frozen=True)
class LogModel:
    """A fitted model of a log, which predicts its rows from each other.

    Args:
        covar_module: The kernel over actions, of outcomes divided by ``unit``.
        rate: ρ.
        noise_variance: σ², of outcomes divided by ``unit``.
        mean: The prior mean, divided by ``unit``.
        unit: Unit of the outcomes.
    """

    covar_module: Kernel
    rate: float
    noise_variance: float
    mean: float
    unit: float

    def residuals(self, log: DriftLog, kept: Tensor, given: Tensor) -> Tensor:
        """Return the standardized residual of each row from its prediction by the other kept rows.

        Args:
            log: The observations, not divided by ``unit``.
            kept: ``n``, a mask of the rows that predict.
            given: ``n`` outcomes from which is predicted, in place of those of the log.

        Raises:
            NotPSDError: if the covariance is singular to rounding.
        """
        order, n = log.order, len(log)
        residuals = torch.empty_like(log.Y)
        core = n if n <= WINDOW else WINDOW - 2 * MARGIN
        for start in range(0, n, core):
            first = max(0, start - MARGIN)
            window = order[first : start + core + MARGIN]
            found = self._in_window(log.rows(window), kept[window], given[window])
            judged = slice(start - first, start - first + core)
            residuals[window[judged]] = found[judged]
        return residuals

    def _in_window(self, log: DriftLog, kept: Tensor, given: Tensor) -> Tensor:
        log = log.divided_by(self.unit)
        likelihood = DenseLikelihood(log, self.covar_module, self.mean)
        with torch.no_grad():
            covar = likelihood.covariance(
                torch.tensor(self.rate, dtype=torch.float64),
                torch.tensor(self.noise_variance, dtype=torch.float64),
            )
            others = ~kept
            error = log.Y - self.mean
            error_given = given / self.unit - self.mean
            between = covar[kept][:, others]
            root, white = whiten(
                covar[kept][:, kept], torch.cat([error_given[kept, None], between], dim=-1)
            )
            precision = torch.cholesky_inverse(root)
            # An outcome less its prediction by the others is (Σ^-1 r)_i / (Σ^-1)_ii, of variance
            # 1 / (Σ^-1)_ii.
            scale = precision.diagonal().sqrt()
            residuals = torch.empty_like(error)
            moved = error[kept] - error_given[kept]
            residuals[kept] = precision @ error_given[kept] / scale + moved * scale
            predicted = white[:, 1:].mT @ white[:, 0]
            variance = covar.diagonal()[others] - white[:, 1:].square().sum(dim=0)
            residuals[others] = (error[others] - predicted) / variance.sqrt()
        return residuals


@dataclass(frozen=True)
class Outliers:
    """The result of a search.

    Args:
        kept: ``n``, a mask of the rows that are no outliers.
        residuals: ``n`` standardized residuals.
        settled: Whether the last refit found the same outliers.
    """

    kept: Tensor
    residuals: Tensor
    settled: bool

    def named(self, numbers: Sequence[int]) -> list[tuple[int, float]]:
        """Return pairs of the number of a row and its standardized residual, in the log's order."""
        rows = torch.nonzero(~self.kept).flatten().tolist()
        return [(numbers[row], self.residuals[row].item()) for row in rows]

    def messages(self, numbers: Sequence[int]) -> list[str]:
        """Return what the user of a fit without these rows has to know, by their numbers."""
        outliers, n = self.named(numbers), len(self.kept)
        if not outliers:
            return []
        words = [f"row {row} ({residual:.3g})" for row, residual in outliers[:NAMED]]
        if len(outliers) > NAMED:
            words.append(f"and {len(outliers) - NAMED} more")
        messages = [
            f"Left out as outliers: {len(outliers)} of {n} rows, with their distances in standard "
            f"deviations from what the other rows predict: {', '.join(words)}."
        ]
        if len(outliers) > SHARE * n:
            messages.append(
                f"{len(outliers) / n:.0%} of the rows are outliers, which looks like noise with "
                "heavy tails, or like jumps, rather than like single faults."
            )
        if not self.settled:
            messages.append("The outliers still changed with the last refit.")
        return messages


def clipped(Y: Tensor) -> Tensor:
    """Return outcomes moved to within :data:`CLIP` robust standard deviations of their median.

    Those of which more than half are equal are returned as they are, because they have none.
    """
    middle = Y.median()
    reach = CLIP * NORMAL_MAD * (Y - middle).abs().median()
    return Y if reach == 0 else Y.clamp(middle - reach, middle + reach)


def find_outliers(
    log: DriftLog,
    estimate: Callable[[DriftLog], LogModel],
    search: OutlierSearch,
    model: LogModel | None = None,
) -> Outliers:
    """Search a log for outliers.

    Args:
        log: The observations.
        estimate: Fits the model to some of them.
        search: How to search.
        model: A fit of the whole log; None fits it with its outcomes clipped.
    """
    given = log.Y if model is not None else clipped(log.Y)
    kept = torch.ones(len(log), dtype=torch.bool)
    model = model or estimate(replace(log, Y=given))
    residuals = model.residuals(log, kept, given)
    for _ in range(search.max_refits):
        found = search.among(residuals, kept)
        if (found == ~kept).all():
            return Outliers(kept, residuals, settled=True)
        rest = log.rows(~found)
        if not rest.can_be_fitted:
            # All outcomes but the outliers are equal, say. Nothing tells then what is usual.
            return Outliers(torch.ones_like(kept), residuals, settled=True)
        kept, model = ~found, estimate(rest)
        residuals = model.residuals(log, kept, log.Y)
    return Outliers(kept, residuals, settled=False)
