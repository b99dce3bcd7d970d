"""Repeating a run, and looking at each prediction before its outcome is told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from botorch.models.model import Model
from torch import Tensor

from tvbo.acquisition.thompson import DrawnValues
from tvbo.evaluation.diagnosis.predicted_trial import PredictedTrial, read_parameters
from tvbo.evaluation.diagnosis.recorded_run import no_model
from tvbo.fit.drift import describe_form, half_life
from tvbo.models.at_bounds import parameters_at_bounds
from tvbo.optimizers import GPOptimizer, Optimizer, RefitNever, Trial
from tvbo.retention import Prediction
from tvbo.storage.event import Event
from tvbo.storage.replay import as_tensor


class Script:
    """Chooses the recorded action, in place of an acquisition and of the actions that fill space.

    Attributes:
        X: The action to choose next, ``1 x d``.
    """

    X: Tensor

    def __call__(self, model: Model, *_: object) -> DrawnValues:
        """Return an acquisition function whose best action is the recorded one."""
        return DrawnValues(model, self.X, self.X.new_zeros(1))

    def next(self, *_: object) -> Tensor:
        """Return the recorded action."""
        return self.X


class Replay:
    """Repeats the calls of a run on an optimizer, without choosing actions again.

    Its fits, its retention and its stand-ins for pending trials are made again. What the
    acquisition drew from the generator is not drawn.

    Args:
        optimizer: In the state before the first call; it is modified.

    Attributes:
        trials: The trials that were asked so far, by the number recorded.
        num_differing: Number of trials that retention judged otherwise than was recorded.

    Raises:
        DiagnosisError: if the optimizer has no Gaussian process.
    """

    def __init__(self, optimizer: Optimizer):
        self.trials: dict[int, PredictedTrial] = {}
        self.num_differing = 0
        optimizer._takes_numbers = True
        self._optimizer = optimizer
        self._script = Script()
        self._opened: dict[int, Trial] = {}
        self._num_told = 0
        if not isinstance(optimizer, GPOptimizer):
            raise no_model(optimizer)
        optimizer.acquisition = self._script
        optimizer._space_filling = self._script  # type: ignore[assignment]

    def repeat(self, record: Event) -> None:
        """Make a recorded call again."""
        given: Any = record
        match record.kind:
            case "ask":
                self._ask(record)
            case "attach":
                self._opened[given.trial_id] = self._attach(record)
            case "tell":
                self._num_told += 1
                self._optimizer.tell(self._trial(record), given.Y, given.Yvar or None)
                self._compare(record)
            case "fail":
                self._optimizer.fail(self._trial(record), given.reason)
            case "expire":
                self._optimizer.expire(self._trial(record), given.reason)

    def _trial(self, record: Event) -> Trial | int:
        number: Any = record.trial_id
        # One that was open before the records begin has its number.
        trial: Trial | int = self._opened.get(number, number)
        return trial

    def _ask(self, record: Event) -> None:
        given: Any = record
        self._script.X = torch.tensor([given.X], dtype=torch.float64)
        trial = self._optimizer.ask(given.t, as_tensor(given.context))
        self.trials[given.trial_id] = self._look(given.trial_id, trial)
        if (trial.informative, trial.skipped) != (given.informative, given.skipped):
            self.num_differing += 1
        if given.skipped and not trial.skipped:
            self._optimizer.expire(trial)
        elif trial.skipped and not given.skipped:
            trial = self._attach(record)
        self._opened[given.trial_id] = trial

    def _attach(self, record: Event) -> Trial:
        given: Any = record
        X = torch.tensor([given.X], dtype=torch.float64)
        return self._optimizer.attach(X, given.t, as_tensor(given.context))

    def _look(self, number: int, trial: Trial) -> PredictedTrial:
        """Return the prediction for a trial that was just asked."""
        optimizer: Any = self._optimizer
        context = trial.context if optimizer.layout.num_contexts else None
        row = optimizer.layout.rows(trial.X, trial.t, context)
        state = optimizer.posterior_state
        fitter, dense = state.fitter, state.dense
        mean, variance = state.predict(row)
        mean *= optimizer.goals.signs[0].item()
        noise = optimizer.posterior_state.outcome_noise(optimizer.observations)
        layout = optimizer.layout
        names = self._optimizer.labels.feature_names(layout.num_actions, layout.num_contexts)
        parameters = read_parameters(dense, names, row)
        if noise is not None:
            parameters["noise_deviation"] = math.sqrt(noise)
        return PredictedTrial(
            Prediction(trial.t, mean, variance, math.nan if noise is None else noise, number),
            is_fitted=isinstance(fitter.refit, RefitNever) or fitter.newest_fit is not None,
            model_size=self._optimizer.model_size,
            parameters=parameters,
            form=describe_form(dense),
            half_life=half_life(dense),
            at_bounds=tuple(parameters_at_bounds(dense)) if fitter.newest_fit else (),
            told_before=self._num_told,
        )

    def _compare(self, record: Event) -> None:
        """Note the outcome of a trial beside its prediction."""
        given: Any = record
        if (known := self.trials.get(given.trial_id)) is None:
            return
        prediction = known.prediction
        if given.Yvar:
            prediction = replace(prediction, noise_variance=given.Yvar[0])
        self.trials[given.trial_id] = replace(
            known, prediction=prediction, outcome=given.Y[0], told_as=self._num_told
        )
