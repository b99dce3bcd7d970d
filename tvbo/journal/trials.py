"""The trials of a journal as a table, read without running anything."""

from __future__ import annotations

import pandas as pd

from tvbo.journal.reading import JournalReader
from tvbo.journal.record import Record

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}


def trials_of(journal: JournalReader) -> pd.DataFrame:
    """One row for each trial, oldest first.

    Args:
        journal: Open for reading; of a damaged one, what is good.

    Returns:
        Columns ``trial``, ``how`` (asked or attached), ``t``, ``action_i``, ``context_i``,
        ``state`` (open, told, failed, expired, skipped), ``outcome``, ``outcome_variance`` and
        ``reason``.
    """
    trials: dict[int, dict[str, object]] = {}
    for _, record in journal.records():
        if record.kind in ("ask", "attach"):
            trials[record.trial_id] = _opened(record)
        elif record.kind in ENDINGS:
            # A trial that was open when recording began is known by its number only.
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


def _opened(record: Record) -> dict[str, object]:
    row = {
        "trial": record.trial_id,
        "how": "asked" if record.kind == "ask" else "attached",
        "t": record.t,
    }
    row |= {f"action_{i}": x for i, x in enumerate(record.X)}
    row |= {f"context_{i}": z for i, z in enumerate(record.context or ())}
    return row | {"state": "skipped" if record.skipped else "open", "reason": ""}
