"""The default of ``tv_gp_ucb`` inside Ax: ``pip install 'botorch-tvbo[ax]'``."""

from __future__ import annotations

from inspect import signature
from typing import Any, cast

import torch
from ax.adapter.registry import Generators, Mixed_transforms
from ax.api.client import Client
from ax.core.experiment_status import ExperimentStatus
from ax.core.search_space import SearchSpaceDigest
from ax.core.trial_status import TrialStatus
from ax.exceptions.core import UserInputError
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from ax.generators.torch.botorch_modular.surrogate import (
    Surrogate,
    SurrogateSpec,
    submodel_input_constructor,
)
from ax.generators.torch.botorch_modular.utils import ModelConfig, fit_botorch_model
from ax.generators.torch_base import TorchOptConfig
from ax.storage.botorch_modular_registry import (
    register_acquisition,
    register_acquisition_function,
    register_model,
)
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.posteriors import Posterior
from botorch.utils.datasets import SupervisedDataset
from torch import Generator, Size, Tensor

from tvbo.acquisition.ucb import ConstantBeta, EdgeCorrectedUCB
from tvbo.fit.fitted_forms import Fitted
from tvbo.fit.model_fitter import OBSERVATIONS_PER_PARAMETER, ModelFitter
from tvbo.models.ensemble_gp import EnsembleGP
from tvbo.models.scale import marginals
from tvbo.optimizers.pending import Hallucinate
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.recipes import DEFAULT_BETA, DEFAULT_LIMIT
from tvbo.retention import SizeLimit
from tvbo.rounding import argmax
from tvbo.spaces import Box
from tvbo.spaces.observations import InputLayout, Observations
from tvbo.threads import threads_for

__all__ = ["best_at", "drifting_strategy"]

CHUNK = 100
"""Points that Ax predicts at a time."""


def drifting_strategy(
    num_actions: int,
    time: str = "t",
    *,
    beta: float | None = None,
    acquisition: type[AcquisitionFunction] = EdgeCorrectedUCB,
    initial: int | None = None,
    seed: int | None = None,
) -> GenerationStrategy:
    """Return a strategy that does in Ax what ``tv_gp_ucb`` does by default on a box.

    It is for :meth:`ax.api.client.Client.set_generation_strategy`: Sobol points until the first fit
    has its outcomes, then a :class:`LearnedDriftGP` in each trial, and the acquisition of the
    recipe, ``EdgeCorrectedUCB``. The experiment has one objective without
    constraints, larger or smaller is better, and parameters that are ranges or ordered, of which
    time is the last. Each call of ``get_next_trials`` holds time at the present by
    ``fixed_parameters``. The range of time has no influence otherwise, so it may be as wide as the
    loop might ever last.

    Args:
        num_actions: Number of parameters other than time.
        time: Name of the parameter that is time.
        beta: β of the default acquisition; None is 2.5.
        acquisition: An acquisition function of BoTorch's in place of UCB, such as
            :class:`botorch.acquisition.qLogNoisyExpectedImprovement`; its incumbent and baseline
            are those of the present (:class:`AcquisitionAtPresent`).
        initial: Number of outcomes that the Sobol points go on for. None is what the first fit
            needs, ``2 (num_actions + 3)``, which is the least.
        seed: Seed of the Sobol points.

    Raises:
        ValueError: if a number is out of range, or ``beta`` is given beside another acquisition.
    """
    # A lengthscale for each action, mean, noise, and how fast the function drifts.
    needed = OBSERVATIONS_PER_PARAMETER * (num_actions + 3)
    threshold = needed if initial is None else initial
    if num_actions < 1 or threshold < needed or any(n != int(n) for n in (num_actions, threshold)):
        raise ValueError(
            f"Expected whole numbers, num_actions >= 1 and initial >= {needed} or None. Got "
            f"num_actions={num_actions}, initial={initial}."
        )
    options = {}
    if acquisition is EdgeCorrectedUCB:
        options["beta"] = ConstantBeta(DEFAULT_BETA if beta is None else beta).beta
    elif beta is not None:
        raise ValueError("Expected either acquisition or beta, which is that of UCB. Got both.")
    enough = MinTrials(
        threshold=threshold,
        transition_to="drift",
        only_in_statuses=[TrialStatus.COMPLETED],
        count_only_trials_with_data=True,
        use_all_trials_in_exp=True,
    )
    space_filling = GenerationNode(
        name="initial",
        generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": seed})],
        transition_criteria=[enough],
        suggested_experiment_status=ExperimentStatus.INITIALIZATION,
    )
    config = ModelConfig(
        botorch_model_class=LearnedDriftGP,
        model_options={"time": time, "num_actions": num_actions},
        name="LearnedDriftGP",
    )
    settings = {
        "surrogate_spec": SurrogateSpec(model_configs=[config]),
        "acquisition_class": AcquisitionAtPresent,
        "botorch_acqf_class": acquisition,
        "botorch_acqf_options": options,
        # None of outcomes: winsorized, those from before a drift would set the limits.
        "transforms": Mixed_transforms,
    }
    learned = GenerationNode(
        name="drift",
        generator_specs=[GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=settings)],
        suggested_experiment_status=ExperimentStatus.OPTIMIZATION,
    )
    return GenerationStrategy(name="drift", nodes=[space_filling, learned])


