"""Continue a journaled run."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch

from tvbo.storage import writer
from tvbo.storage.compatibility import check_compatibility, differences
from tvbo.storage.create import released_on_error, state_of, write_session
from tvbo.storage.database import (
    DamagedJournalWarning,
    JournalError,
    check_is_journal,
    connect,
    lock_for_writing,
)
from tvbo.storage.environment import Environment, changes, current_environment, is_same
from tvbo.storage.reader import JournalReader, Snapshot
from tvbo.storage.recorded import Recorded
from tvbo.storage.replay import replay
from tvbo.storage.state import State, StateError
from tvbo.terminal import visible

logger = logging.getLogger("tvbo.storage")


def open_journal(
    path: str | Path,
    like: Recorded | None = None,
    read_only: bool = False,
    progress: bool = True,
    wait: float = 0.0,
) -> Recorded:
    """Continue a journaled run; called by ``Optimizer.open(path)``.

    The recorded calls are made again, and each choice and the state of the random generator is
    compared with the recorded one. Where versions and code are those of the stored snapshot, only
    the calls after it are made again.

    Args:
        path: The journal.
        like: An optimizer with the run's settings; its own trials do not matter, and it is not
            modified. Nothing that the journal names is then imported or called. Without it, the
            pickled optimizer in the journal is loaded, **which can run any code**: open only your
            own.
        read_only: Write nothing, and return what can be read of a damaged journal, with a
            :class:`DamagedJournalWarning`. The optimizer is not recorded; ``record`` starts a new
            journal.
        progress: Show a progress bar on stderr where a replay takes longer than some seconds.
        wait: Seconds to wait for another process that has it open for writing.

    Raises:
        JournalError: if the file is no journal, is damaged, is of another problem or version, is
            in use, or a replayed choice differs from the recorded one.
    """
    path = Path(path)
    if read_only:
        with JournalReader(path) as journal:
            return _restore(journal, like, progress, allow_damage=True).optimizer
    check_is_journal(path)
    with released_on_error(path) as resources:
        resources.callback((lock := lock_for_writing(path, wait)).release)
        with JournalReader(path) as journal:
            run = _restore(journal, like, progress, allow_damage=False)
        resources.callback((connection := connect(path)).close)
        write_session(connection, journal.num_good, run.environment)
        last_snapshot = journal.num_good - run.num_replayed
        snapshots = writer.Snapshots(run.environment, run.classes, last_snapshot)
        if run.num_replayed >= writer.EVERY:
            snapshots.write(connection, run.optimizer, journal.num_good, journal.checksum)
        run.optimizer._event_sink = writer.JournalWriter(
            run.optimizer, path, connection, lock, journal.num_good, journal.checksum, snapshots
        )
    return run.optimizer


@dataclass(frozen=True)
class _Run:
    """A run after its last good record.

    Args:
        optimizer: In the state that it had then.
        environment: The present one.
        classes: Full names of the classes that it held when recording began.
        num_replayed: Number of events that were replayed.
    """

    optimizer: Recorded
    environment: Environment
    classes: Iterable[str]
    num_replayed: int


def _restore(
    journal: JournalReader, like: Recorded | None, progress: bool, allow_damage: bool
) -> _Run:
    snapshot = journal.snapshot()
    if journal.damage is not None:
        message = (
            f"Expected a whole journal. Got {journal.path}, damaged: {journal.damage}. "
            f"Its first {journal.num_good} records are good. Optimizer.open(path, read_only=True) "
            "brings back the optimizer as far as that, and .record(new_path) goes on from there; "
            "`tvbo runs export` saves the trials as CSV."
        )
        if not allow_damage:
            raise JournalError(message)
        warnings.warn(message, DamagedJournalWarning, stacklevel=4)
    optimizer, known = _first_optimizer(journal, like)
    environment = current_environment(known.modules)
    first = 0
    if snapshot is not None:
        try:
            optimizer = _from_snapshot(snapshot, journal, optimizer, known, environment)
            first = snapshot.seq
        except Exception as error:  # Any error: the state may be forged, and is only a shortcut.
            logger.warning(
                "The state stored in %s is passed over and the run replayed: %s",
                visible(str(journal.path)),
                visible(str(error)),
            )

    def changed_since(seq: int) -> str:
        return changes(journal.environment_at(seq), environment)

    num_replayed = journal.num_good - first
    logger.info("%d of %d events of %s are replayed", num_replayed, journal.num_good, journal.path)
    replay(optimizer, journal.records(first), changed_since, num_replayed, progress)
    return _Run(optimizer, environment, known.classes, num_replayed)


def restore_start(journal: JournalReader, like: Recorded | None = None) -> Recorded:
    """Return the optimizer when recording began; nothing is unpickled.

    Args:
        journal: Open for reading.
        like: As of :func:`open_journal`. Without it, objects are made of classes of tvbo, GPyTorch
            and BoTorch only.

    Raises:
        JournalError: if its start is damaged or of other classes, or it is one of another problem
            than ``like``.
    """
    if like is not None:
        return _first_optimizer(journal, like)[0]
    try:
        return State.from_bytes(journal.start[1]).restore(None, {})
    except StateError as error:
        raise JournalError(
            f"Expected a run without code of the caller's. Got {error} in {journal.path}: give an "
            "optimizer with the run's settings, like=."
        ) from error


def _first_optimizer(journal: JournalReader, like: Recorded | None) -> tuple[Recorded, State]:
    """Return the optimizer when recording began, and a state with its classes."""
    pickled, plain = journal.start
    if like is None:
        optimizer = from_pickle(pickled)
        return optimizer, state_of(optimizer)
    try:
        recorded = State.from_bytes(plain)
    except StateError as error:
        raise _unreadable(journal, error) from error
    known = state_of(like)
    check_compatibility(recorded, known, journal.path)
    num_trials = (recorded.node(recorded.root) or {})["state"].get("_num_trials")
    if type(num_trials) is not int:
        raise _unreadable(journal, StateError(f"{num_trials!r} trials"))
    if recorded.opaque and (num_trials > 0 or like.num_trials > 0):
        raise JournalError(
            "Expected a run that was recorded from its beginning, and an optimizer without trials: "
            f"{', '.join(recorded.opaque)} cannot be stored as plain data, so that the run has to "
            f"be done again from the optimizer given. Got {journal.path}, which was begun with "
            f"{num_trials} trials, and one with {like.num_trials}."
        )
    try:
        # A copy, so that an error leaves the caller's optimizer unmodified.
        return recorded.restore(deepcopy(like), known.classes), known
    except StateError as error:
        raise _unreadable(journal, error) from error
    except Exception as error:  # Any error: a class of the caller's may not be copied.
        raise JournalError(
            f"Expected an optimizer that can be copied. Got {type(error).__name__}: {error}."
        ) from error


def _from_snapshot(
    snapshot: Snapshot,
    journal: JournalReader,
    optimizer: Recorded,
    known: State,
    environment: Environment,
) -> Recorded:
    """Return the optimizer at a snapshot.

    Raises:
        StateError: if it cannot be used.
    """
    if not is_same(snapshot.environment, environment):
        raise StateError(changes(snapshot.environment, environment))
    if not 0 < snapshot.seq <= journal.num_good or journal.chain_at(snapshot.seq) != snapshot.chain:
        raise StateError("it is of other events")
    state = State.from_bytes(snapshot.state)
    other = next(differences(state, known), None)
    if state.opaque or other is not None:
        raise StateError(f"it differs in {other[0] if other else ', '.join(state.opaque)}")
    return state.restore(optimizer, known.classes)


def from_pickle(data: bytes) -> Recorded:
    """Unpickle an optimizer, which can run any code.

    Raises:
        JournalError: if a class or function is gone or has changed.
    """
    try:
        optimizer: Recorded = torch.load(io.BytesIO(data), weights_only=False)
        return optimizer
    except (ImportError, AttributeError) as error:
        raise JournalError(
            "Expected the code that the run was recorded with. Got none of it: "
            f"{error}. Put the module back, under the same name, where Python finds it."
        ) from error
    except Exception as error:  # Any error: unpickling runs code of the caller's.
        raise JournalError(
            "Expected an optimizer that this code can read. "
            f"Got {type(error).__name__}: {error}. The classes have changed since."
        ) from error


def _unreadable(journal: JournalReader, error: StateError) -> JournalError:
    return JournalError(
        f"Expected an optimizer that {journal.path} starts with, stored as plain data. Got {error}."
    )
