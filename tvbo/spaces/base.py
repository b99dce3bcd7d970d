"""Sets of actions: what an ask needs of them, and the finite ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor
from torch.nn import Module

from tvbo.rounding import any_largest
from tvbo.spaces.batch import one_after_another
from tvbo.spaces.observations import (
    InputLayout,
    Observations,
    check_coordinates,
    check_finite,
    check_last_dimension,
)
from tvbo.spaces.parameter import SINGLE_PRECISION
from tvbo.spaces.parameters import Parameters
from tvbo.values import as_numbers, copies_tensors

SEARCH_CHUNK = 256
"""Number of inexact rows compared with the whole set at once."""

GOLDEN_RATIO = 0.5 * (5**0.5 - 1)

EVALUATION_CHUNK = 512


class SearchSpace(Protocol):
    """A set of actions."""

    dim: int
    bounds: Tensor
    """Smallest and largest value of each column, ``2 x d``."""

    @property
    def parameters(self) -> Parameters | None:
        """Names and types of the parameters; None where actions are tensors."""

    def maximize(
        self,
        acq_function: AcquisitionFunction,
        ask_context: AskContext,
        generator: Generator,
        q: int = 1,
    ) -> Tensor:
        """Return the actions, ``q x d``, that maximize an acquisition function.

        Args:
            acq_function: A function of rows ``b x q x (d + c + 1)``.
            ask_context: Gives the time and the context, which are held fixed.
            generator: Source of randomness.
            q: Number of actions.
        """

    def sample(self, generator: Generator) -> Tensor:
        """Return one action, ``1 x d``, drawn uniformly at random."""

    def snap(self, X: Tensor) -> Tensor:
        """Return ``X``, ``n x d``, as actions of this set, undoing rounding to single precision.

        Raises:
            InputDataError: if a row is no action of this set.
        """


@copies_tensors("context")
@dataclass(frozen=True)
class AskContext:
    """What is known when an action is chosen: round, time, context, and the observations.

    Args:
        round: Number of this trial, from 1, where those attached count as well.
        t: Time of this ask, in the user's unit.
        context: ``c``-dimensional context, or None.
        layout: How rows are laid out.
        observations: The observations that the model was conditioned on.
        search_space: The actions that can be chosen; None where nothing asks for them.
        generator: Source of randomness for acquisitions that draw or search.
    """

    round: int
    t: float
    context: Tensor | None
    layout: InputLayout
    observations: Observations
    search_space: SearchSpace | None = None
    generator: Generator | None = None

    def rows(self, X: Tensor) -> Tensor:
        """Return actions ``... x d`` as rows at the present time and context."""
        return self.layout.rows(X, self.t, self.context)

    def rows_observed(self) -> Tensor:
        """Return the observed actions as rows at the present time and context, ``n x (d + c + 1)``.

        Compute the incumbent of an improvement from these rows: the best outcome of an earlier time
        or of another context is stale, but the posterior mean at its action now is not.
        """
        return self.rows(self.observations.X[..., : self.layout.num_actions])


def check_action(X: Tensor, dim: int) -> None:
    """Raise unless ``X`` is a finite ``n x d`` tensor."""
    if X.ndim != 2:
        raise BotorchTensorDimensionError(
            f"Expected X of shape n x {dim}. Got X.shape={tuple(X.shape)}."
        )
    check_last_dimension("X", X, dim)
    check_finite("X", X)


class RowIndex(Module):
    """``n`` distinct rows, and the position of a row among them.

    Args:
        choices: ``n x d``; kept as a float64 copy on its device.
        name: Name of the rows in errors.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite or beyond 1e100, or the rows contain duplicates.
    """

    choices: Tensor
    _direction: Tensor
    _keys: Tensor
    _order: Tensor

    def __init__(self, choices: Tensor, name: str = "choices"):
        super().__init__()
        self.name = name
        choices = as_numbers(name, choices)
        if choices.ndim != 2 or 0 in choices.shape:
            raise BotorchTensorDimensionError(
                f"Expected {name} of shape n x d. Got {name}.shape={tuple(choices.shape)}."
            )
        check_coordinates(name, choices)
        distinct, count = torch.unique(choices, dim=0, return_counts=True)
        if len(distinct) < len(choices):
            raise InputDataError(
                f"Expected {name} that differ. Got {distinct[count > 1][0].tolist()} "
                f"{int(count.max())} times."
            )
        self.register_buffer("choices", choices)
        # Rows are looked up by a sorted key: their projection onto a direction on which the points
        # of a grid do not coincide.
        steps = torch.arange(1, self.dim + 1, dtype=torch.float64, device=choices.device)
        self.register_buffer("_direction", 0.5 + (steps * GOLDEN_RATIO).frac(), persistent=False)
        keys, order = self._key(choices).sort()
        self.register_buffer("_keys", keys, persistent=False)
        self.register_buffer("_order", order, persistent=False)

    def __len__(self) -> int:
        return len(self.choices)

    @property
    def dim(self) -> int:
        """Number of columns ``d``."""
        return self.choices.shape[-1]

    def index(self, X: Tensor) -> Tensor:
        """Return the position of each row among the choices, comparing to single precision.

        Args:
            X: Rows, ``... x d``.

        Returns:
            Positions, ``...``.

        Raises:
            BotorchTensorDimensionError: if ``X`` has the wrong width.
            InputDataError: if a row is not among the choices.
        """
        check_last_dimension("X", X, self.dim)
        rows = X.reshape(-1, self.dim).to(self.choices)
        if torch.equal(rows, self.choices):
            return torch.arange(len(self), device=rows.device).reshape(X.shape[:-1])
        position = torch.searchsorted(self._keys, self._key(rows))
        # Rounding may place a key on either side of its equal.
        right = self._order[position.clamp_max(len(self) - 1)]
        left = self._order[(position - 1).clamp_min(0)]
        index = torch.where((self.choices[right] == rows).all(dim=-1), right, left)
        inexact = (self.choices[index] != rows).any(dim=-1)
        if inexact.any():
            index[inexact] = torch.cat(
                [self._search(part) for part in rows[inexact].split(SEARCH_CHUNK)]
            )
        return index.reshape(X.shape[:-1])

    def _key(self, rows: Tensor) -> Tensor:
        return (rows * self._direction).sum(dim=-1)

    def _search(self, rows: Tensor) -> Tensor:
        check_finite("X", rows)
        distance = (rows.unsqueeze(1) - self.choices).abs()
        near = (distance <= SINGLE_PRECISION * self.choices.abs()).all(dim=-1)
        known = near.any(dim=-1)
        if not known.all():
            raise InputDataError(
                f"Expected rows that are among the {len(self)} {self.name}. "
                f"Got {rows[~known][0].tolist()}."
            )
        return distance.sum(dim=-1).where(near, torch.inf).argmin(dim=-1)


@copies_tensors("choices", "bounds")
class FiniteSpace:
    """A finite set of actions.

    Args:
        choices: ``n x d``, one row per action, without duplicates.
        chunk: Number of actions evaluated at once. Beyond some hundreds, memory traffic makes a
            dense GP slower.
        parameters: Names and types of the parameters; None where actions are tensors.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """

    choices: Tensor
    parameters: Parameters | None = None

    def __init__(
        self,
        choices: Tensor,
        chunk: int = EVALUATION_CHUNK,
        parameters: Parameters | None = None,
    ):
        self.row_index = RowIndex(choices)
        # The tensor of the index itself, since a set may be large.
        vars(self)["choices"] = self.row_index.choices
        self.bounds = torch.stack(self.row_index.choices.aminmax(dim=0))
        self.dim = self.row_index.dim
        if chunk < 1:
            raise ValueError(f"Expected chunk >= 1. Got {chunk}.")
        self.chunk = chunk
        self.parameters = parameters

    def maximize(
        self,
        acq_function: AcquisitionFunction,
        ask_context: AskContext,
        generator: Generator,
        q: int = 1,
    ) -> Tensor:
        """Return the best of all actions; the generator breaks ties (:mod:`tvbo.rounding`).

        The actions of a batch are chosen one after another.
        """
        rows = ask_context.rows(self.row_index.choices).unsqueeze(-2)

        def best(acq_function: AcquisitionFunction) -> Tensor:
            with torch.no_grad():
                values = torch.cat([acq_function(part) for part in rows.split(self.chunk)])
            return self._row(any_largest(values, generator))

        if q == 1:
            return best(acq_function)
        return one_after_another(best, acq_function, ask_context.rows, q)

    def sample(self, generator: Generator) -> Tensor:
        """Return one of the choices, ``1 x d``, drawn uniformly."""
        return self._row(int(torch.randint(len(self.row_index), (1,), generator=generator)))

    def _row(self, index: int) -> Tensor:
        return self.row_index.choices[index : index + 1].clone()

    def index(self, X: Tensor) -> Tensor:
        """Return the position of each row of ``X``, ``n x d``, among the choices.

        Rows are compared to single precision.

        Raises:
            InputDataError: if a row is not among the choices.
        """
        check_action(X, self.dim)
        return self.row_index.index(X)

    def snap(self, X: Tensor) -> Tensor:
        """Return the choices that the rows of ``X`` equal; raise if a row is not among them."""
        return self.row_index.choices[self.index(X)]


def action_context_rows(choices: Tensor, contexts: Tensor) -> Tensor:
    """Return all pairs of action and context, ``n m x (d + c)``, grouped by action.

    Args:
        choices: ``n x d``.
        contexts: ``m x c``.

    Raises:
        BotorchTensorDimensionError: if one of them is not a matrix.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """
    choices, contexts = RowIndex(choices).choices, RowIndex(contexts, "contexts").choices
    actions = choices.repeat_interleave(len(contexts), dim=0)
    return torch.cat([actions, contexts.repeat(len(choices), 1)], dim=-1)
