"""The model of one outcome: its observations, their posterior, and which of them stay."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, replace
from functools import reduce
from itertools import compress
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Generator, Tensor

from tvbo.fit.model_fitter import ModelFitter, RefitNever
from tvbo.models.scale import StandardizedModel
from tvbo.optimizers.pending import IgnorePending, Pending
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.recorded_trial import RecordedTrial
from tvbo.retention import KeepAll, Prediction, Rejection, Retention
from tvbo.retention.base import mask_of
from tvbo.retention.winsorize import lower_cutoff
from tvbo.spaces.observations import Observations
from tvbo.trial import Trial

logger = logging.getLogger("tvbo.optimizers")


class OutcomeModel:
    """The model of one outcome: its observations, their posterior, and which of them stay.

    Outcomes far below all others are winsorized before they enter the posterior.

    Args:
        posterior_state: Holds the posterior of the observations.
        retention: Which observations stay, and which outcomes enter; None keeps all. The model
            works on a copy, since a policy may learn from outcomes.
        is_objective: Whether larger outcomes are better; False for one that only has limits.

    Attributes:
        layout: Layout of the rows.
        observations: The observations held, with their outcomes as observed.
        num_told: Number of outcomes that entered so far, kept since or not.
        dropped: Numbers of the trials whose observations the newest ask discarded.
        newest: The posterior behind the newest ask or recommendation; None before the first.

    Raises:
        TypeError: if ``retention`` is no retention policy.
    """

    def __init__(
        self,
        posterior_state: PosteriorState,
        retention: Retention | None = None,
        is_objective: bool = True,
    ):
        if retention is not None and not isinstance(retention, Retention):
            raise TypeError(
                f"Expected a retention policy. Got {retention!r} of {type(retention).__name__}."
            )
        self.posterior_state = posterior_state
        self.retention = KeepAll() if retention is None else deepcopy(retention)
        self.is_objective = is_objective
        self.layout = posterior_state.fitter.layout
        self.observations = Observations.empty(self.layout.num_columns)
        self.num_told = 0
        self.newest: StandardizedModel | None = None
        # Observations that were discarded for asks from which nothing was observed yet, with the
        # times of these asks.
        self._set_aside: tuple[tuple[float, Observations, tuple[int, ...]], ...] = ()
        # Numbers of the trials of the observations.
        self._trials: tuple[int, ...] = ()
        self.dropped: tuple[int, ...] = ()
        self._predictions: dict[int, Prediction] = {}
        # Outcomes below it are winsorized in the posterior.
        self._cutoff = -math.inf
        self._has_winsorized = False
        self._fit_seen: dict[str, list[float]] | None = None

    def discard(self, t: float, newest_told: float) -> None:
        """Forget the observations that retention does not keep at a time.

        They are set aside until an outcome has come from then on, since the ask may fail.

        Args:
            t: The time of an ask.
            newest_told: The time of the newest outcome.
        """
        self.dropped = ()
        held = self._held(t)
        if len(held) > len(self.observations):
            self.posterior_state.restart()
            self.observations = held
            again = [trials for later, _, trials in self._set_aside if later > t]
            self._trials = sum(again, ()) + self._trials
        # An outcome from later on makes sure that no ask comes before.
        self._set_aside = tuple(each for each in self._set_aside if newest_told < each[0] <= t)
        keep = self.keeps(self.observations, t)
        if not keep.all():
            self.posterior_state.drop(self.observations, keep, t)
            dropped = tuple(compress(self._trials, (~keep).tolist()))
            if t > newest_told:
                self._set_aside += ((t, self.observations[~keep], dropped),)
            self.observations = self.observations[keep]
            self._trials = tuple(compress(self._trials, keep.tolist()))
            self.dropped = dropped

    def observations_at(self, t: float) -> Observations:
        """Return the observations that count at a time, with outcomes as they enter the model."""
        winsorized, _ = self._winsorized(self._held(t))
        return winsorized[self.keeps(winsorized, t)]

    def fitter_at(self, t: float, generator: Generator) -> ModelFitter:
        """Return a copy of the fitter, fitted to the observations that count at a time.

        Args:
            t: The time.
            generator: Seeds the restarts of a fit.
        """
        fitter = copy(self.posterior_state.fitter)
        fitter.fit(self.observations_at(t), self.num_told, generator)
        return fitter

    def keeps(self, observations: Observations, t: float) -> Tensor:
        """Return which observations retention keeps at a time, a mask of ``n``."""
        return mask_of(self.retention, observations, self.posterior_state.last_model, t)

    def condition(
        self,
        t: float,
        open_rows: list[Tensor],
        pending: Pending,
        generator: Generator,
        sign: float,
    ) -> None:
        """Update the posterior, given the observations and the open trials.

        Args:
            t: The time of the ask.
            open_rows: Rows of the open trials, each ``1 x d``.
            pending: What stands in for the outcomes of these.
            generator: Seeds the restarts of a fit.
            sign: What outcomes were multiplied by, so that larger ones are better.
        """
        X = torch.cat([self.observations.X[:0], *open_rows])
        # What lies in the future need not be counted now, nor what would be dropped when observed.
        X = X[X[:, -1] <= t]
        outcomes = Observations(X, torch.zeros(len(X), 1, dtype=torch.float64))
        rows = X[self.keeps(outcomes, t)]
        rows = rows[rows[:, -1].argsort(stable=True)]
        winsorized, cutoff = self._winsorized(self.observations)
        if cutoff != self._cutoff:
            self.posterior_state.restart()
            self._cutoff = cutoff
        self.posterior_state.update(winsorized, self.num_told, generator)
        self.newest = self.posterior_state.condition(winsorized, rows, pending)
        if cutoff > -math.inf and not self._has_winsorized:
            self._has_winsorized = True
            newest = self.observations.Y[cutoff > self.observations.Y][-1].item()
            logger.warning(
                "Outcomes far %s the rest, the newest %g, enter the model as %.4g, here and from "
                "now on. A trial that crashed may also be ended by fail(trial, reason).",
                "above" if sign < 0 else "below",
                sign * newest,
                sign * cutoff,
            )

    def look_at(self, t: float, generator: Generator) -> None:
        """Set ``newest`` to the posterior that an ask at ``t`` would have without pending trials.

        A fit that is due is made, and made again at the next ask.

        Args:
            t: The time.
            generator: Seeds the restarts of a fit.
        """
        winsorized, cutoff = self._winsorized(self._held(t))
        keep, state = self.keeps(winsorized, t), self.posterior_state.copy()
        kept = winsorized[keep]
        are_others = cutoff != self._cutoff or len(winsorized) > len(self.observations)
        if are_others or not bool(keep.all()):
            state.restart()
        state.update(kept, self.num_told, generator)
        self.newest = state.condition(kept, kept.X[:0], IgnorePending())

    def admit(self, trial: Trial, row: Tensor) -> tuple[Trial, Rejection | None]:
        """Return a trial with the prediction of its outcome, and why it is rejected, if it is.

        Args:
            trial: A trial that is about to be opened.
            row: Its row, ``1 x d``.
        """
        if not self.retention.needs_prediction:
            return trial, None
        noise_variance = self.posterior_state.outcome_noise(self.observations)
        if noise_variance is None:
            return trial, None
        assert self.newest is not None
        mean, variance = (each.item() for each in self.newest.moments(row))
        prediction = Prediction(trial.t, mean, variance, noise_variance, trial.id)
        rejection = self.retention.admit(prediction, len(self.observations))
        trial = replace(
            trial,
            informative=rejection is None,
            information_gain=prediction.information_gain,
            skipped=rejection is not None and rejection.skip,
        )
        if not trial.skipped:
            # Its outcome is compared with the other outcomes, not with what stands in for some.
            mean, variance = self.posterior_state.predict(row)
            self._predictions[trial.id] = replace(prediction, mean=mean, variance=variance)
        return trial, rejection

    def check_variances(self, observation: Observations) -> None:
        """Raise ``InputDataError`` if only one of it and the observations has noise variances."""
        for held in (self.observations, *(each for _, each, _ in self._set_aside)):
            if len(held) and (held.Yvar is None) != (observation.Yvar is None):
                raise InputDataError(
                    "Expected Yvar with every observation or with none. Got "
                    f"Yvar={observation.Yvar} after observations "
                    f"{'without' if held.Yvar is None else 'with'} it."
                )

    def learn(self, trial: Trial, observation: Observations) -> None:
        """Take in the outcome of a trial, if it is informative."""
        # What may refuse the outcome comes first, what takes it in last.
        observations = self.observations.append(observation) if trial.informative else None
        prediction = self._predictions.get(trial.id)
        # Measured at another time, the outcome is another than was predicted.
        if prediction is not None and prediction.t == observation.X[0, -1]:
            if observation.Yvar is not None:
                prediction = replace(prediction, noise_variance=observation.Yvar.item())
            self.retention.observe_outcome(prediction, observation.Y.item())
        if observations is not None:
            self.observations = observations
            self._trials += (trial.id,)
            # What is refused makes no fit due: it would learn nothing from it.
            self.num_told += 1
        self._predictions.pop(trial.id, None)

    def forget(self, trial: Trial) -> None:
        """Forget what was predicted of a trial whose outcome will not come."""
        self._predictions.pop(trial.id, None)

    def new_fit(self) -> dict[str, list[float]] | None:
        """Return the hyperparameters fitted since the last call; None if there were no fits."""
        fitter = self.posterior_state.fitter
        newest = fitter.fitted.newest
        if newest is self._fit_seen:
            return None
        self._fit_seen = newest
        return newest

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned of the observations, and of the open trials, as data."""
        return {
            "num_told": self.num_told,
            "cutoff": None if self._cutoff == -math.inf else self._cutoff,
            "posterior": self.posterior_state.state_dict(),
            "retention": self.retention.state_dict(),
            "predictions": [asdict(each) for each in self._predictions.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned, for the observations held."""
        self.num_told = state["num_told"]
        self._cutoff = -math.inf if state["cutoff"] is None else state["cutoff"]
        self._has_winsorized = state["cutoff"] is not None
        self.retention.load_state_dict(state["retention"])
        predictions = [Prediction(**each) for each in state["predictions"]]
        self._predictions = {each.trial_id: each for each in predictions}
        # As they entered the model at the newest ask.
        Y = self.observations.Y.clamp_min(self._cutoff)
        self.posterior_state.load_state_dict(state["posterior"], replace(self.observations, Y=Y))
        self._fit_seen = self.posterior_state.fitter.fitted.newest

    def load(
        self,
        trials: Sequence[RecordedTrial],
        observe: Callable[[Sequence[RecordedTrial]], Observations],
        asks: Sequence[tuple[float, Sequence[int]]],
        newest_told: float,
    ) -> None:
        """Take over the observations of trials, in the order in which they were told.

        Args:
            trials: The trials.
            observe: Returns the observations of some trials.
            asks: For each ask in their order its time, and the numbers of the trials whose
                observations were discarded for it.
            newest_told: The time of the newest outcome.
        """
        discarded: list[tuple[float, Sequence[int]]] = []
        for t, numbers in asks:
            # As discard() does for an ask before those from which nothing was observed.
            while discarded and discarded[-1][0] > t:
                discarded.pop()
            if numbers:
                discarded.append((t, numbers))
        dropped = {number: t for t, numbers in discarded for number in numbers}
        held = [each for each in trials if each.id not in dropped]
        self.observations, self._trials = observe(held), tuple(each.id for each in held)
        for t in sorted({t for t, _ in discarded if t > newest_told}):
            aside = [each for each in trials if dropped.get(each.id) == t]
            self._set_aside += ((t, observe(aside), tuple(each.id for each in aside)),)

    def _held(self, t: float) -> Observations:
        """Return the observations held, with those that were set aside for an ask after ``t``."""
        again = [each for later, each, _ in self._set_aside if later > t]
        return reduce(Observations.append, [*again, self.observations])

    def _winsorized(self, observations: Observations) -> tuple[Observations, float]:
        """Return observations as they enter the model, and the least outcome that may."""
        if not self.is_objective:
            return observations, -math.inf
        fitter = self.posterior_state.fitter
        scale = fitter.unit if isinstance(fitter.refit, RefitNever) else 0.0
        cutoff = lower_cutoff(observations, fitter.bounds, self.layout.num_actions, scale)
        if cutoff > -math.inf:
            observations = replace(observations, Y=observations.Y.clamp_min(cutoff))
        return observations, cutoff
