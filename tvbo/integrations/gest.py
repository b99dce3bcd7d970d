"""A generator of gest-api, as Xopt, Badger, optimas and libEnsemble run: extra ``gest``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Unpack

import pandas as pd
from gest_api.generator import Generator
from gest_api.vocs import (
    VOCS,
    BaseConstraint,
    BoundsConstraint,
    ContextualVariable,
    ContinuousVariable,
    DiscreteVariable,
    ExploreObjective,
    LessThanConstraint,
    MinimizeObjective,
)

from tvbo.integrations.adapter import HostTrial, ask, observed_range, optimizer_of
from tvbo.recipes import GPOptions
from tvbo.recommendation import Recommendation
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number

__all__ = ["TimeVaryingGenerator"]


class TimeVaryingGenerator(Generator):
    """Suggest what is best at the present, by ``tv_gp_ucb``, for any VOCS.

    The model is learned again in each :meth:`suggest` from the newest 200 points. Points that were
    suggested and not ingested yet are pending. A result whose objectives and constraints are not
    all finite has failed, as one that Xopt calls an error, and tells where others would.

    Args:
        vocs: Variables, continuous, discrete or contextual; objectives to minimize or maximize;
            constraints.
        clock: Function that returns the present time; None counts calls of :meth:`suggest`.
        time: Name under which a result may have the time at which it was measured. Without, it has
            that of its suggestion; or of the newest one, if it was not suggested.
        **options: Options of :func:`tvbo.recipes.tv_gp_ucb`, such as ``forgetting_rate``.

    Raises:
        ValueError: if there is nothing to choose, or no objective, one to explore, an array among
            the variables, or one with the name of the time.
    """

    returns_id = True

    def __init__(
        self,
        vocs: VOCS,
        *,
        clock: Callable[[], float] | None = None,
        time: str = "time",
        **options: Unpack[GPOptions],
    ):
        self.vocs, self.clock, self.time = vocs, clock, time
        super().__init__(vocs)
        self._trials: dict[int, HostTrial] = {}
        self._num_suggested = 0
        limits = {name: _limits(each) for name, each in vocs.constraints.items()}
        smaller = [n for n, o in vocs.objectives.items() if isinstance(o, MinimizeObjective)]
        self._options: dict[str, Any] = {
            "generator": 0,
            **options,
            "bounds": self._parameters,
            "objectives": vocs.objective_names,
            "minimize": smaller,
            "constraints": limits or None,
        }
        self._outcomes = list(dict.fromkeys([*vocs.objectives, *vocs.constraints]))

    def _validate_vocs(self, vocs: VOCS) -> None:
        explored = [n for n, o in vocs.objectives.items() if isinstance(o, ExploreObjective)]
        arrays = [n for n, each in vocs.variables.items() if isinstance(each.dtype, tuple)]
        if not vocs.objectives or explored or arrays or self.time in vocs.variables:
            raise ValueError(
                "Expected objectives to minimize or maximize, variables that are numbers or "
                f"categories, and none with the name {self.time!r}, which is for time. Got {vocs}."
            )
        self._contexts = [
            n for n, each in vocs.variables.items() if isinstance(each, ContextualVariable)
        ]
        actions = {n: each for n, each in vocs.variables.items() if n not in self._contexts}
        self._parameters = Parameters(tuple(_part(*each) for each in actions.items()))
        if self._parameters.dim == 0:
            raise ValueError(f"Expected a variable to choose that can vary. Got {vocs}.")

    def suggest(
        self,
        num_points: int | None = None,
        t: float | None = None,
        context: Mapping[str, float] | None = None,
    ) -> list[dict[str, Any]]:
        """Return points to evaluate, with the constants and ``"_id"``, without contexts.

        Args:
            num_points: Number of points; None is one.
            t: The present time; None is that of the clock.
            context: The values of the contextual variables; None is those of the newest result.

        Raises:
            ValueError: if ``num_points`` is below 1, or the context has other names.
        """
        if num_points is not None and num_points < 1:
            raise ValueError(f"Expected num_points of at least 1. Got {num_points}.")
        trials, row, options = self._view(context)
        self._num_suggested += 1
        now = self._now() if t is None else t
        asked = ask(optimizer_of(trials, **options), now, row, num_points or 1)
        constants = {name: each.value for name, each in self.vocs.constants.items()}
        points = []
        for trial in asked:
            number = len(self._trials) + 1
            self._trials[number] = HostTrial(trial.parameters, now)
            points.append({**trial.parameters, **constants, "_id": number})
        return points

    def ingest(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Take in results: all of them or none.

        Args:
            results: Points with their outcomes. Those that were not suggested have no ``"_id"``.

        Raises:
            ValueError: if an ``"_id"`` is unknown or has its result, or a name is missing.
            InputDataError: if a variable has a value that it cannot have.
        """
        trials = dict(self._trials)
        for result in results:
            number, begun = result.get("_id"), None
            if number is None or math.isnan(number):
                number = len(trials) + 1
            elif (begun := trials.get(int(number))) is None or begun.Y is not None:
                raise ValueError(f"Expected the _id of a pending point. Got {number}.")
            trials[int(number)] = self._told(result, begun)
        self._trials = trials

    def add_data(self, new_data: pd.DataFrame) -> None:
        """Take in a table of results that were not suggested, as a new Xopt does with its data."""
        self.ingest(new_data.drop(columns="_id", errors="ignore").to_dict("records"))

    def recommend(
        self, t: float | None = None, context: Mapping[str, float] | None = None
    ) -> Recommendation:
        """Return the point with the best posterior mean.

        Args:
            t: The time; None is that of the newest result.
            context: As of :meth:`suggest`.

        Raises:
            InputDataError: if there are no points yet and no ``t``.
            ValueError: if there are several objectives.
        """
        trials, row, options = self._view(context)
        return optimizer_of(trials, **options).recommend(row, t)

    def state_dict(self) -> dict[str, Any]:
        """Return all points, pending ones too, as data that JSON can hold."""
        trials = {str(number): asdict(trial) for number, trial in self._trials.items()}
        return {"num_suggested": self._num_suggested, "trials": trials}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a generator with the same VOCS."""
        trials = {int(number): HostTrial(**trial) for number, trial in state["trials"].items()}
        self._trials, self._num_suggested = trials, state["num_suggested"]

    def _now(self) -> float:
        return float(self._num_suggested if self.clock is None else self.clock())

    def _told(self, result: Mapping[str, Any], begun: HostTrial | None) -> HostTrial:
        """Return the trial of a result, which was pending if it was suggested."""
        has_failed = bool(result.get("xopt_error"))
        names = [*self._parameters.names, *self._contexts, *(() if has_failed else self._outcomes)]
        if missing := [name for name in names if name not in result]:
            raise ValueError(f"Expected a result with {', '.join(missing)}. Got {dict(result)}.")
        parameters = {name: result[name] for name in self._parameters.names}
        self._parameters.encode(parameters)
        t = result.get(self.time, self._now() if begun is None else begun.t)
        Y = {name: float(result.get(name, math.nan)) for name in self._outcomes}
        context = {name: float(result[name]) for name in self._contexts}
        return HostTrial(parameters, float(t), context or None, Y)

    def _view(
        self, context: Mapping[str, float] | None
    ) -> tuple[list[HostTrial], Any, dict[str, Any]]:
        """Return the trials, the present context and the options of an optimizer for it.

        Points that are pending, and had no context, have the present one. As long as none is known,
        there are no contexts.
        """
        trials = list(self._trials.values())
        if context is None:
            context = next((each.context for each in reversed(trials) if each.context), None)
        if context is None:
            return trials, None, self._options
        if context.keys() != set(self._contexts):
            raise ValueError(f"Expected a context of {self._contexts}. Got {dict(context)}.")
        *rows, row = (
            [float(each[name]) for name in self._contexts]
            for each in [*(trial.context or context for trial in trials), context]
        )
        trials = [replace(each, context=here) for each, here in zip(trials, rows, strict=True)]
        bounds = {"context_bounds": observed_range([*rows, row]), "contexts_outside": "extend"}
        return trials, row, {**self._options, **bounds}


def _part(name: str, variable: ContinuousVariable | DiscreteVariable) -> Number | Category:
    """Return a parameter of ours; numbers to choose from have an order."""
    if isinstance(variable, ContinuousVariable):
        return Number(name, float(variable.domain[0]), float(variable.domain[1]))
    is_ordered = all(isinstance(each, int | float) for each in variable.values)
    return Category(name, sorted(variable.values, key=None if is_ordered else str), is_ordered)


def _limits(constraint: BaseConstraint) -> tuple[float | None, float | None]:
    """Return lower and upper limit."""
    if isinstance(constraint, BoundsConstraint):
        return constraint.range[0], constraint.range[1]
    is_upper = isinstance(constraint, LessThanConstraint)
    return (None, constraint.value) if is_upper else (constraint.value, None)
