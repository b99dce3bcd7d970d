"""A sampler of Optuna for objectives that drift: ``pip install 'botorch-tvbo[optuna]'``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Unpack

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.samplers._base import _process_constraints_after_trial
from optuna.search_space import intersection_search_space
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tvbo.integrations.adapter import HostTrial, ask, optimizer_of
from tvbo.recipes import GPOptions
from tvbo.spaces import Parameters
from tvbo.spaces.labels import TimeScale
from tvbo.spaces.parameters import Category, Number

__all__ = ["TimeVaryingSampler"]

logger = logging.getLogger("tvbo.integrations")

Distributions = Mapping[str, BaseDistribution]

ANNOUNCED = "tvbo:announced"
"""Attribute of a trial whose parameters are chosen, for processes that choose at the same time."""

NEAR = 0.01
"""Part of the range of each parameter within which two pending trials are the same."""

MAX_CHOICES = 5
"""Number of times that a trial is chosen, where other processes choose the same meanwhile."""


class TimeVaryingSampler(BaseSampler):
    """Suggest what is best at the time of the trial, in any study, by ``tv_gp_ucb``.

    The model is learned again in each trial from the newest 200 trials of the study and from
    nothing else, so that several processes may take a study further, and a new one goes on like
    that before it. Trials that are running count as pending. Those that failed or were pruned tell
    where others probably would. A parameter that not every completed trial has, as in a first
    trial, is sampled at random.

    Args:
        clock: Time of a trial. None is its number; a unit as pandas writes it, such as ``"1h"``, is
            ``datetime_start`` in this unit; or a function of the trial.
        context_bounds: Contexts by name, as of :func:`tvbo.recipes.tv_cgp_ucb`. Each trial has them
            as user attributes, set before its first parameter is suggested; trials without are not
            read.
        constraints_func: Function of a completed trial; the trial is feasible if none of its values
            is above 0. ``Trial.set_constraint`` does the same.
        seed: Seed of every random choice. None: parameters sampled at random differ between
            processes.
        **options: Options of :func:`tvbo.recipes.tv_gp_ucb`, such as ``forgetting_rate``.

    Raises:
        ValueError: if ``clock`` is no unit of time.
        InputDataError: if ``context_bounds`` are no parameters.
    """

    def __init__(
        self,
        *,
        clock: str | Callable[[FrozenTrial], float] | None = None,
        context_bounds: Mapping[str, Any] | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        seed: int | None = None,
        **options: Unpack[GPOptions],
    ):
        self._clock = TimeScale(clock) if isinstance(clock, str) else clock
        self._contexts = None if context_bounds is None else Parameters.of(context_bounds)
        self._constraints_func = constraints_func
        self._independent_sampler = RandomSampler(seed)
        self._warned: set[str] = set()
        self._options: dict[str, Any] = {"generator": seed or 0, **options}

    def reseed_rng(self) -> None:
        """Draw a new seed for what is sampled at random."""
        self._independent_sampler.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the parameters that all completed trials have, with the same distributions."""
        shared = intersection_search_space(study.get_trials(deepcopy=False))
        return {name: each for name, each in shared.items() if not each.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of a trial.

        Raises:
            ValueError: if the trial has not the contexts, or completed trials differ in their
                constraints.
        """
        if not search_space:
            return {}
        context = self._context(trial)
        if context is None and self._contexts is not None:
            raise ValueError(
                f"Expected the user attributes {self._contexts.names} of trial {trial.number}, "
                f"before its first parameter is suggested. Got {trial.user_attrs}."
            )
        options, trials = self._options_of(study, search_space), self._trials(study, search_space)
        apart, q = NEAR * (options["bounds"].bounds[1] - options["bounds"].bounds[0]), 1
        for _ in range(MAX_CHOICES):
            trials.pop(trial.number, None)
            optimizer = optimizer_of(list(trials.values()), **options)
            *_, asked = ask(optimizer, self._time(trial), context, q)
            chosen = _in_study(search_space, asked.parameters)
            stored = {name: search_space[name].to_internal_repr(chosen[name]) for name in chosen}
            study._storage.set_trial_system_attr(trial._trial_id, ANNOUNCED, json.dumps(stored))
            known = [(number, each.parameters) for number, each in trials.items()]
            trials = self._trials(study, search_space)
            same = [
                number
                for number, each in trials.items()
                if number != trial.number and (number, each.parameters) not in known
                if ((asked.X - options["bounds"].encode(each.parameters)).abs() <= apart).all()
            ]
            if not same:
                break
            # Those that chose the same all choose again, and each another one.
            q = 1 + sum(number < trial.number for number in same)
        return chosen

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a random value of a parameter that not all completed trials have."""
        is_first = not any(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
        if not is_first and param_name not in self._warned:
            self._warned.add(param_name)
            logger.warning(
                "%s of trial %d is random, and so it will be in later trials: the model has the "
                "parameters that all completed trials have, with the same distributions.",
                param_name,
                trial.number,
            )
        return self._independent_sampler.sample_independent(
            study, trial, param_name, param_distribution
        )

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Store the constraints of a trial."""
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)

    def recommend(
        self, study: Study, t: float | None = None, context: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], float, float]:
        """Return the parameters with the best posterior mean at a time.

        ``study.best_params`` are those with the best outcome there ever was.

        Args:
            study: The study.
            t: The time; None is that of the newest outcome.
            context: The context, where there are contexts.

        Returns:
            The parameters, and mean and standard deviation of the objective there.

        Raises:
            ValueError: if no trial is completed, or there are several objectives.
        """
        search_space = self.infer_relative_search_space(study, study.trials[-1])
        options, trials = self._options_of(study, search_space), self._trials(study, search_space)
        best = optimizer_of(list(trials.values()), **options).recommend(context, t)
        return _in_study(search_space, best.parameters), best.mean, best.standard_deviation

    def _time(self, trial: FrozenTrial) -> float:
        if self._clock is None:
            return float(trial.number)
        if isinstance(self._clock, TimeScale):
            return self._clock.to_number(trial.datetime_start)
        return self._clock(trial)

    def _context(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """Return the context of a trial; None if it has not all of it."""
        names = [] if self._contexts is None else self._contexts.names
        context = {name: trial.user_attrs.get(name) for name in names}
        return None if not names or None in context.values() else context

    def _options_of(self, study: Study, search_space: Distributions) -> dict[str, Any]:
        """Return the options of the optimizer of a study."""
        bounds = Parameters(tuple(_part(*each) for each in search_space.items()))
        options = {**self._options, "bounds": bounds}
        if self._contexts is not None:
            options["context_bounds"] = self._contexts
        smaller = [direction == StudyDirection.MINIMIZE for direction in study.directions]
        options["minimize"] = smaller[0]
        if len(smaller) > 1:
            options["objectives"] = names = _objectives(study)
            options["minimize"] = list(compress(names, smaller))
        if constraints := _constraints(study):
            options["constraints"] = dict.fromkeys(constraints, (None, 0.0))
        return options

    def _trials(self, study: Study, search_space: Distributions) -> dict[int, HostTrial]:
        """Return the trials of a study that have all parameters and the context, by number."""
        names, found = [*_objectives(study), *_constraints(study)], {}
        for trial in study.get_trials(deepcopy=False):
            context = self._context(trial)
            values = json.loads(trial.system_attrs.get(ANNOUNCED, "{}"))
            for name, each in trial.distributions.items():
                values[name] = each.to_internal_repr(trial.params[name])
            if (
                trial.state == TrialState.WAITING
                or (context is None and self._contexts is not None)
                or not all(n in values and d._contains(values[n]) for n, d in search_space.items())
            ):
                continue
            Y, lost = None, ""
            if trial.state == TrialState.COMPLETE:
                outcomes = [*trial.values, *(f for _, f in sorted(trial.constraints.items()))]
                Y = outcomes[0] if len(names) == 1 else dict(zip(names, outcomes, strict=True))
            elif trial.state != TrialState.RUNNING:
                lost = trial.state.name.lower()
            parameters = {name: _own(each, values[name]) for name, each in search_space.items()}
            found[trial.number] = HostTrial(parameters, self._time(trial), context, Y, lost=lost)
        return found


def _objectives(study: Study) -> list[str]:
    """Return names of the objectives; a single one has that of every recipe."""
    if len(study.directions) == 1:
        return ["outcome"]
    return [f"objective {place}" for place, _ in enumerate(study.directions)]


def _constraints(study: Study) -> list[str]:
    """Return names of the constraints, in order.

    Raises:
        ValueError: if completed trials differ in them.
    """
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    names = {tuple(sorted(trial.constraints)) for trial in completed}
    if len(names) > 1:
        raise ValueError(
            f"Expected the same constraints of all completed trials of the study. Got {names}."
        )
    return [f"constraint {name}" for each in names for name in each]


def _part(name: str, given: Any) -> Number | Category:
    """Return a parameter of ours; steps are counted, and choices are numbered."""
    if isinstance(given, CategoricalDistribution):
        return Category(name, range(len(given.choices)))
    if step := _step(given):
        return Number(name, 0, round((given.high - given.low) / step), is_integer=True)
    return Number(name, given.low, given.high, isinstance(given, IntDistribution), given.log)


def _step(given: Any) -> float | None:
    """Return the size of the steps of a distribution; None if it has no equal ones."""
    step: float | None = getattr(given, "step", None)
    return None if isinstance(given, CategoricalDistribution) or given.log else step


def _own(given: Any, internal: float) -> Any:
    """Return the value of a parameter of ours."""
    if step := _step(given):
        return round((internal - given.low) / step)
    return internal if isinstance(given, FloatDistribution) else int(internal)


def _in_study(search_space: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of ours as a study has them."""
    found = {}
    for name, given in search_space.items():
        value = parameters[name]
        if step := _step(given):
            value = min(given.low + value * step, given.high)
        found[name] = given.to_external_repr(value)
    return found
