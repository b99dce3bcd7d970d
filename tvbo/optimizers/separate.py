"""One optimizer for each context: what contextual bandits have to beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Generator, Tensor

from tvbo.observations import Observations
from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.events import Event
from tvbo.optimizers.gp_optimizer import GPOptimizer
from tvbo.optimizers.recommendation import Policy, Recommendation
from tvbo.optimizers.trial import Trial
from tvbo.optimizers.trial_log import LostTrial
from tvbo.randomness import copy_of
from tvbo.search_space import ContextBounds, ContextList, ContextSpace, InputLayout, SearchSpace


class SeparateContexts(Optimizer):
    """A loop of its own for every context, which learns nothing from the others.

    The baseline of Krause, Ong (2011), Section 6. Contexts in bounds are cut into cells, each
    column into as many equal parts; those of one cell share a loop.

    Args:
        search_space: The set of actions.
        contexts: A list of contexts, or bounds.
        make: Makes the loop of one context, without contexts, from ``generator=``.
        bins: Parts of each context column; for bounds, and for bounds only.
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

    def loop(self, context: Tensor | None) -> GPOptimizer:
        """The loop of a context, made when it is first seen.

        Raises:
            As :meth:`ask` for contexts.
        """
        cell = self._cell(self.contexts.snap(context))
        if cell not in self.loops:
            self.loops[cell] = self.make(generator=self.generator)
        return self.loops[cell]

    def recommend(self, context: Tensor, t: float | None = None) -> Recommendation:
        """As :meth:`GPOptimizer.recommend`, from the loop of the context alone."""
        context = self.contexts.snap(context)
        loop = self.loops.get(self._cell(context)) or self.make(generator=self.generator)
        return replace(loop.recommend(t=self._time_of(t)), context=context)

    def policy(self, contexts: Tensor | None = None, t: float | None = None) -> Policy:
        """As :meth:`GPOptimizer.policy`, each context from its own loop."""
        return Policy.collect([self.recommend(each, t) for each in self._check_table(contexts)])

    def ask(self, t: float | None = None, context: Tensor | None = None) -> Trial:
        """As :meth:`Optimizer.ask`."""
        try:
            return super().ask(t, context)
        except BaseException:
            # What its own loop had asked already must not stay open there.
            for number in [number for number in self._inner if number not in self._open]:
                inner = self._inner.pop(number)
                for loop in self.loops.values():
                    if loop._open.get(inner.id) is inner:
                        loop.expire(inner, "its ask was interrupted")
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
        # The trial that is about to be opened stands for the one of the inner loop.
        self._inner[self._num_trials + 1] = trial
        return trial.X

    def _judge(self, trial: Trial) -> Trial:
        inner = self._inner[trial.id]
        if inner.skipped:
            del self._inner[trial.id]
        elif not torch.equal(inner.X, trial.X):
            # A replay took the recorded action, which differs by rounding; so does its own loop.
            inner = self._inner[trial.id] = replace(inner, X=trial.X)
            self.loop(trial.context)._open[inner.id] = inner
        return replace(inner, id=trial.id, context=trial.context)

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        self.loop(trial.context)._check_outcome(self._inner[trial.id], observation)

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
        """That of the loops, which are all made alike."""
        return self.make(generator=copy_of(self.generator)).repeats_open_trials
