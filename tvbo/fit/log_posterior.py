"""The posterior density of the default model's hyperparameters, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from botorch.models.utils.gpytorch_modules import MIN_INFERRED_NOISE_LEVEL
from scipy.linalg import helmert
from scipy.linalg.blas import dsyr
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from torch import Tensor

from tvbo.fit.density import Array, maximum
from tvbo.fit.drift import (
    LENGTHSCALE,
    LENGTHSCALE_SPREAD,
    NOISE,
    NOISE_SPREAD,
    RATE,
    RATE_SPREAD,
    round_length,
)
from tvbo.kernels import TemporalKernel
from tvbo.kernels.temporal import MAX_FORGETTING_RATE, MIN_FORGETTING_RATE
from tvbo.models.at_bounds import AT_BOUND, AtBound
from tvbo.models.closed_form import HyperparameterSets, in_space, matern
from tvbo.quadratic_model import QuadraticModel
from tvbo.spaces.observations import Observations

LONG, PART = 500, 250
"""Observations above which a search begins with the newest ones, and how many these are."""

CLOSE = 1e-5
"""Gain, in nats, that is to be had at most where a fit ends that began near by."""

MAX_AVERAGED_OBSERVATIONS = 250
"""Number of observations above which hyperparameters are certain enough to take their mode."""

LEAST_CURVATURE = 0.25
"""Least curvature of the negative log posterior, that of a standard deviation of 2 of a logarithm,
which is more than under any of the priors."""

LARGEST = 1e13
"""Largest value of a hyperparameter without an upper bound, and inverse of the smallest."""

MAIN_EFFECT, MAIN_EFFECT_SPREAD = math.exp(-1.0), 1.5
"""Median of the variance of a main effect, of actions or of contexts, as a share of that of their
interaction, and standard deviation of its logarithm."""

LEAST_LENGTHSCALE = 2.5e-2
"""Least lengthscale in the unit cube, as of BoTorch's default kernel."""

RATE_NAME = "time.forgetting_rate"
"""Name of ε in what was learned, where its logarithm is that of ρ."""


@dataclass(frozen=True, eq=False)
class DefaultForm:
    r"""A form of the default model: an RBF kernel or Matérn-5/2, times a kernel over time.

    Args:
        kernel: ``"RBFKernel"``, or ``"MaternKernel"`` with ν = 5/2.
        ranges: Range of each column other than time, which is one unit of a lengthscale, ``d``.
        widths: Number of columns, one after another, that have one lengthscale, ``k``: several are
            those of a category.
        is_smooth: Whether the kernel over time is Matérn-5/2, else exponential decay.
        rate: :math:`\rho = -\ln(1 - \varepsilon)` of a decay that is given; None learns it.
        num_contexts: Number of the last lengthscales, those of contexts. If there are any, actions
            and contexts have a kernel each, and the kernel over both is a
            :class:`tvbo.kernels.ContextActionKernel` of structure ``"both"`` and variance 1.
    """

    kernel: str
    ranges: Tensor
    widths: Tensor
    is_smooth: bool = False
    rate: float | None = None
    num_contexts: int = 0