def best_at(client: Client, t: float) -> tuple[dict[str, Any], tuple[float, float]]:
    """Return the tried parameters with the best posterior mean at a time.

    Ax's ``get_best_parameterization`` compares trials at their own times, by the model of the last
    trial it made, which does not know the newest outcomes. Here the model is fitted to all.

    Args:
        client: Client with a :func:`drifting_strategy` that is past its Sobol points.
        t: The time, such as the present.

    Returns:
        The parameters, with ``t``, and mean and standard deviation of the objective there.

    Raises:
        ValueError: if ``t`` is outside the range of the parameter.
        ax.exceptions.core.UnsupportedError: if there are too few outcomes for a fit.
    """
    experiment = client._experiment
    client._generation_strategy.fit(experiment)
    *_, time = experiment.search_space.parameters
    points: list[dict[str, Any]] = [
        {**trial.arms[0].parameters, time: t}
        for trial in experiment.trials.values()
        if trial.status == TrialStatus.COMPLETED
    ]
    # A few at a time, since Ax asks for their joint posterior.
    parts = [client.predict(points[i : i + CHUNK]) for i in range(0, len(points), CHUNK)]
    assert experiment.optimization_config is not None
    ((metric, weight),) = experiment.optimization_config.objective.metric_weights
    predicted = [each[metric] for part in parts for each in part]
    means = torch.tensor([weight * mean for mean, _ in predicted], dtype=torch.float64)
    best = int(argmax(means))
    return points[best], predicted[best]


class LearnedDriftGP(Model):
    """The model of ``tv_gp_ucb`` where all is learned, as Ax builds and fits models.

    It has the posterior of an :class:`tvbo.models.EnsembleGP`, of at most 100 observations: those
    of the newest 200 that are most informative about the newest time, by
    :class:`tvbo.retention.SizeLimit`. Where there are too few for a fit, its hyperparameters are
    defaults. Its state is the hyperparameters without the observations, as Ax needs it for
    cross-validation.

    Args:
        train_X: Rows ``[action | time]``, ``n x (d + 1)``.
        train_Y: Outcomes, ``n x 1``.
        train_Yvar: Their noise variances, ``n x 1``; None learns one.
        action_bounds: Range of the actions, ``2 x d``.
    """

    def __init__(
        self, train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None, action_bounds: Tensor
    ):
        super().__init__()
        self.observations = self._held = Observations(train_X, train_Y, train_Yvar)
        layout = InputLayout(action_bounds.shape[-1])
        self._posterior_state = PosteriorState(
            ModelFitter(layout, action_bounds, temporal_kernel="auto")
        )

    num_outputs = 1
    batch_shape = Size()

    def fit(self) -> None:
        """Learn the hyperparameters."""
        n = len(self.observations)
        with threads_for(DEFAULT_LIMIT):
            self._learn(self._newest(DEFAULT_LIMIT), n)
            if n > DEFAULT_LIMIT:
                held = self._newest(2 * DEFAULT_LIMIT)
                latest = held.X[:, -1].max().item()
                keep = SizeLimit(DEFAULT_LIMIT, slack=0.0).keep(held, self.fitted, latest)
                self._learn(held[keep], n + 1)

    @property
    def fitted(self) -> Model:
        """The posterior, an ``EnsembleGP``."""
        assert self._posterior_state.last_model is not None
        return self._posterior_state.last_model

    def with_pending(self, rows: Tensor) -> Model:
        """Return the posterior where means stand in for the outcomes of rows, ``q x (d + 1)``."""
        return self._posterior_state.condition(self._held, rows, Hallucinate()).in_user_units()

    def posterior(self, X: Tensor, *args: Any, **options: Any) -> Posterior:
        """Return the posterior at rows ``... x q x (d + 1)``; with the options of BoTorch."""
        return self.fitted.posterior(X, *args, **options)

    def get_extra_state(self) -> Fitted:
        """Return what was learned, for ``state_dict``."""
        return self._posterior_state.fitter.fitted

    def set_extra_state(self, state: Fitted) -> None:
        """Predict by hyperparameters learned elsewhere, from the observations of this model."""
        self._posterior_state.fitter.fitted = state
        # No outcome is new, so that there is no fit.
        self._learn(self._newest(DEFAULT_LIMIT), 0)

    def _newest(self, count: int) -> Observations:
        return self.observations[self.observations.X[:, -1].argsort(stable=True)[-count:]]

    def _learn(self, observations: Observations, num_told: int) -> None:
        self._held = observations
        self._posterior_state.restart()
        self._posterior_state.update(observations, num_told, Generator().manual_seed(0))
        self.with_pending(observations.X[:0])


