r"""The posterior of the observations that an optimizer holds, from round to round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, Self, cast

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.fit.model_fitter import ModelFitter, RefitNever
from tvbo.models import EnsembleGP, StreamingGP, TimeVaryingGP
from tvbo.models.one_output import OneOutputModel
from tvbo.models.scale import MIN_NOISE, StandardizedModel, marginals, standardized
from tvbo.optimizers.pending import Pending
from tvbo.rounding import TIE_TOLERANCE
from tvbo.spaces.observations import Observations


class PosteriorState:
    r"""The posterior of the observations that an optimizer holds.

    In each round, the optimizer calls :meth:`drop` if retention discards observations, then
    :meth:`update` with those that are left, then :meth:`condition` for the model of the round.
    Outcomes come in and predictions go out in the user's unit; the models see them standardized.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built again from
    these. Between two fits, the scaling of outcomes stays as it was at the last one.

    On a finite set it is a :class:`tvbo.models.StreamingGP`, at constant cost per round: one
    posterior carries both the outcomes and the pending trials, and only where an outcome comes late
    that was never seen pending, are the rows of the model made again. On any rows it is a
    :class:`tvbo.models.EnsembleGP`, the average over hyperparameters where two forms of drift are
    learned in each round; otherwise its factor grows by what is new.

    Args:
        fitter: Holds or learns the hyperparameters.
        choices: ``n x d``, the finite set; None for any rows.
        tol: Weight :math:`(1-\varepsilon)^{\text{age}}` at which an observation or a pending trial
            is negligible. Of the observations that retention discards, those whose weight has
            fallen to this stay in an ensemble until they are a third of it. Otherwise the model is
            built again. A recommendation for a time long past may see them still.
    """

    def __init__(self, fitter: ModelFitter, choices: Tensor | None = None, tol: float = 1e-12):
        self.fitter = fitter
        self.choices = choices
        self.tol = tol
        # The model of the last fit without observations, whose covariances all others share.
        self._prior: tuple[TimeVaryingGP, StreamingGP] | None = None
        self._held: StandardizedModel | None = None
        # Observations in the model; None if it must be built again.
        self._num_seen: int | None = None
        # The first of them, from which it was built before it took in the others.
        self._num_built = 0
        # Observations from which the model is yet to be built, of a run that goes on.
        self._resumed: Observations | None = None

    @property
    def last_model(self) -> Model | None:
        """The model of the outcomes that came, predicting in the user's unit; None before any."""
        self._build_resumed()
        return None if self._held is None else self._held.in_user_units()

    @property
    def dense(self) -> TimeVaryingGP:
        """The dense model with the newest hyperparameters, of the observations of the last fit."""
        assert self.fitter.last_model is not None
        dense = StandardizedModel(self.fitter.last_model, self.fitter.transform)
        return cast(TimeVaryingGP, dense.in_user_units())

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due.

        The observations are taken in by :meth:`condition`, with the pending trials.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far, kept since or not; decides whether a
                fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        self._build_resumed()
        self.fitter.check_noise(observations)
        if self.fitter.may_change(num_told, are_others=self._num_seen is None):
            self.fitter.fit(observations, num_told, generator)
            self._num_seen = None

    def condition(
        self, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        """Return the posterior given the observations and the pending trials.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first; none
                where ``q`` is 0.
            pending: What stands in for their outcomes.
        """
        seen, self._num_seen = self._num_seen, None  # What an error leaves half-way is of no use.
        if seen is None or self._held is None:
            model, self._num_built = self._built(self.fitter, observations), len(observations)
        else:
            new = standardized(observations[seen:], self.fitter.transform)
            model = self._taken_in(cast(Any, self._held.model), new)
        self._held = StandardizedModel(model, self.fitter.transform)
        self._num_seen = len(observations)
        return self._with_pending(self._held, observations, rows, pending)

    def copy(self) -> Self:
        """Return a copy that is fitted and takes in observations without changing this state."""
        new = copy(self)
        new.fitter = copy(self.fitter)
        if self._held is not None:
            new._held = replace(self._held, model=copy(self._held.model))
        return new

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, because retention discards them.

        The model is built again, unless they have lost their weight.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        self._build_resumed()
        if self._held is None or self._num_seen is None:
            return
        age = t - observations.X[: self._num_seen][~keep[: self._num_seen], -1]
        if len(age) == 0:
            return
        self._num_seen -= len(age)
        self._num_built -= int((~keep[: self._num_built]).sum())
        model: Any = self._held.model
        # A policy that drops at this very weight rounds it otherwise.
        if isinstance(model, StreamingGP):
            # Found by the weight when the model was made, which takes longer than a round.
            may_matter = age.min().item() < model.memory * (1 - TIE_TOLERANCE)
        elif len(model.weights) > 1 or 3 * self._num_seen <= 2 * len(model.train_targets):
            # An average is built again in each round, and one that is crowded.
            may_matter = True
        else:
            kernels, least = self.dense.temporal_kernels, self.tol * (1 + TIE_TOLERANCE)
            may_matter = not kernels or any(bool((k.weight(age) > least).any()) for k in kernels)
        if may_matter:
            self.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, and how many observations the model holds, as data."""
        numbers = {"num_built": self._num_built, "num_seen": self._num_seen}
        return {"fitter": self.fitter.state_dict(), **numbers}

    def load_state_dict(self, state: Mapping[str, Any], observations: Observations) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state: The data.
            observations: Those of the newest ask, and new ones.
        """
        self.fitter.load_state_dict(state["fitter"])
        if state["num_seen"] is not None:
            self._num_built = state["num_built"]
            self._resumed = observations[: state["num_seen"]]
            self.fitter.resume(observations[: self._num_built])

    def _build_resumed(self) -> None:
        """Build the model of a run that goes on, which may take long."""
        if self._resumed is not None:
            first, others = self._resumed[: self._num_built], self._resumed[self._num_built :]
            model = self._built(self.fitter, first)
            model = self._taken_in(model, standardized(others, self.fitter.transform))
            self._held = StandardizedModel(model, self.fitter.transform)
            self._num_seen, self._resumed = len(self._resumed), None

    def restart(self) -> None:
        """Forget all observations: those of the next :meth:`update` are new."""
        self._num_seen = self._resumed = None

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        assert self._held is not None
        mean, variance = self._held.moments(row)
        return mean.item(), variance.item()

    def outcome_noise(self, observations: Observations) -> float | None:
        """Return the noise variance to expect of the next outcome: given, observed, or learned.

        Args:
            observations: Observations held.

        Returns:
            The variance; None where it comes with the outcomes, and none has come yet.
        """
        assert self._held is not None
        if self.fitter.given_noise is not None:
            return self.fitter.given_noise * self._held.scale**2
        if observations.Yvar is not None and len(observations) > 0:
            return observations.Yvar.mean().item()
        if isinstance(self.fitter.refit, RefitNever):
            return None
        learned = cast(OneOutputModel, self._held.model).noise_variance
        return learned.item() * self._held.scale**2

    def _noise_of_pending(self, observations: Observations, rows: Tensor) -> Tensor:
        """Return the noise variances of the standardized outcomes of pending trials, ``q x 1``.

        As long as nothing is known of it, it is the least possible.
        """
        assert self._held is not None
        known = self.outcome_noise(observations) or 0.0
        return torch.full_like(rows[:, :1], max(known / self._held.scale**2, MIN_NOISE))

    def _stand_ins(self, pending: Pending, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """Return what stands in for outcomes, standardized, ``q x 1``."""
        transform = self.fitter.transform
        values: Tensor
        values, _ = transform(pending.outcomes(rows, lambda: transform.untransform(expected())[0]))
        return values

    def _built(self, fitter: ModelFitter, observations: Observations) -> StreamingGP | EnsembleGP:
        """Return the model of some observations by the newest hyperparameters of a fitter."""
        sets, observations = fitter.fitted.sets, fitter.standardized(observations)
        if sets is not None and self.choices is None:
            held = observations.X, observations.Y, observations.Yvar
            return EnsembleGP.from_sets(sets, *held).weighed_by_likelihood()
        dense, noise = fitter.last_model, fitter.given_noise
        assert dense is not None
        if self.choices is None:
            return self._taken_in(EnsembleGP.from_model(dense, noise), observations)
        if self._prior is None or self._prior[0] is not dense:
            model = StreamingGP.from_model(dense, self.choices, noise_variance=noise, tol=self.tol)
            self._prior = dense, model
        return self._taken_in(copy(self._prior[1]), observations)

    def _taken_in(
        self, model: StreamingGP | EnsembleGP, new: Observations
    ) -> StreamingGP | EnsembleGP:
        """Return a model with more standardized outcomes."""
        if len(new) == 0:
            return model
        if isinstance(model, EnsembleGP):
            return model.condition_on_observations(new.X, new.Y, new.Yvar)
        model.observe(new.X, new.Y, new.Yvar)
        return model

    def _with_pending(
        self, held: StandardizedModel, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        """Return the posterior after the pending trials, as :meth:`condition`."""
        model: Any = held.model
        streaming = isinstance(model, StreamingGP)
        if streaming and not len(rows) == 0 == model.num_pending:
            if len(rows) > 0:
                now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
                rows = rows[now - rows[:, -1] < model.memory]
            # They are known all the same, so that outcomes that come late cost no more.
            model.set_X_pending(rows, self._noise_of_pending(observations, rows))
            rows = model.X_pending
        if len(rows) == 0 or not pending.enabled:
            return held
        with torch.no_grad():
            if streaming:
                Y = self._stand_ins(pending, rows, lambda: model.expected_outcomes.unsqueeze(-1))
                conditioned = model.condition_on_pending(Y)
            else:
                Y = self._stand_ins(pending, rows, lambda: marginals(model, rows.unsqueeze(-2))[0])
                noise = self._noise_of_pending(observations, rows)
                conditioned = model.condition_on_observations(rows, Y, noise=noise)
        return replace(held, model=conditioned)
