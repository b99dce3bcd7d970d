"""The loop: surrogate, acquisition and retention, each of them replaceable."""

from __future__ import annotations

from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.acquisition import Acquisition, Domain, Situation
from tvbo.columns import Columns
from tvbo.observations import Observations
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.surrogate import Surrogate
from tvbo.optimizers.trial import Trial
from tvbo.retention import KeepAll, Retention


class GPOptimizer(Optimizer):
    """Bayesian optimization by ask/tell.

    One round is: drop what retention no longer keeps, build the model, maximize the acquisition at
    the present time. Outcomes told late enter with the time at which they were sampled.

    Args:
        domain: The set of actions.
        surrogate: Builds the model.
        acquisition: Builds the acquisition function: :class:`tvbo.acquisition.UCB`, or any function
            of a model and a :class:`tvbo.acquisition.Situation` to a BoTorch acquisition.
        retention: Which observations stay; all by default.
        columns: How rows are laid out; by default actions and time.
        generator: Source of every random choice; default a fresh one with seed 0.
    """

    def __init__(
        self,
        domain: Domain,
        surrogate: Surrogate,
        acquisition: Acquisition,
        retention: Retention | None = None,
        columns: Columns | None = None,
        generator: Generator | None = None,
    ):
        super().__init__(domain, columns, generator)
        self.surrogate = surrogate
        self.acquisition = acquisition
        self.retention = KeepAll() if retention is None else retention
        self.observations = Observations.empty(self.columns)
        self._num_told = 0

    @property
    def model_size(self) -> int:
        """Number of observations held."""
        return len(self.observations)

    @property
    def model(self) -> Model | None:
        """The model behind the newest ask, None before the first."""
        return self.surrogate.last_model

    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        keep = self.retention.keep(self.observations, self.model, t)
        if not keep.all():
            self.surrogate.drop(self.observations, keep, t)
            self.observations = self.observations[keep]
        model = self.surrogate.model(self.observations, self._num_told, self.generator)
        situation = Situation(round_number, t, context, self.columns, self.observations)
        return self.domain.maximize(self.acquisition(model, situation), situation, self.generator)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        self.observations = self.observations.append(observation)
        self._num_told += 1
