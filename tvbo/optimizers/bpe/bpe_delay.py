"""Batched pure exploration with delays (Vakili et al., 2023)."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TYPE_CHECKING

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bpe.bounds import RoundBounds, check_noise
from tvbo.optimizers.bpe.confidence import Exploration, PriorDrawWidth, WidthRule
from tvbo.optimizers.bpe.delays import DelayBound, EstimatedDelay, WaitingRule, waiting_rule
from tvbo.optimizers.bpe.exploration_rounds import ExplorationRound, exploration_rounds, next_round
from tvbo.optimizers.bpe.rounds import (
    CurrentRound,
    FinishedRound,
    Outcome,
    Preview,
    rounds_to_frame,
)
from tvbo.optimizers.bpe.surviving_region import SurvivingRegion
from tvbo.optimizers.bpe.surviving_set import SurvivingSet
from tvbo.optimizers.recommendation import Recommendation
from tvbo.randomness import copy_of
from tvbo.rounding import power_of_two
from tvbo.spaces import Box, FiniteSpace
from tvbo.spaces.labels import Context, Time, TimeScale
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial
from tvbo.values import as_number, check_count, check_positive, check_probability

if TYPE_CHECKING:
    import pandas as pd


class BPEDelay(Optimizer):
    r"""BPE-Delay (Vakili et al., 2023, Algorithm 1); without delay, BPE (Li, Scarlett, 2022).

    The horizon is cut into few rounds. Within a round, the action of largest variance given this
    round's chosen points is taken; outcomes play no part in it. At the end, the outcomes of this
    round that have arrived give bounds, and actions whose upper bound lies below another's lower
    bound are removed for good. Outcomes of an earlier round that come later close their trial and
    are otherwise not used, as in the paper: each round's bounds need points that were chosen
    without regard to its outcomes. So do they with points of the caller's choice: an attached
    trial can be told, but enters no bounds, and does not count towards the horizon.

    A round ends with the ask that begins the next one; until then outcomes count. How the last one
    stands, :meth:`preview` tells. A round without outcomes removes nothing. A trial that failed or
    expired keeps its place among the chosen points. Rounds count asks; ``t`` plays no part, and
    there are no contexts.

    Args:
        search_space: A finite set, or a box: see :class:`SurvivingRegion` for what is exact there.
        covar_module: The kernel, held fixed; the prior mean is zero.
        noise_variance: λ², in squared units of the reward, for outcomes told without their own; at
            least 1e-12 of the largest prior variance.
        horizon: T, the number of asks.
        delta: Probability of failure δ, in (0, 1).
        delay: How late outcomes may be, in rounds of asking, or a rule that says so at the start of
            each round. None: learned, by :class:`EstimatedDelay`.
        width: How wide the bounds are; None is :class:`PriorDrawWidth`.
            :class:`FiniteSetWidth` and :class:`CompactSetWidth` are those
            of the theorems, and need the function's norm.
        generator: Source of every random choice; default a fresh one with seed 0.
        minimize: Whether smaller outcomes are better.
        time_scale: The unit of timestamps; None where times are numbers.

    Attributes:
        num_rounds: R, the number of rounds, or an upper bound of it where delays are estimated.

    Raises:
        TypeError: if ``delay`` is neither bound nor rule, or ``width`` no rule.
        BotorchTensorDimensionError: if the kernel has a batch.
        InputDataError: if ``noise_variance`` is too small for the kernel.
        ValueError: if a parameter is out of range, the kernel gives no finite variances, or the
            width is not made for the search space.
    """

    _region: SurvivingSet | SurvivingRegion

    def __init__(
        self,
        search_space: FiniteSpace | Box,
        covar_module: Kernel,
        noise_variance: float,
        horizon: int,
        delta: float = 0.1,
        delay: DelayBound | WaitingRule | None = None,
        width: WidthRule | None = None,
        generator: Generator | None = None,
        minimize: bool = False,
        time_scale: TimeScale | None = None,
    ):
        super().__init__(
            search_space, generator=generator, minimize=minimize, time_scale=time_scale
        )
        noise_variance = as_number("noise_variance", noise_variance)
        check_positive(noise_variance=noise_variance)
        check_count(horizon=horizon)
        check_probability(delta)
        self.noise_variance, self.horizon, self.delta = noise_variance, int(horizon), delta
        self.covar_module = deepcopy(covar_module).to(torch.float64).eval().requires_grad_(False)
        self.delay = EstimatedDelay() if delay is None else delay
        self._waiting = waiting_rule(self.delay)
        self.width = PriorDrawWidth() if width is None else width
        if not isinstance(self.width, WidthRule):
            raise TypeError(
                f"Expected a width, such as FixedWidth(6.0) of tvbo.optimizers.bpe. Got {width!r}."
            )
        if len(covar_module.batch_shape) > 0:
            raise BotorchTensorDimensionError(
                "Expected a kernel without a batch. "
                f"Got batch_shape={tuple(covar_module.batch_shape)}."
            )
        shortest = self._waiting.shortest(self.horizon, delta)
        self.num_rounds = len(exploration_rounds(self.horizon, shortest))
        if isinstance(search_space, FiniteSpace):
            self._region = SurvivingSet(search_space, self.covar_module, self.noise_variance)
        else:
            self._region = SurvivingRegion(
                search_space, self.covar_module, self.noise_variance, self.generator
            )
        check_noise("noise_variance", self.noise_variance, self._region.max_variance)
        self.width.width(self._exploration(num_arrived=1))
        self._bounds: RoundBounds | None = None
        self._rounds: list[FinishedRound] = []
        self._chosen: Trial | None = None
        self._asked: dict[int, int] = {}
        self._delays: list[int] = []
        self._lost: list[int] = []
        self._round = self._plan(None, first=1)

    @property
    def plan(self) -> ExplorationRound:
        """The round in progress."""
        return self._round.plan

    @property
    def bounds(self) -> RoundBounds | None:
        """Those of the latest round that ended with outcomes; None before."""
        return self._bounds

    @property
    def rounds(self) -> tuple[FinishedRound, ...]:
        """The rounds that have ended."""
        return tuple(self._rounds)

    @property
    def survivors(self) -> Tensor:
        """The actions left, ``m x d``; of a box, those that are looked at, all of them inside."""
        return self._region.X.clone()

    @property
    def model_size(self) -> int:
        """Number of chosen points that the next action rests on."""
        return len(self._region.chosen)

    def survives(self, X: Tensor) -> Tensor:
        """Whether actions are left, ``n`` for rows ``n x d``.

        Raises:
            InputDataError: if a row is no action of the search space.
        """
        return self._region.survives(self.search_space.snap(X))

    def preview(self) -> Preview:
        """Return how the round in progress would end now. Does not modify the optimizer."""
        with self._one_call("preview"):
            region = copy(self._region)
            record, bounds = self._end(region, copy_of(self.generator))
            return Preview(record, region.X.clone(), bounds)

    def recommend(self, context: Context | None = None, t: Time | None = None) -> Recommendation:
        """Return the remaining action with the highest posterior mean.

        Does not modify the optimizer. The posterior is that of the round in progress, as if it
        ended now (see :meth:`preview`), or of the latest round with outcomes if this one has none
        yet, so the standard deviation may be large. On a box, a local search starts from the best
        point of the pool.

        Args:
            context: None, since the algorithm takes no contexts.
            t: The time stored in the recommendation, without further effect. None is that of the
                latest ask.

        Raises:
            InputDataError: if no outcome has come within its round, or ``t`` is not finite.
            BotorchTensorDimensionError: if a context is given.
        """
        with self._one_call("recommend"):
            self._check_context(context)
            region = copy(self._region)
            _, bounds = self._end(region, copy_of(self.generator))
            bounds = self._bounds if bounds is None else bounds
            if bounds is None:
                raise InputDataError("Expected an outcome within its round. Got none yet.")
            X = region.highest(bounds)
            with torch.no_grad():
                mean, deviation = bounds.moments(X)
            mean *= self._signs[0]
            t = self._time_of(t)
            return Recommendation(
                X, mean.item(), deviation.item(), t, None, self.minimize, self.labels
            )

    def to_frame(self) -> pd.DataFrame:
        """Return a table of the rounds that have ended, one row for each."""
        return rounds_to_frame(self._rounds)

    def _check_can_ask(self) -> None:
        if self._num_asked >= self.horizon:
            raise ValueError(
                f"Expected at most horizon={self.horizon} asks: the rounds are planned for them. "
                "Got one more; preview() tells which actions are left."
            )

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        number = self._num_asked + 1
        if number == self._round.first + self.plan.length:
            self._turn(number)
        return self._region.choose(self.generator)

    def _judge(self, trial: Trial) -> Trial:
        self._chosen = trial
        return trial

    def _open_trial(self, trial: Trial) -> None:
        # Only now: an ask that broke half-way was none. One that is attached is not the round's.
        if trial is self._chosen:
            self._region.condition(trial.X)
            self._asked[trial.id] = self._num_asked
            self._round.first_trial = self._round.first_trial or trial.id
            self._chosen = None
        super()._open_trial(trial)

    @property
    def _unit(self) -> float:
        return power_of_two(self._region.max_variance)

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        super()._check_outcome(trial, observation)
        noise = self.noise_variance if observation.Yvar is None else observation.Yvar.item()
        check_noise("Yvar", noise, self._region.max_variance)

    def _learn(self, trial: Trial, observation: Observations) -> None:
        noise = self.noise_variance if observation.Yvar is None else observation.Yvar.item()
        number = self._asked.pop(trial.id, None)
        if number is None:
            return
        self._delays.append(self._num_asked - number)
        if number >= self._round.first:
            self._round.arrived[number] = Outcome(trial.X, observation.Y.item(), noise)

    def _forget(self, trial: Trial) -> None:
        number = self._asked.pop(trial.id, None)
        if number is not None:
            self._lost.append(self._num_asked - number)

    def _turn(self, first: int) -> None:
        """End the round in progress and begin the next one with ask number ``first``."""
        region = copy(self._region)
        record, bounds = self._end(region, self.generator)
        following = self._plan(self.plan, first)
        self._region, self._round = region, following
        self._bounds = self._bounds if bounds is None else bounds
        self._rounds.append(record)

    def _plan(self, previous: ExplorationRound | None, first: int) -> CurrentRound:
        """Plan a round whose first ask is number ``first``."""
        awaited = [first - 1 - number for number in self._asked.values()] + self._lost
        upper_bound = self._waiting.wait(self.horizon, self.delta, self._delays, awaited)
        remaining = self.horizon - first + 1
        plan = next_round(self.horizon, upper_bound, previous, remaining)
        return CurrentRound(plan, upper_bound, first)

    def _end(
        self, region: SurvivingSet | SurvivingRegion, generator: Generator
    ) -> tuple[FinishedRound, RoundBounds | None]:
        """Remove what the outcomes that arrived rule out."""
        before, num_chosen = region.size, len(region.chosen)
        bounds = threshold = deviation = None
        if self._round.arrived:
            bounds = self._from_outcomes()
            threshold, deviation = region.remove(bounds, generator)
        else:
            region.start()
        sizes = before, region.size
        return self._round.finished(num_chosen, sizes, bounds, deviation, threshold), bounds

    def _from_outcomes(self) -> RoundBounds:
        outcomes = self._round.outcomes
        X = torch.cat([each.X for each in outcomes])
        Y = X.new_tensor([each.Y for each in outcomes])
        noise = X.new_tensor([each.noise for each in outcomes])
        width = self.width.width(self._exploration(len(outcomes)))
        return RoundBounds.given(self.covar_module, X, Y, noise, width)

    def _exploration(self, num_arrived: int) -> Exploration:
        return Exploration(
            delta=self.delta,
            num_rounds=self.num_rounds,
            num_arrived=num_arrived,
            noise_variance=self.noise_variance,
            dim=self.search_space.dim,
            num_points=self._region.num_points,
            max_variance=self._region.max_variance,
            horizon=self.horizon,
        )
