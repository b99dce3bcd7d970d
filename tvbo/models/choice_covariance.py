"""Covariances of a finite set of choices."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from numpy.typing import NDArray
from torch import Tensor

from tvbo.kernels.batch import ColumnKernel
from tvbo.models.closed_form import Array, correlation_of
from tvbo.models.raw import RawActionKernel, transformed, with_time

Places = NDArray[np.int64]

MAX_STORED_CHOICES = 5_000
"""Choices up to which their covariance matrix is stored (200 MB). The rows of a larger one are
computed when they are needed."""


class ChoiceCovariance:
    """A kernel over the choices, in NumPy, with its present parameters.

    Args:
        kernel: The kernel, without a batch.
        choices: ``n x d``.

    Raises:
        ValueError: if a variance is negative or not finite.

    Attributes:
        variances: Variances of the choices, ``n``.
    """

    def __init__(self, kernel: Kernel, choices: Tensor):
        self._kernel, self._choices = deepcopy(kernel).to(choices).eval(), choices
        with torch.no_grad():
            self.variances: Array = self._kernel(choices, diag=True).numpy()
        if not (np.isfinite(self.variances) & (self.variances >= 0)).all():
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. Got variances from "
                f"{self.variances.min():.3g} to {self.variances.max():.3g}."
            )
        self._matrix: Array | None = None
        if len(choices) <= MAX_STORED_CHOICES:
            self._matrix = self._evaluated(choices, choices)
        # What an RBF kernel or Matérn-5/2 sees of the choices, in lengthscales: ``d x n``, so that
        # what is added up lies side by side.
        X, inner = choices, self._kernel
        while True:
            X = X if inner.active_dims is None else X[..., inner.active_dims]
            if isinstance(inner, RawActionKernel):
                X = transformed(inner.input_transform, with_time(X, 0.0))
            elif not isinstance(inner, ColumnKernel | ScaleKernel):
                break
            inner = inner.base_kernel
        self._correlation = correlation_of(inner)
        if self._correlation is not None:
            points = (X / inner.lengthscale).detach().mT.numpy(force=True)
            self._points = np.ascontiguousarray(points)

    def rows(self, index: Places) -> Array:
        """Return the covariances of choices ``...`` with all choices, ``... x n``."""
        if self._matrix is not None:
            return self._matrix[index]
        if self._correlation is None:
            return self._evaluated(self._choices[index], self._choices)
        # GPyTorch takes ten times as long for one row of very many choices.
        squares: Array = np.zeros((*index.shape, len(self._choices)))
        for column in self._points:
            squares += np.square(column[index][..., None] - column)
        covar, _ = self._correlation(squares, False)
        covar *= self.variances[0]
        return covar

    def between(self, first: Places, second: Places) -> Array:
        """Return the covariances of choices ``... x q`` and ``... x p``, ``... x q x p``."""
        if self._matrix is not None:
            return self._matrix[first[..., :, None], second[..., None, :]]
        return self._evaluated(self._choices[first], self._choices[second])

    @torch.no_grad()
    def _evaluated(self, X1: Tensor, X2: Tensor) -> Array:
        return self._kernel(X1, X2).to_dense().numpy()
