"""The exact posterior of a Markov-in-time GP on a finite set, one row per observation."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.models.innovation_root import innovation_root
from tvbo.models.resizable_module import BatchedModule
from tvbo.models.streaming.evicted_summary import EvictedSummary
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.finite_covariance import FiniteCovariance
from tvbo.models.streaming.rows import Rows, RowStore


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
        self,
        covariance: FiniteCovariance,
        forgetting_rate: Tensor,
        eviction_policy: EvictionPolicy,
    ):
        super().__init__()
        self.covariance = covariance
        self.eviction_policy = eviction_policy
        variance = covariance.diagonal.expand(len(forgetting_rate), -1)
        self.register_buffer("mean", torch.zeros_like(variance))
        self.register_buffer("reduction", torch.zeros_like(variance))
        self.register_buffer("now", torch.full_like(forgetting_rate, -torch.inf))
        self.evicted = EvictedSummary(variance, forgetting_rate)
        self.store = RowStore(
            self.mean,
            eviction_policy.initial_capacity,
            with_root=eviction_policy.max_lateness != 0,
        )

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
        self._check_earliest(time)
        newest = torch.maximum(self.now, time.amax(dim=-1))
        cross = self._cross_covariance(index, time)
        root = self._innovation_root(index, time, noise, cross)
        if self.eviction_policy.is_full(self.store, time.shape[1]):
            # Only after all checks, since an eviction cannot be undone.
            lost = self.eviction_policy.make_room(self.store, self.evicted, self.now, time)
            if lost is not None:
                # The variance must be explained by what is held, or later outcomes would not agree.
                self.reduction -= self.evicted.decay_since(self.now).square().unsqueeze(-1) * lost
            cross = self._cross_covariance(index, time)
            root = self._innovation_root(index, time, noise, cross)
        predicted = self.evicted.decay_since(time) * self.evicted.mean.gather(-1, index)
        predicted = predicted + (cross @ self.store.held.innovation.unsqueeze(-1)).squeeze(-1)
        innovation = torch.linalg.solve_triangular(
            root, (residual - predicted).unsqueeze(-1), upper=False
        ).squeeze(-1)
        V = torch.linalg.solve_triangular(
            root, self._unexplained(index, time, newest, cross), upper=False
        )
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
            merged = self.evicted.merged[
                element[:, None, None], index.unsqueeze(-1), index.unsqueeze(-2)
            ]
            fade = self.evicted.decay_since(self.now)[element][:, None, None]
            explained = explained + fade.square() * merged
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

    def _check_earliest(self, time: Tensor) -> None:
        """Raise if a time lies before the rows held, as they will be after ``max_rows`` is met."""
        num_evicted = self.eviction_policy.num_to_evict(self.store, time.shape[1])
        earliest = self.earliest
        if num_evicted > 0:
            earliest = torch.maximum(earliest, self.store.held.made_at[:, num_evicted - 1])
        early = time < earliest.unsqueeze(-1)
        if early.any():
            first = tuple(torch.nonzero(early)[0].tolist())
            raise InputDataError(
                f"Expected times >= {earliest[first[0]].item():g}: what was observed before is "
                f"held in sum only (max_lateness={self.eviction_policy.max_lateness}, max_rows="
                f"{self.eviction_policy.max_rows}). Got an observation at t={time[first].item():g}."
            )

    def _cross_covariance(self, index: Tensor, time: Tensor) -> Tensor:
        r"""Return :math:`c`, the covariances with the innovations held, ``b x q x k``."""
        rows = self.store.held
        lag = time.unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        cross = _columns(rows.V, index).mT * self.evicted.decay(lag.clamp_min(0.0))
        late = (lag < 0).flatten(0, 1).any(dim=0)
        if not late.any():
            return cross
        # Rows computed after the event are of its future: their c follows from the definition.
        first = int(late.to(torch.uint8).argmax())
        covar = self._prior(index, time, rows.index[:, first:], rows.time[:, first:])
        if self.evicted.merged is not None:
            covar = self._correct_early_events(covar, index, time, first)
        covar = covar - cross[..., :first] @ rows.factor[:, first:, :first].mT
        own = torch.linalg.solve_triangular(rows.factor[:, first:, first:], covar.mT, upper=False)
        return torch.cat([cross[..., :first], own.mT], dim=-1)

    def _correct_early_events(
        self, covar: Tensor, index: Tensor, time: Tensor, first: int
    ) -> Tensor:
        """Return covariances with the outcomes from row ``first`` on, corrected for early events.

        A row computed late may belong to an event before the time of the summary of evicted rows,
        which does not know the covariance with that event. There it follows from the rows: the new
        event at ``t`` lies between that event and the time ``r`` when its row was computed, so that
        the Markov property leads from ``r`` back to ``t``.

        Args:
            covar: Covariances, ``b x q x p``, wrong for early events.
            index: Indices of the new actions, ``b x q``.
            time: Times of the new events, ``b x q``.
            first: Number of the first row.
        """
        rows = self.store.held
        early = rows.time[:, first:] < self.evicted.time.unsqueeze(-1)
        if not early.any():
            return covar
        lag = rows.made_at[:, first:].unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        root = rows.factor[:, first:] * self.evicted.decay(lag.clamp_min(0.0))
        known = (root @ _columns(rows.V, index)).mT
        back = self.evicted.decay(rows.made_at[:, first:].unsqueeze(-2) - time.unsqueeze(-1))
        # Where the decay is below rounding, nothing of the event reaches the present.
        known = torch.where(back > torch.finfo(back.dtype).eps, known / back, 0.0)
        return torch.where(early.unsqueeze(-2), known, covar)

    def _prior(self, index: Tensor, time: Tensor, other: Tensor, other_time: Tensor) -> Tensor:
        """Return covariances ``b x q x p`` given the evicted rows."""
        lag = (time.unsqueeze(-1) - other_time.unsqueeze(-2)).abs()
        covar = self.covariance.between(self._elements, index, other) * self.evicted.decay(lag)
        if self.evicted.merged is None:
            return covar
        merged = self.evicted.merged[
            self._elements[:, None, None], index.unsqueeze(-1), other.unsqueeze(-2)
        ]
        fade = self.evicted.decay_since(time).unsqueeze(-1)
        return covar - fade * self.evicted.decay_since(other_time).unsqueeze(-2) * merged

    def _innovation_root(self, index: Tensor, time: Tensor, noise: Tensor, cross: Tensor) -> Tensor:
        """Return the Cholesky factor of the outcomes' covariance given all earlier ones."""
        covar = self._prior(index, time, index, time) - cross @ cross.mT
        return innovation_root(covar, noise, self.covariance.variances(self._elements, index))

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


def _columns(V: Tensor, index: Tensor) -> Tensor:
    """Return the entries of rows ``b x k x n`` at indices ``b x q``: ``b x k x q``."""
    return V.gather(-1, index.unsqueeze(-2).expand(-1, V.shape[1], -1))
