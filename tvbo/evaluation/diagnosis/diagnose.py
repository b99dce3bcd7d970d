"""Diagnose a run: were outcomes as the model predicted them?"""

from __future__ import annotations

import math
from contextlib import closing

import torch

from tvbo.evaluation.diagnosis.diagnosis import Diagnosis
from tvbo.evaluation.diagnosis.predicted_trial import PredictedTrial
from tvbo.evaluation.diagnosis.recorded_run import (
    DiagnosisError,
    RecordedRun,
    Source,
    recorded_run,
)
from tvbo.evaluation.diagnosis.replay import Replay
from tvbo.optimizers import Optimizer
from tvbo.terminal import patient_progress_bar


def diagnose(
    source: Source, optimizer: Optimizer | None = None, *, progress: bool = True
) -> Diagnosis:
    """Compare each outcome of a run with what its model predicted before.

    The run is repeated, fits of hyperparameters included, with the recorded actions instead of
    searches for the best. For each trial that was asked, the prediction is that of the outcomes
    told before the ask. Those made before the first fit, and attached trials, are not judged.
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
    run = recorded_run(source, optimizer)
    name, counts = type(run.optimizer).__name__, run.counts()
    try:
        replay = Replay(run.optimizer)
        steps = patient_progress_bar(run.records, len(run.records), "Replaying", shown=progress)
        with closing(steps):
            for record in steps:
                replay.repeat(record)
    except DiagnosisError:
        raise
    except Exception as error:  # Any error: what was recorded by other code may not be repeated.
        raise DiagnosisError(
            f"Expected a run that this code can repeat. Got {type(error).__name__}: {error}"
        ) from error
    trials = list(replay.trials.values())
    if not trials:
        raise DiagnosisError("Expected a run in which a trial was asked. Got none.")
    seconds = [run.seconds.get(trial.prediction.trial_id, math.nan) for trial in trials]
    return Diagnosis(
        name,
        trials,
        counts,
        torch.tensor(seconds, dtype=torch.float64) if run.seconds else None,
        [*run.messages, *_messages(run, replay, trials)],
    )


def _messages(run: RecordedRun, replay: Replay, trials: list[PredictedTrial]) -> list[str]:
    messages = []
    early = sum(not trial.is_fitted for trial in trials)
    if early:
        messages.append(f"{early} trials were asked before the first fit, and are not judged.")
    if attached := sum(record.kind == "attach" for record in run.records):
        messages.append(f"{attached} trials were attached: no prediction was made of them.")
    differing = sum(
        trial.model_size != run.model_sizes.get(trial.prediction.trial_id, trial.model_size)
        for trial in trials
    )
    if differing:
        messages.append(
            f"In {differing} of {len(trials)} rounds the model held another number of observations "
            "than the history says: the figures are approximate."
        )
    if replay.num_differing:
        messages.append(
            f"Retention judged {replay.num_differing} trials otherwise than was recorded: the "
            "figures are approximate."
        )
    if not run.seconds:
        messages.append("How long asks took was not recorded.")
    return messages
