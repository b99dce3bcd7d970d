"""The posterior density of the default model's hyperparameters, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.module import Module
from gpytorch.priors import Prior
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize
from torch import Tensor

from tvbo.fit.drift import LogarithmPrior
from tvbo.fit.quadratic_model import QuadraticModel
from tvbo.kernels import TemporalDecayKernel
from tvbo.kernels.temporal import decay_exponent
from tvbo.models import TimeVaryingGP
from tvbo.models.correlation import MATERN, correlation_of

Array = NDArray[np.float64]

OPTIONS = {"ftol": 1e-13, "gtol": 1e-8}
"""Of L-BFGS-B. With SciPy's own tolerances a fit may stop well before its optimum, at a place that
depends on where it began; with these, errors of rounding move it by less than 1e-6."""

LONG, PART = 500, 250
"""Observations above which a search begins with the newest ones, and how many these are."""

LARGEST = 1e13
"""Largest value of a parameter without an upper bound, and inverse of the smallest."""


@dataclass(frozen=True)
class Parameter:
    """A positive hyperparameter with a prior, as a search over its logarithm sees it.

    Args:
        module: The part of the model that has it.
        name: Its name there.
        prior: A log-normal prior over it, or one over its logarithm.
        is_rate: Whether it is ε, of which the logarithm of ρ is searched.
    """

    module: Module
    name: str
    prior: Prior
    is_rate: bool = False

    @property
    def is_of_logarithm(self) -> bool:
        """Whether the prior is over the logarithm."""
        return isinstance(self.prior, LogarithmPrior)

    @property
    def location_and_spread(self) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm under the prior."""
        normal: Any = self.prior if self.is_of_logarithm else self.prior.base_dist
        return normal.loc.item(), normal.scale.item()

    @property
    def constraint(self) -> Interval:
        """The constraint of the parameter in the model."""
        constraint: Interval = getattr(self.module, f"raw_{self.name}_constraint")
        return constraint

    @property
    def logarithms(self) -> Array:
        """Logarithms of its present values, one for each entry."""
        values = getattr(self.module, self.name).detach().flatten().numpy()
        return self._logarithms(values)

    @property
    def bounds(self) -> tuple[float, float]:
        """Logarithms of its bounds."""
        ends = np.array([self.constraint.lower_bound.item(), self.constraint.upper_bound.item()])
        low, high = self._logarithms(ends.clip(1 / LARGEST, LARGEST)).tolist()
        return low, high

    def values(self, logarithms: Array) -> Tensor:
        """Return the values with some logarithms, of any shape, within the bounds."""
        values = np.exp(logarithms)
        if self.is_rate:
            values = -np.expm1(-values)
        # The exponential of the logarithm of a bound may lie beyond it.
        low, high = self.constraint.lower_bound.item(), self.constraint.upper_bound.item()
        return torch.as_tensor(values.clip(low, high))

    def assign(self, logarithms: Array) -> None:
        """Set the values in the model."""
        shape = getattr(self.module, self.name).shape
        self.module.initialize(**{self.name: self.values(logarithms).reshape(shape)})

    def _logarithms(self, values: Array) -> Array:
        positive = -np.log1p(-values) if self.is_rate else values
        logarithms: Array = np.log(positive)
        return logarithms


