"""The prior over a finite set of choices and time, where time is one exponential decay."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.kernels.temporal import decay_exponent
from tvbo.models.resizable_module import BatchedModule
from tvbo.models.streaming.prior import MarkovPrior, Part

MAX_CACHED = 25_000_000
"""Entries of the covariance matrix up to which it is stored (200 MB): those of 5,000 choices. The
rows of a larger one are computed when they are needed."""


class FiniteCovariance(BatchedModule):
    """Covariances ``k(x_i, x_j)`` of choices by their indices, for independent batch elements.

    Args:
        choices: ``n x d`` inputs of the kernel.
        covar_module: The kernel, evaluated without gradients; later changes of it have no effect
            while the matrix is stored.
        batch_shape: Batch shape of the model. The kernel has this batch shape, or none.

    Attributes:
        diagonal: Variances, ``1 x n`` if the batch shares one kernel, else ``b x n``.
        matrix: ``1 x n x n`` or ``b x n x n``; None if it is too large to store.

    Raises:
        ValueError: if a variance is negative or not finite, or a batch of kernels has more choices
            than can be stored.
    """

    diagonal: Tensor
    matrix: Tensor | None
    inputs: Tensor
    covar_module: Kernel | None

    def __init__(self, choices: Tensor, covar_module: Kernel, batch_shape: Size):
        super().__init__()
        with torch.no_grad():
            # With the batch: for n = b, GPyTorch would take b x n variances for a matrix.
            batch = choices.expand(*covar_module.batch_shape, *choices.shape)
            diagonal = covar_module(batch, diag=True)
        if not (torch.isfinite(diagonal) & (diagonal >= 0)).all():
            raise ValueError(
                "Expected a kernel with finite variances >= 0 on the choices. "
                f"Got variances from {diagonal.min():.3g} to {diagonal.max():.3g}."
            )
        shared = diagonal.shape[:-1].numel() == 1
        lead = Size([1]) if shared else batch_shape
        n = len(choices)
        self.register_buffer("diagonal", diagonal.expand(*lead, n).reshape(-1, n))
        matrix = None
        if self.diagonal.numel() * n <= MAX_CACHED:
            with torch.no_grad():
                matrix = covar_module(choices).to_dense().expand(*lead, n, n).reshape(-1, n, n)
        elif not shared:
            raise ValueError(
                f"Expected at most {MAX_CACHED} covariances where batch elements have their own "
                f"kernels. Got {len(self.diagonal)} batch elements with {n} choices."
            )
        self.register_buffer("matrix", matrix)
        # Acquisitions visit all modules of their model, so that an unneeded one costs time.
        self.covar_module = covar_module if matrix is None else None
        self.register_buffer("inputs", choices if matrix is None else None, persistent=False)

    def rows(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the covariances of ``index`` with all choices, ``N x q x n``.

        Args:
            element: Indices of the batch elements, ``N``.
            index: Indices of the choices, ``N x q``.
        """
        if self.matrix is None:
            return self._evaluate(index, self.inputs)
        return self.matrix[self._kernel_index(element)[:, None], index]

    def between(self, element: Tensor, first: Tensor, second: Tensor) -> Tensor:
        """Return the covariances of choices ``N x q`` and ``N x p``: ``N x q x p``."""
        if self.matrix is None:
            return self._evaluate(first, self.inputs[second])
        each = self._kernel_index(element)[:, None, None]
        return self.matrix[each, first.unsqueeze(-1), second.unsqueeze(-2)]

    def variances(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the prior variances of choices, ``N x q``."""
        return self.diagonal[self._kernel_index(element)[:, None], index]

    def take(self, element: Tensor) -> FiniteCovariance:
        """Return the covariance of some batch elements; a shared one is not copied."""
        return super().take(element) if len(self.diagonal) > 1 else self

    def _kernel_index(self, element: Tensor) -> Tensor:
        """Return the indices of the batch elements' kernels."""
        return element if len(self.diagonal) > 1 else torch.zeros_like(element)

    def _evaluate(self, index: Tensor, others: Tensor) -> Tensor:
        assert self.covar_module is not None  # since the matrix is not stored
        with torch.no_grad():
            covar: Tensor = self.covar_module(self.inputs[index], others).to_dense()
            return covar


class DecayPrior(MarkovPrior):
    r"""A kernel over the choices times :math:`(1-\varepsilon)^{|\Delta t|/2}`.

    The state is the function itself.

    Args:
        covariance: The kernel.
        forgetting_rate: ε of each batch element, ``b``.
    """

    exponent: Tensor
    _rate: Tensor
    num_states = 1

    def __init__(self, covariance: FiniteCovariance, forgetting_rate: Tensor):
        super().__init__()
        self.covariance = covariance
        self.num_choices = covariance.diagonal.shape[-1]
        self.register_buffer("_rate", forgetting_rate.clone())
        self.register_buffer("exponent", decay_exponent(forgetting_rate))

    @property
    def forgetting_rate(self) -> Tensor:
        """ε of each batch element, ``b``."""
        return self._rate

    @property
    def is_static(self) -> bool:
        """Whether ε = 0."""
        return not self._rate.any()

    def decay(self, lag: Tensor, element: Tensor | None = None) -> Tensor:
        r"""Return :math:`(1 - \varepsilon)^{\text{lag} / 2}` for lags ``b x ...``."""
        exponent = self.exponent if element is None else self.exponent[element]
        return (lag * exponent.reshape(-1, *[1] * (lag.ndim - 1))).exp_()

    def parts(self) -> list[Part]:
        """Return the only product."""
        one = torch.ones_like(self.exponent[:1])
        return [Part(self.covariance, one, one.unsqueeze(-1), self._backwards)]

    def _backwards(self, lag: Tensor) -> tuple[Tensor, Tensor]:
        decay = (lag * self.exponent[0]).exp_()[:, None, None]
        return decay, (1 - decay.square()).sqrt()

    def weight(self, lag: Tensor) -> Tensor:
        """Return the squared decay."""
        return self.decay(lag).square()

    def variances(self, element: Tensor, index: Tensor) -> Tensor:
        """Return the variances of the function at choices ``M x q``."""
        return self.covariance.variances(element, index)

    def between(self, element: Tensor, index: Tensor, other: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at choices ``M x q`` and ``M x p``, ``M x q x p``."""
        return self.covariance.between(element, index, other) * self.decay(lag, element)

    def rows(self, index: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of the function at events ``b x q`` with later states."""
        element = torch.arange(len(index), device=index.device)
        return self.covariance.rows(element, index) * self.decay(lag).unsqueeze(-1)

    def advance(self, V: Tensor, lag: Tensor) -> Tensor:
        """Return covariances with states, ``b x m x n``, as of a time later by ``b x m``."""
        return V * self.decay(lag).unsqueeze(-1)

    def combine(
        self, base: Tensor, weights: Tensor, V: Tensor, lag: Tensor, alpha: float = 1.0
    ) -> Tensor:
        """Return ``base`` plus ``alpha`` times weighted sums of rows as of a later time."""
        return torch.baddbmm(base, weights * self.decay(lag).unsqueeze(-2), V, alpha=alpha)

    def read(self, V: Tensor, index: Tensor, lag: Tensor, element: Tensor | None = None) -> Tensor:
        """Return covariances with the function at later events, from those with states."""
        if element is None:
            columns = V.gather(-1, index.unsqueeze(-2).expand(-1, V.shape[1], -1)).mT
        else:
            columns = V.mT[element.unsqueeze(-1), index]
        return columns * self.decay(lag, element)

    def read_all(self, mean: Tensor, lag: Tensor) -> Tensor:
        """Return the function at all choices after lags ``b``."""
        return self.decay(lag).unsqueeze(-1) * mean

    def explain(self, V: Tensor) -> Tensor:
        """Return the variances that rows ``b x q x n`` explain: ``b x n``."""
        return V.square().sum(dim=-2)

    def advance_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return explained variances as of a time later by ``b``."""
        return self.decay(lag).square().unsqueeze(-1) * explained

    def read_explained(
        self, explained: Tensor, index: Tensor, lag: Tensor, element: Tensor
    ) -> Tensor:
        """Return the variance of the function that is explained at events, ``M x q``."""
        return self.decay(lag, element).square() * explained[element.unsqueeze(-1), index]

    def read_all_explained(self, explained: Tensor, lag: Tensor) -> Tensor:
        """Return the variance explained at all choices after lags ``b``."""
        return self.advance_explained(explained, lag)

    def share(self, explained: Tensor) -> Tensor:
        """Return the largest share of a prior variance, ``b``."""
        variance = self.covariance.diagonal.clamp_min(torch.finfo(explained.dtype).tiny)
        return (explained / variance).amax(dim=-1)

    def advance_merged_(self, merged: Tensor, lag: Tensor) -> Tensor:
        """Return covariances of all states as of a time later by ``b``; in place."""
        merged *= self.decay(lag).square()[:, None, None]
        return merged

    def merged_rows(self, merged: Tensor, index: Tensor, lag: Tensor, later: Tensor) -> Tensor:
        """Return merged covariances of the function at events with later states."""
        fade = self.decay(later).unsqueeze(-1) * self.decay(lag)
        element = torch.arange(len(index), device=index.device)
        return fade.unsqueeze(-1) * merged[element.unsqueeze(-1), index]

    def merged_between(
        self,
        merged: Tensor,
        index: Tensor,
        lag: Tensor,
        other: Tensor,
        other_lag: Tensor,
        element: Tensor,
    ) -> Tensor:
        """Return merged covariances of the function at events ``M x q`` and ``M x p``."""
        known = merged[element[:, None, None], index.unsqueeze(-1), other.unsqueeze(-2)]
        fade = self.decay(lag, element).unsqueeze(-1)
        return fade * self.decay(other_lag, element).unsqueeze(-2) * known
