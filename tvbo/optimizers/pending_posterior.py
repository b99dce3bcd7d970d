"""A streaming posterior of all that was asked, answered or pending."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch
from torch import Tensor

from tvbo.models import StreamingGP
from tvbo.models.stream_preview import Amendments, Sums, amended, predict_without
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.posterior_state import mean_and_variance
from tvbo.spaces.observations import Observations

Key = tuple[float, ...]
"""A row as what it asks for: trials with equal rows are interchangeable."""


MOST_UNSEEN = 256
"""New outcomes of which a preview takes in so many at once; of more, the model is made anew."""


class PendingPosterior:
    """Keep a :class:`tvbo.models.StreamingGP` in which pending trials have their rows.

    The row of a trial is made once, when it is first seen pending; what stands in for its outcome
    is revised from round to round, and for the last time when the outcome comes. So a round costs
    as much as one without delay, and the square of the number of rows since the oldest pending
    trial.

    Args:
        model: Model without observations.
        least_noise: Least noise variance of an outcome that is told with its own.
    """

    def __init__(self, model: StreamingGP, least_noise: float = 0.0):
        self.model = model
        self.least_noise = least_noise
        self._is_static = model.is_static
        self._shared_time: float | None = None
        # By pending row, the numbers of its observations in the model.
        self._pending: dict[Key, list[int]] = {}
        # By number, what stands in for an outcome, and what is still to be added to one.
        self._stand_ins: dict[int, float] = {}
        self._changes: dict[int, float] = {}

    @property
    def num_pending(self) -> int:
        """Number of trials whose outcome has a stand-in."""
        return len(self._stand_ins)

    def update(self, new: Observations, rows: Tensor, pending: Pending) -> bool:
        """Take in new outcomes and newly pending trials.

        Args:
            new: Observations since the last call.
            rows: ``[action | context | time]`` of all pending trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.

        Returns:
            Whether that was possible. If not, the posterior must be made anew, see :meth:`reset`.
        """
        if self._pending and new.Yvar is not None:
            # Their rows were made with another noise.
            return False
        if len(rows) > 0 and self._is_static and self._shared_time is None:
            # Where nothing is forgotten, all rows may have one time: then none of them comes late.
            self._shared_time = max(rows[:, -1].max().item(), self.model.now.item())
        if not self._take_in(new):
            return False
        keys = _keys(rows)
        wanted = Counter(keys)
        if any(len(numbers) > wanted[key] for key, numbers in self._pending.items()):
            # A trial that was lost: its row cannot be removed.
            return False
        if not self._add(rows, keys, wanted):
            return False
        revised = [*self._stand_ins, *self._changes]
        if revised and not self.model.holds(torch.tensor(revised)).all():
            return False
        if keys:
            self._stand_in(rows, keys, pending)
        self._revise()
        return True

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        if not self._stand_ins:
            return mean_and_variance(self.model, row)
        return predict_without(self.model, [*self._stand_ins], row)

    def preview(self, new: Observations) -> Sums | None:
        """Return what the posterior would be after new outcomes, without stand-ins.

        Does not modify the posterior.

        Args:
            new: Observations since the last :meth:`update`.

        Returns:
            Sums over the rows; None where they cannot be had without the model being made anew.
        """
        if self._pending and new.Yvar is not None:
            return None
        waiting = {key: list(numbers) for key, numbers in self._pending.items()}
        changes, unseen = self._answers(new, waiting)
        left_out = [number for numbers in waiting.values() for number in numbers]
        late = self._rows_of(new, unseen)
        if (
            late is None
            or len(unseen) > MOST_UNSEEN
            or self.model.eviction_policy.max_rows is not None
        ):
            return None
        with torch.no_grad():
            return amended(self.model, Amendments(changes, left_out, late))

    def reset(self) -> None:
        """Forget everything; the memory is kept for what comes next."""
        self.model.reset()
        self._shared_time = None
        for each in (self._pending, self._stand_ins, self._changes):
            each.clear()

    def _take_in(self, new: Observations) -> bool:
        """Add outcomes; those of pending trials take the place of their stand-ins."""
        changes, unseen = self._answers(new, self._pending)
        self._changes |= changes
        for number in changes:
            del self._stand_ins[number]
        return self._observe(self._rows_of(new, unseen))

    def _answers(
        self, new: Observations, waiting: dict[Key, list[int]]
    ) -> tuple[dict[int, float], list[int]]:
        """Remove trials that outcomes answer from those that wait.

        Returns:
            By number, how much an outcome differs from its stand-in; and the places of the other
            outcomes in ``new``.
        """
        if not waiting:
            return {}, list(range(len(new)))
        changes, unseen = {}, []
        for i, key in enumerate(_keys(new.X)):
            numbers = waiting.get(key)
            # Of trials that ask the same, any may have been answered.
            if not numbers:
                unseen.append(i)
                continue
            number = numbers.pop(0)
            if not numbers:
                del waiting[key]
            changes[number] = new.Y[i].item() - self._stand_ins[number]
        return changes, unseen

    def _add(self, rows: Tensor, keys: list[Key], wanted: Counter[Key]) -> bool:
        """Add rows that are newly pending, with zeros for their outcomes."""
        new = []
        missing = Counter({key: n - len(self._pending.get(key, [])) for key, n in wanted.items()})
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
        empty = Observations(X[order], torch.zeros(len(new), 1, dtype=torch.float64))
        if not self._observe(self._rows_of(empty, list(range(len(new))))):
            return False
        for number, i in enumerate(order.tolist(), start=first):
            self._pending.setdefault(new[i][0], []).append(number)
            self._stand_ins[number] = 0.0
        return True

    def _stand_in(self, rows: Tensor, keys: list[Key], pending: Pending) -> None:
        """Note what stands in for the outcomes of all pending trials now."""
        taken: Counter[Key] = Counter()
        numbers = []
        for key in keys:
            numbers.append(self._pending[key][taken[key]])
            taken[key] += 1
        which = torch.tensor(numbers)
        before = torch.tensor([self._stand_ins[n] for n in numbers], dtype=torch.float64)

        def expected() -> Tensor:
            self._revise()
            return (before - self.model.leave_out_residual(which)).unsqueeze(-1)

        now = pending.outcomes(rows, expected).squeeze(-1)
        for number, change in zip(numbers, (now - before).tolist(), strict=True):
            if change != 0:
                self._changes[number] = change
        self._stand_ins.update(zip(numbers, now.tolist(), strict=True))

    def _revise(self) -> None:
        """Tell the model by how much outcomes have changed."""
        if self._changes:
            change = torch.tensor(list(self._changes.values()), dtype=torch.float64)
            self.model.revise(torch.tensor(list(self._changes)), change)
            self._changes.clear()

    def _rows_of(self, new: Observations, places: list[int]) -> Observations | None:
        """Return observations as the model takes them in; None if they come too late for that."""
        if len(places) < len(new):
            new = new[torch.tensor(places, dtype=torch.long)]
        if len(new) == 0:
            return new
        X, Y = new.X, new.Y
        if self._shared_time is not None:
            X = X.clone()
            X[:, -1] = self._shared_time
            if self.model.mean_module is not None:
                # The prior mean stays that of their own times.
                Y = Y + (self.model.mean_module(X) - self.model.mean_module(new.X)).unsqueeze(-1)
        elif X[:, -1].min().item() < self._earliest():
            return None
        return self.with_noise(Observations(X, Y.detach(), new.Yvar))

    def with_noise(self, new: Observations) -> Observations:
        """Return observations whose noise is at least what the model can take."""
        if new.Yvar is None:
            return new
        return replace(new, Yvar=new.Yvar.clamp_min(self.least_noise))

    def _observe(self, new: Observations | None) -> bool:
        """Add rows to the model; return False if there are none that it can take in."""
        if new is None:
            return False
        if len(new) > 0:
            with torch.no_grad():
                self.model.observe(new.X, new.Y, new.Yvar)
        return True

    def _earliest(self) -> float:
        """Return the earliest event that the model can take in without being made anew."""
        if self.model.eviction_policy.max_rows is None:
            return self.model.earliest
        # Which rows have to go for want of room depends on what comes.
        return self.model.now.item()


def _keys(rows: Tensor) -> list[Key]:
    return [tuple(row) for row in rows.tolist()]
