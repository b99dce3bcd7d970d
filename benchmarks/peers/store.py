"""Records of runs, one a line of a JSON file that grows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load(path: Path) -> list[dict[str, Any]]:
    """Return the records of a store; a last line that was not finished is ignored."""
    if not path.exists():
        return []
    *lines, _ = path.read_text().split("\n")
    return [json.loads(line) for line in lines]


def append(record: dict[str, Any], path: Path) -> None:
    """Add a record, in place of a last line that was not finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
