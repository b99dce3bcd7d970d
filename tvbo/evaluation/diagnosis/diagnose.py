"""Diagnose a run: were outcomes as the model predicted them?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from tvbo.evaluation.diagnosis.calibration import PredictedTrial
from tvbo.evaluation.diagnosis.diagnosis import Diagnosis
from tvbo.evaluation.diagnosis.recorded_run import (
    DiagnosisError,
    Source,
    recorded_run,
    trial_counts,
)
from tvbo.evaluation.history import History
from tvbo.fit.drift import describe_form, half_life
from tvbo.optimizers import GPOptimizer, Optimizer, RefitNever, Trial
from tvbo.retention import Prediction
from tvbo.storage.event import Event
from tvbo.storage.replay import as_tensor
from tvbo.terminal import patient_progress_bar


def diagnose(
    source: Source, optimizer: Optimizer | None = None, *, progress: bool = True
) -> Diagnosis:
    """Compare each outcome of a run with what its model predicted before.

    The run is repeated, fits of hyperparameters included, with the recorded actions instead of
    searches for the best. For each trial that was asked, the prediction is that of the outcomes
    observed before the ask. Those made before the first fit, and attached trials, are not judged.
    Neither the source nor the optimizer is modified.

    Args:
        source: A journal; a recorded optimizer; a history of :func:`run` or :func:`run_async`; or
            an optimizer that was not recorded, of which only the outcomes that it holds are seen.
        optimizer: Beside a history, the optimizer of the run or another with its settings; beside a
            journal, one with its settings, as in :meth:`tvbo.optimizers.Optimizer.open`, needed
            where the run holds code of yours: no other is run.
        progress: Show a progress bar on stderr, if it takes longer than some seconds.

    Raises:
        DiagnosisError: if the optimizer has no Gaussian process, nothing was asked of it, or the
            run cannot be repeated.
        tvbo.storage.JournalError: if the source is no journal that can be read, or of another
            problem than ``optimizer``.

    Example:
        >>> print(diagnose("run.db"))
    """
    started, records, messages = recorded_run(source, optimizer)
    steps = patient_progress_bar(records, "Replaying", shown=progress)
    try:
        with closing(steps):
            trials, num_differing = _repeated(started, steps)
    except Exception as error:  # Any error: what was recorded by other code may not be repeated.
        raise DiagnosisError(
            f"Expected a run that this code can repeat. Got {type(error).__name__}: {error}"
        ) from error
    if not trials:
        raise DiagnosisError("Expected a run in which a trial was asked. Got none.")
    if early := sum(not trial.is_fitted for trial in trials):
        messages.append(f"{early} trials were asked before the first fit, and are not judged.")
    if attached := sum(record.kind == "attach" for record in records):
        messages.append(f"{attached} trials were attached: no prediction was made of them.")
    seconds = None
    if isinstance(source, History):
        rounds = [source.round_of(trial.prediction.trial_id) for trial in trials]
        seconds = torch.tensor([r.ask_seconds for r in rounds], dtype=torch.float64)
        pairs = zip(trials, rounds, strict=True)
        if others := sum(trial.model_size != r.model_size for trial, r in pairs):
            messages.append(
                f"In {others} of {len(trials)} rounds the model held another number of "
                "observations than the history says: the figures are approximate."
            )
    else:
        messages.append("How long asks took was not recorded.")
    if num_differing:
        messages.append(
            f"Retention judged {num_differing} trials otherwise than was recorded: the figures are "
            "approximate."
        )
    return Diagnosis(type(started).__name__, trials, trial_counts(records), seconds, messages)


def _repeated(optimizer: GPOptimizer, records: Iterable[Event]) -> tuple[list[PredictedTrial], int]:
    """Make the calls of a run again, with the recorded action as the only one to choose.

    The optimizer is modified. Its fits, its retention and its stand-ins for pending trials are made
    again.

    Returns:
        The trials that were asked, and how many trials retention judged otherwise than recorded.
    """
    optimizer._takes_numbers = True
    asked: dict[int, PredictedTrial] = {}
    opened: dict[int, Trial] = {}
    num_told = num_differing = 0
    for record in records:
        given: Any = record
        number = given.trial_id
        # One that was open before the records begin has its number.
        trial: Any = opened.get(number, number)
        match given.kind:
            case "ask" | "attach":
                X = torch.tensor([given.X], dtype=torch.float64)
                context, trial = as_tensor(given.context), None
                if given.kind == "ask":
                    trial = optimizer.ask(given.t, context, choices=X)
                    asked[number] = _predicted(optimizer, trial, number, num_told)
                    judged = trial.informative, trial.skipped
                    num_differing += judged != (given.informative, given.skipped)
                    if given.skipped and not trial.skipped:
                        optimizer.expire(trial)
                if trial is None or (trial.skipped and not given.skipped):
                    trial = optimizer.attach(X, given.t, context)
                opened[number] = trial
            case "tell":
                num_told += 1
                optimizer.tell(trial, given.Y, given.Yvar or None)
                if (known := asked.get(number)) is not None:
                    prediction = known.prediction
                    if given.Yvar:
                        prediction = replace(prediction, noise_variance=given.Yvar[0])
                    asked[number] = replace(
                        known, prediction=prediction, outcome=given.Y[0], told_as=num_told
                    )
            case "fail":
                optimizer.fail(trial, given.reason)
            case "expire":
                optimizer.expire(trial, given.reason)
    return list(asked.values()), num_differing


def _predicted(optimizer: GPOptimizer, trial: Trial, number: int, num_told: int) -> PredictedTrial:
    """Return the prediction for a trial that was just asked."""
    layout, state = optimizer.layout, optimizer.posterior_state
    row = layout.rows(trial.X, trial.t, trial.context if layout.num_contexts else None)
    fitted, dense = state.fitter.fitted, state.dense
    mean, variance = state.predict(row)
    mean *= optimizer.goals.signs[0].item()
    noise = state.outcome_noise(optimizer.observations)
    names = optimizer.labels.feature_names(layout.num_actions, layout.num_contexts)
    parameters = read_parameters(dense, names, row)
    if noise is not None:
        parameters["noise_deviation"] = math.sqrt(noise)
    return PredictedTrial(
        Prediction(trial.t, mean, variance, math.nan if noise is None else noise, number),
        is_fitted=isinstance(state.fitter.refit, RefitNever) or fitted.newest is not None,
        model_size=optimizer.model_size,
        parameters=parameters,
        form=describe_form(dense.temporal_kernels),
        half_life=half_life(dense.temporal_kernels),
        at_bounds=fitted.at_bounds,
        told_before=num_told,
    )
