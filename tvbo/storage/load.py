"""Continue a journaled run."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from tvbo.storage import writer
from tvbo.storage.compatibility import check_compatibility
from tvbo.storage.create import released_on_error, write_session
from tvbo.storage.database import (
    DamagedJournalWarning,
    JournalError,
    connect,
    lock_for_writing,
    open_to_read,
)
from tvbo.storage.reader import JournalReader
from tvbo.storage.replay import replay
from tvbo.storage.serialize import Held, StateError, current_versions, from_bytes, to_bytes
from tvbo.terminal import visible

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer

logger = logging.getLogger("tvbo.storage")


def open_journal(
    path: str | Path,
    like: Optimizer | None = None,
    read_only: bool = False,
    progress: bool = True,
    wait: float = 0.0,
) -> Optimizer:
    """Continue a journaled run; called by ``Optimizer.open(path)``.

    The recorded calls are made again, with the recorded actions. Where versions of the libraries
    are those of the stored state, only the calls after it are made again.

    Args:
        path: The journal.
        like: An optimizer with the run's settings; its own trials do not matter, and it is not
            modified. Only classes and functions of the libraries, and those that it holds, are then
            used. Without it, the journal names them, **which can run any code**: open only your
            own.
        read_only: Write nothing, and return what can be read of a damaged journal, with a
            :class:`DamagedJournalWarning`. The optimizer is not recorded; ``record`` starts a new
            journal.
        progress: Show a progress bar on stderr where a replay takes longer than some seconds.
        wait: Seconds to wait for another process that has it open for writing.

    Raises:
        JournalError: if the file is no journal, is damaged, is of another problem or version, is
            in use, or a recorded call is no longer possible.
    """
    path = Path(path)
    if read_only:
        with JournalReader(path) as journal:
            return _restore(journal, like, progress, allow_damage=True)[0]
    # Before a lock is made beside what is no journal.
    open_to_read(path).close()
    with released_on_error(path) as resources:
        resources.callback((lock := lock_for_writing(path, wait)).release)
        with JournalReader(path) as journal:
            optimizer, first = _restore(journal, like, progress, allow_damage=False)
        resources.callback((connection := connect(path)).close)
        write_session(connection, journal.num_good)
        sink = writer.JournalWriter(
            optimizer, path, connection, lock, journal.num_good, journal.checksum, first
        )
        if journal.num_good - first >= writer.EVERY:
            sink.store_state()
        optimizer._event_sink = sink
    return optimizer


def _restore(
    journal: JournalReader, like: Optimizer | None, progress: bool, allow_damage: bool
) -> tuple[Optimizer, int]:
    """Return the optimizer after the last good record, and the first record that was replayed."""
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
    optimizer, held = restore_start(journal, like, may_run_code=True)
    first = 0
    if (snapshot := journal.snapshot()) is not None:
        seq, versions, state = snapshot
        try:
            if versions != current_versions():
                raise StateError(f"it is of {versions}, here are {current_versions()}")
            newest = from_bytes(state, held)
            if type(newest) is not type(optimizer):
                raise StateError(f"it is one of a {type(newest).__name__}")
            optimizer, first = newest, seq
        except StateError as error:  # The state is only a shortcut.
            logger.warning(
                "The state stored in %s is passed over and the run replayed: %s",
                visible(str(journal.path)),
                visible(str(error)),
            )

    events = list(journal.events(first))
    logger.info("%d of %d events of %s are replayed", len(events), journal.num_good, journal.path)
    replay(optimizer, events, progress)
    return optimizer, first


def restore_start(
    journal: JournalReader, like: Optimizer | None, may_run_code: bool = False
) -> tuple[Optimizer, Held | None]:
    """Return the optimizer when recording began, and what may be used to make it.

    Args:
        journal: Open for reading.
        like: As of :func:`open_journal`.
        may_run_code: Whether without ``like`` all may be used that the journal names; else only
            classes and functions of tvbo, GPyTorch and BoTorch.

    Raises:
        JournalError: if its start is damaged, or of other classes or settings.
    """
    held: Held | None = None if may_run_code else {}
    if like is not None:
        held = to_bytes(like)[1]
    try:
        optimizer = from_bytes(journal.start, held)
        # What every optimizer has; another object may have been stored by hand.
        _ = optimizer.search_space, optimizer.generator, optimizer.open_trials
    except (StateError, AttributeError) as error:
        way_out = (
            "" if held is None or like else " Give an optimizer with the run's settings, like=."
        )
        raise JournalError(
            f"Expected an optimizer that {journal.path} starts with, of classes and functions that "
            f"can be used. Got {error}.{way_out}"
        ) from error
    if like is not None:
        check_compatibility(optimizer, like, journal.path)
    return optimizer, held
