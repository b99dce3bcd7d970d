"""A step of EM for the covariance over the arms of a panel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvbo.logs.panel_data import ArmCovariance, PanelData
from tvbo.logs.panel_terms import Array, DriftTerms
from tvbo.logs.state_filter import filter_modes, precision_times

DIFFERENCE = 1e-6
"""Relative change of the variances whose effect on the likelihood of each mode is taken."""


def improved_covariance(
    covariance: ArmCovariance, terms: DriftTerms, theta: Array, residuals: PanelData
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
        residuals: The panel less means and season.
    """
    modes = covariance.modes
    groups = residuals.turned(modes)
    space = terms.spaces(theta[None])
    larger = replace(space, stationary=space.stationary * (1 + DIFFERENCE))
    power = theta[-2]
    variances = covariance.eigenvalues**power
    gradient, gained = np.zeros_like(modes), np.zeros_like(variances)
    for group in groups:
        alpha = precision_times(group.values, group.gaps, space)
        in_time = terms.covariance_in_time(theta, group.times)
        for k in range(alpha.shape[-1]):
            gradient += 0.5 * alpha[..., k].T @ (in_time @ alpha[..., k])
        one, other = (filter_modes(group.values, group.gaps, each) for each in (space, larger))
        gained += (other.log_likelihoods - one.log_likelihoods)[0]
    np.fill_diagonal(gradient, gained / (DIFFERENCE * variances))
    step = 2 / residuals.num_times * variances[:, None] * gradient * variances
    variances, turned = np.linalg.eigh(np.diag(variances) + step)
    return ArmCovariance.of_modes(variances.clip(min=0.0) ** (1 / power), modes @ turned)
