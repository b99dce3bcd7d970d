"""The confidence width of BKB, and the oversampling of its inducing points."""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model

from tvbo.acquisition.analytic import AnyScaleUCB, unit_of
from tvbo.models.incremental import ConditionedGP
from tvbo.models.nystrom_gp import NystromGP
from tvbo.spaces import AskContext


@dataclass(frozen=True)
class BKBBeta:
    r"""UCB with the width of BKB's regret theorem (Calandriello et al., 2019, Theorem 2).

    .. math:: \tilde\beta_t = 2 \xi \sqrt{\alpha \log(\kappa^2 t)
        \sum_{s \le t} \tilde\sigma_t^2(x_s) + \log \tfrac{1}{\delta}}
        + \Big(1 + \tfrac{1}{\sqrt{1 - \varepsilon}}\Big) \sqrt{\lambda} F,
        \qquad \alpha = \frac{1 + \varepsilon}{1 - \varepsilon}

    after ``t`` outcomes, and the index is :math:`\tilde\mu_t(x) + \tilde\beta_t \tilde\sigma_t(x)`.
    The sum, an estimate of the effective dimension, is over the posterior variances at all
    observations, repeats counted. The paper's :math:`\tilde\sigma^2` is a posterior variance
    divided by :math:`\lambda = \sigma^2`, so in units of the outcome the posterior standard
    deviation is multiplied by :math:`\tilde\beta_t / \sqrt\lambda`, and β of BoTorch is the square
    of that. Where an observation has a noise variance of its own, that replaces λ in the sum.

    The authors' published program uses a smaller width, :math:`\xi \sqrt{\log t \sum_s
    \tilde\sigma_t^2(x_s) + \log(1/\delta)} + \sqrt\lambda F`. This class has the width of the
    theorem, which explores far more than is good in practice. A logarithm below zero, as in the
    first rounds, is replaced by zero.

    The logarithm of the theorem approximates that of :math:`1 + \kappa^2 t / \lambda` and depends
    on the unit of the outcomes. By default that unit is the prior standard deviation, so that
    :math:`\kappa^2 = 1`, as in the authors' program. Where λ is far below the prior variance,
    ``kernel_bound`` of :math:`\kappa^2 / \lambda` is the safer choice.

    Args:
        norm_bound: ``F``, a bound on the norm of the function less the prior mean in the space of
            the kernel, at least 0; without a unit if the kernel is in squared units of the
            outcome.
        delta: The bound holds with probability at least ``1 - delta``.
        epsilon: Accuracy ε of the sketch, in (0, 1); see :func:`bkb_qbar`.
        noise_scale: ξ of the sub-Gaussian noise, in the unit of the outcome; None is the root of
            the model's noise variance.
        kernel_bound: :math:`\kappa^2`, a bound on ``k(x, x)``, in the squared unit in which the
            theorem is evaluated; None is 1.

    Raises:
        ValueError: if ``norm_bound`` is negative or infinite, ``delta`` or ``epsilon`` lies outside
            (0, 1), or ``noise_scale`` or ``kernel_bound`` is not above 0 and finite.
    """

    norm_bound: float = 1.0
    delta: float = 0.1
    epsilon: float = 0.5
    noise_scale: float | None = None
    kernel_bound: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.norm_bound < math.inf:
            raise ValueError(f"Expected norm_bound >= 0 and finite. Got {self.norm_bound}.")
        _check_in_unit_interval("delta", self.delta)
        _check_in_unit_interval("epsilon", self.epsilon)
        for name in ("noise_scale", "kernel_bound"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"Expected {name} > 0 and finite. Got {value}.")

    def __call__(self, model: Model, ask_context: AskContext) -> AnyScaleUCB:
        """Return the acquisition function for this round.

        Raises:
            UnsupportedError: if the model has no inducing points.
        """
        return AnyScaleUCB(model, beta=self.beta(model), unit=unit_of(model, ask_context))

    def beta(self, model: Model) -> float:
        r"""Return β in :math:`\mu(x) + \sqrt\beta\,\sigma(x)`, in the unit of the outcomes.

        Args:
            model: The model of this round.

        Raises:
            UnsupportedError: if the model has no inducing points.
        """
        if isinstance(model, ConditionedGP):
            # Pending trials add no outcome: use the sketch of the observations alone.
            model = model.given
        if not isinstance(model, NystromGP):
            raise UnsupportedError(
                f"Expected a NystromGP, whose sketch this width is for. Got {type(model).__name__}."
            )
        alpha = (1 + self.epsilon) / (1 - self.epsilon)
        information = alpha * self._log(model) * _effective_dimension(model)
        scatter = 2 * self._noise_ratio(model) * math.sqrt(information - math.log(self.delta))
        bias = (1 + 1 / math.sqrt(1 - self.epsilon)) * self.norm_bound
        return (scatter + bias) ** 2

    def _log(self, model: NystromGP) -> float:
        if model.num_observations == 0:
            return 0.0
        bound = 1.0 if self.kernel_bound is None else self.kernel_bound
        return max(0.0, math.log(bound * model.num_observations))

    def _noise_ratio(self, model: NystromGP) -> float:
        r"""Return :math:`\xi / \sqrt\lambda`, for the smallest λ where noise variances differ."""
        if self.noise_scale is None:
            return 1.0
        known = model.observed_noise
        variance = (known.min() if len(known) > 0 else model.noise_variance).item()
        return self.noise_scale / math.sqrt(variance)


def bkb_qbar(horizon: int, delta: float = 0.1, epsilon: float = 0.5) -> float:
    r"""Return the oversampling :math:`\bar q = 6 \alpha \log(4 T / \delta) / \varepsilon^2` of BKB.

    With it, all variances stay within a factor :math:`\alpha = (1 + \varepsilon) / (1 -
    \varepsilon)` of the exact ones over all rounds, with probability at least ``1 - delta``
    (Calandriello et al., 2019, Theorem 1). It is hundreds, far more than is needed in practice: the
    authors' program advises 2 to 10.

    Args:
        horizon: T, in rounds; a whole number, at least 1.
        delta: In (0, 1).
        epsilon: ε, in (0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """
    if not 1 <= horizon < math.inf or horizon != int(horizon):
        raise ValueError(f"Expected horizon to be a whole number >= 1. Got {horizon}.")
    _check_in_unit_interval("delta", delta)
    _check_in_unit_interval("epsilon", epsilon)
    alpha = (1 + epsilon) / (1 - epsilon)
    return 6 * alpha * math.log(4 * horizon / delta) / epsilon**2


def _effective_dimension(model: NystromGP) -> float:
    return (model.observed_variance / model.observed_noise).sum().item()


def _check_in_unit_interval(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"Expected {name} in (0, 1). Got {value}.")
