"""Evaluations of an objective, in this thread or by the workers of an executor."""

from __future__ import annotations

import pickle
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tvbo.optimizers import Trial
from tvbo.test_functions.base import DriftingProblem
from tvbo.values import as_number, check_count

CONNECT_SECONDS = 10.0
"""Seconds to wait for the scheduler to answer."""

LOOKS_PER_TIMEOUT = 20
"""Number of times within a ``timeout`` to look which evaluations have begun or are overdue."""

MAX_RESULTS_LOST = 3
"""Number of times that a trial is submitted again since Dask lost its result on the way here."""

SILENCE_SECONDS = 10.0
"""Seconds without a sign of life after which a cluster is asked whether it has workers."""


Number = float | Tensor
Numbers = Number | Mapping[str, Number]
TrialFunction = Callable[[Trial], Numbers | tuple[Numbers, Numbers]]
"""Returns the outcome of a trial, or the outcome and the variance of its noise; several outcomes by
name."""

Objective = DriftingProblem | TrialFunction

PlainNumbers = float | dict[str, float]
Outcome = tuple[PlainNumbers, PlainNumbers | None]
"""An outcome, and the variance of its noise where it is known, as plain numbers."""


class EvaluationError(Exception):
    """An evaluation that raised; the message says what.

    Unlike what was raised, it can be sent from one process to another.
    """


class ProblemFunction:
    """A drifting problem as a function of a trial: at its action, time and context."""

    def __init__(self, problem: DriftingProblem):
        self.problem = problem

    def __call__(self, trial: Trial) -> Numbers:
        """Return the outcome, with noise."""
        return self.problem.observe(self._row(trial))

    def score(self, trial: Trial) -> tuple[float, float]:
        """Return the true value of the action, and the best one at that time in that context."""
        value = self.problem.scored_value(self._row(trial))
        return value, self.problem.optimal_value(trial.t, trial.context)

    def _row(self, trial: Trial) -> Tensor:
        return self.problem.layout.rows(trial.X, trial.t, trial.context)

    def __getstate__(self) -> dict[str, Any]:
        if self.problem.noise_variance > 0:
            raise TypeError(
                "Expected a problem without noise, or threads: in other processes each copy of its "
                f"generator draws the same noise. Got noise_variance={self.problem.noise_variance}."
            )
        return self.__dict__


def evaluate(function: TrialFunction, trial: Trial) -> Outcome:
    """Return the outcome of a trial and the variance of its noise, as plain numbers.

    Raises:
        InputDataError: if the outcome, or the variance, is no real number.
        BotorchTensorDimensionError: if it is not one number, or one of each name.
    """
    outcome = function(trial)
    Y, Yvar = outcome if isinstance(outcome, tuple) else (outcome, None)
    return _plain("Y", Y), None if Yvar is None else _plain("Yvar", Yvar)


def evaluate_by_worker(
    function: TrialFunction, trial: bytes, begun: Callable[[], None] | None = None
) -> Outcome | EvaluationError | KeyboardInterrupt:
    """Return what :func:`evaluate` returns or, so that an executor sees no error, raises.

    What the objective raises may be no exception that can be pickled and unpickled, or one that
    means something to the executor: then it would break it, or be taken for the executor's own.

    Args:
        function: The objective.
        trial: The trial, pickled.
        begun: Says that the evaluation has begun.
    """
    try:
        if begun is not None:
            begun()
        return evaluate(function, pickle.loads(trial))
    except KeyboardInterrupt:
        return KeyboardInterrupt()
    except BaseException as error:  # Such as SystemExit.
        return EvaluationError(type_and_text(error))


def type_and_text(error: BaseException) -> str:
    """Return what an error says, of one that cannot say it its type."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except BaseException:
        return name


def _plain(name: str, value: Numbers) -> PlainNumbers:
    if isinstance(value, Mapping):
        return {str(key): as_number(str(key), number) for key, number in value.items()}
    return as_number(name, value)


@dataclass(eq=False)
class Evaluation:
    """A trial that was submitted; times are on the clock ``time.perf_counter``.

    Args:
        trial: The trial, with the context of its round.
        future: Done once the evaluation has ended.
        mark: File that is touched when the evaluation begins, if that is told.
        submitted: When it was submitted.
        begun: When its evaluation was seen to have begun, if it has.
        ended: When its evaluation ended, if it has.
        is_overdue: Whether it took longer than the ``timeout``.
    """

    trial: Trial
    future: Future[Any]
    mark: Path | None = None
    submitted: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    ended: float | None = None
    is_overdue: bool = False

    @property
    def seconds(self) -> float:
        """Time from submitting to the result, or until now."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.submitted

    def outcome(self) -> Outcome | EvaluationError:
        """Return the outcome, or the error that the evaluation raised.

        Raises:
            BrokenExecutor: if the trial was not evaluated, or not yet, through no fault of its own.
            KeyboardInterrupt: if the worker was interrupted.
        """
        if self.future.cancelled() or not self.future.done():
            raise BrokenExecutor("an evaluation was cancelled there.")
        error = self.future.exception()
        if error is None:
            returned: Outcome | EvaluationError | KeyboardInterrupt = self.future.result()
            if isinstance(returned, KeyboardInterrupt):
                raise returned
            return returned
        if isinstance(error, (BrokenExecutor, KeyboardInterrupt)):
            raise error
        if type(error).__name__ == "KilledWorker":
            # Of Dask: this trial has killed several workers.
            return EvaluationError(type_and_text(error))
        # What the objective raises does not come this way.
        raise BrokenExecutor(f"{type_and_text(error)}.") from error


