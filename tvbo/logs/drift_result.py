"""The result of a fit of the drift rate, which can be saved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean

from tvbo.logs.forms import DriftComparison, describe
from tvbo.logs.saved import SavedFit, to_data
from tvbo.terminal import html_table


@dataclass(frozen=True)
class DriftFit(SavedFit):
    r"""The drift rate of a log, with its uncertainty and the other parameters.

    Args:
        forgetting_rate: Maximum likelihood ε, per ``time_unit``.
        forgetting_rate_interval: Profile-likelihood interval of ε; an open end is 0 or 1.
        level: Confidence of the interval.
        time_unit: Name of the unit of time.
        half_life: Lag at which the correlation is one half, :math:`2 \ln 2 / \rho` with
            :math:`\rho = -\ln(1 - \varepsilon)`, in ``time_unit``; infinite at ε = 0.
        noise_variance: σ², learned or given; None if each outcome had a known one.
        mean: The prior mean.
        lengthscales: Lengthscales of all parts of the kernel in order, action before context, in
            units of their columns; empty if it has none.
        outputscale: The first scale in the kernel; None if it has none. Those of a
            :class:`tvbo.kernels.ContextActionKernel` are ``covar_module.outputscales``.
        log_likelihood: Log likelihood at the maximum.
        lr_statistic: Twice the log likelihood ratio against ε = 0.
        lr_pvalue: Its p-value, half the tail of a χ² with one degree of freedom, since ε = 0 is on
            the boundary.
        round_length: The median gap between times, in ``time_unit``: the length of a round.
        block_length: N of R-GP-UCB by the paper's rule, in rounds; ``Reset`` takes
            ``block_length * round_length``.
        n_observations: Number of observations, without outliers.
        messages: Warnings on the reliability of the numbers; empty if there are none.
        profile: ``(ε, log likelihood)`` of the points of the profile, by ε.
        covar_module: The kernel over actions, at the maximum.
        forgetting_rate_by_noise: Pairs ``(σ², ε)``, by σ²: the maximum likelihood ε for a σ² fixed
            at a tenth, half, once, twice and ten times ``noise_variance``, with the kernel's
            parameters learned each time. Without those at which the likelihood is not finite; empty
            if each outcome had a known noise variance.
        outliers: Rows left out as outliers, ``(row, residual)``: the row of ``train_X``, from 0
            or by ``row_numbers``, and the distance of its outcome from what the other rows predict,
            in standard deviations.
        comparison: Forms of drift that were compared, and the model of the chosen one; None if
            there was no comparison.
    """

    forgetting_rate: float
    forgetting_rate_interval: tuple[float, float]
    level: float
    time_unit: str
    half_life: float
    noise_variance: float | None
    mean: float
    lengthscales: list[float]
    outputscale: float | None
    log_likelihood: float
    lr_statistic: float
    lr_pvalue: float
    round_length: float
    block_length: int
    n_observations: int
    messages: list[str]
    profile: list[tuple[float, float]] = field(repr=False)
    covar_module: Kernel = field(repr=False)
    forgetting_rate_by_noise: list[tuple[float, float]] = field(default_factory=list, repr=False)
    outliers: list[tuple[int, float]] = field(default_factory=list)
    comparison: DriftComparison | None = None

    def __repr__(self) -> str:
        words = [f"{name} {value}" for name, value in self._summary().items()]
        return f"DriftFit: {', '.join(words)}"

    def _repr_html_(self) -> str:
        return html_table(self._summary())

    def _summary(self) -> dict[str, str]:
        low, high = self.forgetting_rate_interval
        noise = "as told" if self.noise_variance is None else f"{self.noise_variance:.4g}"
        interval = f"{self.level:.0%} interval {low:.4g} to {high:.4g}"
        return {
            "ε": f"{self.forgetting_rate:.4g} per {self.time_unit} ({interval})",
            "half-life": f"{self.half_life:.4g} x {self.time_unit}",
            "noise variance": noise,
            "observations": str(self.n_observations),
            "outliers": str(len(self.outliers)),
            "messages": str(len(self.messages)),
        }

    @property
    def is_undetermined(self) -> bool:
        """Whether the log says nothing about ε: no rate is outside of the interval."""
        return self.forgetting_rate_interval == (0.0, 1.0)

    @property
    def mean_module(self) -> ConstantMean:
        """The prior mean as a fixed module, for a recipe that takes ``covar_module`` as well."""
        return _constant_mean(self.mean)

    def settings(self) -> dict[str, Any]:
        """Return the fit as options of :func:`tvbo.recipes.tv_gp_ucb`.

        The noise variance is None, which learns it, if each outcome of the log had a known one.
        Where forms of drift were compared, they are those of the chosen one.

        Example:
            >>> optimizer = recipes.tv_gp_ucb(choices=choices, **fit.settings())
        """
        chosen = self.comparison
        if chosen is not None and not chosen.is_exponential:
            kernels, modules = chosen.temporal_kernels, chosen.covar_modules
            return {
                "covar_module": modules if len(modules) > 1 else modules[0],
                "mean_module": _constant_mean(chosen.mean),
                "temporal_kernel": kernels if len(kernels) > 1 else kernels[0],
                "noise_variance": chosen.noise_variance,
            }
        return {
            "covar_module": self.covar_module,
            "mean_module": self.mean_module,
            "forgetting_rate": self.forgetting_rate,
            "noise_variance": self.noise_variance,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the kernel, in types of JSON; an infinite half-life is None."""
        names = [name for name in self.__dataclass_fields__ if name != "covar_module"]
        values = {name: to_data(getattr(self, name)) for name in names}
        if math.isinf(self.half_life):
            values["half_life"] = None
        if self.comparison is not None:
            kernels = [describe(kernel) for kernel in self.comparison.temporal_kernels]
            values["comparison"]["temporal_kernels"] = kernels
        return values

    def __post_init__(self) -> None:
        """Check the ranges of ε and σ²."""
        if not 0 <= self.forgetting_rate <= 1 or (self.noise_variance or 0.0) < 0:
            raise ValueError(
                "Expected ε in [0, 1] and a noise variance that is not negative. Got "
                f"{self.forgetting_rate} and {self.noise_variance}."
            )


def _constant_mean(value: float) -> ConstantMean:
    mean_module = ConstantMean().double()
    mean_module.constant = torch.tensor(value, dtype=torch.float64)
    return mean_module.requires_grad_(False)
