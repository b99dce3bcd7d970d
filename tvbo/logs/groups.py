"""Fits of many logs or panels, such as one for each machine, over an executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.logs.drift_fit import fit_drift
from tvbo.logs.drift_result import DriftFit
from tvbo.logs.panel_fit import fit_panel
from tvbo.logs.saved import SavedFit
from tvbo.terminal import patient_steps
from tvbo.values import as_numbers

if TYPE_CHECKING:
    import pandas as pd

    from tvbo.logs.panel_report import PanelFit

Fit = TypeVar("Fit")

FEWEST = 3
"""Fewest rows of a group."""


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
    **options: Any,
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
    train_X, train_Y = as_numbers("train_X", train_X), as_numbers("train_Y", train_Y)
    Yvar = None if train_Yvar is None else as_numbers("train_Yvar", train_Yvar)
    labels = groups.tolist() if isinstance(groups, Tensor) else list(groups)
    if len(labels) != len(train_X):
        raise BotorchTensorDimensionError(
            f"Expected a group for each of {len(train_X)} rows. Got {len(labels)} labels."
        )
    for row, label in enumerate(labels):
        if label is None or label != label:
            raise InputDataError(f"Expected a group for each row. Got {label} in row {row}.")
    names, places = np.unique([str(label) for label in labels], return_inverse=True)
    codes = torch.as_tensor(places)
    parts = {str(name): codes == code for code, name in enumerate(names)}
    counts = {name: int(part.sum()) for name, part in parts.items()}
    if len(counts) < 2 or min(counts.values()) < FEWEST:
        small = [f"{count} in '{name}'" for name, count in counts.items() if count < FEWEST]
        raise InputDataError(
            f"Expected at least two groups, of at least {FEWEST} rows each. Got {len(counts)}"
            f"{''.join(f', {each}' for each in small)}."
        )
    numbers = torch.as_tensor(range(len(labels)) if row_numbers is None else row_numbers)
    own = torch.zeros(len(codes)) if segments is None else as_numbers("segments", segments)
    apart = torch.unique(torch.stack([codes.double(), own], -1), dim=0, return_inverse=True)[1]

    def job(rows: Tensor, within: Tensor) -> Callable[[], DriftFit]:
        return partial(
            fit_drift,
            train_X[rows],
            train_Y[rows],
            None if Yvar is None else Yvar[rows],
            segments=within[rows],
            row_numbers=numbers[rows].tolist(),
            progress=False,
            **options,
        )

    # All together first, since that takes longest.
    jobs = {"all groups": job(codes >= 0, apart)}
    jobs |= {f"group '{name}'": job(part, own) for name, part in parts.items()}
    together, *alone = _fit_each(jobs, "fit_drift_by", executor, progress)
    by_group = dict(zip(parts, alone, strict=True))
    return GroupedDriftFit(by_group, together, _messages(by_group))


def fit_panels(
    panels: Mapping[str, tuple[Tensor, Tensor]],
    *,
    executor: Executor | None = None,
    progress: bool = True,
    **options: Any,
) -> dict[str, PanelFit]:
    """Fit several panels, such as one for each site.

    Args:
        panels: Values and times of each panel, by its name.
        executor: As of :func:`fit_drift_by`.
        progress: Show a progress bar, if the fits take longer than two seconds.
        **options: Options of :func:`tvbo.logs.fit_panel`.

    Raises:
        InputDataError: if a panel cannot be fitted; the message names it.

    Example:
        >>> fits = fit_panels({"north": (values, times), "south": (others, times)})
        >>> fits["north"].optimizer()
    """
    jobs = {
        f"panel '{name}'": partial(fit_panel, values, times, **options)
        for name, (values, times) in panels.items()
    }
    return dict(zip(panels, _fit_each(jobs, "fit_panels", executor, progress), strict=True))


def _fit_each(
    jobs: Mapping[str, Callable[[], Fit]], label: str, executor: Executor | None, progress: bool
) -> list[Fit]:
    """Return the fit of each job, whose name is in its errors."""
    run = map if executor is None else executor.map
    steps = [f"{count} of {len(jobs)} fits are done" for count in range(len(jobs) + 1)]
    fits: list[Fit] = []
    with patient_steps(steps, label, progress) as show:
        show(steps[0])
        for fit in run(_named_fit, jobs, jobs.values()):
            fits.append(fit)
            show(steps[len(fits)])
    return fits


def _named_fit(name: str, fit: Callable[[], Fit]) -> Fit:
    try:
        return fit()
    except InputDataError as error:
        raise InputDataError(f"In {name}: {error}") from error


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
