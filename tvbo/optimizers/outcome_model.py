"""The model of one outcome: its observations, their posterior, and which of them stay."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, replace
from itertools import compress
from typing import Any, Self, cast

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from torch import Generator, Tensor
from torch.nn.functional import pad

from tvbo.acquisition.success import SuccessModel
from tvbo.fit.drift import describe_form, half_life
from tvbo.fit.hyperparameters import read_hyperparameters
from tvbo.fit.model_fitter import ModelFitter, RefitNever
from tvbo.models import EnsembleGP, StreamingGP, TimeVaryingGP
from tvbo.models.one_output import OneOutputModel
from tvbo.models.scale import MIN_NOISE, StandardizedModel, marginals, standardized
from tvbo.optimizers.pending import IgnorePending, Pending
from tvbo.retention import KeepAll, Prediction, Rejection, Retention
from tvbo.retention.base import mask_of
from tvbo.retention.winsorize import lower_cutoff
from tvbo.rounding import TIE_TOLERANCE
from tvbo.spaces.observations import Observations
from tvbo.trial import Trial

logger = logging.getLogger("tvbo.optimizers")

NEGLIGIBLE_WEIGHT = 1e-12
"""Weight :math:`(1-\\varepsilon)^{\\text{age}}` at which an observation or a pending trial is
negligible."""


class OutcomeModel:
    r"""The model of one outcome: its observations, their posterior, and which of them stay.

    In each round, :meth:`discard` comes first, then :meth:`condition`. Outcomes come in and
    predictions go out in the user's unit; the models see them standardized. Outcomes far below all
    others are winsorized before they enter the posterior.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built again from
    these. Between two fits, the scaling of outcomes stays as it was at the last one.

    On a finite set it is a :class:`tvbo.models.StreamingGP`, at constant cost per round: one
    posterior carries both the outcomes and the pending trials, and only where an outcome comes late
    that was never seen pending, are the rows of the model made again. On any rows it is a
    :class:`tvbo.models.EnsembleGP`, the average over hyperparameters where two forms of drift are
    learned in each round; otherwise its factor grows by what is new. Of the observations that
    retention discards, those without weight stay in an ensemble until they are a third of it.

    Args:
        fitter: Holds or learns the hyperparameters.
        retention: Which observations stay, and which outcomes enter; None keeps all. The model
            works on a copy, since a policy may learn from outcomes.
        is_objective: Whether larger outcomes are better; False for one that only has limits.
        choices: ``n x d``, the finite set; None for any rows.

    Attributes:
        layout: Layout of the rows.
        num_told: Number of outcomes that entered so far, kept since or not.
        dropped: Numbers of the trials whose observations the newest ask discarded.
        newest: The posterior behind the newest ask or recommendation; None before the first.
        new_fit: The hyperparameters that the newest ask fitted; None if there was no fit.

    Raises:
        TypeError: if ``retention`` is no retention policy.
    """

    def __init__(
        self,
        fitter: ModelFitter,
        retention: Retention | None = None,
        is_objective: bool = True,
        choices: Tensor | None = None,
    ):
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(
                f"Expected a retention policy. Got {retention!r} of {type(retention).__name__}."
            )
        self.fitter, self.choices = fitter, choices
        self.retention = KeepAll() if retention is None else deepcopy(retention)
        self.is_objective = is_objective
        self.layout = fitter.layout
        self.num_told = 0
        self.newest: StandardizedModel | None = None
        self.dropped: tuple[int, ...] = ()
        self.new_fit: dict[str, list[float]] | None = None
        # Observations, the numbers of their trials, and the time of the ask that discarded them,
        # as of the newest ask: infinite where they are held, finite until an outcome has come from
        # then on; none where all are held.
        self._known = Observations.empty(self.layout.num_columns)
        self._trials: tuple[int, ...] = ()
        self._discarded_at = torch.empty(0, dtype=torch.float64)
        self._predictions: dict[int, Prediction] = {}
        # Outcomes below it are winsorized in the posterior.
        self._cutoff = -math.inf
        # The model of the last fit without observations, whose covariances all others share.
        self._prior: tuple[TimeVaryingGP, StreamingGP] | None = None
        # The posterior of the outcomes that came.
        self._posterior: StandardizedModel | None = None
        # Observations in it; None if it must be built again.
        self._num_seen: int | None = None
        # Observations from which it is yet to be built, of a run that goes on.
        self._resumed: Observations | None = None

    @property
    def observations(self) -> Observations:
        """The observations held, with their outcomes as observed."""
        if len(self._discarded_at) == 0:
            return self._known
        return self._known[self._times_of_discarding().isinf()]

    @property
    def posterior(self) -> StandardizedModel | None:
        """The posterior of the outcomes that came, whatever is pending; None before the first."""
        if self._resumed is not None:
            model, self._resumed = self._built(self._resumed), None
            self._posterior = StandardizedModel(model, self.fitter.transform)
        return self._posterior

    @property
    def last_model(self) -> Model | None:
        """The same model, predicting in the user's unit."""
        return None if self.posterior is None else self.posterior.in_user_units()

    @property
    def dense(self) -> TimeVaryingGP:
        """The dense model with the newest hyperparameters, of the observations of the last fit."""
        assert self.fitter.last_model is not None
        dense = StandardizedModel(self.fitter.last_model, self.fitter.transform)
        return cast(TimeVaryingGP, dense.in_user_units())

    def keeps(self, observations: Observations, t: float) -> Tensor:
        """Return which observations retention keeps at a time, a mask of ``n``."""
        return mask_of(self.retention, observations, self.last_model, t)

    def success_at(self, ended: Observations, t: float) -> SuccessModel | None:
        """Return the probability of success at a time; None if no trial has failed lately.

        Args:
            ended: Trials that ended, 1 for those that succeeded and 0 for the others.
            t: The time.
        """
        ended = ended[ended.X[:, -1] <= t]
        ended = ended[self.keeps(ended, t)]
        drifts = self.fitter.forgetting_rate != 0
        return None if ended.Y.all() else SuccessModel(ended, self.fitter.bounds, drifts)

    def discard(self, t: float, newest_told: float) -> None:
        """Forget the observations that retention does not keep at a time.

        They are set aside until an outcome has come from then on, since the ask may fail.

        Args:
            t: The time of an ask.
            newest_told: The time of the newest outcome.
        """
        at, self.dropped = self._times_of_discarding(), ()
        held = at > t
        if (held & at.isfinite()).any():
            self.restart()
        observations = self._known[held] if len(self._discarded_at) else self._known
        keep = self.keeps(observations, t)
        if not keep.all():
            self._drop(observations, keep, t)
        elif len(self._discarded_at) == 0:
            return
        at = torch.where(held, math.inf, at)
        at[held.nonzero().squeeze(-1)[~keep]] = t
        self.dropped = tuple(compress(self._trials, (held & ~at.isinf()).tolist()))
        # An outcome from later on makes sure that no ask comes before.
        left = at > newest_told
        self._known, at = self._known[left], at[left]
        self._discarded_at = at if at.isfinite().any() else at[:0]
        self._trials = tuple(compress(self._trials, left.tolist()))

    def condition(
        self,
        t: float,
        open_rows: list[Tensor],
        pending: Pending,
        generator: Generator,
        sign: float = 0.0,
    ) -> None:
        """Update the posterior, given the observations and the open trials.

        Args:
            t: The time of the ask.
            open_rows: Rows of the open trials, each ``1 x d``.
            pending: What stands in for the outcomes of these.
            generator: Seeds the restarts of a fit.
            sign: What outcomes were multiplied by, so that larger ones are better; 0 logs nothing.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        X = torch.cat([self._known.X[:0], *open_rows])
        # What lies in the future need not be counted now, nor what would be dropped when observed.
        X = X[X[:, -1] <= t]
        rows = X[self.keeps(Observations(X, torch.zeros_like(X[:, :1])), t)]
        rows = rows[rows[:, -1].argsort(stable=True)]
        observations, cutoff = self._winsorized()
        if sign and cutoff > self._cutoff == -math.inf:
            newest = self._known.Y[cutoff > self._known.Y][-1].item()
            logger.warning(
                "Outcomes far %s the rest, the newest %g, enter the model as %.4g, here and from "
                "now on. A trial that crashed may also be ended by fail(trial, reason).",
                "above" if sign < 0 else "below",
                sign * newest,
                sign * cutoff,
            )
        if cutoff != self._cutoff:
            self.restart()
            self._cutoff = cutoff
        fitter, before = self.fitter, self.fitter.fitted.newest
        fitter.check_noise(observations)
        seen, held = self._num_seen, self.posterior
        self._num_seen = None  # What an error leaves half-way is of no use.
        if fitter.may_change(self.num_told, are_others=seen is None):
            fitter.fit(observations, self.num_told, generator)
            seen = None
        if seen is None or held is None:
            model = self._built(observations)
        else:
            new = standardized(observations[seen:], fitter.transform)
            model = self._taken_in(cast(Any, held.model), new)
        self._posterior = StandardizedModel(model, fitter.transform)
        self._num_seen = len(observations)
        self.new_fit = None if fitter.fitted.newest is before else fitter.fitted.newest
        self.newest = self._with_pending(observations, rows, pending)

    def look_at(self, t: float, generator: Generator) -> None:
        """Set ``newest`` to the posterior that an ask at ``t`` would have without pending trials.

        A fit that is due is made, and made again at the next ask.

        Args:
            t: The time.
            generator: Seeds the restarts of a fit.
        """
        new = self._at(t)
        new.condition(t, [], IgnorePending(), generator)
        self.newest = new.newest

    def fitter_at(self, t: float, generator: Generator) -> ModelFitter:
        """Return a copy of the fitter, fitted to the observations that count at a time.

        Args:
            t: The time.
            generator: Seeds the restarts of a fit.
        """
        new = self._at(t)
        new.fitter.fit(new._winsorized()[0], self.num_told, generator)
        return new.fitter

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        assert self.posterior is not None
        mean, variance = self.posterior.moments(row)
        return mean.item(), variance.item()

    def predicted(self, row: Tensor, names: Sequence[str]) -> dict[str, Any]:
        """Return what is predicted at a row, and by which hyperparameters, as data.

        Args:
            row: As of :meth:`predict`.
            names: Names of its columns but time.
        """
        (mean, variance), dense, fitted = self.predict(row), self.dense, self.fitter.fitted
        return {
            "mean": mean,
            "variance": variance,
            "noise_variance": self.outcome_noise(),
            "is_fitted": isinstance(self.fitter.refit, RefitNever) or fitted.newest is not None,
            "model_size": len(self.observations),
            "hyperparameters": read_hyperparameters(dense, names, row),
            "form": describe_form(dense.temporal_kernels),
            "half_life": half_life(dense.temporal_kernels),
            "at_bounds": [list(each) for each in fitted.at_bounds],
        }

    def outcome_noise(self) -> float | None:
        """Return the noise variance to expect of the next outcome: given, observed, or learned.

        None where it comes with the outcomes, and none has come yet.
        """
        assert self.posterior is not None
        scale, Yvar = self.posterior.scale, self.observations.Yvar
        if self.fitter.given_noise is not None:
            return self.fitter.given_noise * scale**2
        if Yvar is not None and len(Yvar) > 0:
            return Yvar.mean().item()
        if isinstance(self.fitter.refit, RefitNever):
            return None
        return cast(OneOutputModel, self.posterior.model).noise_variance.item() * scale**2

    def admit(self, trial: Trial, row: Tensor) -> tuple[float | None, Rejection | None]:
        """Return what the outcome of a trial would tell, in nats, and why it is rejected, if it is.

        Args:
            trial: A trial that is about to be opened.
            row: Its row, ``1 x d``.
        """
        noise_variance = self.outcome_noise() if self.retention.needs_prediction else None
        if noise_variance is None:
            return None, None
        assert self.newest is not None
        mean, variance = (each.item() for each in self.newest.moments(row))
        prediction = Prediction(trial.t, mean, variance, noise_variance, trial.id)
        rejection = self.retention.admit(prediction, len(self.observations))
        if rejection is None or not rejection.skip:
            # Its outcome is compared with the other outcomes, not with what stands in for some.
            mean, variance = self.predict(row)
            self._predictions[trial.id] = replace(prediction, mean=mean, variance=variance)
        return prediction.information_gain, rejection

    def check_variances(self, observation: Observations) -> None:
        """Raise ``InputDataError`` if only one of it and the observations has noise variances."""
        held = self._known
        if len(held) and (held.Yvar is None) != (observation.Yvar is None):
            raise InputDataError(
                "Expected Yvar with every observation or with none. Got "
                f"Yvar={observation.Yvar} after observations "
                f"{'without' if held.Yvar is None else 'with'} it."
            )

    def learn(self, trial: Trial, observation: Observations) -> None:
        """Take in the outcome of a trial, if it is informative."""
        # What may refuse the outcome comes first, what takes it in last.
        known = self._known.append(observation) if trial.informative else self._known
        prediction = self._predictions.get(trial.id)
        # Measured at another time, the outcome is another than was predicted.
        if prediction is not None and prediction.t == observation.X[0, -1]:
            if observation.Yvar is not None:
                prediction = replace(prediction, noise_variance=observation.Yvar.item())
            self.retention.observe_outcome(prediction, observation.Y.item())
        self._predictions.pop(trial.id, None)
        if trial.informative:
            self._known, self._trials = known, (*self._trials, trial.id)
            # What is refused makes no fit due: it would learn nothing from it.
            self.num_told += 1

    def forget(self, trial: Trial) -> None:
        """Forget what was predicted of a trial whose outcome will not come."""
        self._predictions.pop(trial.id, None)

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned of the observations, and of the open trials, as data."""
        return {
            "num_told": self.num_told,
            "cutoff": None if self._cutoff == -math.inf else self._cutoff,
            "num_seen": self._num_seen,
            "fitter": self.fitter.state_dict(),
            "retention": self.retention.state_dict(),
            "predictions": [asdict(each) for each in self._predictions.values()],
        }

    def load(
        self,
        state: Mapping[str, Any],
        observations: Observations,
        trials: Sequence[int],
        asks: Sequence[tuple[float, Sequence[int]]],
        newest_told: float,
    ) -> None:
        """Take over what :meth:`state_dict` returned, and the observations of trials.

        Args:
            state: The data.
            observations: The observations that entered the model, in the order in which they came.
            trials: The numbers of their trials.
            asks: For each ask in their order its time, and the numbers of the trials whose
                observations were discarded for it.
            newest_told: The time of the newest outcome.
        """
        at: dict[int, float] = {}
        earliest = math.inf
        # What an ask discarded is held again in a later one for an earlier time, as in discard().
        for t, numbers in reversed(asks):
            earliest = min(t, earliest)
            at |= {number: t for number in numbers if number not in at and t == earliest}
        self._discarded_at = torch.tensor(
            [at.get(each, math.inf) for each in trials], dtype=torch.float64
        )
        left = self._discarded_at > newest_told
        self._known, self._discarded_at = observations[left], self._discarded_at[left]
        self._trials = tuple(compress(trials, left.tolist()))
        self.num_told = state["num_told"]
        self._cutoff = -math.inf if state["cutoff"] is None else state["cutoff"]
        self.retention.load_state_dict(state["retention"])
        predictions = [Prediction(**each) for each in state["predictions"]]
        self._predictions = {each.trial_id: each for each in predictions}
        self.fitter.load_state_dict(state["fitter"])
        self._num_seen = state["num_seen"]
        if self._num_seen is not None:
            # As they entered the model at the newest ask.
            held = self.observations[: self._num_seen]
            self._resumed = replace(held, Y=held.Y.clamp_min(self._cutoff))
            self.fitter.resume(self._resumed)

    def restart(self) -> None:
        """Forget all observations in the posterior, which is built again."""
        self._num_seen = self._resumed = None

    def _times_of_discarding(self) -> Tensor:
        """Return the time of the ask that discarded each observation, infinite where it is held."""
        num_new = len(self._known) - len(self._discarded_at)
        return pad(self._discarded_at, (0, num_new), value=math.inf)

    def _at(self, t: float) -> Self:
        """Return a copy with the observations that count at a time, whose changes are its own."""
        posterior, new = self.posterior, copy(self)
        new.fitter = copy(self.fitter)
        if posterior is not None:
            new._posterior = replace(posterior, model=copy(posterior.model))
        new.discard(t, -math.inf)
        return new

    def _drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Have the posterior built again without observations, unless they have lost their weight.

        Args:
            observations: Those held.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        if self.posterior is None or self._num_seen is None:
            return
        age = t - observations.X[: self._num_seen][~keep[: self._num_seen], -1]
        if len(age) == 0:
            return
        self._num_seen -= len(age)
        model: Any = self.posterior.model
        # A policy that drops at this very weight rounds it otherwise.
        if isinstance(model, StreamingGP):
            # Found by the weight when the model was made, which takes longer than a round.
            may_matter = age.min().item() < model.memory * (1 - TIE_TOLERANCE)
        elif len(model.weights) > 1 or 3 * self._num_seen <= 2 * len(model.train_targets):
            # An average is built again in each round, and one that is crowded.
            may_matter = True
        else:
            kernels, least = self.dense.temporal_kernels, NEGLIGIBLE_WEIGHT * (1 + TIE_TOLERANCE)
            may_matter = not kernels or any(bool((k.weight(age) > least).any()) for k in kernels)
        if may_matter:
            self.restart()

    def _winsorized(self) -> tuple[Observations, float]:
        """Return the observations as they enter the model, and the least outcome that may."""
        observations = self.observations
        if not self.is_objective:
            return observations, -math.inf
        scale = self.fitter.unit if isinstance(self.fitter.refit, RefitNever) else 0.0
        cutoff = lower_cutoff(observations, self.fitter.bounds, self.layout.num_actions, scale)
        if cutoff > -math.inf:
            observations = replace(observations, Y=observations.Y.clamp_min(cutoff))
        return observations, cutoff

    def _built(self, observations: Observations) -> StreamingGP | EnsembleGP:
        """Return the model of some observations by the newest hyperparameters."""
        fitter, observations = self.fitter, self.fitter.standardized(observations)
        if fitter.fitted.sets is not None and self.choices is None:
            held = observations.X, observations.Y, observations.Yvar
            return EnsembleGP.from_sets(fitter.fitted.sets, *held).weighed_by_likelihood()
        dense, noise = fitter.last_model, fitter.given_noise
        assert dense is not None
        if self.choices is None:
            return self._taken_in(EnsembleGP.from_model(dense, noise), observations)
        if self._prior is None or self._prior[0] is not dense:
            choices, tol = self.choices, NEGLIGIBLE_WEIGHT
            model = StreamingGP.from_model(dense, choices, noise_variance=noise, tol=tol)
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
        self, observations: Observations, rows: Tensor, pending: Pending
    ) -> StandardizedModel:
        """Return the posterior after the pending trials.

        Args:
            observations: The observations in the posterior.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first; none
                where ``q`` is 0.
            pending: What stands in for their outcomes.
        """
        assert self._posterior is not None
        model: Any = self._posterior.model
        is_streaming = isinstance(model, StreamingGP)
        if len(rows) == 0 and not (is_streaming and model.num_pending):
            return self._posterior
        # As long as nothing is known of their noise, it is the least possible.
        known = (self.outcome_noise() or 0.0) / self._posterior.scale**2
        noise = torch.full_like(rows[:, :1], max(known, MIN_NOISE))
        if is_streaming:
            if len(rows) > 0:
                now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
                is_near = now - rows[:, -1] < model.memory
                rows, noise = rows[is_near], noise[is_near]
            # They are known all the same, so that outcomes that come late cost no more.
            model.set_X_pending(rows, noise)
            rows = model.X_pending
        if len(rows) == 0 or not pending.enabled:
            return self._posterior
        with torch.no_grad():
            if is_streaming:
                expected = model.expected_outcomes.unsqueeze(-1)
            else:
                expected, _ = marginals(model, rows.unsqueeze(-2))
            expected, _ = self.fitter.transform.untransform(expected)
            Y, _ = self.fitter.transform(pending.outcomes(rows, expected))
            conditioned = model.condition_on_observations(rows, Y, noise=noise)
        return replace(self._posterior, model=conditioned)
