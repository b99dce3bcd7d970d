"""The posterior density of the default model's hyperparameters, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.module import Module
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize
from torch import Size, Tensor

from tvbo.fit.drift import LogarithmPrior
from tvbo.fit.quadratic_model import QuadraticModel
from tvbo.kernels import TemporalDecayKernel, TemporalMaternKernel
from tvbo.kernels.temporal import decay_exponent
from tvbo.models import TimeVaryingGP
from tvbo.models.closed_form import HyperparameterSets, correlation_of, matern
from tvbo.models.time_varying_gp import make_temporal_kernel

Array = NDArray[np.float64]

OPTIONS = {"ftol": 1e-13, "gtol": 1e-8}
"""Of L-BFGS-B. With SciPy's own tolerances a fit may stop well before its optimum, at a place that
depends on where it began; with these, errors of rounding move it by less than 1e-6."""

LONG, PART = 500, 250
"""Observations above which a search begins with the newest ones, and how many these are."""

MAX_AVERAGED_OBSERVATIONS = 250
"""Number of observations above which hyperparameters are certain enough to take their mode."""

LEAST_CURVATURE = 0.25
"""Least curvature of the negative log posterior, that of a standard deviation of 2 of a logarithm,
which is more than under any of the priors."""

LARGEST = 1e13
"""Largest value of a parameter without an upper bound, and inverse of the smallest."""


class LogParameter:
    """Positive hyperparameters with a prior, as a search over their logarithms sees them.

    Args:
        module: The part of the model that has them.
        name: Their name there. They have a log-normal prior, or one over their logarithms.
        is_rate: Whether it is ε, of which the logarithm of ρ is searched.
        widths: How many entries, one after another, are one number; None is one each.

    Attributes:
        size: Number of numbers ``k``.
        firsts: Place of the first entry of each, ``k``.
        bounds: Logarithms of their bounds, ``k x 2``.
        is_of_logarithm: Whether the prior is over the logarithm, ``k``.
        location: Mean of the logarithm under the prior, ``k``.
        spread: Standard deviation of the logarithm under the prior, ``k``.
    """

    def __init__(
        self, module: Module, name: str, is_rate: bool = False, widths: Sequence[int] | None = None
    ):
        self.module, self.name, self.is_rate = module, name, is_rate
        self.shape: Size = getattr(module, name).shape
        self._widths = np.array(widths or [1] * self.shape.numel())
        self.firsts = np.cumsum(self._widths) - self._widths
        self.size = len(self._widths)
        constraint = getattr(module, f"raw_{name}_constraint")
        self._ends = constraint.lower_bound.item(), constraint.upper_bound.item()
        ends = self._logarithms(np.array(self._ends).clip(1 / LARGEST, LARGEST))
        self.bounds = ends[None].repeat(self.size, axis=0)
        prior = getattr(module, f"{name}_prior")
        is_of_logarithm = isinstance(prior, LogarithmPrior)
        normal = prior if is_of_logarithm else prior.base_dist
        self.is_of_logarithm = np.full(self.size, is_of_logarithm)
        self.location = np.full(self.size, normal.loc.item())
        self.spread = np.full(self.size, normal.scale.item())

    def present(self) -> Array:
        """Return the logarithms that the model has, ``k``."""
        values = getattr(self.module, self.name).detach().flatten().numpy()
        return self._logarithms(values[self.firsts])

    def values(self, logarithms: Array) -> Tensor:
        """Return the entries ``... x n`` with some logarithms ``... x k``, within the bounds."""
        values = np.exp(logarithms)
        if self.is_rate:
            values = -np.expm1(-values)
        # The exponential of the logarithm of a bound may lie beyond it.
        return torch.as_tensor(values.clip(*self._ends).repeat(self._widths, axis=-1))

    def assign(self, logarithms: Array) -> None:
        """Give the model some logarithms, ``k``."""
        self.module.initialize(**{self.name: self.values(logarithms).reshape(self.shape)})

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
        widths: Number of columns, one after another, that have one lengthscale, such as those of a
            category; None is one for each.
        newest: Number of newest observations to use; None is all of them.

    Attributes:
        part: That of the newest 250 observations, if there are more than 500; None otherwise.
        bounds: Lower and upper bounds of the parameters, ``p x 2``.
    """

    def __init__(
        self,
        model: TimeVaryingGP,
        widths: Sequence[int] | None = None,
        newest: int | None = None,
    ):
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
        self.lags = np.abs(differences[time])
        self._latest: tuple[Array, tuple[float, Array, float]] | None = None
        self._quadratic: tuple[Array, QuadraticModel] | None = None
        self.part = LogPosterior(model, widths, newest=PART) if len(rows) > LONG else None
        self.mean_module = model.mean_module
        base, temporal = model.covar_module.kernels[0].base_kernel, model.temporal_kernels[0]
        self.correlation = correlation_of(base)
        lengthscale = LogParameter(base, "lengthscale", widths=widths)
        squares = np.square(np.delete(differences, time, axis=0))
        self.squares = np.add.reduceat(squares, lengthscale.firsts, axis=0)
        self.parameters = [lengthscale]
        self.is_decay = isinstance(temporal, TemporalDecayKernel)
        self.learns_time_rate = True
        if self.is_decay:
            self.rate = temporal.forgetting_rate.detach()
            self.time_rate = -2 * decay_exponent(self.rate).item()
            self.learns_time_rate = bool(temporal.raw_forgetting_rate.requires_grad)
            if self.learns_time_rate:
                self.parameters.append(LogParameter(temporal, "forgetting_rate", is_rate=True))
        else:
            self.parameters.append(LogParameter(temporal, "lengthscale"))
        self.noise = None
        if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
            self.noise = model.likelihood.noise[rows].numpy()
        else:
            self.parameters.append(LogParameter(model.likelihood.noise_covar, "noise"))
        self.bounds = np.concatenate([each.bounds for each in self.parameters])
        self._location = np.concatenate([each.location for each in self.parameters])
        self._spread = np.concatenate([each.spread for each in self.parameters])
        self._is_of_logarithm = np.concatenate([each.is_of_logarithm for each in self.parameters])

    def __call__(self, theta: Array, with_gradient: bool = True) -> tuple[float, Array, float]:
        """Return the log density, its gradient if asked for, else zeros, and the prior mean.

        The density is minus infinity where the covariance is singular to rounding.
        """
        if self._latest is not None and np.array_equal(self._latest[0], theta):
            # Kept, since a search ends with a value that it has computed before.
            return self._latest[1]
        n, d = len(self.y), len(self.squares)
        inverse_squares = np.exp(-2 * theta[:d])
        # Correlations in time, and their derivatives by the logarithm of the rate.
        time_rate = math.exp(theta[d]) if self.learns_time_rate else self.time_rate
        if self.is_decay:
            by_time_rate = -0.5 * time_rate * self.lags
            in_time = np.exp(by_time_rate)
            by_time_rate *= in_time
        else:
            by_time_rate = np.square(self.lags / time_rate)
            in_time, time_slope = matern(by_time_rate, True)
            assert time_slope is not None
            by_time_rate *= time_slope
        in_space, slope = self.correlation(inverse_squares @ self.squares, with_gradient)
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
            return float(value), np.zeros_like(theta), float(mean)
        gradient = -z / self._spread
        gradient[of_parameter] -= 1
        # Minus twice the derivative by the covariance, equation (25) of Bogunovic et al.; a pair
        # stands for two entries.
        inverse, _ = dpotri(root, lower=0, overwrite_c=1)
        weights = dsyr(-1.0, alpha, lower=0, a=inverse, overwrite_a=1).T.ravel()
        if self.noise is None:
            gradient[-1] -= 0.5 * noise * weights[:: n + 1].sum()
        of_pairs = weights[self._pairs]
        if self.learns_time_rate:
            gradient[d] -= (of_pairs * in_space) @ by_time_rate
        of_pairs *= in_time
        assert slope is not None
        of_pairs *= slope
        gradient[:d] -= inverse_squares * (self.squares @ of_pairs)
        self._latest = theta.copy(), (float(value), gradient, float(mean))
        return self._latest[1]

    def maximize(self) -> float:
        """Give the model the maximum found from its hyperparameters; return the log density there.

        It is not finite if the search failed.
        """
        start = self.present()
        if not np.isfinite(start).all():
            return -math.inf
        start, ends = start.clip(*self.bounds.T), self.bounds.tolist()
        # A few of Newton's steps, with the Hessian of the newest observations where there are many.
        part = self if self.part is None else self.part
        model, found = QuadraticModel.by_differences(part._negative, ends, start), None
        if model is not None:
            model.hessian *= len(self.y) / len(part.y)
            found = model.minimize(self._negative, ends, start)
            self._quadratic = None if found is None else (found, model)
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
            mode: The maximum. At the one that :meth:`maximize` found by Newton's method, the
                Hessian is that of its last step.
        """
        if self._quadratic is not None and np.allclose(self._quadratic[0], mode, rtol=0, atol=1e-9):
            return self._quadratic[1]
        return QuadraticModel.by_differences(self._negative, self.bounds.tolist(), mode)

    def sigma_points(self) -> HyperparameterSets | None:
        r"""Return points about the mode with importance weights, to integrate hyperparameters out.

        The mode is at the hyperparameters that the model has.

        The integral is over the logarithms of the :math:`p` hyperparameters, of the density that a
        fit maximizes: the logarithms have normal priors with the mode of BoTorch's. Its log-normal
        prior with location :math:`\mu` and scale :math:`s` counts as that with location :math:`\mu
        - s^2`, under which short lengthscales weigh more, and no more than for the fit. With
        :math:`V \Lambda V^\top` the Hessian of the negative log density at the mode, the points are
        the mode and those :math:`\pm\sqrt{p + 1}` standard deviations away along each column of
        :math:`V`, cut at the bounds: an unscented transform. A Gaussian has its mean and covariance
        under the weights :math:`1 / (p + 1)` and :math:`1 / (2 p + 2)`; these are multiplied by the
        ratio of the density to that Gaussian, as in Rue, Martino, Chopin (2009), Section 6.5. So
        the sum of the weights estimates the evidence, by which forms of drift are compared.

        Returns:
            The sets; None if the density or the Hessian is not finite at the mode. Above 250
            observations the mode is the only point.
        """
        mode = self.present().clip(*self.bounds.T)
        density, _, mean = self(mode)
        quadratic = self.quadratic(mode) if math.isfinite(density) else None
        if quadratic is None:
            return None
        free = np.flatnonzero(~quadratic.held)
        curvatures, directions = np.linalg.eigh(quadratic.hessian[np.ix_(free, free)])
        curvatures = curvatures.clip(LEAST_CURVATURE)
        p = len(free)
        volume = 0.5 * (p * math.log(2 * math.pi) - np.log(curvatures).sum())
        points, means = [mode], [mean]
        if len(self.y) > MAX_AVERAGED_OBSERVATIONS:
            log_weights = [density + volume]
        else:
            log_weights = [density + volume - math.log(p + 1)]
            for direction in (directions * np.sqrt((p + 1) / curvatures)).T:
                for sign in (1.0, -1.0):
                    point = mode.copy()
                    point[free] += sign * direction
                    point = point.clip(*self.bounds.T)
                    density, _, mean = self(point, with_gradient=False)
                    if math.isfinite(density):
                        # Of the point itself, which a bound may have brought nearer.
                        steps = directions.T @ (point - mode)[free]
                        density += 0.5 * (curvatures @ steps**2)
                        points.append(point)
                        means.append(mean)
                        log_weights.append(density + volume - math.log(2 * p + 2))
        theta, d, shape = np.array(points), len(self.squares), Size([len(points)])
        lengthscale, *others = self.parameters
        noise = None if self.noise is not None else others.pop().values(theta[:, -1:]).squeeze(-1)
        temporal_kernel: TemporalDecayKernel | TemporalMaternKernel
        if self.is_decay:
            rate = others[0].values(theta[:, d : d + 1]) if others else self.rate
            temporal_kernel = make_temporal_kernel(rate, batch_shape=shape)
        else:
            temporal_kernel = TemporalMaternKernel(nu=2.5, batch_shape=shape).double()
            temporal_kernel.lengthscale = others[0].values(theta[:, d : d + 1]).unsqueeze(-1)
        temporal_kernel.requires_grad_(False)
        return HyperparameterSets(
            lengthscales=lengthscale.values(theta[:, :d]),
            temporal_kernel=temporal_kernel,
            mean=torch.tensor(means, dtype=torch.float64),
            noise=noise,
            log_weights=torch.tensor(log_weights, dtype=torch.float64),
        )

    def present(self) -> Array:
        """Return the parameters that the model has, ``p``."""
        return np.concatenate([each.present() for each in self.parameters])

    def assign(self, theta: Array, mean: float) -> None:
        """Give the model parameters, ``p``, and a prior mean."""
        ends = np.cumsum([each.size for each in self.parameters])
        for parameter, logarithms in zip(self.parameters, np.split(theta, ends), strict=False):
            parameter.assign(logarithms)
        self.mean_module.initialize(constant=torch.tensor(mean, dtype=torch.float64))

    def _negative(self, theta: Array) -> tuple[float, Array]:
        value, gradient, _ = self(theta)
        # A number from which a line search turns back.
        return (-value, -gradient) if math.isfinite(value) else (1e100, gradient)
