r"""Mutual information of noisy rewards and the function, in nats."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.kernels.temporal import check_forgetting_rate
from tvbo.values import check_positive


def drifting_covariance(covar: Tensor, times: Tensor, forgetting_rate: float) -> Tensor:
    r"""Return the covariance of :math:`f_{t_1}(x_1), \dots, f_{t_n}(x_n)` under drift.

    Bogunovic et al. (2016), after (8):

    .. math:: \tilde K = K \circ D, \quad D_{ij} = (1 - \varepsilon)^{|t_i - t_j| / 2}

    Args:
        covar: ``batch_shape x n x n``, the covariance ``K`` of the points at one time.
        times: ``n`` times, in the unit of time of ε.
        forgetting_rate: ε in [0, 1].

    Returns:
        ``batch_shape x n x n``, float64.

    Raises:
        ValueError: if ε lies outside [0, 1], ``covar`` is not a symmetric, finite matrix, or
            ``times`` does not give ``n`` finite numbers.
    """
    check_forgetting_rate(forgetting_rate)
    covar = checked_covariance(covar)
    times = torch.as_tensor(times, dtype=torch.float64)
    if times.shape != covar.shape[-1:] or not times.isfinite().all():
        raise ValueError(
            f"Expected {covar.shape[-1]} finite times, one for each row of covar. "
            f"Got {times.tolist()}."
        )
    # 0 ** 0 is 1: with ε = 1, values at equal times stay correlated.
    decay: Tensor = (1 - forgetting_rate) ** ((times.unsqueeze(-1) - times).abs() / 2)
    return covar * decay


def mutual_information(covar: Tensor, noise_variance: float) -> Tensor:
    r"""Return the information of noisy rewards on the values (Bogunovic et al., (12), (14)).

    .. math:: I(f; y) = \tfrac12 \log\det(I + \sigma^{-2} K)

    The covariance of a static GP gives (12), that of :func:`drifting_covariance` (14).

    Args:
        covar: ``batch_shape x n x n``, the covariance of the observed values.
        noise_variance: σ² > 0, in squared units of the reward.

    Returns:
        Nats, ``batch_shape``.

    Raises:
        ValueError: if ``covar`` is not symmetric, finite and positive semi-definite, or σ² is not
            positive.
    """
    return torch.log1p(_eigenvalues(covar, noise_variance)).sum(dim=-1) / 2


def effective_dimension(covar: Tensor, noise_variance: float) -> Tensor:
    r"""Return the effective dimension of observed values (Vakili et al., 2023, (1)).

    .. math:: \tilde d = \operatorname{tr}\big(K (K + \lambda^2 I)^{-1}\big)

    It is the information up to logarithms: with :math:`I` of :func:`mutual_information`,

    .. math:: \tilde d \le 2 I \le \tilde d\, (1 + \log(1 + \lambda^{-2} \|K\|))

    eigenvalue by eigenvalue. The paper prints :math:`\tilde d \le I`, which fails where the values
    are small beside the noise: there :math:`\tilde d` is near the trace of :math:`\lambda^{-2} K`,
    and ``I`` near half of it.

    Args:
        covar: ``batch_shape x n x n``, the covariance of the observed values.
        noise_variance: λ² > 0, in squared units of the reward.

    Returns:
        The effective dimension, at most ``n``, ``batch_shape``.

    Raises:
        ValueError: if ``covar`` is not symmetric, finite and positive semi-definite, or λ² is not
            positive.
    """
    ratio = _eigenvalues(covar, noise_variance)
    return (ratio / (1 + ratio)).sum(dim=-1)


def information_by_round(covar: Tensor, noise_variance: float) -> Tensor:
    r"""Return the mutual information after each reward (Bogunovic et al., 2016, (26)).

    .. math:: I_t = \tfrac12 \sum_{s \le t} \log(1 + \sigma^{-2} \sigma_{s-1}^2(x_s))

    with the posterior variance of each value given the previous rewards.

    Args:
        covar: ``batch_shape x n x n``, the covariance of the values in the order of observation.
        noise_variance: σ² > 0, in squared units of the reward.

    Returns:
        Nats after 1, ..., n rewards, ``batch_shape x n``. The last is :func:`mutual_information`.

    Raises:
        ValueError: if ``covar`` is not symmetric, finite and positive semi-definite, or σ² is not
            positive.
    """
    check_positive(noise_variance=noise_variance)
    covar = checked_covariance(covar)
    noise = noise_variance * torch.eye(covar.shape[-1], dtype=covar.dtype)
    root, failed = torch.linalg.cholesky_ex(covar + noise)
    _check_semidefinite(not failed.any(), noise_variance)
    # A squared pivot of the factor is the variance of a reward given the previous ones.
    predictive_variance: Tensor = root.diagonal(dim1=-2, dim2=-1).square()
    return (predictive_variance / noise_variance).log().cumsum(dim=-1) / 2


def checked_covariance(covar: Tensor) -> Tensor:
    """Return ``covar`` in float64; raise unless it is square, finite and symmetric to rounding."""
    covar = torch.as_tensor(covar, dtype=torch.float64)
    if covar.dim() < 2 or covar.shape[-1] != covar.shape[-2] or covar.shape[-1] == 0:
        raise ValueError(f"Expected covar to be ... x n x n, n >= 1. Got {tuple(covar.shape)}.")
    if not covar.isfinite().all():
        raise ValueError("Expected a finite covar. Got NaN or infinity in it.")
    if not torch.allclose(covar, covar.mT):
        raise ValueError(
            "Expected a symmetric covar. Got entries that differ from their transposes by up to "
            f"{(covar - covar.mT).abs().max():.3g}."
        )
    return covar


def _eigenvalues(covar: Tensor, noise_variance: float) -> Tensor:
    """Return the eigenvalues in units of the noise variance, ``batch_shape x n``."""
    check_positive(noise_variance=noise_variance)
    ratio: Tensor = torch.linalg.eigvalsh(checked_covariance(covar)) / noise_variance
    _check_semidefinite((ratio > -1).all(), noise_variance)
    return ratio


def _check_semidefinite(passed: bool | Tensor, noise_variance: float) -> None:
    if not passed:
        raise ValueError(
            "Expected covar to be positive semi-definite. Got one whose sum with "
            f"{noise_variance} I is not positive definite."
        )
