"""The trials of a journal as a table, read without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tvbo.spaces.labels import Labels
from tvbo.storage.reader import JournalReader

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = {"tell": "told", "fail": "failed", "expire": "expired"}


def trials_of(journal: JournalReader) -> pd.DataFrame:
    """Return a table with one row for each trial, oldest first.

    Args:
        journal: Open for reading; of a damaged one, the good records are used.

    Returns:
        Columns ``trial``, ``how`` (asked, attached, or before: it was open when recording began),
        ``t``, the parameters of action and context by name or as ``action_i`` and ``context_i``,
        ``state`` (open, told, failed, expired, skipped), the outcomes by name and their variances,
        ``outcome`` and ``outcome_variance`` where they have no names, and ``reason``.
    """
    import pandas as pd

    labels = journal.labels
    outcomes = labels.outcome_columns
    variances = [f"{name}_variance" for name in outcomes]
    trials = {row["trial"]: _opened(labels, "before", **row) for row in journal.open_before()}
    for _, record in journal.records():
        if record.kind in ("ask", "attach"):
            how = "asked" if record.kind == "ask" else "attached"
            opened = record.trial_id, record.t, record.X or (), record.context or ()
            row = _opened(labels, how, *opened)
            trials[record.trial_id] = row | ({"state": "skipped"} if record.skipped else {})
        elif record.kind in ENDINGS:
            # Where the start is damaged, a trial from before it is known by its number only.
            row = trials.setdefault(record.trial_id, {"trial": record.trial_id})
            row |= {"state": ENDINGS[record.kind], "reason": record.reason}
            row |= dict(zip(outcomes, record.Y or (), strict=False))
            row |= dict(zip(variances, record.Yvar or (), strict=False))
    frame = pd.DataFrame(trials.values())
    first, last = ["trial", "how", "t"], ["state", *outcomes, *variances, "reason"]
    between = [name for name in frame.columns if name not in (*first, *last)]
    frame = frame.reindex(columns=[*first, *between, *last])
    numbers = [*outcomes, *variances, *([] if labels.time else ["t"])]
    for parameters, kind in ((labels.actions, "action_"), (labels.contexts, "context_")):
        if parameters is None:
            numbers += [name for name in between if name.startswith(kind)]
    known = set(labels.columns(0, 0))
    numbers = [name for name in numbers if name not in known]
    return frame.astype(dict.fromkeys(numbers, float))


def _opened(
    labels: Labels,
    how: str,
    trial: int | None,
    t: float | None,
    X: Sequence[float],
    context: Sequence[float],
) -> dict[str, Any]:
    row: dict[str, Any] = {"trial": trial, "how": how, "t": t}
    if t is not None:
        columns = torch.tensor(context, dtype=torch.float64) if context else None
        row |= labels.to_row(torch.tensor(X, dtype=torch.float64), t, columns)
    return row | {"state": "open", "reason": ""}
