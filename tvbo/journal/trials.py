"""The trials of a journal as a table, read without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pandas as pd

from tvbo.journal.reading import JournalReader
from tvbo.journal.record import Record
from tvbo.optimizers.trial import Trial

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}


def trials_of(journal: JournalReader) -> pd.DataFrame:
    """One row for each trial, oldest first.

    Args:
        journal: Open for reading; of a damaged one, what is good.

    Returns:
        Columns ``trial``, ``how`` (asked, attached, or before: recording began when it was open
        already), ``t``, ``action_i``, ``context_i``,
        ``state`` (open, told, failed, expired, skipped), ``outcome``, ``outcome_variance`` and
        ``reason``.
    """
    trials = {row["trial"]: _begun(row) for row in journal.open_before()}
    for _, record in journal.records():
        if record.kind in ("ask", "attach"):
            trials[record.trial_id] = _opened(record)
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


def as_json(trials: Iterable[Trial]) -> str:
    """Trials that are open when recording begins, for a reader that unpickles nothing."""
    return json.dumps(
        [
            {
                "trial": trial.id,
                "t": trial.t,
                "X": trial.X.reshape(-1).tolist(),
                "context": None if trial.context is None else trial.context.reshape(-1).tolist(),
            }
            for trial in trials
        ]
    )


def _begun(row: dict) -> dict[str, object]:
    """The row of a trial that :func:`as_json` wrote."""
    found = {"trial": row["trial"], "how": "before", "t": row["t"]}
    found |= {f"action_{i}": x for i, x in enumerate(row["X"])}
    found |= {f"context_{i}": z for i, z in enumerate(row["context"])}
    return found | {"state": "open", "reason": ""}


def _opened(record: Record) -> dict[str, object]:
    row = {
        "trial": record.trial_id,
        "how": "asked" if record.kind == "ask" else "attached",
        "t": record.t,
    }
    row |= {f"action_{i}": x for i, x in enumerate(record.X)}
    row |= {f"context_{i}": z for i, z in enumerate(record.context or ())}
    return row | {"state": "skipped" if record.skipped else "open", "reason": ""}
