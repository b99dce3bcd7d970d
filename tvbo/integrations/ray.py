"""A population scheduler of Ray Tune that learns schedules: ``pip install 'botorch-tvbo[ray]'``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any, Unpack

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Integer,
    LogUniform,
    Normal,
    Quantized,
)
from ray.tune.utils.util import flatten_dict, unflatten_dict

from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.integrations.adapter import MAX_TRIALS, HostTrial, ask, observed_range, optimizer_of
from tvbo.optimizers import GPOptimizer
from tvbo.recipes import GPOptions
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number

__all__ = ["TimeVaryingPB2"]


class TimeVaryingPB2(PopulationBasedTraining):
    """Population-based bandits (PB2) whose explore step is ``tv_cgp_ucb``.

    As with :class:`ray.tune.schedulers.pb2.PB2`, members that do badly go on from the checkpoint of
    one that does well, with hyperparameters that a Gaussian process chooses. Its outcome is the
    gain of the metric per unit of time between two perturbations, its time that at which the
    interval began, its context the metric then. Intervals of other members that are not over are
    pending, and one that ended in an error has failed. The newest 200 count. Kernel, noise and
    drift are learned in each step.

    Args:
        time_attr: Result that is time, which increases with training.
        metric: Result to optimize; None is that of the ``TuneConfig``.
        mode: ``"max"`` or ``"min"``; None is that of the ``TuneConfig``.
        perturbation_interval: Time between two perturbations of a member.
        hyperparam_bounds: Hyperparameters by name, which may be nested: ``[low, high]``, whose
            values have the type of those in the member's config; or ``tune.uniform``,
            ``loguniform``, ``randint``, ``lograndint``, their quantized forms, and ``choice``. What
            a config lacks is drawn at random.
        quantile_fraction: Share of members that are replaced, and of those that replace them.
        log_config: Whether to write each change to the folder of the experiment.
        require_attrs: Whether a result without time or metric is an error.
        synch: Whether all members are perturbed together.
        custom_explore_fn: Function that returns a chosen config as it is to be used.
        seed: Seed of the explore steps; which member is cloned is drawn by Ray.
        **options: Options of :func:`tvbo.recipes.tv_cgp_ucb`, such as ``beta``.

    Raises:
        ValueError: if ``hyperparam_bounds`` are empty, or one is none of these.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        hyperparam_bounds: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        log_config: bool = True,
        require_attrs: bool = True,
        synch: bool = False,
        custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        seed: int = 0,
        **options: Unpack[GPOptions],
    ):
        bounds = dict(hyperparam_bounds or {})
        self._flat_bounds = flatten_dict(bounds, prevent_delimiter=True)
        parts = tuple(_part(*each) for each in self._flat_bounds.items())
        if not parts:
            raise ValueError(f"Expected hyperparam_bounds. Got {hyperparam_bounds!r}.")
        self._options: dict[str, Any] = {"generator": seed, **options, "bounds": Parameters(parts)}
        self._told: list[HostTrial] = []
        # Of each member the interval that is under way.
        self._begun: dict[str, HostTrial] = {}
        self._optimizer: GPOptimizer | None = None
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            hyperparam_mutations=bounds,
            quantile_fraction=quantile_fraction,
            resample_probability=0.0,
            custom_explore_fn=custom_explore_fn,
            log_config=log_config,
            require_attrs=require_attrs,
            synch=synch,
        )

    def drift(self) -> DriftEstimate | None:
        """Return how fast old intervals lose their value, with an interval; None before a fit."""
        optimizer = self._optimizer
        return optimizer.drift() if optimizer is not None and optimizer.model_size else None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Draw what the config of a member lacks, and add it."""
        config = flatten_dict(trial.config, prevent_delimiter=True)
        for name, given in self._flat_bounds.items():
            if name not in config:
                config[name] = trial.evaluated_params[name] = _domain(given).sample(None)
        trial.config.update(unflatten_dict(config))
        super().on_trial_add(tune_controller, trial)

    def _save_trial_state(self, state: Any, time: Any, result: Any, trial: Trial) -> float:
        """Note the interval that is over, and that which begins."""
        score: float = super()._save_trial_state(state, time, result, trial)
        config = flatten_dict(trial.config, prevent_delimiter=True)
        parameters = {name: config[name] for name in self._flat_bounds}
        begun = self._begun.pop(trial.trial_id, None)
        if begun is not None and time > begun.t:
            gain = (score - begun.context[0]) / (time - begun.t)
            self._told.append(HostTrial(parameters, begun.t, begun.context, gain))
            del self._told[:-MAX_TRIALS]
        if math.isfinite(score):
            self._begun[trial.trial_id] = HostTrial(parameters, float(time), [score])
        return score

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Note that the interval of a member has failed."""
        if (begun := self._begun.pop(trial.trial_id, None)) is not None:
            self._told.append(replace(begun, lost="error"))
        super().on_trial_error(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: Any) -> None:
        """Forget the interval that a member has not begun."""
        self._begun.pop(trial.trial_id, None)
        super().on_trial_complete(tune_controller, trial, result)

    def _get_new_config(
        self, trial: Trial, trial_to_clone: Trial
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the config with which a member goes on from the state of another."""
        config = flatten_dict(deepcopy(trial_to_clone.config), prevent_delimiter=True)
        start = self._begun.get(trial_to_clone.trial_id)
        if start is None:  # Its metric is not finite.
            return deepcopy(trial_to_clone.config), {}
        others = [each for name, each in self._begun.items() if name != trial.trial_id]
        trials = [*self._told, *others]
        optimizer = self._optimizer = optimizer_of(
            trials,
            **self._options,
            context_bounds=observed_range([trial.context for trial in trials]),
            contexts_outside="extend",
        )
        (asked,) = ask(optimizer, start.t, start.context)
        for name, given in self._flat_bounds.items():
            config[name] = _cast(given, asked.parameters[name], config[name])
        parameters = {name: config[name] for name in self._flat_bounds}
        self._begun[trial.trial_id] = HostTrial(parameters, start.t, start.context)
        new: dict[str, Any] = unflatten_dict(config)
        return (new if self._custom_explore_fn is None else self._custom_explore_fn(new)), {}


def _domain(given: Any) -> Domain:
    """Return what a hyperparameter is drawn from."""
    return given if isinstance(given, Domain) else Float(*map(float, given)).uniform()


def _step(given: Domain) -> float:
    """Return the size of the steps of a quantized domain; 0 for others."""
    return getattr(given.get_sampler(), "q", 0)


def _part(name: str, given: Any) -> Number | Category:
    """Return a parameter of ours."""
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] < given[1]:
        return Number(name, float(given[0]), float(given[1]))
    sampler = given.get_sampler() if isinstance(given, Domain) else None
    sampler = sampler.get_sampler() if isinstance(sampler, Quantized) else sampler
    is_log = isinstance(sampler, LogUniform)
    if isinstance(given, Categorical):
        return Category(name, given.categories)
    if isinstance(given, Integer):
        upper = given.upper if _step(given) > 1 else given.upper - 1
        return Number(name, given.lower, upper, is_integer=True, is_log=is_log)
    if isinstance(given, Float) and not isinstance(sampler, Normal):
        return Number(name, given.lower, given.upper, is_log=is_log)
    raise ValueError(
        f"Expected [low, high], or a bounded domain of Ray Tune for {name}. Got {given!r}."
    )


def _cast(given: Any, value: Any, before: Any) -> Any:
    """Return a value as the config has it: on its grid, or of the type that it had before."""
    if not isinstance(given, Domain):
        return type(before)(round(value) if isinstance(before, int) else value)
    if (q := _step(given)) and isinstance(given, Float | Integer):
        places = math.ceil(given.lower / q), math.floor(given.upper / q)
        value = min(max(round(value / q), places[0]), places[1]) * q
    return given.cast(value)
