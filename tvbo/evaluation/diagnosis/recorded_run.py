"""What a run recorded: an optimizer as it was before, and the calls made of it."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from tvbo.evaluation.history import History
from tvbo.fit.model_fitter import ModelFitter
from tvbo.optimizers import GPOptimizer, Optimizer, OutcomeModel
from tvbo.optimizers.posterior_state import PosteriorState
from tvbo.retention import Retention
from tvbo.retention.base import Chain
from tvbo.storage import JournalReader
from tvbo.storage.event import ENDINGS, OPENING, Event
from tvbo.storage.load import restore_start
from tvbo.storage.writer import JournalWriter

Source = History | Optimizer | str | Path
"""What a run can be diagnosed from."""


class DiagnosisError(ValueError):
    """A run that cannot be diagnosed."""


RecordedRun = tuple[GPOptimizer, list[Event], list[str]]
"""A run that can be repeated: an optimizer in the state before the first call, to be modified
freely; the calls, in order; and what is to be known of the figures."""


def trial_counts(records: Sequence[Event]) -> dict[str, int]:
    """Return the number of trials by state: told, open, failed, expired, skipped, discarded.

    Discarded are trials, with or without an outcome, which does not enter the model.
    """
    opened = {r.trial_id: r for r in records if r.kind in OPENING}
    ended = {r.trial_id: ENDINGS[r.kind] for r in records if r.kind in ENDINGS}
    states = list(ended.values())
    counts = {state: states.count(state) for state in ENDINGS.values()}
    counts["skipped"] = sum(r.skipped for r in opened.values())
    counts["discarded"] = sum(not r.informative and not r.skipped for r in opened.values())
    counts["open"] = len(opened.keys() - ended.keys()) - counts["skipped"]
    return counts


def recorded_run(source: Source, optimizer: Optimizer | None) -> RecordedRun:
    """Return what a source recorded.

    Args:
        source: As of :func:`tvbo.evaluation.diagnose`.
        optimizer: Likewise.

    Raises:
        DiagnosisError: if a history comes without an optimizer, or the optimizer predicts no
            outcomes or cannot be made again.
        tvbo.storage.JournalError: if the source is no journal that can be read.
    """
    if isinstance(source, History):
        if optimizer is None:
            raise DiagnosisError(
                "Expected the optimizer of the run, or one with its settings, beside a history. "
                "Got none."
            )
        return _unused(optimizer), _calls(source), []
    if not isinstance(source, Optimizer):
        return _of_journal(Path(source), optimizer)
    sink = source._event_sink
    if isinstance(sink, JournalWriter):
        return _of_journal(sink.path, source)
    return _of_observations(source)


def _of_journal(path: Path, like: Optimizer | None) -> RecordedRun:
    with JournalReader(path) as journal:
        start, _ = restore_start(journal, like)
        records = [record for _, record in journal.events()]
        messages = []
        if journal.damage is not None:
            messages.append(
                f"The journal is damaged: {journal.damage}. Its first {journal.num_good} records "
                "are good, and what is said here is of these."
            )
    return _checked(start), records, messages


def _calls(history: History) -> list[Event]:
    """Return the calls of a history: the ends of trials are placed by the asks before them."""
    kinds: dict[str, Any] = {status: kind for kind, status in ENDINGS.items()}
    placed: list[tuple[int, bool, Event]] = []
    for number, r in enumerate(history.rounds):
        # One that was open before the run was asked by another model than is known here.
        was_open = r.model_size == 0 and r.ask_seconds == 0
        placed.append((number, True, Event.of("attach" if was_open else "ask", r.trial)))
        if r.status in kinds:
            told = r.status == "told"
            Y, Yvar = (r.reward,) if told else (), () if r.variance is None else (r.variance,)
            end = Event.of(kinds[r.status], r.trial, Y, Yvar, "" if told else r.reason or r.status)
            placed.append((r.ended_after, False, end))
    return [record for *_, record in sorted(placed, key=operator.itemgetter(0, 1))]


def _of_observations(optimizer: Optimizer) -> RecordedRun:
    """Return one ask and one outcome for each observation that an optimizer holds."""
    is_partial = (optimizer.contexts is not None) != (optimizer.layout.num_contexts > 0)
    if not isinstance(optimizer, GPOptimizer) or is_partial or len(optimizer.outcome_models) > 1:
        raise DiagnosisError(
            "Expected a history or a journal of the run, since this optimizer does not hold all "
            f"that it took in. Got {type(optimizer).__name__} alone."
        )
    held, d = optimizer.observations, optimizer.layout.num_actions
    records: list[Event] = []
    newest = -math.inf
    for i, row in enumerate(held.X.tolist(), start=1):
        # An ask never lies before an earlier one.
        kind: Any = "ask" if row[-1] >= newest else "attach"
        newest = max(newest, row[-1])
        context = tuple(row[d:-1])
        Y = tuple((optimizer.goals.signs * held.Y[i - 1]).tolist())
        Yvar = () if held.Yvar is None else tuple(held.Yvar[i - 1].tolist())
        records.append(Event(kind, i, X=tuple(row[:d]), t=row[-1], context=context))
        records.append(Event("tell", i, Y=Y, Yvar=Yvar))
    messages = [
        "Trials are numbered by the order of the outcomes held, and each as observed before the "
        "next ask: a history or a journal would say when outcomes came, and what else was asked."
    ]
    if (dropped := optimizer.trial_log.num_told - len(held)) > 0:
        messages.append(f"{dropped} outcomes are no longer held, and are not seen here.")
    return _unused(optimizer), records, messages


def _unused(optimizer: Optimizer) -> GPOptimizer:
    """Return an optimizer with the same settings that was not yet in use."""
    used = _checked(optimizer)
    return deepcopy(used) if used.num_trials == 0 else _checked(_made_again(used))


def _checked(optimizer: object) -> GPOptimizer:
    if not isinstance(optimizer, GPOptimizer):
        raise DiagnosisError(
            "Expected an optimizer with a Gaussian process, which predicts the outcomes. Got "
            f"{type(optimizer).__name__}."
        )
    return optimizer


def _made_again(thing: Any) -> Any:
    """Return a copy of a value; parts of an optimizer are made from their arguments, unused."""
    if type(thing) is tuple:
        return tuple(map(_made_again, thing))
    if isinstance(thing, Chain):
        return Chain(*map(_made_again, thing.policies))
    if not isinstance(thing, (Optimizer, ModelFitter, OutcomeModel, PosteriorState, Retention)):
        return deepcopy(thing)
    parameters = list(inspect.signature(type(thing)).parameters)
    if missing := [name for name in parameters if not hasattr(thing, name)]:
        raise DiagnosisError(
            f"Expected a class that keeps the arguments of its constructor as attributes. Got "
            f"{type(thing).__name__}, without {', '.join(missing)}: give an optimizer that was "
            "not yet in use, or a journal."
        )
    return type(thing)(**{name: _made_again(getattr(thing, name)) for name in parameters})
