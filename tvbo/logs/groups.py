"""Fits of a log in groups, such as machines: a drift rate for each, and one for all."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from torch import Tensor

from tvbo.logs.drift_fit import fit_drift
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.saved import SavedFit
from tvbo.terminal import patient_steps

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3
"""Fewest rows of a group."""


class FitOptions(TypedDict, total=False):
    """Options of :func:`tvbo.logs.fit_drift` that hold for every group."""

    time_feature: int
    covar_module: Kernel | None
    noise_variance: float | None
    mean: float | None
    time_unit: str
    level: float
    num_starts: int
    outliers: bool


@dataclass(frozen=True, repr=False)
class GroupedDriftFit(SavedFit):
    """The drift rates of the groups of a log.

    Args:
        groups: The fit of each group alone, by its label.
        together: One fit of all groups: their functions are independent of each other, with the
            same rate, kernel, noise and mean.
        messages: What the rates say about each other; empty if nothing.
    """

    groups: dict[str, DriftFit]
    together: DriftFit
    messages: list[str]

    def summary(self) -> dict[str, str]:
        """Return the rate of each group, and of ``all``, as text."""
        texts = {}
        for label, fit in {**self.groups, "all": self.together}.items():
            words = fit.summary()
            texts[label] = (
                f"ε {words['forgetting rate ε']} ({words[f'{fit.level:.0%} interval']}), half-life "
                f"{words['correlation half-life']}, {fit.n_observations} rows, "
                f"{len(fit.outliers)} outliers"
            )
        return texts

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each group, and a last one, ``all``, for the fit of all of them."""
        import pandas as pd

        return pd.DataFrame(
            {
                "group": label,
                "rows": fit.n_observations,
                "forgetting_rate": fit.forgetting_rate,
                "low": fit.forgetting_rate_interval[0],
                "high": fit.forgetting_rate_interval[1],
                "half_life": fit.half_life,
                "noise_variance": fit.noise_variance,
                "outliers": len(fit.outliers),
            }
            for label, fit in {**self.groups, "all": self.together}.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fits but their kernels, in types of JSON."""
        return {
            "groups": {label: fit.to_dict() for label, fit in self.groups.items()},
            "together": self.together.to_dict(),
            "messages": self.messages,
        }


def fit_drift_by(
    train_X: Tensor,
    train_Y: Tensor,
    groups: Sequence[object] | Tensor,
    train_Yvar: Tensor | None = None,
    *,
    segments: Tensor | None = None,
    row_numbers: Sequence[int] | None = None,
    executor: Executor | None = None,
    progress: bool = True,
    **options: Unpack[FitOptions],
) -> GroupedDriftFit:
    """Learn ε of each group of a log alone, and one ε of all groups together.

    Args:
        train_X: ``n x d`` rows, one column of them time.
        train_Y: ``n x 1`` outcomes.
        groups: ``n`` labels, such as machines.
        train_Yvar: ``n x 1`` known noise variances, or None.
        segments: ``n`` labels of independent segments within groups, or None.
        row_numbers: ``n`` numbers by which outliers are named; None counts from 0.
        executor: Runs the fits, such as a ``ProcessPoolExecutor`` or
            :func:`tvbo.evaluation.dask_executor`; None runs them one after the other.
        progress: Show a progress bar, if the fits take longer than two seconds.
        **options: Options of :func:`tvbo.logs.fit_drift`.

    Raises:
        InputDataError: if a label is missing, there is one group only, or a group has fewer than
            three rows or cannot be fitted; the message names it.
        BotorchTensorDimensionError: if there is not one label for each row.

    Example:
        >>> fit = fit_drift_by(train_X, train_Y, ["lathe", "lathe", ..., "mill"])
        >>> fit.groups["mill"].forgetting_rate, fit.together.forgetting_rate, fit.to_frame()
    """
    labels = _labels(groups, len(train_X))
    names = sorted(set(labels))
    rows = {name: [i for i, label in enumerate(labels) if label == name] for name in names}
    small = [f"{len(part)} in group '{name}'" for name, part in rows.items() if len(part) < FEWEST]
    if small:
        raise InputDataError(
            f"Expected at least {FEWEST} rows in each group. Got {', '.join(small)}."
        )
    if len(names) < 2:
        raise InputDataError(f"Expected at least two groups. Got '{names[0]}' alone.")
    numbers = list(range(len(labels))) if row_numbers is None else list(row_numbers)

    apart = torch.tensor([float(names.index(label)) for label in labels], dtype=torch.float64)
    if segments is not None:
        pairs = torch.stack([apart, segments.to(apart)], dim=-1)
        apart = torch.unique(pairs, dim=0, return_inverse=True)[1].to(apart)
    jobs: list[tuple[Any, ...]] = [
        (
            train_X[part],
            train_Y[part],
            None if train_Yvar is None else train_Yvar[part],
            None if segments is None else segments[part],
            [numbers[i] for i in part],
            options,
        )
        for part in rows.values()
    ]
    # First, since it takes longest.
    jobs.insert(0, (train_X, train_Y, train_Yvar, apart, numbers, options))
    fits: list[DriftFit | None] = [None] * len(jobs)
    steps = [f"{count} of {len(jobs)} fits are done" for count in range(len(jobs) + 1)]
    with patient_steps(steps, "fit_drift_by", progress) as show:
        show(steps[0])
        if executor is None:
            for place, job in enumerate(jobs):
                fits[place] = _named_fit(place, names, job)
                show(steps[place + 1])
        else:
            futures = {
                executor.submit(_named_fit, place, names, job): place
                for place, job in enumerate(jobs)
            }
            try:
                for count, future in enumerate(as_completed(futures), start=1):
                    fits[futures[future]] = future.result()
                    show(steps[count])
            finally:
                for future in futures:
                    future.cancel()
    together, *of_groups = (fit for fit in fits if fit is not None)
    by_group = dict(zip(names, of_groups, strict=True))
    return GroupedDriftFit(by_group, together, _messages(by_group))


def _named_fit(place: int, names: list[str], job: tuple[Any, ...]) -> DriftFit:
    """Return the fit of all groups, which is at place 0, or of one, whose errors name it."""
    train_X, train_Y, train_Yvar, segments, numbers, options = job
    try:
        return fit_drift(
            train_X,
            train_Y,
            train_Yvar,
            segments=segments,
            row_numbers=numbers,
            progress=False,
            **options,
        )
    except InputDataError as error:
        raise InputDataError(
            f"In group '{names[place - 1]}': {error}" if place else error
        ) from error


def _labels(groups: Sequence[object] | Tensor, n: int) -> list[str]:
    """Return one label for each row, as text."""
    labels = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(labels) != n:
        raise BotorchTensorDimensionError(
            f"Expected a group for each of {n} rows. Got {len(labels)} labels."
        )
    for row, label in enumerate(labels):
        if label is None or label != label:
            raise InputDataError(f"Expected a group for each row. Got {label} in row {row}.")
    return [str(label) for label in labels]


def _messages(fits: dict[str, DriftFit]) -> list[str]:
    """Return a message if the intervals of two groups do not overlap."""
    intervals = {name: fit.forgetting_rate_interval for name, fit in fits.items()}
    slowest = min(fits, key=lambda name: intervals[name][1])
    fastest = max(fits, key=lambda name: intervals[name][0])
    low, high = intervals[fastest][0], intervals[slowest][1]
    if low <= high:
        return []
    return [
        f"The groups drift at different rates: the interval of '{fastest}' begins at {low:.3g}, "
        f"that of '{slowest}' ends at {high:.3g}. One rate for all describes neither."
    ]
