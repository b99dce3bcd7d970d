"""A streaming posterior of all that was asked, answered or not."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from tvbo.feedback.pending import Pending
from tvbo.models import StreamingGP
from tvbo.observations import Observations

Key = tuple[float, ...]
"""A row, as what it asks: rows that are equal stand for one another."""


class AskedStream:
    """Keeps a :class:`tvbo.models.StreamingGP` in which open trials have their rows.

    The row of a trial is made once, when it is first seen open; what stands in for its outcome is
    revised from round to round, and for the last time when the outcome comes. So a round costs as
    much as one without delay, and the square of the number of rows since the oldest open trial.

    Args:
        model: Without observations.
    """

    def __init__(self, model: StreamingGP):
        self.model = model
        self._static = bool((model.forgetting_rate == 0).all())
        self._one_time: float | None = None
        # Outcomes taken in; and by open row, the numbers of its observations in the model.
        self._num_seen = 0
        self._open: dict[Key, list[int]] = {}
        self._standing_in: dict[int, float] = {}
        # By number, what is still to be added to an outcome in the model.
        self._changes: dict[int, float] = {}

    def update(self, observations: Observations, rows: Tensor, pending: Pending) -> bool:
        """Take in what came, and what is newly open.

        Args:
            observations: Those of the call before, less what was dropped, and new ones.
            rows: ``[action | context | time]`` of the open trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.

        Returns:
            Whether that was possible. If not, this is of no use any more.
        """
        if (
            self.model.eviction_policy.max_rows is not None
            or self.model.eviction_policy.max_lateness == 0
        ):
            return False
        if self._static and self._one_time is None:
            # Where nothing is forgotten, all rows may have one time: then none of them comes late.
            self._one_time = rows[:, -1].max().item()
        keys = _keys(rows)
        wanted = Counter(keys)
        if not self._take_in(observations[self._num_seen :]):
            return False
        self._num_seen = len(observations)
        if any(len(numbers) > wanted[key] for key, numbers in self._open.items()):
            return False
        return self._add(rows, keys, wanted) and self._stand_in(rows, keys, pending)

    def drop(self, gone: Tensor, weighs: bool) -> bool:
        """Forget observations; as :meth:`update`.

        Args:
            gone: Which of the observations, truth values.
            weighs: Whether any of them still weighs.
        """
        num_gone = int(gone[: self._num_seen].sum())
        self._num_seen -= num_gone
        return num_gone == 0 or not weighs

    def _take_in(self, new: Observations) -> bool:
        late = []
        for i, key in enumerate(_keys(new.X)):
            numbers = self._open.get(key)
            # Of trials that ask the same, any may have been answered.
            if not numbers:
                late.append(i)
                continue
            number = numbers.pop(0)
            if not numbers:
                del self._open[key]
            self._changes[number] = new.Y[i].item() - self._standing_in.pop(number)
        return not late or self._observe(new.X[late], new.Y[late])

    def _add(self, rows: Tensor, keys: list[Key], wanted: Counter[Key]) -> bool:
        """Rows that are newly open, with nothing yet in the place of their outcomes."""
        new = []
        missing = Counter({key: n - len(self._open.get(key, [])) for key, n in wanted.items()})
        for i, key in enumerate(keys):
            if missing[key] > 0:
                missing[key] -= 1
                new.append((key, i))
        if not new:
            return True
        X = rows[[i for _, i in new]]
        # The order in which the model numbers them.
        order = X[:, -1].argsort(stable=True)
        first = self.model.num_observed
        if not self._observe(X[order], torch.zeros(len(new), 1, dtype=torch.float64)):
            return False
        for number, i in enumerate(order.tolist(), start=first):
            self._open.setdefault(new[i][0], []).append(number)
            self._standing_in[number] = 0.0
        return True

    def _stand_in(self, rows: Tensor, keys: list[Key], pending: Pending) -> bool:
        taken: Counter[Key] = Counter()
        numbers = []
        for key in keys:
            numbers.append(self._open[key][taken[key]])
            taken[key] += 1
        which = torch.tensor(numbers)
        if not self.model.holds(torch.tensor([*numbers, *self._changes])).all():
            return False
        before = torch.tensor([self._standing_in[n] for n in numbers], dtype=torch.float64)

        def expected() -> Tensor:
            self._revise()
            return (before - self.model.leave_out_residual(which)).unsqueeze(-1)

        now = pending.outcomes(rows, expected).squeeze(-1)
        for number, change in zip(numbers, (now - before).tolist(), strict=True):
            if change != 0:
                self._changes[number] = change
        self._standing_in.update(zip(numbers, now.tolist(), strict=True))
        self._revise()
        return True

    def _revise(self) -> None:
        if self._changes:
            change = torch.tensor(list(self._changes.values()), dtype=torch.float64)
            self.model.revise(torch.tensor(list(self._changes)), change)
            self._changes.clear()

    def _observe(self, X: Tensor, Y: Tensor) -> bool:
        if self._one_time is not None:
            at_once = X.clone()
            at_once[:, -1] = self._one_time
            if self.model.mean_module is not None:
                # The prior mean stays that of their own times.
                Y = Y + (self.model.mean_module(at_once) - self.model.mean_module(X)).unsqueeze(-1)
            X = at_once
        elif X[:, -1].min().item() < self.model.earliest:
            return False
        with torch.no_grad():
            self.model.observe(X, Y)
        return True


def _keys(rows: Tensor) -> list[Key]:
    return [tuple(row) for row in rows.tolist()]
