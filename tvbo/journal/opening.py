"""Start a journal; continue one."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tvbo
from tvbo.journal import pickles
from tvbo.journal.environment import Environment, changes, environment, same
from tvbo.journal.errors import GO_ON, DamagedJournalWarning, JournalError
from tvbo.journal.likeness import check_likeness, describe
from tvbo.journal.lock import Lock
from tvbo.journal.making import check_is_free, make
from tvbo.journal.reading import JournalReader, Snapshot, check_is_journal, start_checksum
from tvbo.journal.recorder import JournalRecorder
from tvbo.journal.replay import replay
from tvbo.journal.schema import connect
from tvbo.journal.snapshot import EVERY, Snapshots
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
    data = pickles.dump(optimizer)
    modules = pickles.modules_of(data)
    present = environment(modules)
    meta = describe(optimizer) | {
        "run": os.urandom(8).hex(),
        "modules": json.dumps(sorted(modules)),
        "tvbo": tvbo.__version__,
        "open": as_json(optimizer.open_trials),
    }
    checksum = meta["checksum"] = start_checksum(data, meta)

    def fill(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.execute("INSERT INTO start VALUES (?, ?)", (data, checksum))
        _write_session(connection, 0, present)

    make(path, fill)
    with _let_go_on_error(path) as held:
        held.callback((lock := Lock(path)).release)
        held.callback((connection := connect(path)).close)
        optimizer._recorder = JournalRecorder(
            optimizer, path, connection, lock, 0, checksum, Snapshots(present, modules, 0)
        )


def open_journal(
    path: str | Path, like: Optimizer | None = None, read_only: bool = False
) -> Optimizer:
    """Continue a journaled run; as ``Optimizer.open(path)``.

    What was recorded is done again and compared: each choice to the bit, and the state of the
    generator. Where versions and code are those of the newest snapshot, only what came after it.

    A journal holds pickled objects, which can run code: open only your own.

    Args:
        path: The journal.
        like: An optimizer made as the run's was; its own trials do not matter.
        read_only: Change nothing, and take what can be read of a damaged journal, with a
            :class:`DamagedJournalWarning`. The optimizer keeps no journal; ``record`` starts one.

    Raises:
        JournalError: if the file is no journal, is damaged, is of another problem or version, is in
            use, or what is replayed differs from what was recorded.
    """
    path = Path(path)
    if read_only:
        with JournalReader(path) as journal:
            optimizer, _, _ = _bring_back(journal, like, allow_damage=True)
        return optimizer
    check_is_journal(path)
    with _let_go_on_error(path) as held:
        held.callback((lock := Lock(path)).release)
        with JournalReader(path) as journal:
            optimizer, present, replayed = _bring_back(journal, like, allow_damage=False)
        held.callback((connection := connect(path)).close)
        _write_session(connection, journal.num_good, present)
        snapshots = Snapshots(present, _modules(journal), journal.num_good - replayed)
        if replayed >= EVERY:
            snapshots.write(connection, optimizer, journal.num_good, journal.checksum)
        optimizer._recorder = JournalRecorder(
            optimizer, path, connection, lock, journal.num_good, journal.checksum, snapshots
        )
    return optimizer


@contextmanager
def _let_go_on_error(path: Path) -> Iterator[ExitStack]:
    """What was taken in the body is let go of only if it raises."""
    with ExitStack() as held:
        try:
            yield held
        except sqlite3.Error as error:
            raise JournalError(f"Expected to write to {path}. Got {error}.") from error
        held.pop_all()


def _bring_back(
    journal: JournalReader, like: Optimizer | None, allow_damage: bool
) -> tuple[Optimizer, Environment, int]:
    """The optimizer after the last good record, the present environment, events replayed."""
    snapshot = journal.snapshot()
    if journal.damage is not None:
        message = (
            f"Expected a whole journal. Got {journal.path}, damaged: {journal.damage}. "
            f"Its first {journal.num_good} records are good. {GO_ON}"
        )
        if not allow_damage:
            raise JournalError(message)
        warnings.warn(message, DamagedJournalWarning, stacklevel=4)
    start = pickles.load(journal.start)
    if like is not None:
        check_likeness(start, like, journal.path)
    present = environment(_modules(journal))
    first, optimizer = 0, start
    if (
        snapshot is not None
        and journal.chain_at(snapshot.seq) == snapshot.chain
        and same(snapshot.environment, _environment_of(snapshot, journal))
    ):
        first, optimizer = snapshot.seq, pickles.load(snapshot.optimizer)

    def difference(seq: int) -> str:
        return changes(journal.environment_at(seq), present)

    replay(optimizer, journal.records(first), difference)
    return optimizer, present, journal.num_good - first


def _modules(journal: JournalReader) -> set[str]:
    return set(json.loads(journal.meta["modules"]))


def _environment_of(snapshot: Snapshot, journal: JournalReader) -> Environment:
    """The present one, of all the modules that a snapshot rests on."""
    return environment(_modules(journal) | pickles.modules_of(snapshot.optimizer))


def _write_session(connection: sqlite3.Connection, after: int, present: Environment) -> None:
    row = (after, json.dumps(present), time.time())
    connection.execute("INSERT INTO sessions VALUES (?, ?, ?)", row)
