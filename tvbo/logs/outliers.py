"""Outliers of a log: rows far from what the other rows predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from scipy.special import ndtri
from torch import Tensor

from tvbo.logs.dataset import DriftLog
from tvbo.logs.likelihood import covariance_of, whiten
from tvbo.quadratic_model import Array

NORMAL_MAD = 1.4826
"""Standard deviation of a normal variable, as a multiple of its median absolute deviation (MAD)."""

CLIP = 4.0
"""Distance from the median, in standard deviations by the MAD, to which outcomes are moved for the
first fit. Hardly any outcome of a log without outliers is further out."""

WINDOW, MARGIN = 1000, 250
"""Most rows that predict each other together, and rows at each end of such a window that only
predict. A prediction from part of a log is exact for that part, so the rate of false alarms is."""

FALSE_ALARM_RATE = 0.01
"""Probability that any row of a log without outliers is named; approximate, since the parameters
are estimated from the same rows."""

MAX_REFITS = 10
"""Refits after which the search ends; a message says so."""

SHARE = 0.05
"""Share of outliers above which they are said to look like heavy tails."""

NAMED = 5
"""Outliers that a message names; ``DriftFit.outliers`` has all."""


def is_outlier(residuals: Tensor, kept: Tensor) -> Tensor:
    """Return which rows are outliers, a mask.

    A normal variable exceeds the threshold with probability ``FALSE_ALARM_RATE / n`` (Bonferroni).

    Args:
        residuals: ``n`` standardized residuals. Where the kept ones vary by more than one, as
            they do in a model with too little noise, all are divided by their spread.
        kept: ``n``, a mask of the rows to which the model was fitted.
    """
    threshold = -float(ndtri(0.5 * FALSE_ALARM_RATE / len(residuals)))
    spread = max(1.0, NORMAL_MAD * residuals[kept].abs().median().item())
    return residuals.abs() > spread * threshold


@dataclass(frozen=True)
class LogModel:
    """A fitted model of a log, which predicts its rows from each other.

    Args:
        covar_module: The kernel over actions.
        mean: The prior mean.
        theta: All parameters as they were searched, first the logarithms of ρ and σ².
    """

    covar_module: Kernel
    mean: float
    theta: Array

    def residuals(self, log: DriftLog, kept: Tensor, given: Tensor) -> Tensor:
        """Return the standardized residual of each row from its prediction by the other kept rows.

        Args:
            log: The observations.
            kept: ``n``, a mask of the rows that predict.
            given: ``n`` outcomes from which is predicted, in place of those of the log.

        Raises:
            NotPSDError: if the covariance is singular to rounding.
        """
        residuals = torch.empty_like(log.Y)
        core = len(log) if len(log) <= WINDOW else WINDOW - 2 * MARGIN
        for start in range(0, len(log), core):
            first = max(0, start - MARGIN)
            window = slice(first, start + core + MARGIN)
            found = self._in_window(log.rows(window), kept[window], given[window])
            residuals[start : start + core] = found[start - first :][:core]
        return residuals

    @torch.no_grad()
    def _in_window(self, log: DriftLog, kept: Tensor, given: Tensor) -> Tensor:
        rate, noise_variance = torch.as_tensor(self.theta[:2]).exp()
        covar = covariance_of(log, self.covar_module, rate, noise_variance)
        error, error_given = log.Y - self.mean, given - self.mean
        series = torch.cat([error_given[kept, None], covar[kept][:, ~kept]], dim=-1)
        root, white = whiten(covar[kept][:, kept], series)
        precision = torch.cholesky_inverse(root)
        # An outcome less its prediction by the others is (Σ^-1 r)_i / (Σ^-1)_ii, of variance
        # 1 / (Σ^-1)_ii.
        scale = precision.diagonal().sqrt()
        residuals = torch.empty_like(error)
        moved = log.Y[kept] - given[kept]
        residuals[kept] = precision @ error_given[kept] / scale + moved * scale
        predicted = white[:, 1:].mT @ white[:, 0]
        variance = covar.diagonal()[~kept] - white[:, 1:].square().sum(dim=0)
        residuals[~kept] = (error[~kept] - predicted) / variance.sqrt()
        return residuals


def outlier_messages(outliers: Sequence[tuple[int, float]], n: int, settled: bool) -> list[str]:
    """Return what the user of a fit without some of ``n`` rows has to know.

    Args:
        outliers: Number and standardized residual of each row that was left out.
        n: Number of rows.
        settled: Whether the last refit found the same ones.
    """
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
            f"{len(outliers) / n:.0%} of the rows are outliers, which looks like noise with heavy "
            "tails, or like jumps, rather than like single faults."
        )
    if not settled:
        messages.append("The outliers still changed with the last refit.")
    return messages


def clipped(Y: Tensor) -> Tensor:
    """Return outcomes moved to within :data:`CLIP` robust standard deviations of their median.

    Those of which more than half are equal are returned as they are, because they have none.
    """
    middle = Y.median()
    reach = CLIP * NORMAL_MAD * (Y - middle).abs().median()
    return Y if reach == 0 else Y.clamp(middle - reach, middle + reach)