class Workers:
    """Slots of an executor of :mod:`concurrent.futures`, ``max_pending`` of them.

    A slot is taken from submitting a trial until its evaluation ends, even if it ends too late: an
    evaluation that has begun cannot be stopped from here, and if its slot were given away, the next
    trial would wait behind it.

    Args:
        executor: Evaluates.
        function: The objective.
        max_pending: Number of slots.
        timeout: Seconds from its beginning until an evaluation is overdue; None waits for ever.

    Raises:
        ValueError: if ``max_pending`` is no whole number above 0.
        TypeError: if ``executor`` is none, or ``function`` cannot be sent to its processes.
    """

    def __init__(
        self, executor: Executor, function: TrialFunction, max_pending: int, timeout: float | None
    ):
        if not isinstance(executor, Executor):
            raise TypeError(
                "Expected an executor of concurrent.futures; that of a Dask client is "
                f"client.get_executor(pure=False). Got {type(executor).__name__}."
            )
        check_count(max_pending=max_pending)
        if isinstance(executor, ProcessPoolExecutor):
            try:
                pickle.dumps(function)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise TypeError(
                    "Expected an objective that can be sent to other processes, such as a function "
                    f"of a module. Got {function!r}: {error}."
                ) from error
        self.max_pending = max_pending
        self.timeout = timeout
        self._executor = executor
        self._function = function
        dask = sys.modules.get("distributed.cfexecutor")
        is_dask = dask is not None and isinstance(executor, dask.ClientExecutor)
        self._client: Any = executor._client if is_dask else None  # type: ignore[attr-defined]
        # Of files that say when evaluations began: workers touch them; those of Dask have it done.
        self._marks: tempfile.TemporaryDirectory[str] | None = None
        is_local = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)
        if timeout is not None and (is_local or self._client is not None):
            self._marks = tempfile.TemporaryDirectory(prefix="tvbo-", ignore_cleanup_errors=True)
            if self._client is not None:
                topic = self._marks.name
                self._client.subscribe_topic(topic, lambda event: _mark(Path(event[1])))
        self._held: dict[int, Evaluation] = {}
        self._newest_sign = time.perf_counter()
        self._is_silent = False
        # Not concurrent.futures.wait: it has no order, and takes a cancelled future for pending.
        self._ended: deque[Evaluation] = deque()
        self._results_lost: Counter[int] = Counter()
        self._has_ended = threading.Event()

    @property
    def room(self) -> int:
        """Number of slots that are free; that of an evaluation that has ended is."""
        return self.max_pending - len(self._held) + len(self._ended)

    @property
    def awaited(self) -> list[Evaluation]:
        """The evaluations whose outcome is waited for."""
        return [each for each in self._held.values() if not each.is_overdue]

    def submit(self, trial: Trial) -> None:
        """Have a trial evaluated by a worker."""
        begun = mark = None
        if self._marks is not None:
            mark = Path(self._marks.name, str(trial.id))
            begun = partial(_mark if self._client is None else _mark_from_dask, mark)
        # Bytes, since a tensor as it is would pass through shared memory of its own.
        future = self._executor.submit(
            evaluate_by_worker, self._function, pickle.dumps(trial), begun
        )
        evaluation = self._held[trial.id] = Evaluation(trial, future, mark)
        if mark is None:
            evaluation.begun = evaluation.submitted
        self._newest_sign = evaluation.submitted
        future.add_done_callback(lambda _: self._note(evaluation))

    def wait(self) -> None:
        """Wait until an evaluation ends or is overdue, or it is time to look again."""
        waits = [] if self._client is None else [SILENCE_SECONDS]
        waits += [] if self.timeout is None else [self.timeout / LOOKS_PER_TIMEOUT]
        self._has_ended.wait(min(waits, default=None))
        silent = time.perf_counter() - self._newest_sign >= SILENCE_SECONDS
        client = self._client
        if client is not None and silent and not self._is_silent and not client.nthreads():
            warnings.warn(
                f"Expected a Dask cluster with workers. Got none at {client.scheduler.address}: "
                "evaluations wait until one comes.",
                stacklevel=2,
            )
        self._is_silent = silent

    def completed(self) -> Iterator[Evaluation]:
        """Yield the evaluations that ended in time, then those that are overdue.

        Raises:
            TimeoutError: if nothing goes on: evaluations hang in their workers, none is under way
                in its time, and for a whole ``timeout`` none has begun or ended, or become overdue.
        """
        self._has_ended.clear()
        while self._ended:
            evaluation = self._ended.popleft()
            del self._held[evaluation.trial.id]
            self._newest_sign = time.perf_counter()
            if self._is_result_lost(evaluation):
                self.submit(evaluation.trial)
            elif not evaluation.is_overdue:
                yield evaluation
        if self.timeout is None:
            return
        now, wall = time.perf_counter(), time.time()
        for evaluation in self.awaited:
            if evaluation.mark is not None and evaluation.mark.exists():
                begun = evaluation.mark.stat().st_mtime + now - wall
                # The clock of files is coarse.
                evaluation.begun = max(begun, evaluation.submitted)
                self._newest_sign = max(begun, self._newest_sign)
            if evaluation.begun is not None and now - evaluation.begun >= self.timeout:
                evaluation.is_overdue = True
                self._newest_sign = now
                yield evaluation
        awaited = self.awaited
        hanging = sorted(trial_id for trial_id, each in self._held.items() if each.is_overdue)
        is_quiet = now - self._newest_sign >= self.timeout
        waits = all(each.begun is None for each in awaited)
        if hanging and is_quiet and waits and (awaited or self.room <= 0):
            raise TimeoutError(
                f"Expected an evaluation to end within {self.timeout:g} s. Got "
                f"{len(hanging)} that hang in their workers: those of trials {hanging}, which "
                "expired. All others stay open; run_async with the same optimizer and another "
                "executor begins with them."
            )

    def close(self) -> list[Evaluation]:
        """Cancel what has not begun, and return all evaluations that are still waited for."""
        withdrawn = self.awaited
        for evaluation in withdrawn:
            evaluation.future.cancel()
        if self._marks is not None:
            if self._client is not None and self._client.status == "running":
                self._client.unsubscribe_topic(self._marks.name)
            self._marks.cleanup()
        return withdrawn

    def _note(self, evaluation: Evaluation) -> None:
        """Note in any thread that an evaluation has ended."""
        evaluation.ended = time.perf_counter()
        self._ended.append(evaluation)
        self._has_ended.set()

    def _is_result_lost(self, evaluation: Evaluation) -> bool:
        """Return whether Dask lost a result, and the trial is to be submitted again.

        A worker may die between computing a result and sending it. If that happens while Dask
        fetches the result, its executor takes the result for an error, and raises a ValueError.
        """
        future = evaluation.future
        if self._client is None or evaluation.is_overdue or future.cancelled():
            return False
        if type(future.exception()) is not ValueError:
            return False
        self._results_lost[evaluation.trial.id] += 1
        return self._results_lost[evaluation.trial.id] <= MAX_RESULTS_LOST


