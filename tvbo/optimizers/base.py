"""The ask/tell loop of every rule: ask, attach, tell, fail, expire, record."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from numbers import Integral, Real
from pathlib import Path
from threading import RLock, current_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, TypedDict, overload

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from torch import Generator, Tensor

from tvbo.optimizers.event import Event, Kind, Settings
from tvbo.randomness import default_generator, draw_seed, generator_of
from tvbo.recorded_trial import COPIED, RecordedTrial, in_order
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.spaces.labels import Context, Labels, Outcome, Time, TimeScale
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.spaces.step_limit import StepLimit
from tvbo.terminal import html_table
from tvbo.trial import Ending, Trial, TrialError, TrialLog
from tvbo.values import Named, Table, column, is_any_nan, shortened

if TYPE_CHECKING:
    import pandas as pd

    from tvbo.storage.record import DatabaseRecord

logger = logging.getLogger("tvbo.optimizers")

MAX_TEXT_LENGTH = 10_000
"""Characters of a reason or a key that are kept."""


class OptimizerOptions(TypedDict, total=False):
    """Arguments that rules pass on to :class:`Optimizer`, which describes them."""

    generator: Generator | int | None
    contexts: SearchSpace | None
    time_scale: TimeScale | None
    settings: Settings | None
    duration: float | timedelta | str
    step_limit: StepLimit | None


class Optimizer(ABC):
    """Ask for an action, tell its outcome; outcomes in any order, any time later.

    A trial is open from the ask until its outcome is observed, or it fails or expires. An optimizer
    takes one call at a time: from one thread, as :func:`tvbo.evaluation.run_async` does, or from
    several in turn. A call from another thread while one is under way is refused with a
    ``RuntimeError``. As a context manager, it closes its record. Copies of it, pickled ones too,
    are not recorded.

    A rule of one's own defines ``_choose`` and ``_learn``, which draw from ``self.generator``. For
    each ask it is seeded from :attr:`seed` and the number of the trial, so that a choice depends on
    what was observed, and on nothing that was drawn before.

    Args:
        search_space: The set of actions.
        layout: How the rows that the model sees are laid out; by default actions, the contexts
            that were declared, and time.
        generator: Where the seed of every random choice is drawn from, or the seed itself; default
            a fresh one with seed 0.
        contexts: The contexts to expect; None where there are none. They may be declared and yet
            have no place in ``layout``: then each trial has its context, and the model ignores it.
        minimize: Whether smaller outcomes are better.
        time_scale: The unit of timestamps; None where times are numbers.
        outcome_names: Names of the outcomes; empty for one without a name.
        settings: The recipe that built it; None where it was built by hand.
        duration: How long an evaluation takes unless an ask says otherwise, as of :meth:`ask`.
        step_limit: How far an action may be from that of the newest trial; None: anywhere.

    Attributes:
        seed: Seed of every random choice; it may be set before the first ask.
        labels: Names of parameters and outcomes, and the unit of time.
        trial_log: How many trials ended and how, and why the newest of them were lost.
        num_trials: Number of trials so far, skipped and attached ones included.

    Raises:
        BotorchTensorDimensionError: if ``layout`` does not fit the search space or the contexts.
    """

    _record: DatabaseRecord | None = None
    """Where its changes are recorded."""
    _takes_requests: bool = False
    """Whether it can choose a batch, or among some actions."""
    failures: str = "learn"
    """``"nan"`` if a trial whose outcome is NaN fails."""
    _listeners: tuple[dict[str, Callable[..., object] | None], ...] = ()
    _prepared: tuple[tuple[float, float, object], Optimizer, tuple[Tensor, Any]] | None = None
    """What was prepared: for which ask, a copy that has chosen the action, the action, and what was
    predicted of it."""
    _events: list[Event] | None = None
    """Events of the change that is under way, announced when it is complete and on disk."""

    def __init__(
        self,
        search_space: SearchSpace,
        layout: InputLayout | None = None,
        generator: Generator | int | None = None,
        contexts: SearchSpace | None = None,
        minimize: bool = False,
        time_scale: TimeScale | None = None,
        outcome_names: Sequence[str] = (),
        settings: Settings | None = None,
        duration: float | timedelta | str = 0.0,
        step_limit: StepLimit | None = None,
    ):
        num_contexts = 0 if contexts is None else contexts.dim
        self.search_space = search_space
        self.contexts = contexts
        self.layout = layout or InputLayout(search_space.dim, num_contexts)
        if not isinstance(generator, int):
            generator = draw_seed(default_generator(generator))
        self.seed = generator
        self.generator = generator_of(self.seed, 0)
        self.settings = settings
        self.minimize = minimize
        # What each outcome is multiplied by, so that larger is better, ``m``.
        self._signs = torch.tensor([-1.0 if minimize else 1.0], dtype=torch.float64)
        self.time_scale = time_scale
        self.step_limit = step_limit
        names = None if contexts is None else contexts.parameters
        self.labels = Labels(search_space.parameters, names, time_scale, tuple(outcome_names))
        self.duration = self._span_of(duration)
        self.trial_log = TrialLog()
        self._open: dict[int, Trial] = {}
        self.num_trials = 0
        self._num_asked = 0
        # Numbers of the trials asked with a key of the caller's, or those that were skipped.
        self._by_key: dict[str, int | Trial] = {}
        # The newest trial that was not skipped.
        self._newest_opened: Trial | None = None
        # Time and number of the newest trial whose outcome was observed.
        self._newest_observed: tuple[float, int] = (-math.inf, 0)
        self._lock = RLock()

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self._counts().items())
        return f"{type(self).__name__} over {self._describe_space()}: {counts}"

    def _repr_html_(self) -> str:
        return html_table({type(self).__name__: self._describe_space(), **self._counts()})

    def _describe_space(self) -> str:
        parameters = self.search_space.parameters
        return f"{self.search_space.dim} numbers" if parameters is None else str(parameters)

    def _counts(self) -> dict[str, int]:
        log = self.trial_log
        counts = {"told": log.num_told, "open": len(self._open), "failed": log.num_failed}
        return counts | {"expired": log.num_expired, "in the model": self.model_size}

    @property
    def open_trials(self) -> tuple[Trial, ...]:
        """Trials that have no outcome yet, and did not fail or expire; oldest first."""
        return tuple(self._open.values())

    @property
    def model_size(self) -> int:
        """Number of observations that the next action rests on."""
        return 0

    @property
    def repeats_open_trials(self) -> bool:
        """Whether nothing keeps it from asking the same again while a trial is open."""
        return False

    @overload
    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        duration: float | timedelta | str | None = None,
        q: None = None,
        choices: Table | None = None,
    ) -> Trial: ...

    @overload
    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        duration: float | timedelta | str | None = None,
        q: int,
        choices: Table | None = None,
    ) -> tuple[Trial, ...]: ...

    def ask(
        self,
        t: Time | None = None,
        context: Context | None = None,
        key: str | None = None,
        *,
        duration: float | timedelta | str | None = None,
        q: int | None = None,
        choices: Table | None = None,
    ) -> Trial | tuple[Trial, ...]:
        """Suggest the next action, or a batch of actions.

        Args:
            t: The present time, a number in the user's unit or a timestamp, also in ISO 8601, never
                before that of an open ask or of an outcome observed; None counts rounds 1, 2, ...
            context: The present context, where contexts were declared: ``c`` numbers, or a dict or
                Series by name. Several asks at one time, with a tell after each, see one another's
                outcomes.
            key: A key of the caller's own, such as the number of a request: asked again with it,
                since an answer was lost, the optimizer returns the same trial and asks for no new
                one. None: each ask is a new one.
            duration: How long the evaluation takes, in units of time, or where times are timestamps
                also a ``timedelta`` or text such as ``"10min"``. The action is chosen for its end,
                when the outcome is measured, and that is the time of the trial. Of an outcome that
                is a mean over the evaluation, give the half of it. None is the ``duration`` of the
                recipe, 0 unless it is given.
            q: Number of actions of a batch, which is one round; None asks for one action. Those of
                a Monte Carlo acquisition of BoTorch are chosen jointly; for others each action
                counts as pending when the next one is chosen.
            choices: The actions that can be chosen now, some of the search space: ``n x d``, a
                table with a row for each, or lists of values by name, of which all combinations
                are meant. None: all.

        Returns:
            A trial, open until its outcome is observed, it fails or expires, unless it is
            ``skipped``; of a batch a tuple of ``q``. Where choices are given, its ``choice`` is the
            row that was chosen.

        Raises:
            InputDataError: if ``t`` is not finite, or lies before an open ask or an outcome;
                ``duration`` is negative; no choice is within a step of the newest trial;
                ``context`` is not finite or none of those declared; a row of ``choices`` is no
                action; ``q`` is not a whole number of at least 1, or comes with a key.
            BotorchTensorDimensionError: if ``context`` has the wrong size, is missing, or none was
                declared; or ``choices`` have the wrong size.
            TrialError: if the trial of this key has ended, was asked in another context, or is none
                of the choices.
            UnsupportedError: if ``q`` or ``choices`` are given to a rule that chooses one action
                among all, or a batch is asked of one for which pending trials do not count, or
                whose steps are limited.
        """
        with self._change("ask"):
            self._check_request(q, choices, key)
            among = None if choices is None else self.search_space.read_table(choices)
            if key is not None and (known := self._asked_with(key, context, among)) is not None:
                return known
            self._check_can_ask()
            began, round_number = perf_counter(), self._num_asked + 1
            now, here = self._time_to_ask(t), self._check_context(context)
            span = self.duration if duration is None else self._span_of(duration)
            end = self.labels.later(now, span)
            space = self._within_reach(self._space_of(among), now)
            trials: list[Trial] = []
            try:
                while len(trials) < (q or 1):
                    X, predicted = None, None
                    if q in (None, 1) and among is None:
                        X, predicted = self._take_prepared(end, here)
                    if X is None:
                        self._start_ask()
                        X = self._choose(space, (q or 1) - len(trials), end, here)
                    for x in X.split(1):
                        given: Any = {"labels": self.labels, "key": key, "asked": now}
                        given["choice"] = _place(x, among)
                        self.num_trials, self._num_asked = self.num_trials + 1, round_number
                        event = self._ask_event(Trial(self.num_trials, x, end, here, **given))
                        trials.append(self._open_asked(event, predicted, began))
            except BaseException:
                # The caller never gets these trials of a batch. A record never has them either.
                for trial in trials if self._record is None else ():
                    if trial.id in self._open:
                        self.expire(trial, "the ask for its batch was interrupted")
                raise
            return trials[0] if q is None else tuple(trials)

    def _open_asked(self, event: Event, predicted: Mapping[str, Any] | None, began: float) -> Trial:
        """Open the trial of an ask, unless it is skipped, and return it."""
        trial = event.trial
        assert trial is not None
        if predicted is None:
            predicted = {} if self._record is None else self._predicted(trial)
        predicted = {**predicted, "seconds": perf_counter() - began}
        self._add(replace(event, round=self._num_asked, predicted=predicted))
        if trial.key is not None:
            self._by_key[trial.key] = trial if trial.skipped else trial.id
        if not trial.skipped:
            self._open_trial(trial)
        return trial

    def prepare(
        self,
        t: Time | None = None,
        context: Context | None = None,
        valid_for: float | timedelta = 0.0,
    ) -> Callable[[], None]:
        """Return a function that chooses the next action ahead of an ask with these arguments.

        It works on a copy, in a thread of its own if wanted, while other calls are made. If nothing
        has changed since, the ask then opens a trial with this action at once.

        Args:
            t: The time, as of :meth:`ask`.
            context: The context, as of :meth:`ask`.
            valid_for: How much later than ``t`` the ask may be, in units of time or a
                ``timedelta``.

        Raises:
            InputDataError, BotorchTensorDimensionError: as :meth:`ask`.
        """
        with self._one_call("prepare"):
            self._check_can_ask()
            now, here = self._time_to_ask(t), self._check_context(context)
            end = self.labels.later(now, self.duration)
            until, ahead = end + self.labels.span(valid_for), deepcopy(self)
            space, moment = self._within_reach(self.search_space, now), self._moment(here)

        def choose() -> None:
            ahead._start_ask()
            X = ahead._choose(space, 1, end, here)
            trial = Trial(ahead.num_trials + 1, X, end, here, labels=ahead.labels)
            predicted = ahead._predicted(trial)
            self._prepared = (end, until, moment), ahead, (X, predicted)

        return choose

    def _moment(self, context: Tensor | None) -> object:
        """Return what an ask depends on beside the time: what has happened, and the context."""
        log, here = self.trial_log, None if context is None else tuple(context.tolist())
        return self.seed, self.num_trials, log.num_told, log.num_failed, log.num_expired, here

    def _take_prepared(
        self, t: float, context: Tensor | None
    ) -> tuple[Tensor | None, Mapping[str, Any] | None]:
        """Take over a copy that has chosen the action of this ask, with what it predicted.

        Returns:
            The action and the prediction; None if none was prepared.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            (first, last, moment), ahead, chosen = prepared
            if first <= t <= last and moment == self._moment(context):
                vars(self).update(ahead.__getstate__())
                return chosen
        return None, None

    def attach(self, X: Tensor | Named, t: Time, context: Context | None = None) -> Trial:
        """Open a trial with an action of the caller's choice, such as a row of a log.

        Args:
            X: The action, ``d`` or ``1 x d``, or a dict or Series by name.
            t: Its time; earlier than the present is allowed.
            context: Its context, where contexts were declared.

        Raises:
            InputDataError: if the action is not in the search space, the context none of those
                declared, or a value is not finite.
            BotorchTensorDimensionError: if a shape does not fit, or a declared context is missing:
                an outcome seen in no known context cannot be compared with others.
        """
        with self._change("attach"):
            trial = self._read_trial(self.num_trials + 1, X, t, context)
            self._attach(trial)
            return trial

    def attach_frame(
        self,
        table: pd.DataFrame,
        outcome: str | None = None,
        t: str = "t",
        variance: str | None = None,
    ) -> int:
        """Attach and tell the rows of a log, all of them or none.

        Args:
            table: One row for each outcome, with a column for each parameter, by name or as
                ``action_0``, ``context_0``, ..., in any order of time. Other columns are ignored.
            outcome: Column of the outcomes; None is ``"outcome"``, and of several outcomes the
                columns of their names.
            t: Column of the times: numbers, or where the optimizer has a unit of time timestamps,
                also in ISO 8601.
            variance: Column of the variances of their noise; None where they are not known.

        Returns:
            The number of rows.

        Raises:
            InputDataError: if a column is missing or a cell empty, or as :meth:`attach` and
                :meth:`tell`, with the row; nothing changes.
        """
        with self._change("attach_frame"):
            X: Sequence[Any] = self.search_space.rows_of(table)
            contexts: Sequence[Any] = [None] * len(table)
            if self.contexts is not None:
                contexts = self.contexts.rows_of(table)
            rows: list[tuple[Trial, Outcome, Outcome | None]] = []
            cells = column(table, t), self.labels.outcomes_of(table, outcome, variance)
            for label, x, context, time, (Y, Yvar) in zip(
                table.index, X, contexts, *cells, strict=True
            ):
                with _in_row(label):
                    number = self.num_trials + len(rows) + 1
                    trial = self._read_trial(number, x, time, context)
                    self._check_outcome(trial, self._observation(trial, Y, Yvar))
                rows.append((trial, Y, Yvar))
            return self._tell_together(rows)

    def tell(
        self, trial: Trial | int, Y: Outcome, Yvar: Outcome | None = None, t: Time | None = None
    ) -> None:
        """Record the outcome of a trial.

        Args:
            trial: The trial or its id.
            Y: Its outcome, one number; larger is better, unless the optimizer minimizes. Of
                several outcomes all, by name or in their order.
            Yvar: Variance of the noise in ``Y``, where known.
            t: When it was measured, if not at the time of the trial, before or after it.

        Raises:
            TrialError: if the trial is unknown, was skipped, has an outcome already, failed or
                expired.
            InputDataError: if ``Y``, ``Yvar`` or ``t`` is not finite, except for a NaN where the
                trial is said to fail by it (``failures="nan"``), or ``Y`` is beyond 1e30 or
                ``Yvar`` beyond 1e60, or negative. Nothing changes, and the trial stays open.
            BotorchTensorDimensionError: if ``Y`` or ``Yvar`` is not one number for each outcome.
        """
        with self._change("tell"):
            trial = self._find(trial)
            if self.failures == "nan" and is_any_nan(Y):
                return self.fail(trial, f"its outcome is {Y}")
            measured = None if t is None else float(self._number(t))
            observation = self._observation(trial, Y, Yvar, measured)
            self._check_outcome(trial, observation)
            # In the caller's units.
            values = tuple((self._signs * observation.Y).flatten().tolist())
            noise = () if observation.Yvar is None else tuple(observation.Yvar.flatten().tolist())
            self._learn(trial, observation)
            del self._open[trial.id]
            t = trial.t if measured is None else measured
            self._newest_observed = max(self._newest_observed, (t, trial.id))
            self.trial_log.num_told += 1
            self._add(Event("tell", trial, measured=measured, Y=values, Yvar=noise))

    def tell_frame(
        self,
        table: pd.DataFrame,
        outcome: str | None = None,
        trial: str = "trial",
        variance: str | None = None,
    ) -> int:
        """Record the outcomes of several trials, all of them or none.

        Args:
            table: One row for each trial; rows with an empty outcome, or of several outcomes only
                empty ones, are left open. Other columns are ignored.
            outcome: Column of the outcomes; None is ``"outcome"``, and of several outcomes the
                columns of their names.
            trial: Column of the numbers of the trials.
            variance: Column of the variances of their noise; None where they are not known.

        Returns:
            The number of outcomes observed.

        Raises:
            InputDataError: if a column is missing, a trial stands in two rows, or as :meth:`tell`,
                with the row; nothing changes.
            TrialError: as :meth:`tell`, with the row; nothing changes.
        """
        with self._change("tell_frame"):
            rows: dict[int, tuple[Trial, Outcome, Outcome | None]] = {}
            cells = column(table, trial), self.labels.outcomes_of(table, outcome, variance)
            for label, number, (Y, Yvar) in zip(table.index, *cells, strict=True):
                if all(cell is None for cell in Y.values()):
                    continue
                with _in_row(label):
                    # A column of whole numbers with a gap is one of floats.
                    is_whole = isinstance(number, float) and number.is_integer()
                    found = self._find(int(number) if is_whole else number)
                    if found.id in rows:
                        raise InputDataError(
                            f"Expected each trial once. Got trial {found.id} again."
                        )
                    self._check_outcome(found, self._observation(found, Y, Yvar))
                rows[found.id] = found, Y, Yvar
            return self._tell_together(rows.values())

    def open_frame(self) -> pd.DataFrame:
        """Return a table of the open trials: trial, time, action, context; oldest first."""
        import pandas as pd

        num_contexts = 0 if self.contexts is None else self.contexts.dim
        names = self.labels.columns(self.search_space.dim, num_contexts)
        rows = [trial.to_row() for trial in self.open_trials]
        return pd.DataFrame(rows, columns=None if rows else ["trial", "t", *names])

    def fail(self, trial: Trial | int, reason: str) -> None:
        """Record that a trial has no outcome: a crash, an invalid value, a patient lost.

        A rule with a GP learns from it where others would probably fail (:class:`GPOptimizer`). Its
        time no longer counts as the present. Hyperparameters are learned without it.

        Args:
            trial: The trial or its id.
            reason: Why, as text; it is kept in ``optimizer.trial_log``.

        Raises:
            TrialError: as :meth:`tell`.
            TypeError: if the reason is not a string.
        """
        with self._change("fail"):
            self._lose(trial, "fail", "failed", reason)

    def expire(self, trial: Trial | int, reason: str = "past its deadline") -> None:
        """Stop waiting for the outcome of a trial; a late one can be added with :meth:`attach`.

        The next actions are chosen as after :meth:`fail`.

        Args:
            trial: The trial or its id.
            reason: Why, as text; it is kept in ``optimizer.trial_log``.

        Raises:
            TrialError: as :meth:`tell`.
            TypeError: if the reason is not a string.
        """
        with self._change("expire"):
            self._lose(trial, "expire", "expired", reason)

    def expire_overdue(self, t: Time, max_delay: float | timedelta) -> tuple[Trial, ...]:
        """Expire the trials that were sampled more than ``max_delay`` before ``t``.

        Args:
            t: The present time, a number in the user's unit or a timestamp.
            max_delay: The longest delay that is waited for, in the same unit or a ``timedelta``.

        Returns:
            The trials that expired, oldest first.

        Raises:
            InputDataError: if ``t`` is not finite.
            ValueError: if ``max_delay`` is negative or NaN.
        """
        with self._change("expire_overdue"):
            now, longest = self._number(t), self.labels.span(max_delay)
            if not longest >= 0:
                raise ValueError(f"Expected max_delay >= 0, in units of time. Got {max_delay}.")
            overdue = tuple(trial for trial in self.open_trials if now - trial.t > longest)
            end = self.labels.stamp(now)
            for trial in overdue:
                self.expire(
                    trial, f"no outcome by t={end}, more than {max_delay} after {trial.time}"
                )
            return overdue

    def record(self, url: str | Path) -> None:
        """Record the run: from now on a change is on disk when the call that makes it returns.

        Args:
            url: A file that does not exist yet, or the URL of an empty database, as SQLAlchemy
                writes it, such as ``postgresql+psycopg://host/name``.

        Raises:
            tvbo.storage.StorageError: if the file exists or the database is not empty, this
                optimizer is recorded already, or it has trials.
        """
        from tvbo.storage.record import create

        with self._one_call("record"):
            self._record = create(self, url)

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        like: Self | None = None,
        read_only: bool = False,
        wait: float = 60.0,
    ) -> Self:
        """Continue a recorded run: the same next suggestion, open trials still open.

        Several processes may have one run open, on several machines where it is in a database that
        these share. Each call takes in first what others have changed.

        Args:
            url: The file, or the URL of the database.
            like: An optimizer with the run's settings and without trials, which is copied. It is
                needed where these are objects of your own, or it was built by hand; a run of other
                settings is refused. No code is run that the record names.
            read_only: Change nothing; the optimizer is not recorded.
            wait: Seconds to wait where others are at work on the run, or the database is away.

        Raises:
            tvbo.storage.StorageError: if there is no run, it is damaged, of another version, class
                or other settings, or holds objects that ``like`` has to give.
        """
        from tvbo.storage.record import open_run

        optimizer, record = open_run(url, cls, like, wait)
        optimizer._record = None if read_only else record
        return optimizer

    @property
    def recorded_at(self) -> str | None:
        """The file or URL of its record, closed or not; None if it has none."""
        return None if self._record is None else self._record.database.url

    def refresh(self) -> None:
        """Take in what other processes have changed, as every call does first."""
        with self._one_call("refresh"):
            pass

    def close(self) -> None:
        """Close the record, if there is one; this optimizer can then change no more."""
        with self._locked("close"):
            if self._record is not None:
                self._record.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, object]:
        # A record, a lock and functions of this process.
        of_process = ("_record", "_lock", "_listeners", "_events", "_prepared")
        return {name: value for name, value in vars(self).items() if name not in of_process}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._lock = RLock()

    def add_listener(
        self,
        on_ask: Callable[[Trial], object] | None = None,
        on_tell: Callable[[Trial, Any], object] | None = None,
        on_fit: Callable[[dict[str, list[float]]], object] | None = None,
        on_loss: Callable[[Trial, str], object] | None = None,
    ) -> None:
        """Have functions called after each change, when it has taken effect and is on disk.

        What they raise is logged as an error, and stops nothing. Copies of the optimizer, and one
        opened from its record, have no listeners. Each change is also logged to
        ``"tvbo.optimizers"``, a line at level INFO.

        Args:
            on_ask: Called with each trial asked for.
            on_tell: Called with a trial and its outcome, a number, or several by name.
            on_fit: Called with the hyperparameters learned at a refit: values by name;
                of several outcomes once for each, with its name before theirs.
            on_loss: Called with a trial that failed or expired, and the reason.

        Raises:
            TypeError: if one of them is no function.
        """
        for given in (on_ask, on_tell, on_fit, on_loss):
            if given is not None and not callable(given):
                raise TypeError(f"Expected a function. Got {given!r}.")
        listener = {"ask": on_ask, "tell": on_tell, "refit": on_fit}
        self._listeners += ({**listener, "fail": on_loss, "expire": on_loss},)

    # What a rule defines, or adds to.

    @abstractmethod
    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        """Return at least one and at most ``q`` actions of a set, chosen together, ``n x d``.

        The set is ``self.search_space`` and ``q`` is 1, unless ``_takes_requests``.
        """

    @abstractmethod
    def _learn(self, trial: Trial, observation: Observations) -> None:
        """Take in one outcome."""

    def _forget(self, trial: Trial) -> None:  # noqa: B027  # Few rules need it.
        """Update the state for a trial whose outcome will not come."""

    def _ask_event(self, trial: Trial) -> Event:
        """Return the event of an ask: the trial as it is judged, and what a record has of it."""
        return Event("ask", trial)

    def _open_trial(self, trial: Trial) -> None:
        """Take a trial as open."""
        self._open[trial.id] = trial
        self._newest_opened = trial

    def _next_generator(self) -> Generator:
        """Return a generator as the next ask has it."""
        return generator_of(self.seed, self.num_trials + 1)

    def _start_ask(self) -> None:
        """Begin the ask for the next trial, before its action is chosen."""
        self.generator = self._next_generator()

    def _predicted(self, trial: Trial) -> Mapping[str, Any]:
        """Return what the model predicted of a trial that is about to be opened, as data."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what its trials do not tell of its state, as data; of most rules nothing."""
        return {}

    def restore(
        self, blank: Optimizer, trials: Sequence[RecordedTrial], state: Mapping[str, Any]
    ) -> None:
        """Take over the trials of a record in place of those known so far.

        Args:
            blank: A copy of this optimizer before its first trial, whose parts it takes.
            trials: All trials of the run.
            state: Its :meth:`state_dict` after the newest change.
        """
        vars(self).update(blank.__getstate__())
        self._load(trials, state)
        told = [each for each in trials if each.state == "told"]
        self.num_trials = len(trials)
        self._num_asked = max((each.round or 0 for each in trials), default=0)
        self._open = {each.id: self._recorded(each) for each in trials if each.state == "open"}
        tried = (each for each in reversed(trials) if each.state != "skipped")
        self._newest_opened = next(map(self._recorded, tried), None)
        self._by_key = {
            each.key: self._recorded(each) if each.state == "skipped" else each.id
            for each in trials
            if each.key is not None
        }
        self._newest_observed = max(
            ((each.observed_at, each.id) for each in told), default=self._newest_observed
        )
        self.trial_log.num_told = len(told)
        # Of the others only the number is of interest.
        for each, ends in in_order([each for each in trials if not (each.Y and each.informative)]):
            trial = self._recorded(each)
            if ends and (each.state == "failed" or each.state == "expired"):
                self.trial_log.add(trial, each.state, each.reason)
            elif not ends and not each.informative:
                ending: Ending = "skipped" if each.state == "skipped" else "discarded"
                self.trial_log.add(trial, ending, each.rejection)

    def _load(self, trials: Sequence[RecordedTrial], state: Mapping[str, Any]) -> None:
        """Take over what the rule has learned of some trials; by default, change by change.

        Args:
            trials: The trials of a run.
            state: Its :meth:`state_dict`.
        """
        for each, ends in in_order(trials):
            if not ends:
                if each.round is not None:
                    self._start_ask()
                    self._num_asked = each.round
                self.num_trials = each.id
                if each.state != "skipped":
                    self._open_trial(self._recorded(each))
                continue
            trial = self._open.pop(each.id)
            if each.state == "told":
                given = each.Y, each.Yvar or None, each.measured
                self._learn(trial, self._observation(trial, *given))
            else:
                self._forget(trial)

    def _recorded(self, recorded: RecordedTrial) -> Trial:
        """Return the trial of a record."""
        copied: dict[str, Any] = {name: getattr(recorded, name) for name in COPIED}
        X, context = torch.tensor([recorded.X], dtype=torch.float64), None
        if recorded.context is not None:
            context = torch.tensor(recorded.context, dtype=torch.float64)
        copied |= {"skipped": recorded.state == "skipped", "labels": self.labels}
        return Trial(X=X, t=recorded.t, context=context, **copied)

    def _check_can_ask(self) -> None:  # noqa: B027  # Few rules need it.
        """Raise if no further ask is planned for."""

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:  # noqa: B027
        """Raise ``InputDataError`` for an outcome with which no later ask could compute."""

    @property
    def _chooses_jointly(self) -> bool:
        """Whether the actions of a batch are chosen together."""
        return False

    # Trials.

    def _read_trial(self, number: int, X: Any, t: Any, context: Any) -> Trial:
        """Return a trial with an action of the caller's choice, not yet open."""
        X, t, context = self.search_space.read(X), self._number(t), self._check_context(context)
        return Trial(number, X, t, context, labels=self.labels)

    def _attach(self, trial: Trial) -> None:
        """Open a trial of the caller's."""
        self.num_trials += 1
        self._open_trial(trial)
        self._add(Event("attach", trial))

    def _tell_together(self, rows: Collection[tuple[Trial, Outcome, Outcome | None]]) -> int:
        """Record checked outcomes of trials, attached if they are not open; return how many."""
        for trial, Y, Yvar in rows:
            if trial.id not in self._open:
                self._attach(trial)
            self.tell(trial, Y, Yvar)
        return len(rows)

    def _lose(self, trial: Trial | int, call: Kind, ending: Ending, reason: str) -> None:
        """Close a trial that has no outcome."""
        trial, reason = self._find(trial), _as_text(reason)
        del self._open[trial.id]
        self._forget(trial)
        self.trial_log.add(trial, ending, reason)
        self._add(Event(call, trial, reason=reason))

    def _find(self, trial: Trial | int) -> Trial:
        """Return the open trial that a trial or its id stands for.

        Raises:
            TrialError: if there is no such trial, it is another optimizer's, or it has ended.
        """
        trial_id = trial.id if isinstance(trial, Trial) else trial
        # NumPy's integers are accepted; True is an int in Python, but no id.
        is_number = isinstance(trial_id, Integral) and not isinstance(trial_id, bool)
        own = self._open.get(int(trial_id)) if is_number else None
        if own is None:
            ended = "unknown, has an outcome already, or was lost too long ago to be remembered"
            for logged in self.trial_log.newest:
                if logged.trial.id == trial_id and logged.ending != "discarded":
                    reason = shortened(logged.reason)
                    ended = f"{logged.ending} ({reason}); attach its action to tell its outcome"
            raise TrialError(
                f"Expected an open trial, one of {sorted(self._open)}. Got trial {trial_id!r}, "
                f"which is {ended}."
            )
        if isinstance(trial, Trial) and trial is not own and not trial.asks_the_same(own):
            raise TrialError(
                f"Expected a trial of this optimizer. Got a trial {trial_id} that differs: "
                f"{trial}; here it is {own}."
            )
        return own

    def _asked_with(
        self, key: str, context: Context | None, choices: Tensor | None
    ) -> Trial | None:
        """Return the trial of a key; None if there is none yet."""
        if not isinstance(key, str) or not key or _as_text(key) != key:
            raise InputDataError(
                f"Expected a key in text of at most {MAX_TEXT_LENGTH} characters. Got "
                f"{shortened(repr(key))}."
            )
        if (known := self._by_key.get(key)) is None:
            return None
        trial = known if isinstance(known, Trial) else self._find(known)
        trial = replace(trial, choice=_place(trial.X, choices))
        is_same = trial.asks_the_same(replace(trial, context=self._check_context(context)))
        if not is_same or (choices is not None and trial.choice is None):
            raise TrialError(
                f"Expected the context of the ask with key {shortened(repr(key))}, and its action "
                f"among the choices: {trial}. Got others."
            )
        return trial

    # What a caller passes.

    def _check_request(self, q: int | None, choices: Table | None, key: str | None) -> None:
        """Raise if a batch, or one of some actions, cannot be asked for."""
        if not self._takes_requests and (q is not None or choices is not None):
            raise UnsupportedError(
                "Expected an ask for one action among all: this rule knows no other. Got "
                f"{'q' if choices is None else 'choices'} for {type(self).__name__}."
            )
        if q is None:
            return
        if isinstance(q, bool) or not isinstance(q, int) or q < 1:
            raise InputDataError(f"Expected q, a number of actions of at least 1. Got {q!r}.")
        if key is not None:
            raise InputDataError(
                f"Expected either q or a key, of one trial. Got {shortened(repr(key))}."
            )
        if q > 1 and self.step_limit is not None:
            raise UnsupportedError(
                f"Expected one action at a time, a step from the one before. Got q={q} beside "
                "max_step or max_rate."
            )
        if q > 1 and self.repeats_open_trials and not self._chooses_jointly:
            raise UnsupportedError(
                f"Expected pending trials that count, in a batch of {q}: otherwise all of its "
                "actions are the same. Got pending=IgnorePending()."
            )

    def _space_of(self, choices: Table | None) -> SearchSpace:
        """Return the set of some actions, ``n x d``; None is all."""
        space = self.search_space
        if choices is None:
            return space
        return FiniteSpace(space.read_table(choices).unique(dim=0), parameters=space.parameters)

    def _check_context(self, context: Context | None) -> Tensor | None:
        """Return a context as declared; None where none was."""
        if self.contexts is not None:
            return self.contexts.read(context)[0]
        if context is not None:
            raise BotorchTensorDimensionError(
                f"This optimizer was declared without contexts. Got context {context!r}."
            )
        return None

    @property
    def _present(self) -> tuple[float, int]:
        """Time and number of the newest trial that has an outcome, or was asked for and is open."""
        asked = [(each.asked, each.id) for each in self._open.values() if each.asked is not None]
        return max([self._newest_observed, *asked])

    def _time_of(self, t: Any) -> float:
        """Return a checked time; None stands for the present."""
        if t is not None:
            return self._number(t)
        now, number = self._present
        if number == 0:
            raise InputDataError(
                "Expected t, since nothing was asked or observed that is not lost. Got none."
            )
        return now

    def _number(self, t: Any) -> float:
        """Return a checked time as a number; with a unit of time, it must be a timestamp."""
        if self.time_scale is not None and isinstance(t, Real):
            raise InputDataError(
                f"Expected a timestamp for t, since time_unit was given. Got {t!r}."
            )
        return self.labels.number(t)

    def _time_to_ask(self, t: Any) -> float:
        """Return the time of an ask; None counts rounds."""
        if t is None and self.time_scale is not None:
            raise InputDataError("Expected t, since time_unit was given. Got none.")
        now = self._number(float(self._num_asked + 1) if t is None else t)
        present, number = self._present
        if now < present:
            way_out = "fail or expire it" if number in self._open else "begin a new run"
            raise InputDataError(
                f"Expected t >= {self.labels.stamp(present)}, the time of trial {number}. Got "
                f"t={self.labels.stamp(now)}. If the time of trial {number} is wrong, {way_out}."
            )
        return now

    def _span_of(self, duration: float | timedelta | str) -> float:
        """Return a checked duration in units of time."""
        span = self.labels.span(duration)
        if not 0 <= span < math.inf:
            raise InputDataError(f"Expected a duration of at least 0. Got {duration!r}.")
        return span

    def _within_reach(self, search_space: SearchSpace, now: float) -> SearchSpace:
        """Return the actions of a set within a step of the newest trial."""
        if self.step_limit is None or self._newest_opened is None:
            return search_space
        newest = self._newest_opened
        since = newest.t if newest.asked is None else newest.asked
        return self.step_limit.reach(search_space, newest.X, now - since)

    def _observation(
        self, trial: Trial, Y: Outcome, Yvar: Outcome | None, measured: float | None = None
    ) -> Observations:
        """Return an outcome as the model sees it, measured at the time of its trial or another."""
        noise = None if Yvar is None else self.labels.outcome("Yvar", Yvar)
        row = self._row(trial, measured)
        return Observations(row, self._signs * self.labels.outcome("Y", Y), noise)

    def _row(self, trial: Trial, t: float | None = None) -> Tensor:
        """Return the row of a trial at its time, or another, ``1 x d``."""
        return self.layout.rows(trial.X, trial.t if t is None else t, trial.context)

    # One call at a time, and its record.

    @contextmanager
    def _locked(self, call: str) -> Iterator[None]:
        """Raise ``RuntimeError`` while another thread is in a call, which may contain others."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"Expected one call at a time. Got {call} from {current_thread().name} while "
                "another thread's is under way: call an optimizer from one thread, or from several "
                "in turn."
            )
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _one_call(self, call: str) -> Iterator[None]:
        """Have the body read the optimizer as the newest change has left it."""
        with self._locked(call):
            if self._record is not None and self._events is None:
                self._record.refresh(self)
            yield

    @contextmanager
    def _change(self, call: str) -> Iterator[None]:
        """Have the body make a change that is recorded as a whole or not at all, and announce it.

        Calls within the body are part of its change.
        """
        with self._locked(call):
            if self._events is not None:
                yield
                return
            events: list[Event] = []
            self._events = events
            record = self._record
            try:
                with nullcontext() if record is None else record.transaction(self, events):
                    yield
            finally:
                self._events = None
            for event in events:
                if logger.isEnabledFor(logging.INFO):
                    logger.info("%s", event)
                for listener in self._listeners:
                    try:
                        event.notify(listener.get(event.kind))
                    except Exception:  # Any error: the change has been made.
                        logger.exception("A listener failed. The change stands: %s", event)

    def _add(self, *events: Event) -> None:
        """Add events to the change under way."""
        assert self._events is not None
        self._events += events


def _place(X: Tensor, choices: Tensor | None) -> int | None:
    """Return the first row of an action, ``1 x d``, among choices; None if none is it."""
    if choices is None:
        return None
    equal = (choices == X).all(dim=-1)
    return int(equal.to(torch.uint8).argmax()) if equal.any() else None


def _as_text(reason: str) -> str:
    """Return why a trial has no outcome as text that can be stored, cut if it is long."""
    if not isinstance(reason, str):
        raise TypeError(
            f"Expected a reason as text. Got {shortened(repr(reason))} of {type(reason).__name__}."
        )
    if len(reason) > MAX_TEXT_LENGTH:
        reason = reason[: MAX_TEXT_LENGTH - 3] + "..."
    # Names of files may hold bytes that are no text.
    return reason.encode("utf-8", "backslashreplace").decode()


@contextmanager
def _in_row(label: Any) -> Iterator[None]:
    """Name the row in errors about what it holds."""
    try:
        yield
    except (InputDataError, TypeError, ValueError) as error:
        kind = TrialError if isinstance(error, TrialError) else InputDataError
        raise kind(f"{error} In row {label!r} of the table; nothing changed.") from error
