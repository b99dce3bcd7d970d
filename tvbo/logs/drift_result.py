"""The result of a fit of the drift rate: its numbers, and messages on their reliability."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean

from tvbo.logs.forms import DriftComparison, describe, describe_kernel, in_time
from tvbo.logs.saved import SavedFit
from tvbo.serialize import to_data


@dataclass(frozen=True, repr=False)
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
        log_likelihood: Log likelihood at the maximum; a mean that was not given is integrated out.
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
    profile: list[tuple[float, float]]
    covar_module: Kernel
    forgetting_rate_by_noise: list[tuple[float, float]] = field(default_factory=list)
    outliers: list[tuple[int, float]] = field(default_factory=list)
    comparison: DriftComparison | None = None

    def summary(self) -> dict[str, str]:
        """Return the numbers by name, as text; those that there are not are left out."""
        low, high = self.forgetting_rate_interval
        others = [
            f"{rate:.4g} with {variance:.4g}"
            for variance, rate in self.forgetting_rate_by_noise
            if variance != self.noise_variance
        ]
        p_value = f"{self.lr_pvalue:.3g}" if self.lr_pvalue >= 1e-300 else "below 1e-300"
        block = in_time(self.block_length * self.round_length, self.time_unit)
        texts = {
            "forgetting rate ε": f"{self.forgetting_rate:.4g} per {self.time_unit}",
            f"{self.level:.0%} interval": f"{low:.4g} to {high:.4g}",
            "correlation half-life": in_time(self.half_life, self.time_unit),
            "noise variance σ²": _number(self.noise_variance),
            "ε with another σ²": ", ".join(others),
            "prior mean": _number(self.mean),
            "length-scales": ", ".join(map(_number, self.lengthscales)),
            "signal variance": _number(self.outputscale),
            "log likelihood": f"{self.log_likelihood:.2f}",
            "test of ε = 0": f"likelihood ratio {self.lr_statistic:.4g}, p = {p_value}",
            "block length N of R-GP-UCB": f"{self.block_length} rounds = {block}",
            "observations": str(self.n_observations),
            "outliers": str(len(self.outliers) or ""),
        }
        if self.comparison is not None:
            kernels = self.comparison.temporal_kernels
            described = [describe_kernel(kernel, self.time_unit) for kernel in kernels]
            texts["form of drift"] = " + ".join(described)
            texts["its noise variance"] = _number(self.comparison.noise_variance)
        return {name: text for name, text in texts.items() if text}

    @property
    def is_undetermined(self) -> bool:
        """Whether the log says nothing about ε: no rate is outside of the interval."""
        return self.forgetting_rate_interval == (0.0, 1.0)

    @property
    def mean_module(self) -> ConstantMean:
        """The prior mean as a fixed module, for a recipe that takes ``covar_module`` as well."""
        return constant_mean(self.mean)

    def settings(self) -> dict[str, Any]:
        """Return the fit as options of :func:`tvbo.recipes.tv_gp_ucb`.

        The noise variance is None, which learns it, if each outcome of the log had a known one.
        Where forms of drift were compared, they are those of the chosen one.

        Example:
            >>> optimizer = recipes.tv_gp_ucb(choices=choices, **fit.settings())
        """
        chosen, modules = self.comparison, [self.covar_module]
        drift: dict[str, Any] = {"forgetting_rate": self.forgetting_rate}
        source: DriftFit | DriftComparison = self
        if chosen is not None and chosen.evidence[chosen.chosen].temporal_kernel != "exponential":
            source, modules, kernels = chosen, chosen.covar_modules, chosen.temporal_kernels
            drift = {"temporal_kernel": kernels if len(kernels) > 1 else kernels[0]}
        return {
            "covar_module": modules if len(modules) > 1 else modules[0],
            "mean_module": constant_mean(source.mean),
            "noise_variance": source.noise_variance,
            **drift,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the kernel, in types of JSON; an infinite half-life is None."""
        values = {name: to_data(value) for name, value in vars(self).items()}
        del values["covar_module"]
        values["half_life"] = None if math.isinf(self.half_life) else self.half_life
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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def constant_mean(value: float) -> ConstantMean:
    """Return a fixed prior mean."""
    mean_module = ConstantMean().double()
    mean_module.constant = torch.tensor(value, dtype=torch.float64)
    return mean_module.requires_grad_(False)


def forgetting_rate(rate: float) -> float:
    """Return ε of ρ."""
    return -math.expm1(-rate)
