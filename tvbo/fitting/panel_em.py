"""A step of EM for the covariance over the arms of a panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from tvbo.fitting.panel_data import SMALLEST, ArmCovariance, SegmentGroup
from tvbo.fitting.panel_terms import DriftTerms
from tvbo.fitting.state_filter import StateSpace, filter_modes, precision_times

Array = NDArray[np.float64]

DIFFERENCE = 1e-6
"""Relative change of the variances whose effect on the likelihood of each mode is taken."""


CLOSE = 1e-6
"""Relative difference of eigenvalues below which a divided difference is a derivative."""


def improved_covariance(
    covariance: ArmCovariance, terms: DriftTerms, theta: Array, residuals: Sequence[SegmentGroup]
) -> ArmCovariance:
    r"""Return the covariance over arms after a step of EM; for several components, one like it.

    The step is :math:`K + \frac{2}{T} K G K`, with :math:`G` the derivative of the log likelihood
    with respect to :math:`K`: that of EM for a single component :math:`K`. The derivative with
    respect to the covariance of a component has in the modes the entries
    :math:`\frac12 \alpha_i^\top D \alpha_j`, with :math:`\alpha = \Sigma^{-1} y` by mode and ``D``
    the correlations in time; on the diagonal it is that with respect to the variance of a mode. The
    covariance :math:`e^a K^b` of a component depends on :math:`K` by the divided differences of
    its eigenvalues (Daleckii, Krein, 1965).

    Args:
        covariance: The covariance before.
        terms: The drifting components.
        theta: Their parameters.
        residuals: Segments of the arms less means and season, ``T x n x c``.
    """
    modes = covariance.modes
    groups = [
        replace(group, values=np.einsum("tnc,nm->tmc", group.values, modes)) for group in residuals
    ]
    space = terms.spaces(theta[None])
    amplitudes = terms.amplitudes(theta)
    num_times = sum(group.values.shape[0] * group.values.shape[2] for group in groups)
    alphas = [precision_times(group.values, group.gaps, space) for group in groups]
    now = _by_mode(groups, space)
    total = np.zeros_like(modes)
    eigenvalues = covariance.eigenvalues
    differences = eigenvalues[:, None] - eigenvalues
    is_close = np.abs(differences) < CLOSE * (eigenvalues[:, None] + eigenvalues)
    for c, (component, part) in enumerate(zip(terms.components, terms.parts, strict=True)):
        component.set(theta[part][:-2])
        gradient = np.zeros_like(modes)
        for group, alpha in zip(groups, alphas, strict=True):
            lags = torch.as_tensor(np.abs(group.times[:, None] - group.times))
            with torch.no_grad():
                correlation = component.kernel.correlation(lags).numpy()
            for k in range(alpha.shape[-1]):
                gradient += 0.5 * alpha[..., k].T @ (correlation @ alpha[..., k])
        states = slice(terms.ends[c], terms.ends[c + 1])
        stationary = space.stationary.copy()
        stationary[:, states, states] *= 1 + DIFFERENCE
        moved = _by_mode(groups, replace(space, stationary=stationary))
        variances = amplitudes[c]
        np.fill_diagonal(gradient, (moved - now) / (DIFFERENCE * variances))
        slope = theta[part][-1] * variances / eigenvalues
        quotients = (variances[:, None] - variances) / np.where(is_close, 1.0, differences)
        total += gradient * np.where(is_close, 0.5 * (slope[:, None] + slope), quotients)
    step = 2 / num_times * eigenvalues[:, None] * total * eigenvalues
    eigenvalues, turned = np.linalg.eigh(np.diag(eigenvalues) + step)
    return ArmCovariance(eigenvalues.clip(min=SMALLEST * eigenvalues.mean()), modes @ turned)


def _by_mode(groups: Sequence[SegmentGroup], space: StateSpace) -> Array:
    """Return log likelihoods of the modes, ``n``, less their constants."""
    total = np.zeros(space.stationary.shape[-1])
    for group in groups:
        filtered = filter_modes(group.values, group.gaps, space)
        variances = filtered.variances[:, 0]
        misfit = (filtered.innovations[:, 0] ** 2).sum(-1) / variances
        total -= 0.5 * (misfit + group.values.shape[2] * np.log(variances)).sum(0)
    return total
