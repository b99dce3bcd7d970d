"""Start a journal; continue one."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tvbo
from tvbo.journal import pickles
from tvbo.journal.environment import Environment, changes, environment, same
from tvbo.journal.errors import GO_ON, DamagedJournalWarning, JournalError
from tvbo.journal.likeness import check_likeness, describe, differences
from tvbo.journal.lock import Lock
from tvbo.journal.making import check_is_free, make
from tvbo.journal.reading import JournalReader, Snapshot, check_is_journal, start_checksum
from tvbo.journal.recorder import JournalRecorder
from tvbo.journal.replay import replay
from tvbo.journal.schema import VERSION, connect
from tvbo.journal.snapshot import EVERY, Snapshots
from tvbo.journal.state import State, StateError
from tvbo.journal.trials import as_json

if TYPE_CHECKING:
    from tvbo.optimizers.base import Optimizer


def start_journal(optimizer: Optimizer, path: str | Path) -> None:
    """Record an optimizer from its present state on; as ``optimizer.record(path)``.

    Args:
        optimizer: It may have asked and been told before; what it knows is stored with it.
        path: A file that does not exist yet.

    Raises:
        JournalError: if the file exists or cannot be made, the optimizer keeps a journal already,
            or something in it cannot be pickled.
    """
    path = Path(path)
    if optimizer._recorder is not None:
        raise JournalError(
            "Expected an optimizer without a journal. Got one that keeps its own: one run, one "
            "journal."
        )
    check_is_free(path)
    pickled, state = pickles.dump(optimizer), _state_of(optimizer)
    blobs = pickled, state.to_bytes()
    present = environment(state.modules)
    meta = describe(optimizer) | {
        "run": os.urandom(8).hex(),
        "tvbo": tvbo.__version__,
        "open": as_json(optimizer.open_trials),
    }
    checksum = meta["checksum"] = start_checksum(blobs, meta)

    def fill(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("INSERT INTO start VALUES (?, ?, ?)", (*blobs, checksum))
        _write_session(connection, 0, present)

    make(path, fill)
    with _let_go_on_error(path) as held:
        held.callback((lock := Lock(path)).release)
        held.callback((connection := connect(path)).close)
        optimizer._recorder = JournalRecorder(
            optimizer, path, connection, lock, 0, checksum, Snapshots(present, state.classes, 0)
        )


def open_journal(
    path: str | Path,
    like: Optimizer | None = None,
    read_only: bool = False,
    progress: bool = True,
) -> Optimizer:
    """Continue a journaled run; as ``Optimizer.open(path)``.

    What was recorded is done again and compared: each choice, and the state of the generator. Where
    versions and code are those of the newest snapshot, only what came after it.

    Args:
        path: The journal.
        like: An optimizer made as the run's was; its own trials do not matter, and it is left as it
            is. Nothing that the journal names is then imported or run. Without it, the pickled
            optimizer in the journal is loaded, **which can run any code**: open only your own.
        read_only: Change nothing, and take what can be read of a damaged journal, with a
            :class:`DamagedJournalWarning`. The optimizer keeps no journal; ``record`` starts one.
        progress: Show a progress bar on stderr where a replay takes longer than some seconds.

    Raises:
        JournalError: if the file is no journal, is damaged, is of another problem or version, is in
            use, or what is replayed differs from what was recorded.
    """
    path = Path(path)
    if read_only:
        with JournalReader(path) as journal:
            return _bring_back(journal, like, progress, allow_damage=True).optimizer
    check_is_journal(path)
    with _let_go_on_error(path) as held:
        held.callback((lock := Lock(path)).release)
        with JournalReader(path) as journal:
            back = _bring_back(journal, like, progress, allow_damage=False)
        held.callback((connection := connect(path)).close)
        _write_session(connection, journal.num_good, back.environment)
        snapshots = Snapshots(back.environment, back.classes, journal.num_good - back.num_replayed)
        if back.num_replayed >= EVERY:
            snapshots.write(connection, back.optimizer, journal.num_good, journal.checksum)
        back.optimizer._recorder = JournalRecorder(
            back.optimizer, path, connection, lock, journal.num_good, journal.checksum, snapshots
        )
    return back.optimizer


@contextmanager
def _let_go_on_error(path: Path) -> Iterator[ExitStack]:
    """What was taken in the body is let go of only if it raises."""
    with ExitStack() as held:
        try:
            yield held
        except sqlite3.Error as error:
            raise JournalError(f"Expected to write to {path}. Got {error}.") from error
        held.pop_all()


@dataclass(frozen=True)
class BroughtBack:
    """A run after its last good record.

    Args:
        optimizer: As it was then.
        environment: The present one.
        classes: Full names of the classes that it held when recording began.
        num_replayed: Number of events that were done again for it.
    """

    optimizer: Optimizer
    environment: Environment
    classes: Iterable[str]
    num_replayed: int


def _bring_back(
    journal: JournalReader, like: Optimizer | None, progress: bool, allow_damage: bool
) -> BroughtBack:
    snapshot = None if journal.version != VERSION else journal.snapshot()
    if journal.damage is not None:
        message = (
            f"Expected a whole journal. Got {journal.path}, damaged: {journal.damage}. "
            f"Its first {journal.num_good} records are good. {GO_ON}"
        )
        if not allow_damage:
            raise JournalError(message)
        warnings.warn(message, DamagedJournalWarning, stacklevel=4)
    if journal.version != VERSION:
        raise JournalError(
            f"Expected a journal with tables of version {VERSION}. Got {journal.path}, of version "
            f"{journal.version}, written by tvbo {_writer_of(journal)}. Journals are not migrated: "
            "open it with that one, or save its trials by `tvbo runs export`."
        )
    optimizer, known = _start(journal, like)
    present = environment(known.modules)
    first = 0
    if snapshot is not None and same(snapshot.environment, present):
        later = _state_at(snapshot, journal, optimizer, known)
        if later is not None:
            first, optimizer = snapshot.seq, later

    def difference(seq: int) -> str:
        return changes(journal.environment_at(seq), present)

    num_events = journal.num_good - first
    replay(optimizer, journal.records(first), difference, num_events, progress)
    return BroughtBack(optimizer, present, known.classes, num_events)


def _start(journal: JournalReader, like: Optimizer | None) -> tuple[Optimizer, State]:
    """The optimizer as it was when recording began, and what it consists of."""
    pickled, plain = journal.start
    if like is None:
        optimizer = pickles.load(pickled)
        return optimizer, _state_of(optimizer)
    try:
        recorded = State.from_bytes(plain)
    except StateError as error:
        raise _unreadable(journal, error) from error
    known = _state_of(like)
    check_likeness(recorded, known, journal.path)
    if recorded.opaque and (_num_trials(recorded, journal) > 0 or like.num_trials > 0):
        raise JournalError(
            "Expected a run that was recorded from its beginning, and an optimizer without trials: "
            f"{', '.join(recorded.opaque)} cannot be stored as plain data, so that the run has to "
            f"be done again from the optimizer given. Got {journal.path}, which was begun with "
            f"{_num_trials(recorded, journal)} trials, and one with {like.num_trials}."
        )
    try:
        # A copy, so that an opening that is refused leaves the caller's as it was.
        return recorded.onto(deepcopy(like), known.classes), known
    except StateError as error:
        raise _unreadable(journal, error) from error
    except Exception as error:  # Whatever copying an object of the user's raises.
        raise JournalError(
            f"Expected an optimizer that can be copied. Got {type(error).__name__}: {error}."
        ) from error


def _state_at(
    snapshot: Snapshot, journal: JournalReader, optimizer: Optimizer, known: State
) -> Optimizer | None:
    """The optimizer at a snapshot; None where it is of no use, and all has to be replayed."""
    if not 0 < snapshot.seq <= journal.num_good or journal.chain_at(snapshot.seq) != snapshot.chain:
        return None
    try:
        state = State.from_bytes(snapshot.state)
        if state.opaque or next(differences(state, known), None) is not None:
            return None
        return state.onto(optimizer, known.classes)
    except Exception:  # Whatever stands in the file: the events are what counts.
        return None


def _state_of(optimizer: Optimizer) -> State:
    try:
        return State.of(optimizer)
    except StateError as error:
        raise JournalError(f"Expected an optimizer that can be looked at. Got {error}.") from error


def _num_trials(state: State, journal: JournalReader) -> int:
    number = state.attribute("_num_trials")
    if type(number) is not int:
        raise _unreadable(journal, StateError(f"{number!r} trials"))
    return number


def _unreadable(journal: JournalReader, error: StateError) -> JournalError:
    return JournalError(
        f"Expected an optimizer that {journal.path} starts with, stored as plain data. Got {error}."
    )


def _writer_of(journal: JournalReader) -> str:
    """Version and source of the tvbo that wrote a journal last."""
    found = journal.sessions[-1].environment if journal.sessions else {}
    version = found.get("tvbo", journal.meta.get("tvbo", "of an unknown version"))
    source = found.get("source of tvbo")
    return version if source is None else f"{version} (source {source})"


def _write_session(connection: sqlite3.Connection, after: int, present: Environment) -> None:
    row = (after, json.dumps(present), time.time())
    connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", row)
