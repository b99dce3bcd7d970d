"""What an ask is for, where it is not for one action of the whole search space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tvbo.storage.recorded import Event


@dataclass(frozen=True)
class Request:
    """A batch of actions, or one of some choices.

    Args:
        q: Number of actions that are chosen together; None is one action.
        choices: Actions that can be chosen, ``n x d``; None is the whole search space.
    """

    q: int | None = None
    choices: Tensor | None = None

    @property
    def event(self) -> Event:
        """The event that goes before those of its trials."""
        values: dict[str, list[float]] = {} if self.q is None else {"q": [float(self.q)]}
        if self.choices is not None:
            values |= {"num_choices": [float(len(self.choices))]}
            values |= {"choices": self.choices.flatten().tolist()}
        return Event("request", fit=values)

    def place(self, X: Tensor) -> int | None:
        """Return the first row of an action, ``1 x d``, among the choices; None if none is it."""
        if self.choices is None:
            return None
        equal = (self.choices == X).all(dim=-1)
        return int(equal.to(torch.uint8).argmax()) if equal.any() else None

    @classmethod
    def from_values(cls, values: Mapping[str, Sequence[float]]) -> Request:
        """Return the request of an event's values.

        Raises:
            ValueError, LookupError: if they are of none.
        """
        q = int(values["q"][0]) if "q" in values else None
        if "choices" not in values:
            return cls(q)
        choices = torch.tensor(values["choices"], dtype=torch.float64)
        return cls(q, choices.view(int(values["num_choices"][0]), -1))