class LogPosterior:
    r"""Log posterior density of the hyperparameters of :class:`ModelFitter`'s default model.

    Its kernel is an RBF kernel or Matérn-5/2, with BoTorch's priors, times exponential decay or
    Matérn-5/2 in time. The density is :class:`gpytorch.mlls.ExactMarginalLogLikelihood` times the
    number of observations, at the prior mean that maximizes it. Closed forms take a tenth of the
    time of GPyTorch's graph for up to a hundred observations, where most of that is overhead.

    The parameters are the logarithms of the lengthscales, of :math:`\rho = -\ln(1 - \varepsilon)`
    or the lengthscale in time if that is learned, and of the noise variance if that is. The density
    is that in the parameters of the model, whose priors it has.

    Args:
        model: The model.
        newest: Number of newest observations to use; None is all of them.

    Attributes:
        part: That of the newest 250 observations, if there are more than 500; None otherwise.
        bounds: Lower and upper bounds of the parameters, ``p x 2``.
    """

    def __init__(self, model: TimeVaryingGP, newest: int | None = None):
        time = model.time_feature
        assert time is not None
        order = model.train_inputs[0][:, time].argsort(stable=True)
        rows = order if newest is None else order[-newest:]
        X = model.transform_inputs(model.train_inputs[0])[rows].numpy()
        self.y = model.train_targets[rows].numpy()
        # Each pair is held once, from below the diagonal: on the diagonal differences are 0, and
        # above it they repeat.
        first, second = np.tril_indices(len(rows), -1)
        self._pairs = len(rows) * first + second
        # Memory for LAPACK, kept from one evaluation to the next.
        self._covar = np.zeros(len(rows) ** 2)
        differences = X.T[:, first] - X.T[:, second]
        self.squares = np.delete(differences, time, axis=0) ** 2
        self.lags = np.abs(differences[time])
        self._latest: tuple[Array, tuple[float, Array | None, float]] | None = None
        self._quadratic: tuple[Array, QuadraticModel] | None = None
        self.part = LogPosterior(model, newest=PART) if len(rows) > LONG else None
        self.mean_module = model.mean_module
        base, temporal = model.covar_module.kernels[0].base_kernel, model.temporal_kernel
        assert temporal is not None
        self.correlation = correlation_of(base)
        self.parameters = [Parameter(base, "lengthscale", base.lengthscale_prior)]
        self.is_decay = isinstance(temporal, TemporalDecayKernel)
        if self.is_decay:
            self.pace = -2 * decay_exponent(temporal.forgetting_rate.detach()).item()
            self.learns_pace = bool(temporal.raw_forgetting_rate.requires_grad)
            if self.learns_pace:
                prior = temporal.forgetting_rate_prior
                self.parameters.append(Parameter(temporal, "forgetting_rate", prior, is_rate=True))
        else:
            self.pace, self.learns_pace = float(temporal.lengthscale.item()), True
            prior = temporal.lengthscale_prior
            self.parameters.append(Parameter(temporal, "lengthscale", prior))
        self.noise = None
        if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
            self.noise = model.likelihood.noise[rows].numpy()
        else:
            noise = model.likelihood.noise_covar
            self.parameters.append(Parameter(noise, "noise", noise.noise_prior))
        # For each entry of the vector; the lengthscales come first, and the others have one each.
        each = [parameter for parameter in self.parameters for _ in parameter.logarithms]
        self.bounds = np.array([parameter.bounds for parameter in each])
        self._location, self._spread = np.array([p.location_and_spread for p in each]).T
        self._is_of_logarithm = np.array([parameter.is_of_logarithm for parameter in each])

    def __call__(self, theta: Array) -> tuple[float, Array, float]:
        """Return the log density, its gradient, and the prior mean.

        The density is minus infinity where the covariance is singular to rounding.
        """
        if self._latest is None or not np.array_equal(self._latest[0], theta):
            # Kept, since a search ends with a value that it has computed before.
            self._latest = theta.copy(), self._evaluate(theta, with_gradient=True)
        value, gradient, mean = self._latest[1]
        assert gradient is not None
        return value, gradient, mean

    def density_and_mean(self, theta: Array) -> tuple[float, float]:
        """Return the log density and the prior mean: without the gradient, in half the time."""
        value, _, mean = self._evaluate(theta, with_gradient=False)
        return value, mean

    def _evaluate(self, theta: Array, with_gradient: bool) -> tuple[float, Array | None, float]:
        n, d = len(self.y), len(self.squares)
        inverse_squares = np.exp(-2 * theta[:d])
        in_time, by_pace = self._in_time(math.exp(theta[d]) if self.learns_pace else self.pace)
        in_space, slope = self.correlation.evaluate(inverse_squares @ self.squares, with_gradient)
        noise = math.exp(theta[-1]) if self.noise is None else self.noise
        covar = self._covar
        covar[self._pairs] = in_space * in_time
        covar[:: n + 1] = 1 + noise
        # LAPACK's columns are the rows here, so what is below the diagonal is above it there.
        root, info = dpotrf(covar.reshape(n, n).T, lower=0, clean=0, overwrite_a=1)
        if info != 0:
            return -math.inf, np.zeros_like(theta), 0.0
        solved = dpotrs(root, np.column_stack([self.y, np.ones(n)]), lower=0)[0]
        mean = solved[:, 0].sum() / solved[:, 1].sum()
        alpha = solved[:, 0] - mean * solved[:, 1]
        value = -0.5 * (self.y - mean) @ alpha - np.log(root.diagonal()).sum()
        value -= 0.5 * n * math.log(2 * math.pi)
        z = (theta - self._location) / self._spread
        value -= (0.5 * z * z + np.log(self._spread * math.sqrt(2 * math.pi))).sum()
        # Other priors are densities of the parameter itself.
        of_parameter = ~self._is_of_logarithm
        value -= theta[of_parameter].sum()
        if not with_gradient:
            return float(value), None, float(mean)
        gradient = -z / self._spread
        gradient[of_parameter] -= 1
        # Minus twice the derivative by the covariance, equation (25) of Bogunovic et al.; a pair
        # stands for two entries.
        inverse, _ = dpotri(root, lower=0, overwrite_c=1)
        weights = dsyr(-1.0, alpha, lower=0, a=inverse, overwrite_a=1).T.ravel()
        if self.noise is None:
            gradient[-1] -= 0.5 * noise * weights[:: n + 1].sum()
        of_pairs = weights[self._pairs]
        if self.learns_pace:
            gradient[d] -= (of_pairs * in_space) @ by_pace
        of_pairs *= in_time
        assert slope is not None
        of_pairs *= slope
        gradient[:d] -= inverse_squares * (self.squares @ of_pairs)
        return float(value), gradient, float(mean)

    def climb(self) -> float:
        """Give the model the maximum found from its hyperparameters; return the log density there.

        It is not finite if the search failed.
        """
        start = self.present()
        if not np.isfinite(start).all():
            return -math.inf
        start = start.clip(*self.bounds.T)
        found = self._newton(self if self.part is None else self.part, start)
        if found is None:
            found = minimize(
                self._negative,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=self.bounds,
                options=OPTIONS,
            ).x
        value, _, mean = self(found)
        self.assign(found, mean)
        return value

    def quadratic(self, mode: Array) -> QuadraticModel | None:
        """Return the Hessian of the negative log density at a maximum; None if it is singular.

        Args:
            mode: The maximum. At the one that :meth:`climb` found by Newton's method, the Hessian
                is that of its last step.
        """
        if self._quadratic is not None and np.allclose(self._quadratic[0], mode, rtol=0, atol=1e-9):
            return self._quadratic[1]
        return QuadraticModel.by_differences(self._negative, self.bounds.tolist(), mode)

    def present(self) -> Array:
        """Return the parameters that the model has, ``p``."""
        return np.concatenate([parameter.logarithms for parameter in self.parameters])

    def assign(self, theta: Array, mean: float) -> None:
        """Give the model parameters, ``p``, and a prior mean."""
        first, *others = self.parameters
        d = len(self.squares)
        first.assign(theta[:d])
        for parameter, value in zip(others, theta[d:], strict=True):
            parameter.assign(value)
        self.mean_module.initialize(constant=torch.tensor(mean, dtype=torch.float64))

    def _negative(self, theta: Array) -> tuple[float, Array]:
        value, gradient, _ = self(theta)
        # A number from which a line search turns back.
        return (-value, -gradient) if math.isfinite(value) else (1e100, gradient)

    def _newton(self, part: LogPosterior, start: Array) -> Array | None:
        """Return the maximum near a start by a few steps; None if they do not lead there.

        Args:
            part: Gives the Hessian, scaled to the number of observations: this one, or that of the
                newest observations.
            start: The start.
        """
        ends = self.bounds.tolist()
        model = QuadraticModel.by_differences(part._negative, ends, start)
        if model is None:
            return None
        model.hessian *= len(self.y) / len(part.y)
        found = model.minimize(self._negative, ends, start)
        self._quadratic = None if found is None else (found, model)
        return found

    def _in_time(self, pace: float) -> tuple[Array, Array]:
        """Return correlations in time, and their derivatives by the logarithm of pace."""
        if self.is_decay:
            by_pace = -0.5 * pace * self.lags
            correlations = np.exp(by_pace)
            by_pace *= correlations
            return correlations, by_pace
        by_pace = np.square(self.lags / pace)
        correlations, slope = MATERN.evaluate(by_pace, True)
        assert slope is not None
        by_pace *= slope
        return correlations, by_pace
