"""A finite set of actions."""

from __future__ import annotations

import torch
from botorch.acquisition import AcquisitionFunction
from torch import Generator, Tensor

from tvbo.search_space.base import AskContext, check_action
from tvbo.search_space.bounds import Bounds
from tvbo.search_space.box import Box
from tvbo.search_space.row_index import RowIndex
from tvbo.ties import any_largest

EVALUATION_CHUNK = 512


class FiniteSpace:
    """A finite set of actions.

    Args:
        choices: ``n x d``, one row per action, without duplicates.
        chunk: Number of actions evaluated at once. Beyond some hundreds, memory traffic makes a
            dense GP slower.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x d``.
        InputDataError: if an entry is not finite, or the rows contain duplicates.
    """

    def __init__(self, choices: Tensor, chunk: int = EVALUATION_CHUNK):
        self.row_index = RowIndex(choices)
        self.choices = self.row_index.choices
        self.bounds = torch.stack(self.choices.aminmax(dim=0))
        self.dim = self.row_index.dim
        if chunk < 1:
            raise ValueError(f"Expected chunk >= 1. Got {chunk}.")
        self.chunk = chunk

    def maximize(
        self, acq_function: AcquisitionFunction, ask_context: AskContext, generator: Generator
    ) -> Tensor:
        """Return the best of all actions; the generator breaks ties (:mod:`tvbo.ties`)."""
        rows = ask_context.rows(self.choices).unsqueeze(-2)
        with torch.no_grad():
            values = torch.cat([acq_function(part) for part in rows.split(self.chunk)])
        return self._row(any_largest(values, generator))

    def sample(self, generator: Generator) -> Tensor:
        """Return one of the choices, ``1 x d``, drawn uniformly."""
        return self._row(int(torch.randint(len(self.choices), (1,), generator=generator)))

    def _row(self, index: int) -> Tensor:
        # A copy, so that changing a trial's action in place does not change the set.
        return self.choices[index : index + 1].clone()

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
        return self.choices[self.index(X)]


def make_search_space(bounds: Bounds | None, choices: Tensor | None) -> Box | FiniteSpace:
    """Return a box or a finite set, whichever of the two was given.

    Raises:
        ValueError: unless exactly one was given.
    """
    if bounds is not None and choices is None:
        return Box(bounds)
    if choices is not None and bounds is None:
        return FiniteSpace(choices)
    raise ValueError(
        "Expected either bounds (2 x d) or choices (n x d). "
        f"Got {'neither' if bounds is None else 'both'}."
    )
