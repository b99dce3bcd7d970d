"""The posterior of the observations that an optimizer holds, from round to round."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from gpytorch.settings import min_fixed_noise
from linear_operator import to_dense
from torch import Generator, Tensor

from tvbo.acquisition.analytic import marginals, mean_of
from tvbo.fit.drift import DenseGP
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import IncrementalGP
from tvbo.models.averaged_gp import AveragedGP
from tvbo.models.incremental.row_posterior import RowPosterior
from tvbo.models.scale import outcome_scale
from tvbo.optimizers.pending import Pending
from tvbo.rounding import CERTAIN
from tvbo.spaces.observations import Observations


class PosteriorState(ABC):
    """The posterior of the observations that an optimizer holds.

    In each round, the optimizer calls :meth:`drop` if retention discards observations, then
    :meth:`update` with those that are left, then :meth:`condition` for the model of the round.

    Args:
        fitter: Holds or learns the hyperparameters.

    Attributes:
        fitter: The fitter.
        last_model: The model that was updated last, with the newest hyperparameters; None before
            the first round.
    """

    last_model: Model | None

    def __init__(self, fitter: ModelFitter):
        self.fitter = fitter
        self.last_model = None

    @abstractmethod
    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due, and take in the observations that are new.

        A state whose form depends on what is pending takes them in when it is conditioned.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far, kept since or not; decides whether a
                fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """

    @abstractmethod
    def condition(self, observations: Observations, rows: Tensor, pending: Pending) -> Model:
        """Return the posterior given the observations and the pending trials.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first; none
                where ``q`` is 0.
            pending: What stands in for their outcomes.
        """

    @abstractmethod
    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> Model:
        """Return the posterior that the next round would have without pending trials.

        Does not modify this state. A fit that is due is made, and made again in the next round.

        Args:
            observations: Those of the last :meth:`update`, less those dropped since, and new ones.
            keep: Mask of the observations that count, ``n``.
            num_told: As in :meth:`update`.
            generator: Seeds the restarts of a fit; advanced by what is drawn from it.
        """

    @abstractmethod
    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, because retention discards them.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """

    @abstractmethod
    def restart(self) -> None:
        """Forget all observations: those of the next :meth:`update` are new."""

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        assert self.last_model is not None
        return mean_and_variance(self.last_model, row)

    def outcome_noise(self, observations: Observations) -> float | None:
        """Return the noise variance to expect of the next outcome: given, told before, or learned.

        Args:
            observations: Observations held.

        Returns:
            The variance; None where it comes with the outcomes, and none has come yet.
        """
        return self.fitter.outcome_noise(observations)

    @property
    def dense(self) -> DenseGP:
        """The dense model with the newest hyperparameters, of the observations of the last fit."""
        assert self.fitter.last_model is not None
        return self.fitter.last_model

    def _known_noise(
        self, observations: Observations, covar_module: Kernel, dense: DenseGP
    ) -> Tensor | None:
        """Return noise variances as told or given, at least :func:`least_noise`.

        Args:
            observations: ``n`` observations.
            covar_module: Kernel over rows, in raw units.
            dense: Model with the same hyperparameters.

        Returns:
            The variances, ``n x 1``; None where the noise is learned.
        """
        known, given = observations.Yvar, self.fitter.noise_variance
        if known is None and given is not None:
            known = torch.full_like(observations.Y, given)
        if known is None:
            return None
        with torch.no_grad():
            prior = covar_module(observations.X, diag=True)
        return torch.maximum(known, least_noise(dense, prior).unsqueeze(-1))

    def _in_raw_units(self, dense: DenseGP, observations: Observations) -> IncrementalGP:
        """Return the posterior of observations in raw units, by a dense model's hyperparameters."""
        model = IncrementalGP.from_model(dense, self.fitter.noise_variance)
        if len(observations) > 0:
            noise = self._known_noise(observations, model.covar_module, dense)
            model.observe(observations.X, observations.Y, noise)
        return model

    def _conditioned(
        self,
        model: RowPosterior | AveragedGP,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
    ) -> Model:
        """Return the posterior of a model after pending trials.

        As long as nothing is known of the noise, they count as if it were the least possible.

        Args:
            model: Posterior by the outcomes that have come.
            observations: These outcomes.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``.
            pending: What stands in for their outcomes.
        """
        noise_variance = self.outcome_noise(observations)

        def expected() -> Tensor:
            return mean_of(model.posterior(rows.unsqueeze(-2))).squeeze(-1)

        with torch.no_grad():
            if isinstance(model, AveragedGP):
                prior = model.prior_variance.expand(len(rows))
            else:
                prior = to_dense(model.covar_module(rows, diag=True))
            noise = least_noise(self.dense, prior)
            if noise_variance is not None:
                noise = noise.clamp_min(noise_variance)
            stand_ins = pending.outcomes(rows, expected)
            return model.condition_on_observations(rows, stand_ins, noise.unsqueeze(-1))


class RowPosteriorState(PosteriorState):
    """Base of states whose model is a posterior on any rows, updated from round to round."""

    last_model: RowPosterior | None

    def condition(self, observations: Observations, rows: Tensor, pending: Pending) -> Model:
        """Return the posterior given the observations and the pending trials.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.
        """
        model = self.last_model
        assert model is not None
        if len(rows) == 0 or not pending.enabled:
            return model
        return self._conditioned(model, observations, rows, pending)


def mean_and_variance(model: Model, row: Tensor) -> tuple[float, float]:
    """Return posterior mean and variance at one row, without the noise of an outcome.

    Args:
        model: A model of one output.
        row: ``1 x d``.
    """
    with torch.no_grad():
        mean, variance = marginals(model, row)
    return mean.item(), variance.item()


def least_noise(dense: DenseGP, prior_variance: Tensor) -> Tensor:
    """Return the least noise variance that a posterior takes, in raw units.

    GPyTorch has a limit in the units that a dense model sees. Where the kernel is large beside it,
    a repeat would still be certain to rounding, and no further outcome could be taken in.

    Args:
        dense: Dense model with the hyperparameters of the posterior.
        prior_variance: Prior variances in raw units, of any shape.

    Returns:
        Variances in the shape of ``prior_variance``.
    """
    least = min_fixed_noise.value(torch.float64) * outcome_scale(dense)[1] ** 2
    return (10 * CERTAIN * prior_variance).clamp_min(least)


def weights(rows: Tensor, t: Tensor | float, dense: DenseGP) -> Tensor:
    r"""Return what rows weigh at a time, for a drift with rate ε :math:`(1-\varepsilon)^{age}`.

    Args:
        rows: ``[action | context | time]``, ``n x d``.
        t: The time.
        dense: Model that holds the temporal kernels; without one, every row weighs 1, and of
            several, the one that forgets least counts.

    Returns:
        ``n``.
    """
    age = t - rows[:, -1]
    each = [kernel.weight(age) for kernel in dense.temporal_kernels]
    return torch.stack(each).amax(dim=0) if each else torch.ones_like(age)
