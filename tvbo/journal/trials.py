"""The trials of a journal as a table, read without running anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tvbo.journal.reader import JournalReader

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}


def trials_of(journal: JournalReader) -> pd.DataFrame:
    """Return a table with one row for each trial, oldest first.

    Args:
        journal: Open for reading; of a damaged one, the good records are used.

    Returns:
        Columns ``trial``, ``how`` (asked, attached, or before: it was open when recording began),
        ``t``, ``action_i``, ``context_i``, ``state`` (open, told, failed, expired, skipped),
        ``outcome``, ``outcome_variance`` and ``reason``.
    """
    import pandas as pd

    trials = {row["trial"]: _opened("before", **row) for row in journal.open_before()}
    for _, record in journal.records():
        if record.kind in ("ask", "attach"):
            how = "asked" if record.kind == "ask" else "attached"
            row = _opened(how, record.trial_id, record.t, record.X or (), record.context or ())
            trials[record.trial_id] = row | ({"state": "skipped"} if record.skipped else {})
        elif record.kind in ENDINGS:
            # Where the start is damaged, a trial from before it is known by its number only.
            row = trials.setdefault(record.trial_id, {"trial": record.trial_id})
            row |= {
                "state": ENDINGS[record.kind],
                "outcome": record.Y,
                "outcome_variance": record.Yvar,
                "reason": record.reason,
            }
    frame = pd.DataFrame(trials.values())
    first, last = ["trial", "how", "t"], ["state", "outcome", "outcome_variance", "reason"]
    between = [name for name in frame.columns if name not in (*first, *last)]
    frame = frame.reindex(columns=[*first, *between, *last])
    numbers = ["t", *between, "outcome", "outcome_variance"]
    return frame.astype(dict.fromkeys(numbers, float))


def _opened(
    how: str, trial: int | None, t: float | None, X: Iterable[float], context: Iterable[float]
) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": trial, "how": how, "t": t}
    row |= {f"action_{i}": x for i, x in enumerate(X)}
    row |= {f"context_{i}": z for i, z in enumerate(context)}
    return row | {"state": "open", "reason": ""}
