"""The posterior where hyperparameters are learned: a model built again after each outcome."""

from __future__ import annotations

from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.fit.drift import DenseGP
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import TimeVaryingGP
from tvbo.models.averaged_gp import AveragedGP
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.posterior_state import PosteriorState, mean_and_variance
from tvbo.spaces.observations import Observations


class DenseState(PosteriorState):
    """Build the model of all observations again after each outcome.

    The choice where hyperparameters are learned from each. Asks without an outcome between them,
    such as those of a batch, share a model.

    Args:
        fitter: Holds or learns the hyperparameters, and builds the model.
    """

    last_model: DenseGP | None

    def __init__(self, fitter: ModelFitter):
        super().__init__(fitter)
        self._posterior: Model | None = None
        self._num_told = 0

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Build the model, with its hyperparameters fitted if that is due.

        Args:
            observations: All that count.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        if self._posterior is not None and num_told == self._num_told:
            return
        self._num_told = num_told
        self.last_model = self.fitter.fit(observations, num_told, generator)
        self._posterior = averaged(self.fitter, observations)

    def condition(self, observations: Observations, rows: Tensor, pending: Pending) -> Model:
        """Return the model, or with pending trials the same posterior in raw units.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.
        """
        model = self._posterior
        assert model is not None
        if len(rows) == 0 or not pending.enabled:
            return model
        if not isinstance(model, AveragedGP):
            model = self._in_raw_units(self.dense, observations)
        return self._conditioned(model, observations, rows, pending)

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``.
        """
        assert self._posterior is not None
        return mean_and_variance(self._posterior, row)

    def outcome_noise(self, observations: Observations) -> float | None:
        """Return the noise variance to expect of the next outcome, averaged where the model is.

        Args:
            observations: Observations held.
        """
        known = self.fitter.noise_variance is not None or observations.Yvar is not None
        model = self._posterior
        if isinstance(model, AveragedGP) and not known:
            return model.noise_variance.item()
        return super().outcome_noise(observations)

    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> Model:
        """Return the model that the next round would have without pending trials.

        Args:
            observations: All that are held.
            keep: Mask of the observations that count, ``n``.
            num_told: Number of outcomes that entered so far.
            generator: Seeds the restarts of a fit.
        """
        fitter, kept = self.fitter.copy(), observations[keep]
        fitter.fit(kept, num_told, generator)
        return averaged(fitter, kept)

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Have the next update build the model from the observations that are left.

        Args:
            observations: All that are held.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        self.restart()

    def restart(self) -> None:
        """Have the next :meth:`update` build the model again."""
        self._posterior = None


def averaged(fitter: ModelFitter, observations: Observations) -> DenseGP | AveragedGP:
    """Return the newest model of a fitter, averaged over the hyperparameters where it has sets.

    Args:
        fitter: Has fitted these observations.
        observations: The observations of the model.
    """
    model, sets = fitter.last_model, fitter.fitted.sets
    assert model is not None
    if not sets or len(observations) == 0:
        return model
    assert isinstance(model, TimeVaryingGP)
    return AveragedGP(model, observations.X, observations.Y, sets)
