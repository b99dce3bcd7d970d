"""The posterior on a finite set, at constant cost per round."""

from __future__ import annotations

from dataclasses import replace

import torch
from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.fit.model_fitter import ModelFitter, RefitNever
from tvbo.models import StreamingGP
from tvbo.models.raw import RawRowKernel
from tvbo.models.raw_action_kernel import with_time
from tvbo.optimizers.pending import Pending
from tvbo.optimizers.posterior_state import PosteriorState, least_noise, mean_and_variance
from tvbo.rounding import TIE_TOLERANCE
from tvbo.spaces.observations import Observations


class StreamingState(PosteriorState):
    r"""Keep a :class:`tvbo.models.StreamingGP` up to date with the observations.

    The posterior is that of the dense model with the same hyperparameters. Where they are learned,
    they are learned from the observations that retention kept, and the model is built again from
    these. Between two fits, the scaling of outcomes stays as it was at the last one; a dense model
    scales them again in each round.

    One posterior carries both the outcomes and the pending trials, at the cost of a round without
    delay. Where a trial is lost, an outcome comes with another noise than was expected, or one
    comes late that was never seen pending, the rows of the model are made again.

    Args:
        fitter: Holds or learns the hyperparameters.
        choices: ``n x d``, the finite set.
        tol: Weight :math:`(1-\varepsilon)^{\text{age}}` at which an observation or a pending trial
            is negligible, as in :class:`tvbo.models.StreamingGP`.
    """

    last_model: StreamingGP | None

    def __init__(self, fitter: ModelFitter, choices: Tensor, tol: float = 1e-12):
        super().__init__(fitter)
        self.choices = choices
        self.tol = tol
        # Observations in the model.
        self._num_seen = 0
        self._least_noise = 0.0

    def update(self, observations: Observations, num_told: int, generator: Generator) -> None:
        """Fit the hyperparameters if that is due.

        The observations are taken in by :meth:`condition`, with the pending trials.

        Args:
            observations: Those of the last call, less those dropped since, and new ones.
            num_told: Number of outcomes that entered so far; decides whether a fit is due.
            generator: Seeds the restarts of a fit.

        Raises:
            InputDataError: if the noise of the outcomes is neither known nor learned.
        """
        noise_is_given = self.fitter.noise_variance is not None
        if self.last_model and noise_is_given and isinstance(self.fitter.refit, RefitNever):
            # All hyperparameters are given.
            return
        self.fitter.check_noise(observations)
        if self.last_model is None or self.fitter.may_change(num_told):
            self.last_model = self._fitted(self.fitter, observations, num_told, generator)
            self._num_seen = 0

    def condition(self, observations: Observations, rows: Tensor, pending: Pending) -> Model:
        """Return the posterior given the observations and the pending trials.

        Args:
            observations: Those of the last :meth:`update`.
            rows: ``[action | context | time]`` of the pending trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes.
        """
        model = self.last_model
        assert model is not None
        try:
            self._take_in(model, observations[self._num_seen :])
        except BaseException:
            # What an error leaves half-way is of no use.
            self._reset()
            raise
        self._num_seen = len(observations)
        if len(rows) > 0:
            now = torch.cat([rows[:, -1], observations.X[:, -1]]).max()
            rows = rows[model.weight(now - rows[:, -1]) > self.tol]
        places, lost = _match(model, rows)
        if lost:
            model.discard(torch.tensor(lost))
        new = [i for i, place in enumerate(places) if place is None]
        if new:
            noise = self.outcome_noise(observations)
            noise = self._least_noise if noise is None else max(noise, self._least_noise)
            model.open(rows[new], rows.new_full((len(new), 1), noise))
        if not pending.enabled:
            # Their rows are made all the same, so that outcomes that come late cost no more.
            return model.without_pending()
        if len(rows) > 0:
            order = torch.tensor(_match(model, rows)[0])
            values = pending.outcomes(rows, lambda: model.expected_outcomes[order].unsqueeze(-1))
            model.stand_in(
                torch.empty_like(order, dtype=values.dtype).index_copy(0, order, values.squeeze(-1))
            )
        return model

    def preview(
        self, observations: Observations, keep: Tensor, num_told: int, generator: Generator
    ) -> StreamingGP:
        """Return the posterior that the next round would have without pending trials.

        Where ``keep`` leaves observations out, its rows are made again.

        Args:
            observations: Those of the last :meth:`update`, less those dropped since, and new ones.
            keep: Mask of the observations that are included, ``n``.
            num_told: Number of outcomes that entered so far.
            generator: Seeds the restarts of a fit.
        """
        self.fitter.check_noise(observations)
        kept = observations[keep]
        if self.last_model is None or self.fitter.may_change(num_told):
            model = self._fitted(self.fitter.copy(), kept, num_told, generator)
        elif keep.all():
            model, kept = self.last_model.snapshot(), observations[self._num_seen :]
        else:
            model = self.last_model.clone_without_data()
        self._take_in(model, kept)
        return model.without_pending()

    def predict(self, row: Tensor) -> tuple[float, float]:
        """Return mean and variance at a row by the outcomes alone, whatever is pending.

        Args:
            row: ``1 x d``, not before the newest observation or pending trial.
        """
        assert self.last_model is not None
        return mean_and_variance(self.last_model.without_pending(), row)

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Forget observations, unless they have lost their weight and are forgotten already.

        Args:
            observations: Those of the last :meth:`update`, and new ones.
            keep: Mask of the observations that stay, ``n``.
            t: The present time.
        """
        if self.last_model is None:
            return
        gone = ~keep
        seen = int(gone[: self._num_seen].sum())
        weight = self.last_model.weight(t - observations.X[gone][:, -1])
        # A policy that drops at this very weight rounds it otherwise.
        if seen > 0 and (weight > self.tol * (1 + TIE_TOLERANCE)).any():
            self._reset()
        else:
            self._num_seen -= seen

    def restart(self) -> None:
        """Forget all observations: those of the next :meth:`update` are new."""
        if self.last_model is not None:
            self._reset()

    def _take_in(self, model: StreamingGP, new: Observations) -> None:
        """Add outcomes; those of pending trials take the place of their stand-ins."""
        if len(new) == 0:
            return
        if new.Yvar is not None:
            new = replace(new, Yvar=new.Yvar.clamp_min(self._least_noise))
        places, _ = _match(model, new.X)
        known = [i for i, place in enumerate(places) if place is not None]
        if known:
            told = new[torch.tensor(known)]
            noise = model.noise_variance.expand_as(told.Y) if told.Yvar is None else told.Yvar
            model.tell(torch.tensor([places[i] for i in known]), told.Y, noise)
            new = new[torch.tensor([i for i, place in enumerate(places) if place is None]).long()]
        if len(new) > 0:
            model.observe(new.X, new.Y, new.Yvar)

    def _reset(self) -> None:
        assert self.last_model is not None
        self.last_model.reset()
        self._num_seen = 0

    def _fitted(
        self, fitter: ModelFitter, observations: Observations, num_told: int, generator: Generator
    ) -> StreamingGP:
        """Return a model with fitted hyperparameters, without observations."""
        dense = fitter.fit(observations, num_told, generator)
        with torch.no_grad():
            # Of the largest prior variance: one number, since each round asks for it.
            prior = RawRowKernel(dense)(with_time(self.choices, 0.0), diag=True).max()
        self._least_noise = least_noise(dense, prior).item()
        given = fitter.noise_variance
        noise = None if given is None else max(given, self._least_noise)
        return StreamingGP.from_model(dense, self.choices, noise_variance=noise, tol=self.tol)


def _match(model: StreamingGP, rows: Tensor) -> tuple[list[int | None], list[int]]:
    """Return the place of each row among the pending trials of a model, and places of no row."""
    pending = model.X_pending
    if len(pending) == 0:
        return [None] * len(rows), []
    places: dict[tuple[int, float], list[int]] = {}
    for i, trial in enumerate(_keys(model, pending)):
        places.setdefault(trial, []).append(i)
    found: list[int | None] = []
    for row in _keys(model, rows):
        # Of trials that ask the same, any may be meant.
        same = places.get(row)
        found.append(same.pop(0) if same else None)
    return found, [i for same in places.values() for i in same]


def _keys(model: StreamingGP, rows: Tensor) -> list[tuple[int, float]]:
    """Return rows as what they ask for: trials with equal rows are interchangeable."""
    index = model.row_index.index(rows[:, :-1]).tolist()
    return list(zip(index, rows[:, -1].tolist(), strict=True))