class AcquisitionAtPresent(Acquisition):
    """Ax's acquisition, for the present and by the model of a :class:`LearnedDriftGP`.

    Baseline and incumbent are those of the observed actions at the present time, where Ax would
    compare with what they were when they were observed. Trials that are pending count at any time,
    by their posterior means, where Ax has those with the same time alone.
    """

    def __init__(self, *, torch_opt_config: TorchOptConfig, **options: Any):
        self._config = torch_opt_config
        super().__init__(torch_opt_config=torch_opt_config, **options)

    def optimize(self, *args: Any, **kwargs: Any) -> Any:
        """Return what Ax's acquisition does, with linear algebra on one thread."""
        with threads_for(DEFAULT_LIMIT):
            return super().optimize(*args, **kwargs)

    def _instantiate_acquisition(self) -> None:
        names = self.search_space_digest.feature_names
        present = (self._config.fixed_features or {}).get(len(names) - 1)
        if present is None:
            raise UserInputError(
                f"Expected fixed_parameters with the present time {names[-1]!r}. Got "
                f"{self._config.fixed_features}."
            )
        model = self._model
        if isinstance(model, ModelList) and len(model.models) == 1:
            model = cast(Model, model.models[0])
        if not isinstance(model, LearnedDriftGP) or self._outcome_constraints is not None:
            raise UnsupportedError(
                "Expected one objective without constraints, and a LearnedDriftGP. Got "
                f"{type(model).__name__} of {model.num_outputs} outcomes, constraints "
                f"{self._outcome_constraints}."
            )
        rows = model.observations.X.clone()
        pending = rows[:0]
        if self._config.pending_observations is not None:
            place = int(self._full_objective_weights[0].nonzero()[0])
            pending = self._config.pending_observations[place]
        self._model = fitted = model.with_pending(pending)
        rows[:, -1] = present
        # Of the observed actions, each once.
        observed = torch.unique(rows, dim=0)
        [(acquisition, options)] = self.botorch_acqf_classes_with_options
        if "best_f" in signature(acquisition).parameters:
            with torch.no_grad():
                means, _ = marginals(fitted, observed.unsqueeze(-2))
            options = {"best_f": (means @ self._objective_weights.mT).max(), **options}
            self.botorch_acqf_classes_with_options = [(acquisition, options)]
        self.X_observed, self.X_pending = observed, None
        super()._instantiate_acquisition()
        # Ax would avoid them in a set of integers, where they are to be tried again.
        self.X_observed = None


def _action_bounds(bounds: list[tuple[float, float]]) -> Tensor:
    """Return Ax's bounds without those of time, ``2 x d``."""
    return torch.tensor(bounds[:-1], dtype=torch.float64).mT


@submodel_input_constructor.register(LearnedDriftGP)
def _model_inputs(
    botorch_model_class: type[Model],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Return the arguments of a :class:`LearnedDriftGP`."""
    names, time = search_space_digest.feature_names, model_config.model_options["time"]
    if names[-1] != time or len(names) < 2:
        raise UserInputError(f"Expected actions and {time!r}, the last parameter. Got {names}.")
    num_actions = model_config.model_options["num_actions"]
    if len(names) - 1 > num_actions:  # Fewer where some are fixed.
        raise UserInputError(
            f"Expected num_actions of drifting_strategy to count {names[:-1]}. Got {num_actions}."
        )
    categories = [names[i] for i in search_space_digest.categorical_features]
    if categories:
        raise UnsupportedError(
            f"Expected ranges and ordered parameters. Got the categories {categories}."
        )
    return {
        "train_X": dataset.X,
        "train_Y": dataset.Y,
        "train_Yvar": dataset.Yvar,
        "action_bounds": _action_bounds(search_space_digest.bounds),
    }


@fit_botorch_model.register(LearnedDriftGP)
def _fit(model: LearnedDriftGP, **unused: Any) -> None:
    model.fit()


@acqf_input_constructor(EdgeCorrectedUCB)
def _ucb_inputs(
    model: EnsembleGP,
    bounds: list[tuple[float, float]],
    beta: float,
    posterior_transform: PosteriorTransform | None = None,
) -> dict[str, Any]:
    """Return the arguments of an ``EdgeCorrectedUCB``."""
    return {
        "model": model,
        "beta": beta,
        "search_space": Box(_action_bounds(bounds)),
        "posterior_transform": posterior_transform,
    }


# Ax writes classes by their names in these registries, and reads them.
register_model(LearnedDriftGP)
register_acquisition(AcquisitionAtPresent)
register_acquisition_function(EdgeCorrectedUCB)