class LogPosterior:
    r"""Log posterior density of the hyperparameters of :class:`ModelFitter`'s default model.

    It is a function of the logarithms of the lengthscales, of ρ or the lengthscale in time if that
    is learned, and of the variance of the noise if it is not known, with the priors of BoTorch and
    of :mod:`tvbo.fit.drift`. Those of BoTorch are log-normal, as densities of the parameter itself.
    The density is :class:`gpytorch.mlls.ExactMarginalLogLikelihood` times the number of
    observations, at the prior mean that maximizes it. Closed forms take a tenth of the time of
    GPyTorch's graph for up to a hundred observations, where most of that is overhead.

    Args:
        form: The form of the model.
        observations: Rows ``[... | time]`` and standardized outcomes; noise variances if known.
        newest: Number of newest observations to use; None is all of them.
        quadratic: The Hessian of an earlier fit, with which the search for the maximum begins; None
            computes one at each start.

    Attributes:
        part: That of the newest 250 observations, if there are more than 500; None otherwise.
        bounds: Lower and upper bounds of the logarithms, ``p x 2``.
        default: The logarithms by default, ``p``.
        names: The name of each, ``p``; several lengthscales have the same.
        quadratic: The Hessian of the negative log density at the newest maximum.
    """

    def __init__(
        self,
        form: DefaultForm,
        observations: Observations,
        newest: int | None = None,
        quadratic: QuadraticModel | None = None,
    ):
        self.form, self.quadratic = form, quadratic
        times = observations.X[:, -1]
        rows = times.argsort(stable=True)[-(newest or len(times)) :]
        self.part = LogPosterior(form, observations, PART) if len(rows) > LONG else None
        self.y = observations.Y[rows, 0].numpy()
        self.noise = None if observations.Yvar is None else observations.Yvar[rows, 0].numpy()
        # Each pair is held once, from below the diagonal: on the diagonal differences are 0, and
        # above it they repeat.
        first, second = np.tril_indices(len(rows), -1)
        self._pairs = len(rows) * first + second
        # Memory for LAPACK, kept from one evaluation to the next.
        self._covar = np.zeros(len(rows) ** 2)
        scaled = (observations.X[rows, :-1] / form.ranges).numpy().T
        squares = np.square(scaled[:, first] - scaled[:, second])
        self._widths = form.widths.numpy()
        self.squares = np.add.reduceat(squares, np.cumsum(self._widths) - self._widths, axis=0)
        in_time = times[rows].numpy()
        self.lags = np.abs(in_time[first] - in_time[second])
        self._latest: tuple[Array, tuple[float, Array, float]] | None = None
        self._maximum: Array | None = None
        # Of each number: location and spread of the logarithm under the prior, whether that is a
        # density of the logarithm, and bounds.
        k, gap, free = len(self._widths), round_length(times), (1 / LARGEST, LARGEST)
        location = math.sqrt(2) + 0.5 * math.log(k)
        learned: list[tuple[str, tuple[float, ...]]] = [
            ("lengthscale", (location, math.sqrt(3), False, LEAST_LENGTHSCALE, LARGEST))
        ] * k
        self._parts, self._effects = [slice(k)], slice(0)
        if form.is_smooth:
            prior = math.log(LENGTHSCALE * gap), LENGTHSCALE_SPREAD, True
            learned.append(("time.lengthscale", (*prior, *free)))
        elif form.rate is None:
            low, high = (-math.log1p(-end) for end in (MIN_FORGETTING_RATE, MAX_FORGETTING_RATE))
            learned.append((RATE_NAME, (math.log(RATE / gap), RATE_SPREAD, True, low, high)))
        if form.num_contexts > 0:
            a, n = k - form.num_contexts, len(learned)
            self._parts, self._effects = [slice(a), slice(a, k)], slice(n, n + 2)
            prior = math.log(MAIN_EFFECT), MAIN_EFFECT_SPREAD, True
            learned += [("main_effect", (*prior, *free))] * 2
        if self.noise is None:
            own = (math.log(NOISE), NOISE_SPREAD, True) if form.rate is None else (-4.0, 1.0, False)
            learned.append(("noise", (*own, MIN_INFERRED_NOISE_LEVEL, LARGEST)))
        self.names, priors = zip(*learned, strict=True)
        self._location, self._spread, of_logarithm, *ends = np.array(priors).T
        self._is_of_parameter = 1.0 - of_logarithm
        self.bounds = np.log(np.column_stack(ends))
        mode = self._location - self._is_of_parameter * self._spread**2
        self.default = mode.clip(*self.bounds.T)

    @property
    def num_learned(self) -> int:
        """How many numbers are learned, the prior mean among them, but shares, which may wait."""
        return len(self.bounds) + (1 if self.form.num_contexts == 0 else -1)

    def __call__(self, theta: Array) -> tuple[float, Array, float]:
        """Return the log density, its gradient, and the prior mean.

        The density is minus infinity where the covariance is singular to rounding.
        """
        if self._latest is not None and np.array_equal(self._latest[0], theta):
            # Kept, since a search ends with a value that it has computed before.
            return self._latest[1]
        n, d, form = len(self.y), len(self.squares), self.form
        inverse_squares = np.exp(-2 * theta[:d])
        # Correlations in time, and their derivatives by the logarithm of the rate.
        time_rate = math.exp(theta[d]) if form.rate is None else form.rate
        if form.is_smooth:
            by_time_rate = np.square(self.lags / time_rate)
            in_time, time_slope = matern(by_time_rate, True)
            by_time_rate *= time_slope
        else:
            by_time_rate = -0.5 * time_rate * self.lags
            in_time = np.exp(by_time_rate)
            by_time_rate *= in_time
        shares = self._shares(theta)
        squares = [inverse_squares[part] @ self.squares[part] for part in self._parts]
        space = in_space(form.kernel, squares, shares, True)
        noise = math.exp(theta[-1]) if self.noise is None else self.noise
        covar = self._covar
        covar[self._pairs] = space.values * in_time
        covar[:: n + 1] = 1 + noise
        # LAPACK's columns are the rows here, so what is below the diagonal is above it there.
        root, info = dpotrf(covar.reshape(n, n).T, lower=0, clean=0, overwrite_a=1)
        if info != 0:
            return -math.inf, np.zeros_like(theta), 0.0
        solved = dpotrs(root, np.column_stack([self.y, np.ones(n)]), lower=0)[0]
        mean = solved[:, 0].sum() / solved[:, 1].sum()
        alpha = solved[:, 0] - mean * solved[:, 1]
        value = -0.5 * (self.y - mean) @ alpha - np.log(root.diagonal()).sum()
        value += self._log_prior(theta) - 0.5 * n * math.log(2 * math.pi)
        gradient = (self._location - theta) / self._spread**2 - self._is_of_parameter
        # Minus twice the derivative by the covariance, equation (25) of Bogunovic et al.; a pair
        # stands for two entries.
        inverse, _ = dpotri(root, lower=0, overwrite_c=1)
        weights = dsyr(-1.0, alpha, lower=0, a=inverse, overwrite_a=1).T.ravel()
        if self.noise is None:
            gradient[-1] -= 0.5 * noise * weights[:: n + 1].sum()
        of_pairs = weights[self._pairs]
        if form.rate is None:
            gradient[d] -= (of_pairs * space.values) @ by_time_rate
        of_pairs *= in_time
        for part, slope in zip(self._parts, space.slopes, strict=True):
            gradient[part] -= inverse_squares[part] * (self.squares[part] @ (of_pairs * slope))
        for i in range(len(shares) - 1):
            effect = shares[i] * (space.parts[i] - space.values)
            gradient[self._effects][i] -= effect @ of_pairs
        self._latest = theta.copy(), (float(value), gradient, float(mean))
        return self._latest[1]

    def _log_prior(self, theta: Array) -> Array:
        """Return the log density of the prior, ``...``, at logarithms ``... x p``."""
        # Other priors than those of logarithms are densities of the parameter itself.
        z = (theta - self._location) / self._spread
        terms = 0.5 * np.square(z) + np.log(self._spread) + theta * self._is_of_parameter
        return -(terms + 0.5 * math.log(2 * math.pi)).sum(axis=-1)

    def _shares(self, theta: Array) -> Array:
        """Return the shares of each part and of both together, ``... x 3``, or 1 of one part."""
        ratios = np.exp(theta[..., self._effects])
        ratios = np.concatenate([ratios, np.ones_like(theta[..., :1])], axis=-1)
        return ratios / ratios.sum(axis=-1, keepdims=True)

    def _numbers(self, theta: Array) -> Array:
        """Return the hyperparameters of logarithms, ``p``, with ε for ρ."""
        is_rate = np.array([name == RATE_NAME for name in self.names])
        numbers = np.exp(theta)
        return np.where(is_rate, -np.expm1(-numbers), numbers)

    def named(self, theta: Array) -> dict[str, list[float]]:
        """Return the hyperparameters of logarithms, ``p``, and the prior mean, by name."""
        found = {"mean": [self(theta)[2]]}
        for name, number in zip(self.names, self._numbers(theta).tolist(), strict=True):
            found.setdefault(name, []).append(number)
        return found

    def temporal_kernels(self, theta: Array) -> list[TemporalKernel]:
        """Return the kernel over time."""
        return [self.sets(theta[None]).kernels(0)[1]]

    def at_bounds(self, theta: Array) -> Iterator[AtBound]:
        """Iterate over the hyperparameters that are at a bound."""
        numbers = self._numbers(theta)
        for i, side in np.argwhere(np.abs(theta[:, None] - self.bounds) <= AT_BOUND):
            entry = self.names[:i].count(self.names[i])
            yield AtBound(self.names[i], entry, ("lower", "upper")[side], numbers[i].item())

    def maximize(self, start: Array | None) -> tuple[float, Array]:
        """Return the log density at the maximum found from a start, and where it is.

        It is not finite if the search failed.

        Args:
            start: Where a fit ended, ``p``; None is the default, or of many observations where a
                search with a part of them ends.
        """
        if start is None and self.part is not None:
            start = self.part.maximize(None)[1]
        theta = self.default if start is None else start.clip(*self.bounds.T)
        ends, found = self.bounds.tolist(), None
        if self.quadratic is not None and start is not None:
            # A few of Newton's steps. One more outcome hardly changes the Hessian.
            self.quadratic = replace(self.quadratic)
            found = self.quadratic.minimize(self.negative, ends, theta, CLOSE)
        if found is None:
            # That of the newest observations where there are many.
            part = self if self.part is None else self.part
            model = QuadraticModel.by_differences(part.negative, ends, theta)
            if model is not None:
                model.hessian *= len(self.y) / len(part.y)
                found = model.minimize(self.negative, ends, theta)
            self.quadratic = model
        self._maximum = found
        if found is None:
            _, found = maximum(self.negative, theta, self.bounds)
        return self(found)[0], found

    def sigma_points(self, mode: Array) -> HyperparameterSets:
        r"""Return points about the mode with importance weights, to integrate hyperparameters out.

        The integral is over the logarithms of the :math:`p` hyperparameters, of the density that a
        fit maximizes: the logarithms have normal priors with the mode of BoTorch's. Its log-normal
        prior with location :math:`\mu` and scale :math:`s` counts as that with location :math:`\mu
        - s^2`, under which short lengthscales weigh more, and no more than for the fit. With
        :math:`V \Lambda V^\top` the Hessian of the negative log density at the mode, the points are
        the mode and, about it, the :math:`p + 1` corners of a regular simplex, in standard
        deviations along the columns of :math:`V`, cut at the bounds: an unscented transform. A
        Gaussian has its mean and covariance under equal weights; these are multiplied by the ratio
        of the density to that Gaussian, as in Rue, Martino, Chopin (2009), Section 6.5. So the sum
        of the weights estimates the evidence, by which forms of drift are compared.

        Args:
            mode: The logarithms at the mode, ``p``.

        Returns:
            The sets, the mode first; their weights are still to be multiplied by the likelihood
            (:meth:`tvbo.models.EnsembleGP.weighed_by_likelihood`). Above 250 observations, or where
            the Hessian is not finite, the mode is the only point.
        """
        mean = self(mode)[2]
        if self._maximum is None or not np.allclose(self._maximum, mode, rtol=0, atol=1e-9):
            # Not the maximum that Newton's method found last.
            ends = self.bounds.tolist()
            self.quadratic = QuadraticModel.by_differences(self.negative, ends, mode)
        if (quadratic := self.quadratic) is None:
            return self.sets(mode[None], mean, self._log_prior(mode[None]))
        free = np.flatnonzero(~quadratic.held)
        curvatures, directions = np.linalg.eigh(quadratic.hessian[np.ix_(free, free)])
        curvatures = curvatures.clip(LEAST_CURVATURE)
        # Of either sign of an eigenvector, so that the corners do not depend on LAPACK.
        largest = np.abs(directions).argmax(axis=0)
        directions *= np.sign(directions[largest, np.arange(len(free))])
        p = len(free)
        steps = np.zeros((1, p))
        if len(self.y) <= MAX_AVERAGED_OBSERVATIONS:
            corners = math.sqrt(p + 2) * helmert(p + 1).T
            steps = np.concatenate([steps, corners / np.sqrt(curvatures)])
        points = mode.repeat(len(steps)).reshape(-1, len(steps)).T
        points[:, free] += steps @ directions.T
        points = points.clip(*self.bounds.T)
        # Of the points themselves, which a bound may have brought nearer.
        steps = (points - mode)[:, free] @ directions
        volume = 0.5 * (p * math.log(2 * math.pi) - np.log(curvatures).sum()) - math.log(len(steps))
        ratio = self._log_prior(points) + 0.5 * np.square(steps) @ curvatures
        return self.sets(points, mean, ratio + volume)

    def sets(
        self, points: Array, mean: float = 0.0, log_weights: Array | Sequence[float] = (0.0,)
    ) -> HyperparameterSets:
        """Return sets of hyperparameters.

        Args:
            points: Logarithms, ``s x p``.
            mean: Prior mean.
            log_weights: Logarithms of the weights, ``s``.
        """
        numbers, d = torch.from_numpy(np.exp(points)), len(self.squares)
        if self.form.rate is not None:
            rates = torch.full_like(numbers[:, 0], 0.5 * self.form.rate)
        else:
            rates = 5**0.5 / numbers[:, d] if self.form.is_smooth else 0.5 * numbers[:, d]
        noise = numbers[:, -1]
        if self.noise is not None:
            noise = torch.full_like(rates, self.noise.mean() if len(self.noise) > 0 else 0.0)
        return HyperparameterSets(
            kernel=self.form.kernel,
            num_actions=int(self._widths[self._parts[0]].sum()),
            lengthscales=numbers[:, :d].repeat_interleave(self.form.widths, -1) * self.form.ranges,
            rates=rates,
            is_smooth=torch.full_like(rates, self.form.is_smooth),
            variance=torch.ones_like(rates),
            mean=torch.full_like(rates, mean),
            noise=noise,
            log_weights=torch.as_tensor(log_weights, dtype=torch.float64),
            shares=torch.from_numpy(self._shares(points)),
        )

    def negative(self, theta: Array) -> tuple[float, Array]:
        """Return minus the log density, a large number where it is not finite, and its gradient."""
        value, gradient, _ = self(theta)
        # A number from which a line search turns back.
        return (-value, -gradient) if math.isfinite(value) else (1e100, gradient)
