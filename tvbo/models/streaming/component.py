"""One product of a prior that is a sum: a kernel over choices times a temporal kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from tvbo.kernels import TemporalDecayKernel, TemporalKernel
from tvbo.kernels.temporal import decay_exponent
from tvbo.models.resizable_module import BatchedModule
from tvbo.models.streaming.finite_prior import FiniteCovariance
from tvbo.models.streaming.prior import symmetric_root


class Component(BatchedModule):
    """One product of the sum: a kernel over the choices times a temporal kernel.

    Args:
        covariance: The kernel over the choices.
        kernel: The temporal kernel, without a batch or with ``b`` elements.
        amplitude: Variance by which the product is multiplied, of each batch element, ``b``.
    """

    exponent: Tensor | None
    amplitude: Tensor
    stationary_covariance: Tensor
    observation: Tensor

    def __init__(self, covariance: FiniteCovariance, kernel: TemporalKernel, amplitude: Tensor):
        super().__init__()
        self.covariance = covariance
        self.kernel = kernel
        # For decay, a number that is the same each time is computed once.
        self.register_buffer("exponent", None)
        if isinstance(kernel, TemporalDecayKernel):
            exponent = decay_exponent(kernel.forgetting_rate.detach().squeeze(-1))
            self.exponent = exponent.to(amplitude).expand_as(amplitude).clone()
        P = kernel.stationary_covariance().detach().to(amplitude)
        lead = (len(amplitude), 1)
        self.register_buffer("amplitude", amplitude)
        self.register_buffer("stationary_covariance", amplitude[:, None, None] * P)
        self.register_buffer("observation", kernel.observation.detach().to(amplitude).repeat(*lead))

    def take(self, element: Tensor) -> Component:
        """Return the component of some batch elements."""
        new = super().take(element)
        new.kernel = self.kernel[element]
        return new

    def transition(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return the matrices that lead over lags ``b x ...`` or ``M x ...``: ``... x s x s``."""
        if self.exponent is not None:
            return self._decay(lag, self.exponent, element)[..., None, None]
        kernel = self.kernel if element is None else self.kernel[element]
        A = kernel.transition(lag.reshape(len(lag), lag.shape[1:].numel()))
        return A.reshape(*lag.shape, *A.shape[-2:])

    def correlation(self, lag: Tensor, element: Tensor) -> Tensor:
        """Return correlations after lags ``M x ...``, times the amplitude."""
        if self.exponent is not None:
            covar = self._decay(lag, self.exponent, element)
        else:
            covar = self.kernel[element].correlation(lag.flatten(1)).view_as(lag)
        return covar * self.amplitude[element].reshape(-1, *[1] * (lag.ndim - 1))

    @staticmethod
    def _decay(lag: Tensor, exponent: Tensor, element: Tensor | None) -> Tensor:
        if element is not None:
            exponent = exponent[element]
        return (lag * exponent.reshape(-1, *[1] * (lag.ndim - 1))).exp_()

    def backwards(self, lag: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return matrices to earlier states after lags ``m``, and roots of the noise's covariance.

        By Bayes' rule, a stationary process goes back with :math:`P A^\\top P^{-1}`.
        """
        P = self.stationary_covariance[0]
        A = self.kernel[torch.tensor([0])].transition(lag.unsqueeze(0)).squeeze(0)
        back = torch.linalg.solve(P, A @ P).mT
        return back, symmetric_root(P - back @ P @ back.mT)
