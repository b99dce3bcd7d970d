"""The default of ``tv_gp_ucb`` inside Ax: ``pip install 'botorch-tvbo[ax]'``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Unpack

import numpy as np
import pandas as pd
from ax.adapter.base import Adapter, GenResults
from ax.adapter.data_utils import ExperimentData
from ax.adapter.registry import (
    GENERATOR_KEY_TO_GENERATOR_SETUP,
    GeneratorRegistryBase,
    GeneratorSetup,
)
from ax.api.client import Client
from ax.core.observation import ObservationData, ObservationFeatures
from ax.core.optimization_config import OptimizationConfig
from ax.core.parameter import (
    ChoiceParameter,
    FixedParameter,
    Parameter,
    ParameterType,
    RangeParameter,
)
from ax.core.search_space import SearchSpace
from ax.core.trial_status import TrialStatus
from ax.core.types import ComparisonOp
from ax.exceptions.core import UnsupportedError, UserInputError
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.base import Generator
from ax.storage.json_store.registry import CORE_DECODER_REGISTRY

from tvbo.integrations.adapter import HostTrial, ask, optimizer_of
from tvbo.optimizers import GPOptimizer
from tvbo.recipes import GPOptions
from tvbo.spaces import Parameters
from tvbo.spaces.parameters import Category, Number, plain_value

__all__ = ["TimeVaryingAdapter", "best_at", "drifting_strategy"]

PENDING = (TrialStatus.CANDIDATE, TrialStatus.STAGED, TrialStatus.RUNNING)


def drifting_strategy(
    time: str = "t", *, seed: int = 0, **options: Unpack[GPOptions]
) -> GenerationStrategy:
    """Return a strategy that does in Ax what ``tv_gp_ucb`` does.

    It is for :meth:`ax.api.client.Client.set_generation_strategy`. Time is a parameter of the
    experiment, which each call of ``get_next_trials`` holds at the present by
    ``fixed_parameters``. Other parameters that a call holds are contexts of its trials. The range
    of time has no influence, so that it may be as wide as the loop might ever last.

    Args:
        time: Name of the parameter that is time.
        seed: Seed of every random choice.
        **options: Options of :func:`tvbo.recipes.tv_gp_ucb`, such as ``beta`` or ``acquisition``.
            A strategy is saved by Ax if it can save them.
    """
    settings = {"time": time, "options": {"generator": seed, **options}}
    spec = GeneratorSpec(TimeVaryingGenerators.TIME_VARYING, generator_kwargs=settings)
    return GenerationStrategy(name="drift", nodes=[GenerationNode("drift", generator_specs=[spec])])


def best_at(
    client: Client, t: float, fixed_parameters: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], tuple[float, float]]:
    """Return the parameters with the best posterior mean at a time.

    Ax's ``get_best_parameterization`` compares trials at their own times, by the model of the last
    trial it made, which does not know the newest outcomes. Here the model has all.

    Args:
        client: Client with a :func:`drifting_strategy`.
        t: The time, such as the present.
        fixed_parameters: The context, where there is one.

    Returns:
        The parameters, with those that are given, and mean and standard deviation of the objective
        there.

    Raises:
        ValueError: if there are several objectives.
    """
    experiment, strategy = client._experiment, client._generation_strategy
    strategy.fit(experiment)
    adapter, held = strategy.adapter, dict(fixed_parameters or {})
    assert isinstance(adapter, TimeVaryingAdapter)
    best = adapter.optimizer(experiment.search_space, held).recommend(held or None, t)
    found = {**best.parameters, **held, adapter.generator.time: t}
    return found, (best.mean, best.standard_deviation)


class TimeVaryingModel(Generator):
    """The options with which a :class:`TimeVaryingAdapter` builds optimizers.

    Args:
        time: Name of the parameter that is time.
        options: Options of the recipe.
    """

    can_predict = can_model_in_sample = True

    def __init__(self, time: str, options: dict[str, Any]):
        self.time, self.options = time, options


class TimeVaryingAdapter(Adapter):
    """An optimizer between Ax's experiment and its strategy; Ax builds it in each trial.

    It knows the newest 200 trials of the experiment. Those that are running are pending. Those that
    failed, were abandoned, or are complete without all outcomes tell where others probably would.
    """

    generator: TimeVaryingModel

    def optimizer(
        self,
        search_space: SearchSpace,
        held: Collection[str] = (),
        pending: Collection[ObservationFeatures] = (),
        told: pd.DataFrame | None = None,
    ) -> GPOptimizer:
        """Return an optimizer.

        Args:
            search_space: The search space; arms outside of it are left out.
            held: Names of the parameters that are contexts.
            pending: Further trials that are pending.
            told: The outcomes to know alone; None is all, and trials without outcomes.

        Raises:
            UnsupportedError: if the experiment has parameter constraints, parameters that depend on
                others, outcomes that are sums of metrics, or limits relative to a status quo.
        """
        if search_space.parameter_constraints or search_space.is_hierarchical:
            raise UnsupportedError("Expected no parameter constraints and no hierarchy. Got some.")
        time = self.generator.time
        parts = {n: _part(each) for n, each in search_space.parameters.items() if n != time}
        options = {**self.generator.options, **self._goals()}
        options["bounds"] = Parameters(tuple(p for n, p in parts.items() if n not in held))
        if held:
            options["context_bounds"] = Parameters(tuple(p for n, p in parts.items() if n in held))
        names = [*options["objectives"], *(options["constraints"] or ())]
        known = self._told if told is None else told
        trials = []
        for index, trial in self._experiment.trials.items():
            for arm in trial.arms:
                Y, Yvar = _outcomes(known, (index, arm.name), names)
                lost = "" if Y or trial.status in PENDING else trial.status.name.lower()
                if search_space.check_membership(arm.parameters) and (Y or told is None):
                    trials.append(self._trial(arm.parameters, held, Y, Yvar, lost))
        trials += [self._trial(each.parameters, held) for each in pending]
        return optimizer_of(trials, **options)

    def _trial(self, values: Mapping[str, Any], held: Collection[str], *ended: Any) -> HostTrial:
        """Return a trial from values by name, its outcomes, their variances and how it was lost."""
        time = self.generator.time
        parameters = {n: value for n, value in values.items() if n not in (*held, time)}
        context = {name: values[name] for name in held}
        return HostTrial(parameters, float(values[time]), context or None, *ended)

    def _goals(self) -> dict[str, Any]:
        """Return objectives and constraints as options."""
        config = self._optimization_config
        assert config is not None
        weights, limits = config.objective.metric_weights, config.outcome_constraints
        worst = [*limits, *(config.objective_thresholds if config.is_moo_problem else [])]
        if config.objective.is_scalarized_objective or any(
            each.relative or len(each.metric_names) > 1 for each in worst
        ):
            raise UnsupportedError(
                "Expected objectives, constraints and thresholds of one metric each, none relative "
                f"to a status quo. Got {config}."
            )
        bounds: dict[str, tuple[float | None, float | None]] = {}
        for each in limits:
            (name,) = each.metric_signatures
            low, high = bounds.get(name, (None, None))
            is_lower = each.op == ComparisonOp.GEQ
            bounds[name] = (each.bound, high) if is_lower else (low, each.bound)
        thresholds = {each.metric_signatures[0]: each.bound for each in worst[len(limits) :]}
        return {
            "objectives": {name: thresholds.get(name) for name, _ in weights},
            "minimize": [name for name, weight in weights if weight < 0],
            "constraints": bounds or None,
        }

    def _fit(self, search_space: SearchSpace, experiment_data: ExperimentData) -> None:
        self._told = experiment_data.observation_data
        self._predictor: GPOptimizer | None = None

    def _gen(
        self,
        n: int,
        search_space: SearchSpace,
        optimization_config: OptimizationConfig | None,
        pending_observations: dict[str, list[ObservationFeatures]],
        fixed_features: ObservationFeatures | None,
        model_gen_options: Any,
    ) -> GenResults:
        held = {} if fixed_features is None else dict(fixed_features.parameters)
        t = held.pop(self.generator.time, None)
        if t is None or not held.keys() < search_space.parameters.keys() - {self.generator.time}:
            raise UserInputError(
                f"Expected fixed_parameters with the present time {self.generator.time!r}, and a "
                f"parameter to choose. Got {fixed_features}."
            )
        # Those of the trials that this call is making.
        pending = [each for group in pending_observations.values() for each in group]
        new = {
            str(p.parameters): p for p in pending if p.trial_index not in self._experiment.trials
        }
        optimizer = self.optimizer(search_space, held, new.values())
        found = ask(optimizer, float(t), held or None, n)
        if not held:
            self._predictor = optimizer
        points = [{**trial.parameters, **held, self.generator.time: t} for trial in found]
        return GenResults([ObservationFeatures(parameters=each) for each in points], [1.0] * n)

    def _predict(
        self,
        observation_features: list[ObservationFeatures],
        use_posterior_predictive: bool = False,
    ) -> list[ObservationData]:
        if self._predictor is None:
            self._predictor = self.optimizer(self._model_space)
        return self._predicted(self._predictor, observation_features)

    def _cross_validate(
        self,
        search_space: SearchSpace,
        cv_training_data: ExperimentData,
        cv_test_points: list[ObservationFeatures],
        use_posterior_predictive: bool = False,
    ) -> list[ObservationData]:
        told = cv_training_data.observation_data
        return self._predicted(self.optimizer(search_space, told=told), cv_test_points)

    def _predicted(
        self, optimizer: GPOptimizer, features: list[ObservationFeatures]
    ) -> list[ObservationData]:
        """Return what an optimizer predicts."""
        names, predicted = list(optimizer.goals.names), []
        for each in features:
            trial = self._trial(each.parameters, ())
            row = optimizer.predict(pd.DataFrame([trial.parameters]), trial.t).iloc[0]
            prefixes = ["", *(f"{name}_" for name in names[1:])]
            means = np.array([row[f"{prefix}mean"] for prefix in prefixes])
            deviations = [row[f"{prefix}standard_deviation"] for prefix in prefixes]
            predicted.append(ObservationData(names, means, np.diag(np.square(deviations))))
        return predicted


class TimeVaryingGenerators(GeneratorRegistryBase):
    """What Ax builds, by the name under which it saves it."""

    TIME_VARYING = "TimeVarying"


GENERATOR_KEY_TO_GENERATOR_SETUP["TimeVarying"] = GeneratorSetup(
    adapter_class=TimeVaryingAdapter, generator_class=TimeVaryingModel, transforms=[]
)
CORE_DECODER_REGISTRY["TimeVaryingGenerators"] = TimeVaryingGenerators


def _part(parameter: Parameter) -> Number | Category:
    """Return a parameter of ours."""
    name = parameter.name
    if isinstance(parameter, RangeParameter) and not parameter.logit_scale:
        is_whole = parameter.parameter_type == ParameterType.INT
        return Number(name, parameter.lower, parameter.upper, is_whole, parameter.log_scale)
    if isinstance(parameter, ChoiceParameter):
        return Category(name, [*map(plain_value, parameter.values)], parameter.is_ordered)
    if isinstance(parameter, FixedParameter):
        return Category(name, [plain_value(parameter.value)])
    raise UnsupportedError(f"Expected ranges, choices and fixed parameters. Got {parameter}.")


def _outcomes(
    told: pd.DataFrame, arm: tuple[int, str], names: list[str]
) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Return the outcomes of an arm and their variances, each None unless all are known."""
    found = []
    for kind in ("mean", "sem"):
        cells = [told.at[arm, (kind, n)] for n in names if arm in told.index and (kind, n) in told]
        is_known = len(cells) == len(names) and not any(map(pd.isna, cells))
        found.append(dict(zip(names, map(float, cells), strict=True)) if is_known else None)
    Y, sem = found
    return Y, None if sem is None else {name: each**2 for name, each in sem.items()}
