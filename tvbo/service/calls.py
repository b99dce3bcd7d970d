"""The calls of a run: plain values in, plain values out, as JSON has them.

Bad input raises ``ValueError``, ``TypeError`` or an error of BoTorch's, with a message in one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from botorch.exceptions.errors import InputDataError, UnsupportedError

from tvbo.fit.drift_estimate import DriftEstimate
from tvbo.optimizers import GPOptimizer, Optimizer, Trial
from tvbo.recommendation import Recommendation
from tvbo.service.status import BAND, finite
from tvbo.spaces.search_space import SearchSpace
from tvbo.storage import read_run
from tvbo.trial import TrialError
from tvbo.values import as_number, check_names

Time = float | str | None
Named = dict[str, Any] | list[float]
Outcome = float | list[float] | dict[str, float]
"""What a call takes, by which the service reads a request: times, values, outcomes."""

Values = dict[str, Any]
"""What a call returns: text, numbers, truth values, None, and lists and dicts of these."""

MAX_GAPS, MAX_AHEAD = 100, timedelta(days=1)
"""Usual gaps between trials, and time, after which an ask seems to be by a wrong clock."""


def ask(
    optimizer: Optimizer,
    t: Time = None,
    context: Named | None = None,
    key: str | None = None,
    force: bool = False,
    duration: float | str | None = None,
) -> Values:
    """Ask for the next trial.

    Args:
        optimizer: The optimizer of the run.
        t: The time, a number or in ISO 8601; None is the next round, or with a unit of time now.
        context: The context: values by name, or a list of numbers where it has no names.
        key: A key of the caller's; asked again, it gives the same trial.
        force: Whether the time may be far ahead of the trials so far.
        duration: How long the evaluation takes: a number of units of time, or with a unit also text
            such as ``"10min"``; None is as the run has it.

    Returns:
        ``trial``, its number; ``t``; ``parameters`` and, where contexts were declared, ``context``
        by name; ``feasibility`` where it is known; and ``skipped``, whether not to try it.

    Raises:
        InputDataError: if the time is far ahead of the trials so far; else as ``Optimizer.ask``.
    """
    now = time_of(optimizer, t)
    is_known = key is not None and any(each.key == key for each in optimizer.open_trials)
    if not (force or is_known):
        _check_clock(optimizer, now)
    given = _row_of(optimizer.contexts, context)
    length = None if duration is None else _span(optimizer, duration)
    trial = optimizer.ask(now, given, key, duration=length)
    values: Values = {"trial": trial.id, **_inputs_of(optimizer, trial)}
    if trial.feasibility is not None:
        values["feasibility"] = trial.feasibility
    return values | {"skipped": trial.skipped}


def tell(
    optimizer: Optimizer,
    trial: int,
    outcome: Outcome,
    variance: Outcome | None = None,
    t: Time = None,
) -> Values:
    """Tell the outcome of a trial, one number, or several by name; return its number.

    It was measured at ``t``, by default at the time of the trial.

    Told so before, it is no error, so that a call whose answer was lost may be repeated.
    """
    with _once_more(optimizer, trial, "told", outcome, variance):
        measured = number("t", t) if optimizer.time_scale is None and isinstance(t, str) else t
        optimizer.tell(trial, outcome, variance, measured)
    return {"trial": trial}


def fail(optimizer: Optimizer, trial: int, reason: str) -> Values:
    """Say that a trial has no outcome, and will not have one, as :func:`tell`."""
    with _once_more(optimizer, trial, "failed", reason=reason):
        optimizer.fail(trial, reason)
    return {"trial": trial}


def expire(
    optimizer: Optimizer,
    trial: int | None = None,
    older_than: float | str | None = None,
    t: Time = None,
) -> Values:
    """Give up a trial whose outcome did not come in time, or all that are overdue.

    Args:
        optimizer: The optimizer of the run.
        trial: Number of the trial; None are all those that are overdue.
        older_than: With several, the age of trials to give up: a number, or with a unit of time
            text such as ``"2h"``.
        t: Their age is up to this time, as of :func:`ask`; without a unit of time, it is needed.

    Returns:
        ``expired``, the numbers of the trials.
    """
    if trial is not None and older_than is None:
        with _once_more(optimizer, trial, "expired"):
            optimizer.expire(trial)
        return {"expired": [trial]}
    if trial is not None or older_than is None:
        raise InputDataError(
            f"Expected either a trial or older_than. Got {trial!r} and {older_than!r}."
        )
    now = time_of(optimizer, t)
    if now is None:
        raise InputDataError("Expected t, up to which trials have an age. Got none.")
    expired = optimizer.expire_overdue(now, _span(optimizer, older_than))
    return {"expired": [each.id for each in expired]}


def recommend(optimizer: Optimizer, t: Time = None, context: Named | None = None) -> Values:
    """Return the action that is best by the model, at a time and in a context.

    Args:
        optimizer: The optimizer of the run.
        t: The time; None is that of the newest trial, or with a unit of time now.
        context: As of :func:`ask`.

    Returns:
        As :func:`predict`.
    """
    gp = _with_model(optimizer, "recommend")
    given = _row_of(optimizer.contexts, context)
    return outlook(optimizer, gp.recommend(given, time_of(optimizer, t)))


def front(optimizer: Optimizer, t: Time = None, context: Named | None = None) -> Values:
    """Return the best compromises of several outcomes: ``front``, as of :func:`recommend`."""
    gp = _with_model(optimizer, "front")
    given = _row_of(optimizer.contexts, context)
    found = gp.front(given, time_of(optimizer, t))
    return {"front": [outlook(optimizer, each) for each in found]}


def predict(
    optimizer: Optimizer, parameters: Named, t: Time = None, context: Named | None = None
) -> Values:
    """Return what the model expects of an action.

    Args:
        optimizer: The optimizer of the run.
        parameters: Values by name, or a list of numbers where they have no names.
        t: As of :func:`recommend`.
        context: As of :func:`ask`.

    Returns:
        ``parameters`` and ``context``; ``t``; of the outcome without its noise ``mean`` and
        ``band``, that of 95 %; of each other one ``NAME_mean`` and ``NAME_band``; ``feasibility``
        and ``probability_of_success`` where these are known.
    """
    gp = _with_model(optimizer, "predict")
    X = gp.search_space.read(_row_of(gp.search_space, parameters))
    given = _row_of(optimizer.contexts, context)
    [expected] = gp.front(given, time_of(optimizer, t), choices=X)
    return outlook(optimizer, expected)


def drift(optimizer: Optimizer, outcome: str | None = None) -> Values:
    """Return how fast an outcome drifts; None is the first.

    Returns:
        ``form``; ``half_life`` and ``half_life_interval``, in units of time, None where there is
        none; ``forgetting_rate``; ``time_unit``.
    """
    return estimate(_with_model(optimizer, "drift").drift(outcome))


def estimate(found: DriftEstimate) -> Values:
    """Return how fast an outcome drifts, as :func:`drift` does."""
    interval = found.half_life_interval
    return {
        **asdict(found),
        "half_life": finite(found.half_life),
        "half_life_interval": None if interval is None else [finite(each) for each in interval],
    }


def time_of(optimizer: Optimizer, t: Any) -> Any:
    """Return the time that was given; with a unit of time, by default the present."""
    scale = optimizer.time_scale
    if scale is None:
        return number("t", t) if isinstance(t, str) else t
    if t is not None:
        return t
    now = datetime.now(UTC)
    return now if scale.zone is not None else now.replace(tzinfo=None)


def number(what: str, text: str) -> float:
    """Return the number that a text stands for."""
    try:
        return float(text)
    except ValueError as error:
        raise InputDataError(f"Expected a number for {what}. Got {text!r}.") from error


def _span(optimizer: Optimizer, given: float | str) -> Any:
    """Return a span of time: a number of its units; where it has a unit, other text as it is."""
    with suppress(ValueError):
        return float(given)
    return given if optimizer.time_scale is not None else number("a span of time", str(given))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: a timestamp as text."""
    return value if isinstance(value, str | bool | int | float) else str(value)


