"""Several outcomes of one action: which are sought, and which must stay within limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from botorch.models.transforms import Standardize
from torch import Tensor

from tvbo.spaces.labels import OUTCOME
from tvbo.values import check_probability

Limits = Mapping[str, tuple[float | None, float | None]]
"""Lower and upper limit of outcomes by name; None is no limit."""


@dataclass(frozen=True)
class Goals:
    """What is sought of several outcomes.

    Args:
        names: Names of the outcomes, the objectives first.
        thresholds: For each objective the worst value of interest, its part of the reference point
            of a hypervolume; None where it is inferred.
        minimized: Names of the objectives of which smaller values are better.
        limits: For each constraint the place of its outcome, and its lower and upper limit.
        min_feasibility: Probability with which an action must satisfy all constraints.
    """

    names: tuple[str, ...]
    thresholds: tuple[float | None, ...]
    minimized: tuple[str, ...] = ()
    limits: tuple[tuple[int, float, float], ...] = ()
    min_feasibility: float = 0.95

    @classmethod
    def of(
        cls,
        objectives: Sequence[str] | Mapping[str, float | None] | None = None,
        constraints: Limits | None = None,
        minimize: bool | Collection[str] | None = None,
        min_feasibility: float | None = None,
    ) -> Goals:
        """Return the goals that options of a recipe state.

        Args:
            objectives: Names of the objectives, or their thresholds by name; None is one objective
                with the name ``"outcome"``.
            constraints: Lower and upper limit of outcomes by name.
            minimize: Whether smaller values of the objective are better, or the names of those
                objectives of which they are.
            min_feasibility: Probability with which an action must satisfy all constraints; None is
                0.95.

        Raises:
            ValueError: if a name is not text or is given twice, a limit or threshold is not a
                number, or the probability is not between 0 and 1.
        """
        if isinstance(objectives, str):
            raise ValueError(f"Expected a list of objectives. Got {objectives!r}.")
        named = objectives if isinstance(objectives, Mapping) else dict.fromkeys(objectives or ())
        named = dict(named) or {OUTCOME: None}
        if objectives is not None and len(named) < len(objectives):
            raise ValueError(f"Expected objectives that differ. Got {list(objectives)}.")
        constraints = {} if constraints is None else dict(constraints)
        names = tuple(dict.fromkeys([*named, *constraints]))
        if bad := [name for name in names if not isinstance(name, str) or not name]:
            raise ValueError(f"Expected names of outcomes in text. Got {bad[0]!r}.")
        level = 0.95 if min_feasibility is None else min_feasibility
        check_probability(min_feasibility=level)
        limits = tuple((names.index(name), *_pair(name, constraints[name])) for name in constraints)
        # A threshold is a lower limit.
        thresholds = tuple(
            None if value is None else _pair(name, (value, None))[0]
            for name, value in named.items()
        )
        if len(named) == 1 and thresholds != (None,):
            raise ValueError(
                "Expected thresholds of several objectives only: a limit is a constraint. Got "
                f"{dict(named)}."
            )
        return cls(names, thresholds, _minimized(tuple(named), minimize), limits, float(level))

    @property
    def num_objectives(self) -> int:
        """Number of objectives, the first of the outcomes."""
        return len(self.thresholds)

    @property
    def signs(self) -> Tensor:
        """What each outcome is multiplied by, so that larger objectives are better, ``m``."""
        signs = [-1.0 if name in self.minimized else 1.0 for name in self.names]
        return torch.tensor(signs, dtype=torch.float64)

    def place_of(self, outcome: str | None) -> int:
        """Return the place of an outcome by its name; None is the first.

        Raises:
            ValueError: if there is no such outcome.
        """
        if outcome is not None and outcome not in self.names:
            raise ValueError(f"Expected one of {', '.join(self.names)}. Got {outcome!r}.")
        return 0 if outcome is None else self.names.index(outcome)

    def standardized(self, transforms: Sequence[Standardize]) -> Goals:
        """Return the goals of outcomes multiplied by :attr:`signs`, then standardized."""
        signs = self.signs.tolist()

        def value(place: int, outcome: float) -> float:
            transform = transforms[place]
            shifted: float = signs[place] * outcome - transform.means.item()
            return shifted / transform.stdvs.item()

        thresholds = [
            None if threshold is None else value(place, threshold)
            for place, threshold in enumerate(self.thresholds)
        ]
        # A sign that is negative turns an interval round.
        limits = [
            (place, min(ends), max(ends))
            for place, low, high in self.limits
            for ends in [(value(place, low), value(place, high))]
        ]
        return replace(self, thresholds=tuple(thresholds), limits=tuple(limits), minimized=())


def _pair(name: str, limits: object) -> tuple[float, float]:
    """Return lower and upper limit; raise ``ValueError`` unless they are a pair of numbers."""
    try:
        pair = zip(cast("tuple[Any, Any]", limits), (-math.inf, math.inf), strict=True)
        low, high = (none if limit is None else float(limit) for limit, none in pair)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (low < high and (math.isfinite(low) or math.isfinite(high))):
        raise ValueError(
            f"Expected numbers as lower and upper limit of {name}, such as (None, 100.0). Got "
            f"{limits!r}."
        )
    return low, high


def _minimized(
    objectives: tuple[str, ...], minimize: bool | Collection[str] | None
) -> tuple[str, ...]:
    """Return the names of the objectives of which smaller values are better."""
    given = objectives if minimize is True and len(objectives) == 1 else minimize or ()
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Collection) or not all(name in objectives for name in names):
        raise ValueError(
            f"Expected minimize to be False, to name some of {', '.join(objectives)}, or of one to "
            f"be True. Got {minimize!r}."
        )
    return tuple(names)
