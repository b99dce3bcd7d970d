"""Cholesky factors that grow with the observations, of one or several sets of hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 256
"""Rows of a Cholesky factor in a block, of which the diagonal one is inverted: a product is many
times faster than a triangular solve with few right sides, and its error no larger."""


class Block(NamedTuple):
    """Some rows of the Cholesky factors.

    Args:
        link: Covariances with the innovations of the ``n`` observations before, ``... x s x q x
            n``.
        inverse: The inverse of the block on the diagonal, ``... x s x q x q``.
    """

    link: Tensor
    inverse: Tensor


class Factor(NamedTuple):
    r"""Observations, and the Cholesky factors :math:`L` of their covariances by ``s`` sets.

    It is never changed: one with more observations shares all blocks but the last.

    Args:
        X: Rows, ``... x n x d``.
        Y: Outcomes, ``... x 1 x n``.
        noise: Noise variances, ``... x s x n``.
        innovations: :math:`L^{-1}` times the outcomes less what is expected of them, ``... x s x
            n``.
        blocks: The blocks of rows; of observations of a batch one, after those that are shared.
    """

    X: Tensor
    Y: Tensor
    noise: Tensor
    innovations: Tensor
    blocks: tuple[Block, ...]

    def joined(self, new: Factor) -> Factor:
        """Return the factor with more observations, of which ``new`` is that given these.

        The new block is part of the last one if this has room for all.
        """
        blocks, (block,) = self.blocks, new.blocks
        if blocks and blocks[-1].inverse.shape[-1] + len(new.X) <= BLOCK:
            *before, last = blocks
            start, p = last.link.shape[-1], last.inverse.shape[-1]
            links, own = block.link.split([start, p], dim=-1)
            inverse = own.new_zeros(len(own), p + len(new.X), p + len(new.X))
            inverse[:, :p, :p], inverse[:, p:, p:] = last.inverse, block.inverse
            inverse[:, p:, :p] = -block.inverse @ own @ last.inverse
            blocks, block = tuple(before), Block(torch.cat([last.link, links], dim=-2), inverse)
        pairs = zip(self[1:4], new[1:4], strict=True)
        Y, noise, innovations = (torch.cat(pair, dim=-1) for pair in pairs)
        return Factor(torch.cat([self.X, new.X]), Y, noise, innovations, (*blocks, block))

    def whiten(self, rows: Any, transposed: bool = False) -> Any:
        """Return ``rows``, ``s x m x n``, times the inverse of the transposed factor.

        Args:
            rows: Such as covariances with the outcomes, which become those with the innovations;
                of PyTorch or NumPy, as what the factor holds.
            transposed: Whether to multiply by the inverse of the factor itself.
        """
        if len(self.blocks) == 1:
            inverse = self.blocks[0].inverse
            return rows @ (inverse if transposed else inverse.mT)
        found = 1.0 * rows
        for link, inverse in reversed(self.blocks) if transposed else self.blocks:
            start = link.shape[-1]
            own = slice(start, start + inverse.shape[-1])
            if transposed:
                found[..., own] = found[..., own] @ inverse
                found[..., :start] -= found[..., own] @ link
            else:
                found[..., own] -= found[..., :start] @ link.mT
                found[..., own] = found[..., own] @ inverse.mT
        return found

    def mapped(self, fn: Callable[[Tensor], Any]) -> Any:
        """Return the factor with a function applied to each tensor."""
        X, Y, noise, innovations = map(fn, self[:4])
        blocks = tuple(Block(*map(fn, each)) for each in self.blocks)
        return Factor(X, Y, noise, innovations, blocks)
