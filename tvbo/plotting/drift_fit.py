"""Figure of a drift fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from torch import Tensor

from tvbo.kernels.temporal import decay_exponent
from tvbo.logs import DriftFit
from tvbo.plotting.figure import COLORS, finish_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_RANGE = 8.0
"""Range of the log likelihood below its maximum that is shown, in nats."""


def plot_drift_fit(fit: DriftFit) -> Figure:
    """Plot the profile likelihood of ε with its interval, and the correlation over time.

    Args:
        fit: The fit.
    """
    figure = new_figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    low, high = fit.forgetting_rate_interval
    left.plot(*profile_curve(fit), color=COLORS[0])
    computed = [(rate, value - fit.log_likelihood) for rate, value in fit.profile]
    shown = [point for point in computed if point[1] > -SHOWN_RANGE]
    left.plot(*zip(*shown, strict=True), "o", color=COLORS[0], markersize=3)
    left.axvspan(low, high, color=COLORS[0], alpha=0.15, label=f"{fit.level:.0%} interval")
    left.axvline(fit.forgetting_rate, color=COLORS[1], linestyle="--", label="maximum")
    left.locator_params(axis="x", nbins=5)
    rate_label = f"forgetting rate ε per {fit.time_unit}"
    finish_axes(left, rate_label, "profile log likelihood − maximum (nats)", plain=True)
    left.legend(frameon=False)
    has_half_life = 0 < fit.half_life < math.inf
    lag = torch.linspace(0, 4 * fit.half_life if has_half_life else 1.0, 200, dtype=torch.float64)

    def correlation(rate: float) -> Tensor:
        return torch.exp(lag * decay_exponent(torch.tensor(rate, dtype=torch.float64)))

    right.plot(lag, correlation(fit.forgetting_rate), color=COLORS[1])
    right.fill_between(lag, correlation(low), correlation(high), color=COLORS[0], alpha=0.15)
    if fit.half_life < math.inf:
        right.axvline(fit.half_life, color="black", linestyle=":", linewidth=1)
        words = f"half-life {fit.half_life:.3g}"
        right.annotate(words, (fit.half_life, 0.5), (6, 6), textcoords="offset points")
    lag_label = f"lag (unit: {fit.time_unit})"
    finish_axes(right, lag_label, "correlation of the function with itself", plain=True)
    right.set_ylim(0, 1.02)
    return figure


def profile_curve(fit: DriftFit) -> tuple[np.ndarray, np.ndarray]:
    """Return the interpolated profile: rates, and log likelihood minus its maximum in nats.

    The signed square root of the difference is interpolated, which is nearly linear where the
    likelihood is nearly Gaussian.

    Args:
        fit: The fit.
    """
    rate, value = (np.array(column) for column in zip(*fit.profile, strict=True))
    near = fit.log_likelihood - value <= 4 * SHOWN_RANGE
    # Relative to the largest rate, without duplicates: slopes over 1e-200 would overflow.
    largest = rate[near].max() or 1.0
    rate, index = np.unique(np.round(rate / largest, 15), return_index=True)
    near, drop = near[index], np.maximum(fit.log_likelihood - value[index], 0.0)
    root = np.sign(rate - fit.forgetting_rate / largest) * np.sqrt(drop)
    fine = np.linspace(rate[near][0], rate[near][-1], 400)
    depth = -(PchipInterpolator(rate, root)(fine) ** 2) if len(rate) > 1 else -(root**2)
    shown = depth > -SHOWN_RANGE
    return fine[shown] * largest, depth[shown]
