"""Limits on the step from one action to the next, as machines have them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.spaces.parameters import Number
from tvbo.spaces.search_space import SearchSpace
from tvbo.values import as_number, as_numbers, check_names, copies_tensors, is_named

Step = float | Sequence[float] | Tensor | Mapping[str, float]
"""The longest step: one for all parameters, one for each, or by name of those that have one."""


@copies_tensors("per_trial", "per_time", "is_log")
@dataclass(frozen=True, eq=False)
class StepLimit:
    """How far an action may be from that of the newest trial.

    Args:
        per_trial: Longest step of each column from one trial to the next, ``d``, in the unit of the
            parameter, also on a logarithmic scale; infinite where there is no limit.
        per_time: Longest step of each column in a unit of time, ``d``.
        is_log: Mask of the columns that are logarithms, ``d``.
    """

    per_trial: Tensor
    per_time: Tensor
    is_log: Tensor

    @classmethod
    def of(
        cls, search_space: SearchSpace, max_step: Step | None, max_rate: Step | None
    ) -> StepLimit | None:
        """Read the limits that a caller gives; None if there are none.

        Args:
            search_space: The actions.
            max_step: Longest step from one trial to the next.
            max_rate: Longest step in a unit of time.

        Raises:
            InputDataError: if a limit is not positive, or less than 1 from trial to trial for an
                integer; or if a name is unknown, or one of a category.
            BotorchTensorDimensionError: if the number of limits is wrong.
        """
        if max_step is None and max_rate is None:
            return None
        is_log = torch.zeros(search_space.dim, dtype=torch.bool)
        per_trial, per_time = (
            _by_column(search_space, name, step)
            for name, step in (("max_step", max_step), ("max_rate", max_rate))
        )
        parameters = search_space.parameters
        for part, columns in () if parameters is None else parameters.in_columns():
            if isinstance(part, Number):
                is_log[columns] = part.is_log
                if part.is_integer and per_trial[columns] < 1:
                    raise InputDataError(
                        f"Expected a max_step of at least 1 for {part.name}, a whole number. "
                        f"Got {per_trial[columns].item():g}."
                    )
        return cls(per_trial, per_time, is_log)

    def reach(self, search_space: SearchSpace, X: Tensor, elapsed: float) -> SearchSpace:
        """Return the actions that a step can reach.

        Args:
            search_space: All actions.
            X: The action of the newest trial, ``1 x d``.
            elapsed: Time since then.

        Raises:
            InputDataError: if there are none.
        """
        by_time = torch.where(self.per_time.isinf(), math.inf, self.per_time * max(elapsed, 0.0))
        step = by_time.minimum(self.per_trial)
        values = torch.where(self.is_log, X[0].exp(), X[0])
        rows = torch.stack([values - step, values + step])
        return search_space.between(torch.where(self.is_log, rows.clamp_min(0.0).log(), rows))


def _by_column(search_space: SearchSpace, name: str, step: Step | None) -> Tensor:
    """Return the longest step of each column, ``d``."""
    limits = torch.full((search_space.dim,), math.inf, dtype=torch.float64)
    if step is None:
        return limits
    parts = [] if search_space.parameters is None else [*search_space.parameters.in_columns()]
    if is_named(step):
        given = dict(step.items())
        numbers = [part.name for part, _ in parts if isinstance(part, Number)]
        check_names(given, numbers, f"{name} by name, of numbers:", optional=numbers)
        for part, columns in parts:
            if part.name in given:
                limits[columns] = as_number(f"{name} of {part.name}", given[part.name])
    else:
        steps = as_numbers(name, step)
        if steps.ndim > 1 or steps.numel() not in (1, search_space.dim):
            raise BotorchTensorDimensionError(
                f"Expected one {name}, or {search_space.dim}. Got shape {tuple(steps.shape)}."
            )
        limits = steps.expand(search_space.dim).clone()
        for part, columns in parts:
            if not isinstance(part, Number):
                limits[columns] = math.inf
    if not (limits > 0).all():
        raise InputDataError(f"Expected {name} above 0. Got {step!r}.")
    return limits
