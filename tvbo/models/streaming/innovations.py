"""Prior and exact posterior of a Markov-in-time GP on a finite set, one row per observation."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Size, Tensor

from tvbo.models.resizable_module import BatchedModule
from tvbo.models.scale import innovation_root
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.late import late_cross_covariance
from tvbo.models.streaming.rows import EvictedSummary, Rows, RowStore, columns

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


class Innovations(BatchedModule):
    r"""Posterior over ``n`` choices at the newest time, for ``b`` independent batch elements.

    The innovation :math:`\nu_j` of observation ``j`` is the outcome less its prediction from all
    earlier observations, divided by its standard deviation :math:`d_j`. Its row holds

    .. math:: V_j(x) = \mathrm{Cov}(f(x), \nu_j)
        = \Big(k(x_j, x)\,\phi(|t - t_j|) - \sum_{i<j} c_i V_i(x)\Big) / d_j, \quad
        c_i = \mathrm{Cov}(y_j, \nu_i), \quad \phi(\Delta) = (1 - \varepsilon)^{\Delta/2}

    as of the time :math:`r_j` when it was computed. The process is Markov in time: the row as of a
    later time ``t`` is the same one times :math:`\phi(t - r_j)`. Then :math:`\mu = \sum a_j V_j`,
    with :math:`a_j` the value of :math:`\nu_j`, and the variance is :math:`k - \sum V_j^2`. Both
    sums are updated with each observation, so that old rows are only needed for the :math:`c` of
    later observations.

    Args:
        covariance: The prior covariance over the choices.
        forgetting_rate: ε of each batch element, ``b``.
        eviction_policy: How many rows are held, and which are merged or dropped.

    Every shape begins with the ``b`` batch elements.
    """

    mean: Tensor
    reduction: Tensor
    now: Tensor

    def __init__(
        self, covariance: FiniteCovariance, forgetting_rate: Tensor, eviction_policy: EvictionPolicy
    ):
        super().__init__()
        self.covariance = covariance
        self.eviction_policy = eviction_policy
        variance = covariance.diagonal.expand(len(forgetting_rate), -1)
        self.register_buffer("mean", torch.zeros_like(variance))
        self.register_buffer("reduction", torch.zeros_like(variance))
        self.register_buffer("now", torch.full_like(forgetting_rate, -torch.inf))
        self.evicted = EvictedSummary(variance, forgetting_rate)
        with_root = eviction_policy.max_lateness != 0
        self.store = RowStore(self.mean, eviction_policy.initial_capacity, with_root)

    def reset(self) -> None:
        """Discard all observations."""
        self.mean.zero_()
        self.reduction.zero_()
        self.now = torch.full_like(self.now, -torch.inf)
        self.evicted.reset()
        self.store.clear()

    def observe(self, index: Tensor, time: Tensor, residual: Tensor, noise: Tensor) -> None:
        """Add ``q`` observations to every batch element.

        Args:
            index: Indices of the actions, ``b x q``.
            time: Event times, ``b x q``, in any order, also before the newest.
            residual: Outcomes less the prior mean, ``b x q``.
            noise: Noise variances, ``b x q``.

        Raises:
            InputDataError: if an event time lies before the rows that are held, or the predictive
                variance of an outcome is numerically zero. Nothing is changed then.
        """
        if (time < self.now.unsqueeze(-1)).any():
            self.eviction_policy.check_earliest(self.store, self.earliest, time)
        newest = torch.maximum(self.now, time.amax(dim=-1))
        cross, root = self._factor(index, time, noise)
        if self.store.count + time.shape[1] > self.store.capacity:
            # Only after all checks, since an eviction cannot be undone.
            lost = self.eviction_policy.make_room(self.store, self.evicted, self.now, time)
            if lost is not None:
                # The variance must be explained by what is held, or later outcomes would not agree.
                self.reduction -= self.evicted.decay_since(self.now).square().unsqueeze(-1) * lost
            cross, root = self._factor(index, time, noise)
        predicted = self.evicted.decay_since(time) * self.evicted.mean.gather(-1, index)
        predicted = predicted + (cross @ self.store.held.innovation.unsqueeze(-1)).squeeze(-1)
        news = (residual - predicted).unsqueeze(-1)
        innovation = torch.linalg.solve_triangular(root, news, upper=False).squeeze(-1)
        V = self._unexplained(index, time, newest, cross)
        V = torch.linalg.solve_triangular(root, V, upper=False)
        fade = self.decay_since_newest(self._elements, newest.unsqueeze(-1))
        self.mean = fade * self.mean + (innovation.unsqueeze(-2) @ V).squeeze(-2)
        self.reduction = fade.square() * self.reduction + V.square().sum(dim=-2)
        self.now = newest
        made_at = newest.unsqueeze(-1).expand_as(time)
        self.store.append(Rows(V, innovation, made_at, index, time, noise, root), cross)

    def decay_since_newest(self, element: Tensor, time: Tensor) -> Tensor:
        r"""Return :math:`\phi` from the newest observation to later times; 0 if there is none.

        Args:
            element: Indices of the batch elements, ``N``.
            time: Times, ``N x q``.
        """
        lag = time - self.now[element].unsqueeze(-1)
        return self.evicted.decay_of(self.evicted.exponent[element], lag).nan_to_num_(nan=0.0)

    def predict(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joint posterior, less the prior mean, of ``q`` choices at later times.

        Args:
            element: Indices of the batch elements, ``N``.
            index: Indices of the choices, ``N x q``.
            time: Times, ``N x q``, none before the newest observation.

        Returns:
            Means ``N x q`` and covariances ``N x q x q``.
        """
        fade = self.decay_since_newest(element, time)
        each = element.unsqueeze(-1)
        mean = fade * self.mean[each, index]
        variance = self.covariance.variances(element, index)
        variance = variance - fade.square() * self.reduction[each, index]
        if index.shape[-1] == 1:
            return mean, variance.unsqueeze(-1)
        lag = (time.unsqueeze(-1) - time.unsqueeze(-2)).abs()
        covar = self.covariance.between(element, index, index)
        covar = covar * self.evicted.decay_of(self.evicted.exponent[element], lag)
        fades = fade.unsqueeze(-1) * fade.unsqueeze(-2)
        covar = covar - fades * self._explained(element, index)
        # Exactly the variance that a prediction of one row at a time gives.
        covar.diagonal(dim1=-2, dim2=-1).copy_(variance)
        return mean, covar

    def _explained(self, element: Tensor, index: Tensor) -> Tensor:
        """Return prior less posterior covariance at the newest time, ``N x q x q``."""
        rows = self.store.held
        fade = self.evicted.decay(self.now.unsqueeze(-1) - rows.made_at)
        V = rows.V.mT[element.unsqueeze(-1), index] * fade[element].unsqueeze(-2)
        explained = V @ V.mT
        if self.evicted.merged is not None:
            each, fade = element[:, None, None], self.evicted.decay_since(self.now)
            merged = self.evicted.merged[each, index.unsqueeze(-1), index.unsqueeze(-2)]
            explained = explained + fade[each].square() * merged
        return explained

    @property
    def _elements(self) -> Tensor:
        return torch.arange(len(self.now), device=self.now.device)

    @property
    def earliest(self) -> Tensor:
        """Earliest event time that can still be observed, ``b``."""
        if self.store.root is None:
            return self.now
        if self.eviction_policy.max_rows is None:
            return self.evicted.time
        # Where rows with weight were dropped for max_rows, the past before them is unknown.
        share = self.evicted.neglected * self.evicted.decay_since(self.now).square()
        return torch.where(share > self.eviction_policy.tol, self.now, self.evicted.time)

    def _cross_covariance(self, index: Tensor, time: Tensor) -> Tensor:
        r"""Return :math:`c`, the covariances with the innovations held, ``b x q x k``."""
        rows = self.store.held
        lag = time.unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        cross = columns(rows.V, index).mT * self.evicted.decay(lag.clamp_min(0.0))
        late = (lag < 0).flatten(0, 1).any(dim=0)
        if not late.any():
            return cross
        first = int(late.to(torch.uint8).argmax())
        covar = self._prior(index, time, rows.index[:, first:], rows.time[:, first:])
        return late_cross_covariance(rows, self.evicted, covar, cross, index, time)

    def _prior(self, index: Tensor, time: Tensor, other: Tensor, other_time: Tensor) -> Tensor:
        """Return covariances ``b x q x p`` given the evicted rows."""
        lag = (time.unsqueeze(-1) - other_time.unsqueeze(-2)).abs()
        covar = self.covariance.between(self._elements, index, other) * self.evicted.decay(lag)
        if self.evicted.merged is None:
            return covar
        each = self._elements[:, None, None]
        merged = self.evicted.merged[each, index.unsqueeze(-1), other.unsqueeze(-2)]
        fade = self.evicted.decay_since(time).unsqueeze(-1)
        return covar - fade * self.evicted.decay_since(other_time).unsqueeze(-2) * merged

    def _factor(self, index: Tensor, time: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return :math:`c`, and the Cholesky factor of the outcomes given all earlier ones."""
        cross = self._cross_covariance(index, time)
        covar = self._prior(index, time, index, time) - cross @ cross.mT
        prior_variance = self.covariance.variances(self._elements, index)
        return cross, innovation_root(covar, noise, prior_variance)

    def _unexplained(self, index: Tensor, time: Tensor, newest: Tensor, cross: Tensor) -> Tensor:
        """Return the outcomes' covariances with the choices at ``newest`` given the earlier."""
        rows = self.store.held
        newest = newest.unsqueeze(-1)
        V = self.covariance.rows(self._elements, index)
        V = V * self.evicted.decay(newest - time).unsqueeze(-1)
        if self.evicted.merged is not None:
            fade = self.evicted.decay_since(newest) * self.evicted.decay_since(time)
            V = V - fade.unsqueeze(-1) * self.evicted.merged[self._elements[:, None], index]
        weights = cross * self.evicted.decay(newest - rows.made_at).unsqueeze(-2)
        return torch.baddbmm(V, weights, rows.V, alpha=-1)