@contextmanager
def dask_executor(address: str, timeout: float = CONNECT_SECONDS) -> Iterator[Executor]:
    """Connect to a Dask cluster and return an executor whose tasks run on its workers.

    It needs the extra ``dask``: ``pip install 'botorch-tvbo[dask]'``.

    If a worker dies, the scheduler gives its task to another one. A task that kills several workers
    (Dask's ``allowed-failures``, by default 3) fails.

    A cancelled task goes on in its worker. Evaluations that may hang need a time limit of their
    own, in the function.

    If you have a ``distributed.Client`` already, use ``client.get_executor(pure=False)``; without
    ``pure=False``, Dask reuses the result of a task that looks the same.

    Args:
        address: Address of the scheduler, such as ``"tcp://10.0.0.5:8786"``. Its workers need this
            package, in the same version.
        timeout: Seconds to wait for the scheduler to answer.

    Raises:
        ModuleNotFoundError: if the extra ``dask`` is not installed.
        ConnectionError: if no scheduler answers at the address.
        BrokenExecutor: in place of Dask's ``KilledWorker`` in the body, if a task killed several
            workers.

    Example:
        >>> with dask_executor("tcp://10.0.0.5:8786") as executor:  # doctest: +SKIP
        ...     history = run_async(train, optimizer, executor, num_trials=200, max_pending=16)
    """
    from distributed import Client
    from distributed.comm import get_address_host_port
    from distributed.scheduler import KilledWorker

    try:
        # Checked first, since a client with a malformed address leaves a thread behind.
        get_address_host_port(address)
        # Not the default client of this process; the scheduler is not shut down with it.
        client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise ConnectionError(
            "Expected the address of a running Dask scheduler, such as tcp://10.0.0.5:8786. "
            f"Got {address!r}: {error}."
        ) from error
    with client:
        executor = client.get_executor(pure=False)
        try:
            yield executor
        except KilledWorker as error:
            raise BrokenExecutor(f"Dask lost workers by their work: {error}") from error
        finally:
            executor.shutdown(wait=False)


def _mark(file: Path) -> None:
    """Touch a file, to say that an evaluation has begun; not once the run is over."""
    with suppress(OSError):
        file.touch()


def _mark_from_dask(file: Path) -> None:
    from distributed import get_worker

    get_worker().log_event(str(file.parent), str(file))
