"""Draws of a function at many rows, from the posterior of any model."""

from __future__ import annotations

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.models.joint_draw import joint_draw
from tvbo.models.streaming_gp import StreamingGP


def draw_function(model: Model, rows: Tensor, generator: Generator, scale: float = 1.0) -> Tensor:
    """Draw a function from the joint posterior at ``n`` rows.

    For all choices of a :class:`tvbo.models.StreamingGP`, in their order and at one time, it costs
    as much as an observation; otherwise :math:`O(n^3)`.

    Args:
        model: A model of one output and no batch.
        rows: ``n x d``.
        generator: Source of randomness.
        scale: Multiplier on the deviation of the draw from the posterior mean.

    Returns:
        Values, ``n``.

    Raises:
        UnsupportedError: if the posterior is not normal.
        ValueError: if the posterior covariance is not positive semi-definite.
    """
    with torch.no_grad():
        if isinstance(model, StreamingGP) and model.covers(rows):
            t = rows[0, -1].item()
            drawn = model.draw(t, generator)
            mean, _ = model.marginals(t)
        else:
            drawn, mean = joint_draw(model.posterior(rows), generator)
        return drawn if scale == 1.0 else mean + scale * (drawn - mean)
