"""Draws from the spectra of kernels, and of products and sums of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

NULL = 1e-12
"""Share of the largest eigenvalue of a covariance matrix below which others count as zero."""


class Spectrum(NamedTuple):
    r"""``n`` draws whose average is a kernel of ``d`` columns, in expectation.

    .. math:: k(x, x') = \mathbb{E} \frac1n \sum_{j=1}^n a_j(x)\, a_j(x') \cos(w_j^\top (x - x'))

    Draws of two kernels make draws of their product, with :math:`w` added and :math:`a` multiplied;
    those of a sum are divided among its parts.

    Args:
        frequencies: :math:`w`, ``batch_shape x n x d``.
        amplitudes: The constant factors of :math:`a`, ``batch_shape x n``.
        tables: The factors of :math:`a` that depend on an index column: the column, and the
            factors by index, ``batch_shape x num_indices x n``.
    """

    frequencies: Tensor
    amplitudes: Tensor
    tables: tuple[tuple[int, Tensor], ...] = ()

    def scaled(self, variance: Tensor) -> Spectrum:
        """Return draws of the kernel times a variance, ``batch_shape``."""
        return self._replace(amplitudes=self.amplitudes * variance.sqrt().unsqueeze(-1))

    def within(self, columns: Sequence[int], d: int) -> Spectrum:
        """Return draws of the same kernel over some of ``d`` columns."""
        frequencies = self.frequencies.new_zeros(*self.frequencies.shape[:-1], d)
        frequencies[..., columns] = self.frequencies
        tables = tuple((columns[column], table) for column, table in self.tables)
        return Spectrum(frequencies, self.amplitudes, tables)

    def shuffled(self) -> Spectrum:
        """Return the draws in random order."""
        order = torch.randperm(self.frequencies.shape[-2])
        return Spectrum(
            self.frequencies[..., order, :],
            self.amplitudes[..., order],
            tuple((column, table[..., order]) for column, table in self.tables),
        )


def product_of(factors: Sequence[Spectrum]) -> Spectrum:
    """Return draws of the product of kernels."""
    frequencies, amplitudes, tables = factors[0]
    for factor in factors[1:]:
        # Each is spread evenly over its spectrum; by its place a draw must tell nothing of another.
        other = factor.shuffled()
        frequencies = frequencies + other.frequencies
        amplitudes = amplitudes * other.amplitudes
        tables = tables + other.tables
    return Spectrum(frequencies, amplitudes, tables)


def sum_of(parts: Sequence[Callable[[int], Spectrum]], n: int) -> Spectrum:
    """Return ``n`` draws of the sum of kernels, each given as a function of their number."""
    if n < len(parts):
        raise UnsupportedError(f"Expected at least {2 * len(parts)} features. Got {2 * n}.")
    counts = [n // len(parts) + (i < n % len(parts)) for i in range(len(parts))]
    drawn = [part(count) for part, count in zip(parts, counts, strict=True)]
    shapes = [each.frequencies.shape[:-2] for each in drawn]
    batch = torch.broadcast_shapes(*shapes)
    tables = []
    for i, each in enumerate(drawn):
        for column, table in each.tables:
            # A factor of one for the draws of the other parts.
            blocks = [table.new_ones(*table.shape[:-1], count) for count in counts]
            blocks[i] = table
            tables.append((column, torch.cat(blocks, dim=-1)))
    frequencies = [each.frequencies.expand(*batch, -1, -1) for each in drawn]
    amplitudes = [
        (each.amplitudes * math.sqrt(n / count)).expand(*batch, -1)
        for each, count in zip(drawn, counts, strict=True)
    ]
    return Spectrum(torch.cat(frequencies, dim=-2), torch.cat(amplitudes, dim=-1), tuple(tables))


def spectrum_of_matrix(covar: Tensor, n: int, d: int) -> Spectrum:
    """Return draws of a covariance matrix over the only column: the columns of a root of it.

    Where there are at least as many draws as columns, their average is the matrix itself.
    """
    values, vectors = torch.linalg.eigh(covar)
    kept = values > NULL * values.amax(dim=-1, keepdim=True)
    kept = kept.reshape(-1, kept.shape[-1]).any(dim=0)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2))[..., kept]
    rank = root.shape[-1]
    place = torch.randperm(rank).repeat(-(-n // rank))[:n]
    counts = torch.bincount(place, minlength=rank)
    share = counts / n if n >= rank else torch.full((rank,), 1 / rank)
    table = (root / share.to(root).sqrt())[..., place]
    frequencies = root.new_zeros(*root.shape[:-2], n, d)
    return Spectrum(frequencies, torch.ones_like(frequencies[..., 0]), ((0, table),))