@contextmanager
def _once_more(
    optimizer: Optimizer,
    trial: int,
    state: str,
    outcome: Any = None,
    variance: Any = None,
    reason: str | None = None,
) -> Iterator[None]:
    """Have the body end a trial, unless it has ended so before."""
    try:
        yield
    except TrialError:
        rows = None if optimizer.recorded_at is None else read_run(optimizer.recorded_at)
        if rows is None or not 1 <= trial <= len(rows.trials):
            raise
        known = rows.trials[trial - 1]
        if known.state != state or reason not in (None, known.reason):
            raise
        for name, given, told in (("Y", outcome, known.Y), ("Yvar", variance, known.Yvar)):
            values = None if given is None else optimizer.labels.outcome(name, given)
            if ([] if values is None else values.flatten().tolist()) != [*told]:
                raise


def _check_clock(optimizer: Optimizer, now: Any) -> None:
    """Raise for a time far ahead of the trials, from which a run could not go back."""
    scale = optimizer.time_scale
    if scale is None or not isinstance(optimizer, GPOptimizer):
        return
    times = [*optimizer.observations.X[:, -1].tolist()]
    times += [float(trial.t) for trial in optimizer.open_trials]
    if len(times) < 2:
        return
    newest = max(times)
    # The mean, since trials may come in batches with a pause between them.
    gap = (newest - min(times)) / (len(times) - 1)
    ahead = optimizer.labels.number(now) - newest
    if ahead > max(MAX_GAPS * gap, scale.to_span(MAX_AHEAD)):
        raise InputDataError(
            f"Expected a time near {plain(scale.to_stamp(newest))}, that of the newest trial. Got "
            f"{now}, further than {MAX_GAPS} usual gaps and a day: if no clock is wrong, ask with "
            "force."
        )


