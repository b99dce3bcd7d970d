"""What a journal says of its run: the optimizer in words, names of parameters, units."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from tvbo.spaces.context_space import ContextSpace
from tvbo.spaces.labels import Labels
from tvbo.storage.database import JournalError, open_to_read
from tvbo.storage.record import LONGEST_WORDS, parse_json
from tvbo.storage.recorded import Recorded
from tvbo.values import shortened

LONGEST_VALUE = 2_000
"""Characters of a description in the table ``meta``; a longer one is forged."""

ANY_LENGTH = ("open", "units", "space")
"""Entries of that table that may be longer."""


def describe(optimizer: Recorded) -> dict[str, str]:
    """Return what an optimizer is, in words for ``tvbo runs show``."""
    kind, space = type(optimizer), optimizer.search_space
    low, high = space.bounds.tolist()
    contexts = optimizer.contexts
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "search space": f"{type(space).__name__}, from {shortened(low)} to {shortened(high)}"
        if space.parameters is None
        else shortened(space.parameters, LONGEST_WORDS),
        "contexts": "none" if contexts is None else _describe_contexts(contexts),
        "layout": str(optimizer.layout),
        "units": json.dumps({"minimize": optimizer.minimize, **optimizer.labels.to_json()}),
    }


def read_description(path: Path) -> tuple[dict[str, str], Labels]:
    """Return the description of a journal, by name, and its labels; no record is checked.

    Raises:
        JournalError: if the file is not a journal, or its description cannot be read.
    """
    connection, damage = open_to_read(path)
    try:
        if damage is not None:
            raise ValueError(damage)
        meta = read_meta(connection)
        return meta, read_units(meta)[0]
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise JournalError(f"Expected a whole journal. Got {path}, damaged: {error}.") from error
    finally:
        connection.close()


def read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Return the table ``meta``; raise ``ValueError`` if it holds something else."""
    # A limit, since a forged table may be long; a journal has some ten rows.
    found = dict(connection.execute("SELECT name, value FROM meta LIMIT 100"))
    if not all(isinstance(word, str) for pair in found.items() for word in pair):
        raise ValueError("its meta table holds what is no text")
    if any(len(value) > LONGEST_VALUE for name, value in found.items() if name not in ANY_LENGTH):
        raise ValueError("its meta table holds texts that are no description")
    return found


def read_units(meta: dict[str, str]) -> tuple[Labels, bool]:
    """Return labels, and whether smaller outcomes are better; raise ``ValueError`` for bad ones."""
    try:
        found = parse_json(meta["units"])
        return Labels.from_json(found), bool(found["minimize"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its units are none: {error}") from error


def _describe_contexts(contexts: ContextSpace) -> str:
    if contexts.parameters is not None:
        return shortened(contexts.parameters, LONGEST_WORDS)
    return f"{type(contexts).__name__}, c = {contexts.dim}"
