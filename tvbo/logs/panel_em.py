"""A step of EM for the covariance over the arms of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tvbo.logs.panel_data import ArmCovariance, SegmentGroup
from tvbo.logs.panel_terms import DriftTerms
from tvbo.logs.state_filter import StateSpace, filter_modes, precision_times

Array = NDArray[np.float64]

DIFFERENCE = 1e-6
"""Relative change of the variances whose effect on the likelihood of each mode is taken."""


def improved_covariance(
    covariance: ArmCovariance, terms: DriftTerms, theta: Array, residuals: Sequence[SegmentGroup]
) -> ArmCovariance:
    r"""Return the covariance over arms after a step of EM.

    The components have the covariance :math:`C = K^b` over the arms, and together the covariance
    ``D`` over time. The step is :math:`C + \frac{2}{T} C G C`, with :math:`G` the derivative of the
    log likelihood with respect to :math:`C`. It has in the modes the entries
    :math:`\frac12 \alpha_i^\top D \alpha_j`, with :math:`\alpha = \Sigma^{-1} y` by mode; on the
    diagonal it is that with respect to the variance of a mode.

    Args:
        covariance: The covariance before, :math:`K`.
        terms: The drifting components.
        theta: Their parameters.
        residuals: Segments of the arms less means and season, ``T x n x c``.
    """
    modes = covariance.modes
    groups = [
        replace(group, values=np.einsum("tnc,nm->tmc", group.values, modes)) for group in residuals
    ]
    space = terms.spaces(theta[None])
    power = theta[-2]
    variances = covariance.eigenvalues**power
    num_times = sum(group.values.shape[0] * group.values.shape[2] for group in groups)
    gradient = np.zeros_like(modes)
    for group in groups:
        alpha = precision_times(group.values, group.gaps, space)
        in_time = terms.covariance_in_time(theta, group.times)
        for k in range(alpha.shape[-1]):
            gradient += 0.5 * alpha[..., k].T @ (in_time @ alpha[..., k])
    larger = replace(space, stationary=space.stationary * (1 + DIFFERENCE))
    gained = _by_mode(groups, larger) - _by_mode(groups, space)
    np.fill_diagonal(gradient, gained / (DIFFERENCE * variances))
    step = 2 / num_times * variances[:, None] * gradient * variances
    variances, turned = np.linalg.eigh(np.diag(variances) + step)
    return ArmCovariance.of_modes(variances.clip(min=0.0) ** (1 / power), modes @ turned)


def _by_mode(groups: Sequence[SegmentGroup], space: StateSpace) -> Array:
    """Return log likelihoods of the modes, ``n``, less their constants."""
    total = np.zeros(space.stationary.shape[-1])
    for group in groups:
        filtered = filter_modes(group.values, group.gaps, space)
        variances = filtered.variances[:, 0]
        misfit = (filtered.innovations[:, 0] ** 2).sum(-1) / variances
        total -= 0.5 * (misfit + group.values.shape[2] * np.log(variances)).sum(0)
    return total
