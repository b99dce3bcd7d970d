r"""The posterior of the observations that an optimizer holds, from round to round."""

from __future__ import annotations

from abc import ABC, abstractmethod
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


class PosteriorState(ABC):
    r"""The posterior of the observations that an optimizer holds.

    In each round, the optimizer calls :meth:`drop` if retention discards observations, then
    :meth:`update` with those that are left, then :meth:`condition` for the model of the round.
    Outcomes come in and predictions go out in the user's unit; the models see them standardized.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built again from
    these. Between two fits, the scaling of outcomes stays as it was at the last one.

    Args:
        fitter: Holds or learns the hyperparameters.
        tol: Weight :math:`(1-\varepsilon)^{\text{age}}` at which an observation is negligible.
    """

    def __init__(self, fitter: ModelFitter, tol: float = 1e-12):
        self.fitter = fitter
        self.tol = tol
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
            model = self._taken_in(self._held.model, new)
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
        if self._is_crowded(self._held.model, self._num_seen):
            self.restart()
            return
        if self._may_matter(age):
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

    def _noise_of_pending(self, observations: Observations) -> float:
        """Return the noise variance of the standardized outcomes of pending trials.

        As long as nothing is known of it, it is the least possible.
        """
        assert self._held is not None
        known = self.outcome_noise(observations) or 0.0
        return max(known / self._held.scale**2, MIN_NOISE)

    def _stand_ins(self, pending: Pending, rows: Tensor, expected: Callable[[], Tensor]) -> Tensor:
        """Return what stands in for outcomes, standardized, ``q x 1``."""
        transform = self.fitter.transform
        values: Tensor
        values, _ = transform(pending.outcomes(rows, lambda: transform.untransform(expected())[0]))
        return values

    def _is_crowded(self, model: Any, num_kept: int) -> bool:
        """Return whether a model is built again rather than has so many that are forgotten."""
        return False

    def _may_matter(self, age: Tensor) -> bool:
        """Return whether an observation of one of some ages has not lost its weight."""
        # A policy that drops at this very weight rounds it otherwise.
        least, dense = self.tol * (1 + TIE_TOLERANCE), self.fitter.last_model
        kernels = () if dense is None else dense.temporal_kernels
        return not kernels or any(bool((each.weight(age) > least).any()) for each in kernels)

    @abstractmethod
    def _built(self, fitter: ModelFitter, observations: Observations) -> Any:
        """Return the model of some observations by the newest hyperparameters of a fitter."""

    @abstractmethod
    def _taken_in(self, model: Any, new: Observations) -> Any:
        """Return a model with more standardized outcomes."""

    @abstractmethod
    def _with_pending(
        self, held: StandardizedModel, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        """Return the posterior after the pending trials, as :meth:`condition`."""


class RowState(PosteriorState):
    """The posterior on any rows: for boxes, and for contexts between bounds.

    Where two forms of drift are learned in each round, it is averaged over their hyperparameters;
    otherwise the factor of a :class:`tvbo.models.EnsembleGP` grows by what is new.

    Args:
        fitter: Holds or learns the hyperparameters.
        tol: Of the observations that retention discards, those whose weight has fallen to this stay
            in the model until they are a third of it. Otherwise the model is built again. A
            recommendation for a time long past may see them still.
    """

    def _is_crowded(self, model: EnsembleGP, num_kept: int) -> bool:
        # An average is built again in each round.
        return len(model.weights) > 1 or 3 * num_kept <= 2 * len(model.train_targets)

    def _built(self, fitter: ModelFitter, observations: Observations) -> EnsembleGP:
        sets, observations = fitter.fitted.sets, fitter.standardized(observations)
        if sets is not None:
            held = observations.X, observations.Y, observations.Yvar
            return EnsembleGP.from_sets(sets, *held).weighed_by_likelihood()
        dense = fitter.last_model
        assert dense is not None
        return self._taken_in(EnsembleGP.from_model(dense, fitter.given_noise), observations)

    def _taken_in(self, model: EnsembleGP, new: Observations) -> EnsembleGP:
        return model.condition_on_observations(new.X, new.Y, new.Yvar) if len(new) > 0 else model

    def _with_pending(
        self, held: StandardizedModel, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        if len(rows) == 0 or not pending.enabled:
            return held
        with torch.no_grad():
            Y = self._stand_ins(pending, rows, lambda: marginals(held.model, rows.unsqueeze(-2))[0])
            noise = torch.full_like(Y, self._noise_of_pending(observations))
            conditioned: Any = held.model.condition_on_observations(rows, Y, noise=noise)
        return replace(held, model=conditioned)


class StreamingState(PosteriorState):
    r"""The posterior on a finite set, at constant cost per round.

    One posterior carries both the outcomes and the pending trials, at the cost of a round without
    delay. Only where an outcome comes late that was never seen pending, are the rows of the model
    made again.

    Args:
        fitter: Holds or learns the hyperparameters.
        choices: ``n x d``, the finite set.
        tol: Weight :math:`(1-\varepsilon)^{\text{age}}` at which an observation or a pending trial
            is negligible, as in :class:`tvbo.models.StreamingGP`.
    """

    def __init__(self, fitter: ModelFitter, choices: Tensor, tol: float = 1e-12):
        super().__init__(fitter, tol)
        self.choices = choices
        # The model of the last fit without observations, whose covariances all others share.
        self._prior: tuple[TimeVaryingGP, StreamingGP] | None = None

    def _built(self, fitter: ModelFitter, observations: Observations) -> StreamingGP:
        dense = fitter.last_model
        assert dense is not None
        if self._prior is None or self._prior[0] is not dense:
            noise = fitter.given_noise
            model = StreamingGP.from_model(dense, self.choices, noise_variance=noise, tol=self.tol)
            self._prior = dense, model
        model = copy(self._prior[1])
        return self._taken_in(model, standardized(observations, fitter.transform))

    def _taken_in(self, model: StreamingGP, new: Observations) -> StreamingGP:
        if len(new) > 0:
            model.observe(new.X, new.Y, new.Yvar)
        return model

    def _may_matter(self, age: Tensor) -> bool:
        assert self._held is not None
        # Found by the weight when the model was made, which takes longer than a round.
        return age.min().item() < cast(StreamingGP, self._held.model).memory * (1 - TIE_TOLERANCE)

    def _with_pending(
        self, held: StandardizedModel, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        model: Any = held.model
        if len(rows) == 0 == model.num_pending:
            return held
        if len(rows) > 0:
            now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
            rows = rows[now - rows[:, -1] < model.memory]
        noise = torch.full_like(rows[:, :1], self._noise_of_pending(observations))
        model.set_X_pending(rows, noise)
        # They are known all the same, so that outcomes that come late cost no more.
        if len(rows) == 0 or not pending.enabled:
            return held
        rows, expected = model.X_pending, lambda: model.expected_outcomes.unsqueeze(-1)
        values = self._stand_ins(pending, rows, expected)
        return replace(held, model=model.condition_on_pending(values))
