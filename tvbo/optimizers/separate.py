"""One optimizer for each context, the baseline of contextual bandits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Generator, Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.trial_log import LostTrial
from tvbo.randomness import copy_of
from tvbo.spaces import (
    Context,
    ContextBounds,
    ContextList,
    ContextSpace,
    InputLayout,
    SearchSpace,
    Table,
    Time,
)
from tvbo.spaces.observations import Observations
from tvbo.storage.recorded import Event
from tvbo.storage.request import Request
from tvbo.trial import Trial


class SeparateContexts(Optimizer):
    """Independent optimizers, one for each context.

    The baseline of Krause, Ong (2011), Section 6. Context bounds are divided into cells, each
    column into ``bins`` equal parts; the contexts of a cell share an optimizer.

    Args:
        search_space: The set of actions.
        contexts: A list of contexts, or bounds.
        make: Function that returns the optimizer of one context, itself without contexts, given
            ``generator=``.
        bins: Number of parts of each context column; required with bounds, refused with a list.
        generator: Source of every random choice; default a fresh one with seed 0.

    Raises:
        ValueError: if ``bins`` is missing for bounds, given for a list, or not positive.
    """

    contexts: ContextSpace

    def __init__(
        self,
        search_space: SearchSpace,
        contexts: ContextSpace,
        make: Callable[..., GPOptimizer],
        bins: int | None = None,
        generator: Generator | None = None,
    ):
        if isinstance(contexts, ContextBounds) != (bins is not None):
            raise ValueError(
                "Expected bins with context_bounds, and without them for a list of contexts. "
                f"Got {type(contexts).__name__} and bins={bins}."
            )
        if bins is not None and bins < 1:
            raise ValueError(f"Expected bins >= 1. Got {bins}.")
        super().__init__(search_space, InputLayout(search_space.dim), generator, contexts)
        self.make = make
        self.bins = bins
        self.loops: dict[tuple[int, ...], GPOptimizer] = {}
        self._inner: dict[int, Trial] = {}

    @property
    def model_size(self) -> int:
        """Number of observations held, over all contexts."""
        return sum(loop.model_size for loop in self.loops.values())

    def loop(self, context: Context | None) -> GPOptimizer:
        """Return the optimizer of a context; it is made at the first use.

        Raises:
            Those of :meth:`ask` for contexts.
        """
        cell = self._cell(self._declared_context(context))
        if cell not in self.loops:
            self.loops[cell] = self.make(generator=self.generator)
            self.loops[cell]._is_inner = True
        return self.loops[cell]

    def recommend(self, context: Context, t: Time | None = None) -> Recommendation:
        """Return the recommendation of the optimizer of this context alone.

        See :meth:`GPOptimizer.recommend`.
        """
        context = self._declared_context(context)
        loop = self.loops.get(self._cell(context)) or self.make(generator=self.generator)
        found = loop.recommend(t=self._time_of(t))
        return self._recommendation(found.X, found.mean, found.standard_deviation, found.t, context)

    def policy(self, contexts: Table | None = None, t: Time | None = None) -> Policy:
        """Return the recommendation for each context, from its own optimizer.

        See :meth:`GPOptimizer.policy`.
        """
        return Policy.collect([self.recommend(each, t) for each in self._check_table(contexts)])

    def _ask_for(
        self, request: Request | None, t: float, context: Tensor | None, key: str | None
    ) -> tuple[Trial, ...]:
        try:
            return super()._ask_for(request, t, context, key)
        except BaseException:
            # The trial of the inner optimizer must not stay pending there.
            for number in [number for number in self._inner if number not in self._open]:
                inner = self._inner.pop(number)
                for loop in self.loops.values():
                    if loop._open.get(inner.id) is inner:
                        loop._close(inner)
                        loop._let_go(inner)
            raise

    def _cell(self, context: Tensor) -> tuple[int, ...]:
        if isinstance(self.contexts, ContextList):
            return (self.contexts.index(context),)
        # Bounds come with bins, as __init__ has checked.
        bins = cast(int, self.bins)
        lower, upper = self.contexts.bounds
        width = torch.where(upper > lower, upper - lower, 1.0)
        # The upper bound itself belongs to the last part.
        part = ((context - lower) / width * bins).long().clamp_max(bins - 1)
        return tuple(part.tolist())

    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        trial = self.loop(context).ask(t)
        # The number of the trial that the caller is about to open.
        self._inner[self._num_trials + 1] = trial
        return trial.X

    def _judge(self, trial: Trial) -> Trial:
        inner = self._inner[trial.id]
        if inner.skipped:
            del self._inner[trial.id]
        elif not torch.equal(inner.X, trial.X):
            # A replay takes the recorded action, which may differ by rounding from this one.
            inner = self._inner[trial.id] = replace(inner, X=trial.X)
            self.loop(trial.context)._open[inner.id] = inner
        return replace(inner, id=trial.id, context=trial.context, labels=self.labels, key=trial.key)

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        self.loop(trial.context)._check_outcome(self._inner.get(trial.id, trial), observation)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        self.loop(trial.context).tell(self._inner[trial.id], observation.Y, observation.Yvar)
        del self._inner[trial.id]

    def _open_trial(self, trial: Trial) -> Trial:
        if trial.id not in self._inner:
            self._inner[trial.id] = self.loop(trial.context).attach(trial.X, trial.t)
        return super()._open_trial(trial)

    def _refits(self) -> list[Event]:
        return [event for loop in self.loops.values() for event in loop._refits()]

    def _forget(self, lost: LostTrial) -> None:
        inner = self._inner.pop(lost.trial.id)
        self.loop(lost.trial.context)._lose(inner, lost.ending, lost.reason)

    @property
    def repeats_open_trials(self) -> bool:
        """Whether the inner optimizers, which are all made alike, repeat pending trials."""
        return self.make(generator=copy_of(self.generator)).repeats_open_trials