def _row_of(space: SearchSpace | None, values: Any) -> Any:
    """Return values as a space takes them; by ``action_0``, ... where it has no names."""
    if space is None or space.parameters is not None or not isinstance(values, Mapping):
        return values
    names = [f"{space.name}_{place}" for place in range(space.dim)]
    check_names(values, names, "values of")
    return [as_number(name, values[name]) for name in names]


def _with_model(optimizer: Optimizer, call: str) -> GPOptimizer:
    if not isinstance(optimizer, GPOptimizer):
        raise UnsupportedError(
            f"Expected a run of a rule that has a model. Got {call} of {type(optimizer).__name__}."
        )
    return optimizer


def _inputs_of(optimizer: Optimizer, point: Trial | Recommendation) -> Values:
    """Return time, action and context of a trial, by name or numbered."""
    row = optimizer.labels.to_row(point.X, point.t, point.context)
    action = optimizer.labels.to_row(point.X, point.t, None)
    values: Values = {"t": plain(row.pop("t"))}
    values["parameters"] = {name: value for name, value in row.items() if name in action}
    if point.context is not None:
        values["context"] = {name: row[name] for name in row if name not in action}
    return values


def outlook(optimizer: Optimizer, expected: Recommendation) -> Values:
    """Return what is expected of an action."""
    values = _inputs_of(optimizer, expected)
    moments = {"": (expected.mean, expected.standard_deviation)}
    moments |= {f"{name}_": each for name, each in expected.others.items()}
    for name, (mean, deviation) in moments.items():
        values[f"{name}mean"] = mean
        values[f"{name}band"] = [mean - BAND * deviation, mean + BAND * deviation]
    for name in ("feasibility", "probability_of_success"):
        if (probability := getattr(expected, name)) is not None:
            values[name] = probability
    return values
