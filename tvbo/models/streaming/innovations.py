"""The exact posterior of a Markov-in-time GP on a finite set, one row per observation."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from tvbo.models.streaming.base import Base
from tvbo.models.streaming.finite_covariance import FiniteCovariance
from tvbo.models.streaming.room import Room
from tvbo.models.streaming.rows import Rows, RowStore
from tvbo.models.streaming.state import GrowingModule

CERTAIN = 1e-13
"""Share of its prior variance below which the variance of an outcome is rounding."""


class Innovations(GrowingModule):
    r"""Posterior over ``n`` choices at the newest time, for ``b`` independent trials.

    Observation ``j`` less what those before it foretell, in units of its standard deviation
    :math:`d_j`, is an innovation :math:`\nu_j`. Its row holds

    .. math:: V_j(x) = \mathrm{Cov}(f(x), \nu_j)
        = \Big(k(x_j, x)\,\phi(|t - t_j|) - \sum_{i<j} c_i V_i(x)\Big) / d_j, \quad
        c_i = \mathrm{Cov}(y_j, \nu_i), \quad \phi(\Delta) = (1 - \varepsilon)^{\Delta/2}

    as of the time :math:`r_j` when it was made. The process is Markov in time: to move the clock
    to ``t`` is to multiply the row by :math:`\phi(t - r_j)`. Then :math:`\mu = \sum a_j V_j` and
    the variance is :math:`k - \sum V_j^2`. Both sums are carried forward, so that old rows serve
    only to find :math:`c` for later observations.

    Args:
        covariance: The prior covariance over the choices.
        forgetting_rate: ε of each trial, ``b``.
        room: How many rows are held, and where the others go.

    Every shape begins with the ``b`` trials.
    """

    def __init__(self, covariance: FiniteCovariance, forgetting_rate: Tensor, room: Room):
        super().__init__()
        self.covariance = covariance
        self.room = room
        variance = covariance.diagonal.expand(len(forgetting_rate), -1)
        self.register_buffer("mean", torch.zeros_like(variance))
        self.register_buffer("reduction", torch.zeros_like(variance))
        self.register_buffer("now", torch.full_like(forgetting_rate, -torch.inf))
        self.base = Base(variance, forgetting_rate)
        self.store = RowStore(self.mean, room.first_capacity, with_root=room.max_lateness != 0)

    def reset(self) -> None:
        """Forget every observation."""
        self.mean.zero_()
        self.reduction.zero_()
        self.now = torch.full_like(self.now, -torch.inf)
        self.base.reset()
        self.store.clear()

    def observe(self, index: Tensor, time: Tensor, residual: Tensor, noise: Tensor) -> None:
        """Take in ``q`` observations of every trial.

        Args:
            index: Positions of the actions, ``b x q``.
            time: Event times, ``b x q``, in any order, also before the newest.
            residual: Outcomes less the prior mean, ``b x q``.
            noise: Noise variances, ``b x q``.

        Raises:
            InputDataError: if an event time lies before the rows that are held, or an outcome is
                certain already. Nothing is taken in then.
        """
        self._check_reach(time)
        newest = torch.maximum(self.now, time.amax(dim=-1))
        cross = self._cross(index, time)
        root = self._innovation_root(index, time, noise, cross)
        if self.room.is_needed(self.store, time.shape[1]):
            # Only now, when nothing can be refused any more.
            lost = self.room.make(self.store, self.base, self.now, time)
            if lost is not None:
                # Variances explain no more than is held, or later outcomes would not agree.
                self.reduction -= self.base.since(self.now).square().unsqueeze(-1) * lost
            cross = self._cross(index, time)
            root = self._innovation_root(index, time, noise, cross)
        foretold = self.base.since(time) * self.base.mean.gather(-1, index)
        foretold = foretold + (cross @ self.store.held.gains.unsqueeze(-1)).squeeze(-1)
        surprise = (residual - foretold).unsqueeze(-1)
        gains = torch.linalg.solve_triangular(root, surprise, upper=False).squeeze(-1)
        V = torch.linalg.solve_triangular(
            root, self._unexplained(index, time, newest, cross), upper=False
        )
        fade = self.since_newest(self._trials, newest.unsqueeze(-1))
        self.mean = fade * self.mean + (gains.unsqueeze(-2) @ V).squeeze(-2)
        self.reduction = fade.square() * self.reduction + V.square().sum(dim=-2)
        self.now = newest
        made_at = newest.unsqueeze(-1).expand_as(time)
        self.store.append(Rows(V, gains, made_at, index, time, noise, root), cross)

    def since_newest(self, trial: Tensor, time: Tensor) -> Tensor:
        r""":math:`\phi` from the newest observation to later times, ``N x q``; 0 before any."""
        lag = time - self.now[trial].unsqueeze(-1)
        return self.base.decay_of(self.base.exponent[trial], lag).nan_to_num_(nan=0.0)

    def predict(self, trial: Tensor, index: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Joint posterior, less the prior mean, of ``q`` choices at times after the newest.

        Args:
            trial: Numbers of the trials, ``N``.
            index: Positions, ``N x q``.
            time: Times, ``N x q``.

        Returns:
            Means ``N x q`` and covariances ``N x q x q``.
        """
        fade = self.since_newest(trial, time)
        each = trial.unsqueeze(-1)
        mean = fade * self.mean[each, index]
        variance = self.covariance.variances(trial, index)
        variance = variance - fade.square() * self.reduction[each, index]
        if index.shape[-1] == 1:
            return mean, variance.unsqueeze(-1)
        lag = (time.unsqueeze(-1) - time.unsqueeze(-2)).abs()
        covar = self.covariance.between(trial, index, index)
        covar = covar * self.base.decay_of(self.base.exponent[trial], lag)
        fades = fade.unsqueeze(-1) * fade.unsqueeze(-2)
        covar = covar - fades * self._explained(trial, index)
        # The same to the last digit as for one row at a time.
        covar.diagonal(dim1=-2, dim2=-1).copy_(variance)
        return mean, covar

    def _explained(self, trial: Tensor, index: Tensor) -> Tensor:
        """Prior less posterior covariance at the newest time, ``N x q x q``, by what is held."""
        rows = self.store.held
        fade = self.base.decay(self.now.unsqueeze(-1) - rows.made_at)
        V = rows.V.mT[trial.unsqueeze(-1), index] * fade[trial].unsqueeze(-2)
        explained = V @ V.mT
        if self.base.shared is not None:
            shared = self.base.shared[
                trial[:, None, None], index.unsqueeze(-1), index.unsqueeze(-2)
            ]
            fade = self.base.since(self.now)[trial][:, None, None]
            explained = explained + fade.square() * shared
        return explained

    @property
    def _trials(self) -> Tensor:
        return torch.arange(len(self.now), device=self.now.device)

    @property
    def earliest(self) -> Tensor:
        """Earliest event time that can still be observed, ``b``."""
        if self.store.root is None:
            return self.now
        if self.room.max_rows is None:
            return self.base.time
        # What was dropped for want of room leaves the past before it unknown.
        lost = self.base.neglected * self.base.since(self.now).square() > self.room.tol
        return torch.where(lost, self.now, self.base.time)

    def _check_reach(self, time: Tensor) -> None:
        going = self.room.forced_out(self.store, time.shape[1])
        earliest = self.earliest
        if going > 0:
            earliest = torch.maximum(earliest, self.store.held.made_at[:, going - 1])
        early = time < earliest.unsqueeze(-1)
        if early.any():
            place = tuple(torch.nonzero(early)[0].tolist())
            raise InputDataError(
                f"Expected times >= {earliest[place[0]].item():g}: what was observed before is "
                f"held in sum only (max_lateness={self.room.max_lateness}, "
                f"max_rows={self.room.max_rows}). Got an observation at t={time[place].item():g}."
            )

    def _cross(self, index: Tensor, time: Tensor) -> Tensor:
        r""":math:`c`: covariances of the function with the innovations held, ``b x q x k``."""
        rows = self.store.held
        lag = time.unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        cross = _columns(rows.V, index).mT * self.base.decay(lag.clamp_min(0.0))
        late = (lag < 0).flatten(0, 1).any(dim=0)
        if not late.any():
            return cross
        # Rows made after the event lie in its future: their c follows from the definition.
        first = int(late.to(torch.uint8).argmax())
        covar = self._prior(index, time, rows.index[:, first:], rows.time[:, first:])
        if self.base.shared is not None:
            covar = self._of_early_events(covar, index, time, first)
        covar = covar - cross[..., :first] @ rows.root[:, first:, :first].mT
        own = torch.linalg.solve_triangular(rows.root[:, first:, first:], covar.mT, upper=False)
        return torch.cat([cross[..., :first], own.mT], dim=-1)

    def _of_early_events(self, covar: Tensor, index: Tensor, time: Tensor, first: int) -> Tensor:
        """``covar``, ``b x q x p`` with the rows from ``first`` on, corrected for early ones.

        A row made late may tell of an event before the base, of which the base does not know the
        covariance. There the rows themselves do: an event at ``t`` lies between that event and the
        time ``r`` when its row was made, so that Markov's property leads from ``r`` back to ``t``.
        """
        rows = self.store.held
        early = rows.time[:, first:] < self.base.time.unsqueeze(-1)
        if not early.any():
            return covar
        lag = rows.made_at[:, first:].unsqueeze(-1) - rows.made_at.unsqueeze(-2)
        root = rows.root[:, first:] * self.base.decay(lag.clamp_min(0.0))
        known = (root @ _columns(rows.V, index)).mT
        back = self.base.decay(rows.made_at[:, first:].unsqueeze(-2) - time.unsqueeze(-1))
        # Of what has faded to rounding, nothing reaches the present.
        known = torch.where(back > torch.finfo(back.dtype).eps, known / back, 0.0)
        return torch.where(early.unsqueeze(-2), known, covar)

    def _prior(self, index: Tensor, time: Tensor, other: Tensor, other_time: Tensor) -> Tensor:
        """Covariances ``b x q x p`` given what the base has taken over."""
        lag = (time.unsqueeze(-1) - other_time.unsqueeze(-2)).abs()
        covar = self.covariance.between(self._trials, index, other) * self.base.decay(lag)
        if self.base.shared is None:
            return covar
        shared = self.base.shared[
            self._trials[:, None, None], index.unsqueeze(-1), other.unsqueeze(-2)
        ]
        fade = self.base.since(time).unsqueeze(-1) * self.base.since(other_time).unsqueeze(-2)
        return covar - fade * shared

    def _innovation_root(self, index: Tensor, time: Tensor, noise: Tensor, cross: Tensor) -> Tensor:
        """Cholesky factor of the covariance of the outcomes given all before, ``b x q x q``."""
        covar = self._prior(index, time, index, time) - cross @ cross.mT
        covar.diagonal(dim1=-2, dim2=-1).add_(noise)
        variance = self.covariance.variances(self._trials, index)
        root, info = torch.linalg.cholesky_ex(covar)
        certain = root.diagonal(dim1=-2, dim2=-1).square() <= CERTAIN * variance
        if (info > 0).any() or certain.any():
            raise InputDataError(
                "Expected outcomes that are not certain already. Got one whose variance is zero "
                "to rounding: a repeat without noise, or a covariance that is not positive "
                "semi-definite."
            )
        return root

    def _unexplained(self, index: Tensor, time: Tensor, newest: Tensor, cross: Tensor) -> Tensor:
        """Covariances of the outcomes with the choices at ``newest``, given all before."""
        rows = self.store.held
        newest = newest.unsqueeze(-1)
        V = self.covariance.rows(self._trials, index) * self.base.decay(newest - time).unsqueeze(-1)
        if self.base.shared is not None:
            fade = self.base.since(newest) * self.base.since(time)
            V = V - fade.unsqueeze(-1) * self.base.shared[self._trials[:, None], index]
        weights = cross * self.base.decay(newest - rows.made_at).unsqueeze(-2)
        return torch.baddbmm(V, weights, rows.V, alpha=-1)


def _columns(V: Tensor, index: Tensor) -> Tensor:
    """Entries of rows ``b x k x n`` at positions ``b x q``: ``b x k x q``."""
    return V.gather(-1, index.unsqueeze(-2).expand(-1, V.shape[1], -1))
