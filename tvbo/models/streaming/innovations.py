"""The exact posterior of a Markov-in-time GP on a finite set, one row per observation."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from tvbo.models.resizable_module import BatchedModule
from tvbo.models.streaming.evicted_summary import EvictedSummary
from tvbo.models.streaming.eviction_policy import EvictionPolicy
from tvbo.models.streaming.joint_covariance import MAX_EVALUATED, EventCovariance
from tvbo.models.streaming.late import late_cross_covariance
from tvbo.models.streaming.prior import MarkovPrior
from tvbo.models.streaming.rows import Rows, RowStore, lag_since, log_density
from tvbo.rounding import innovation_root


class Innovations(BatchedModule):
    r"""Posterior over ``n`` choices at the newest time, for ``b`` independent batch elements.

    The innovation :math:`\nu_j` of observation ``j`` is the outcome less its prediction from all
    earlier observations, divided by its standard deviation :math:`d_j`. Its row holds

    .. math:: V_j(x) = \mathrm{Cov}(s(x), \nu_j)
        = \Big(k(x_j, x)\,A(t - t_j) P h - \sum_{i<j} c_i V_i(x)\Big) / d_j, \quad
        c_i = \mathrm{Cov}(y_j, \nu_i)

    for the state :math:`s(x)` of each choice, as of the time :math:`r_j` when it was computed, with
    the matrices of :class:`tvbo.kernels.TemporalKernel`. The process is Markov in time: the row as
    of a later time ``t`` is :math:`A(t - r_j) V_j`; for exponential decay the state is the function
    and ``A`` the number :math:`(1 - \varepsilon)^{(t - r_j)/2}`. Then the state has the mean
    :math:`\sum a_j V_j`, with :math:`a_j` the value of :math:`\nu_j`, and the covariance
    :math:`k P - \sum V_j V_j^\top`. Both sums are updated with each observation, so that old rows
    are only needed for the :math:`c` of later observations.

    Args:
        prior: The prior over choices and time.
        now: Minus infinity for each batch element, ``b``, for shape, dtype and device.
        eviction_policy: How many rows are held, and which are merged or dropped.

    Attributes:
        mean: Mean of the states at ``now``, ``b x N``.
        reduction: Their covariance that is explained, for each choice, ``b x R``.
        now: Time of the newest observation, ``b``.

    Every shape begins with the ``b`` batch elements.
    """

    mean: Tensor
    reduction: Tensor
    now: Tensor

    def __init__(self, prior: MarkovPrior, now: Tensor, eviction_policy: EvictionPolicy):
        super().__init__()
        self.prior = prior
        self.eviction_policy = eviction_policy
        none = now.new_zeros(len(now), 0, prior.num_states * prior.num_choices)
        self.register_buffer("mean", none.sum(dim=1))
        self.register_buffer("reduction", prior.explain(none))
        self.register_buffer("now", torch.full_like(now, -torch.inf))
        self.evicted = EvictedSummary(self.mean, self.reduction, self.now)
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
        rows = self.store.held
        cross, root = self.factor(rows, index, time, noise)
        if self.store.count + time.shape[1] > self.store.capacity:
            # Only after all checks, since an eviction cannot be undone.
            lost = self.eviction_policy.make_room(
                self.prior, self.store, self.evicted, self.now, time
            )
            if lost is not None:
                # The variance must be explained by what is held, or later outcomes would not agree.
                lag = lag_since(self.evicted.time, self.now)
                self.reduction -= self.prior.advance_explained(lost, lag)
            rows = self.store.held
            cross, root = self.factor(rows, index, time, noise)
        predicted = self.predicted(index, time, cross, rows.innovation)
        news = (residual - predicted).unsqueeze(-1)
        innovation = torch.linalg.solve_triangular(root, news, upper=False).squeeze(-1)
        V = self.unexplained(rows, index, time, newest, cross)
        V = torch.linalg.solve_triangular(root, V, upper=False)
        lag = self.lag(newest)
        mean = self.prior.advance(self.mean.unsqueeze(-2), lag.unsqueeze(-1))
        self.mean = (mean + innovation.unsqueeze(-2) @ V).squeeze(-2)
        explained = self.prior.advance_explained(self.reduction, lag)
        self.reduction = explained + self.prior.explain(V)
        self.now = newest
        made_at = newest.unsqueeze(-1).expand_as(time)
        self.store.append(Rows(V, innovation, made_at, index, time, noise, root), cross)

    def lag(self, time: Tensor, element: Tensor | None = None) -> Tensor:
        """Return lags from the newest observation to times ``b x ...``; 0 if there is none."""
        return lag_since(self.now if element is None else self.now[element], time)

    def predict(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return means, less the prior mean, and variances of choices at later times, ``N x q``.

        Args:
            element: Indices of the batch elements, ``N``.
            index: Indices of the choices, ``N x q``.
            time: Times, ``N x q``, none before the newest observation.
        """
        lag = self.lag(time, element)
        mean = self.prior.read(self.mean.unsqueeze(-2), index, lag.unsqueeze(-1), element)
        variance = self.prior.variances(element, index)
        variance = variance - self.prior.read_explained(self.reduction, index, lag, element)
        return mean.squeeze(-1), variance

    def smooth(self, element: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the joint posterior, less the prior mean, at times also before the newest.

        Args:
            element: Indices of the batch elements, ``N``, each as often as any other.
            index: Indices of the choices, ``N x q``.
            time: Times, ``N x q``, none before :attr:`earliest`.

        Returns:
            Means ``N x q`` and covariances ``N x q x q``.
        """
        b, q = len(self.now), index.shape[-1]
        order = element.argsort(stable=True)
        place, when = (x[order].reshape(b, -1) for x in (index, time))
        # As of outcomes that come late.
        cross = self._cross_covariance(self.store.held, place, when)
        mean = self.predicted(place, when, cross, self.store.held.innovation)
        cross, mean = (
            x.reshape(len(index), q, x.shape[-1])[order.argsort()]
            for x in (cross, mean.unsqueeze(-1))
        )
        apart = (time.unsqueeze(-1) - time.unsqueeze(-2)).abs()
        covar = self.prior.between(element, index, index, apart) - cross @ cross.mT
        if self.evicted.merged is not None:
            lag = lag_since(self.evicted.time[element], time)
            covar = covar - self.prior.merged_between(
                self.evicted.merged, index, lag, index, lag, element
            )
        return mean.squeeze(-1), covar

    def covariance(self, num_events: int) -> EventCovariance:
        """Return posterior covariances of later events, before anything else is observed.

        Args:
            num_events: Number of events; of more than :data:`MAX_EVALUATED`, what is observed later
                does not change them.
        """
        held, evicted = self.store.held, self.evicted
        time = evicted.time
        if num_events > MAX_EVALUATED:
            self.store.shared = evicted.shared = True
            time = time.clone()
        return EventCovariance(self.prior, held.V, held.made_at, evicted.merged, time)

    @property
    def elements(self) -> Tensor:
        """Indices of the batch elements, ``b``."""
        return torch.arange(len(self.now), device=self.now.device)

    @property
    def neglected(self) -> Tensor:
        """Share of the prior variance that dropped rows explained, as of now, ``b``."""
        lag = lag_since(self.evicted.time, self.now).unsqueeze(-1)
        return self.evicted.neglected * self.prior.weight(lag).squeeze(-1)

    @property
    def log_likelihood(self) -> Tensor:
        """Log density of the outcomes observed, ``b``."""
        return self.evicted.log_likelihood + log_density(self.store.held)

    @property
    def residual(self) -> Tensor:
        """Outcomes held less the prior mean, ``b x k``.

        Raises:
            InputDataError: if the Cholesky factor is not kept.
            UnsupportedError: if an observation held is earlier than one that was evicted.
        """
        rows = self.store.held
        root = rows.factor
        if (rows.time < self.evicted.time.unsqueeze(-1)).any():
            raise UnsupportedError(
                "Expected observations in the order of time, of which the outcomes can be read. "
                f"Got one held from t={rows.time.min().item():g}, and one evicted from "
                f"t={self.evicted.time.max().item():g}."
            )
        return self.predicted(rows.index, rows.time, root, rows.innovation)

    @property
    def earliest(self) -> Tensor:
        """Earliest event time that can still be observed, ``b``."""
        if self.store.root is None:
            return self.now
        if self.eviction_policy.max_rows is None:
            return self.evicted.time
        # Where rows with weight were dropped for max_rows, the past before them is unknown.
        return torch.where(self.neglected > self.eviction_policy.tol, self.now, self.evicted.time)

    def predicted(self, index: Tensor, time: Tensor, cross: Tensor, innovation: Tensor) -> Tensor:
        """Return predictions of new outcomes, less the prior mean, ``b x q``.

        Args:
            index: Indices of the actions, ``b x q``.
            time: Event times, ``b x q``.
            cross: Their covariances with the innovations held, ``b x q x k``.
            innovation: Values of the innovations, ``b x k``.
        """
        lag = lag_since(self.evicted.time, time).unsqueeze(-1)
        known = self.prior.read(self.evicted.mean.unsqueeze(-2), index, lag)
        return (known + cross @ innovation.unsqueeze(-1)).squeeze(-1)

    def _cross_covariance(self, rows: Rows, index: Tensor, time: Tensor) -> Tensor:
        r"""Return :math:`c`, the covariances with the innovations held, ``b x q x k``."""
        lag = time.unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        cross = self.prior.read(rows.V, index, lag.clamp_min(0.0))
        late = (lag < 0).flatten(0, 1).any(dim=0)
        if not late.any():
            return cross
        first = int(late.to(torch.uint8).argmax())
        covar = self._prior(index, time, rows.index[:, first:], rows.time[:, first:])
        return late_cross_covariance(self.prior, rows, self.evicted, covar, cross, index, time)

    def _prior(self, index: Tensor, time: Tensor, other: Tensor, other_time: Tensor) -> Tensor:
        """Return covariances ``b x q x p`` given the evicted rows."""
        lag = (time.unsqueeze(-1) - other_time.unsqueeze(-2)).abs()
        covar = self.prior.between(self.elements, index, other, lag)
        if self.evicted.merged is None:
            return covar
        # Events before the time of the summary are left to the caller.
        lags = (lag_since(self.evicted.time, t).clamp_min(0.0) for t in (time, other_time))
        return covar - self.prior.merged_between(
            self.evicted.merged, index, next(lags), other, next(lags), self.elements
        )

    def factor(
        self, rows: Rows, index: Tensor, time: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return :math:`c`, and the Cholesky factor of new outcomes given those of ``rows``.

        Args:
            rows: All rows held.
            index: Indices of the actions, ``b x q``.
            time: Event times, ``b x q``.
            noise: Noise variances, ``b x q``.

        Returns:
            Covariances with the innovations held, ``b x q x k``, and the factor, ``b x q x q``.
        """
        cross = self._cross_covariance(rows, index, time)
        covar = self._prior(index, time, index, time) - cross @ cross.mT
        prior_variance = self.prior.variances(self.elements, index)
        return cross, innovation_root(covar, noise, prior_variance)

    def unexplained(
        self, rows: Rows, index: Tensor, time: Tensor, newest: Tensor, cross: Tensor
    ) -> Tensor:
        """Return the outcomes' covariances with the states at ``newest`` given ``rows``."""
        V = self.prior.rows(index, newest.unsqueeze(-1) - time)
        if self.evicted.merged is not None:
            lag, later = lag_since(self.evicted.time, time), lag_since(self.evicted.time, newest)
            V = V - self.prior.merged_rows(self.evicted.merged, index, lag, later)
        return self.prior.combine(V, cross, rows.V, newest.unsqueeze(-1) - rows.made_at, alpha=-1)
