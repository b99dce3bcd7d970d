"""Batched pure exploration with delays (Vakili et al., 2023)."""

from __future__ import annotations

import math
from copy import copy, deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import Kernel
from torch import Generator, Tensor

from tvbo.optimizers.base import Optimizer, OptimizerOptions
from tvbo.optimizers.bpe.confidence import Exploration, PriorDrawWidth, WidthRule
from tvbo.optimizers.bpe.delays import NO_DELAY, DelayBound, estimate_delay
from tvbo.optimizers.bpe.surviving_set import (
    MIN_NOISE_SHARE,
    RoundPosterior,
    SurvivingRegion,
    SurvivingSet,
)
from tvbo.recommendation import Recommendation
from tvbo.spaces import Box, FiniteSpace
from tvbo.spaces.labels import Context, Time
from tvbo.spaces.observations import Observations
from tvbo.spaces.search_space import SearchSpace
from tvbo.trial import Trial
from tvbo.values import as_number, check_count, check_positive, check_probability

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("number", "q", "length", "num_chosen", "num_arrived", "size_before", "size_after")


class BPEDelay(Optimizer):
    r"""BPE-Delay (Vakili et al., 2023, Algorithm 1); without delay, BPE (Li, Scarlett, 2022).

    The horizon is cut into few rounds. Within a round, the action of largest variance given this
    round's chosen points is taken; outcomes play no part in it. At the end, the outcomes of this
    round that have arrived give bounds, and actions whose upper bound lies below another's lower
    bound are removed for good. Outcomes of an earlier round that come later close their trial and
    are otherwise not used, as in the paper: each round's bounds need points that were chosen
    without regard to its outcomes. So do they with points of the caller's choice: an attached
    trial can get an outcome, but enters no bounds, and does not count towards the horizon.

    A round ends with the ask that begins the next one; until then outcomes count. A round without
    outcomes removes nothing. A trial that failed or expired keeps its place among the chosen
    points. Rounds count asks; ``t`` plays no part, and there are no contexts.

    Where delays are estimated, the first round is :math:`\lceil\sqrt T\rceil` trials long; where
    they are longer than that, no action is removed at its end, and the round only serves to observe
    them. A delay is counted in asks: the number of asks after the trial's own, up to the outcome. A
    trial that failed or expired was pending until then. An outcome that is lost without notice
    looks like a very long delay; let its trial expire. The lengths of rounds depend on delays
    alone, never on the values of outcomes, so that the bounds stay valid. Their number is not known
    in advance; the widths use the number of rounds without delay, which is larger.

    Args:
        search_space: A finite set, or a box, of which a pool of points is looked at, and for the
            largest lower bound the neighbourhood of the best of them.
        covar_module: The kernel, held fixed; the prior mean is zero.
        noise_variance: λ², in squared units of the reward, for outcomes observed without their own;
            at least 1e-12 of the largest prior variance.
        horizon: T, the number of asks.
        delta: Probability of failure δ, in (0, 1).
        delay: How late outcomes may be, in rounds of asking. None: estimated again at the start of
            each round (:func:`tvbo.optimizers.bpe.delays.estimate_delay`).
        width: How wide the bounds are; None is :class:`PriorDrawWidth`. :class:`FiniteSetWidth` is
            that of Theorem 6.1, and needs the function's norm.
        minimize: Whether smaller outcomes are better.
        **options: As of :class:`Optimizer`.

    Attributes:
        num_rounds: R, the number of rounds, or an upper bound of it where delays are estimated.
        plan: The round in progress: its number, and how many asks it will have.

    Raises:
        TypeError: if ``delay`` is no bound, or ``width`` no rule.
        BotorchTensorDimensionError: if the kernel has a batch.
        InputDataError: if ``noise_variance`` is too small for the kernel.
        ValueError: if a parameter is out of range, the kernel gives no finite variances, or the
            width is not made for the search space.
    """

    def __init__(
        self,
        search_space: FiniteSpace | Box,
        covar_module: Kernel,
        noise_variance: float,
        horizon: int,
        delta: float = 0.1,
        delay: DelayBound | None = None,
        width: WidthRule | None = None,
        minimize: bool = False,
        **options: Unpack[OptimizerOptions],
    ):
        super().__init__(search_space, minimize=minimize, **options)
        check_count(horizon=horizon)
        check_probability(delta=delta)
        self.noise_variance = as_number("noise_variance", noise_variance)
        check_positive(noise_variance=self.noise_variance)
        self.horizon, self.delta = int(horizon), delta
        self.delay = delay
        if not isinstance(delay, DelayBound | None):
            raise TypeError(f"Expected a delay, such as SubExponentialDelay. Got {delay!r}.")
        self.width = PriorDrawWidth() if width is None else width
        if not callable(self.width):
            raise TypeError(f"Expected a width, such as FixedWidth(6.0). Got {width!r}.")
        if len(covar_module.batch_shape) > 0:
            shape = tuple(covar_module.batch_shape)
            raise BotorchTensorDimensionError(f"Expected a kernel without a batch. Got {shape}.")
        self.covar_module = deepcopy(covar_module).to(torch.float64).eval().requires_grad_(False)
        model, num_points = (self.covar_module, self.noise_variance), None
        if isinstance(search_space, FiniteSpace):
            self._left = SurvivingSet(search_space.choices, *model)
            num_points = len(search_space.choices)
        else:
            self._left = SurvivingRegion(search_space, *model, self.generator)
        self._check_noise(self.noise_variance)
        shortest = (delay or NO_DELAY).upper_bound(self.horizon, delta)
        self.num_rounds = len(exploration_rounds(self.horizon, shortest))
        self._exploration = Exploration(
            delta=delta,
            num_rounds=self.num_rounds,
            num_arrived=1,
            noise_variance=self.noise_variance,
            dim=search_space.dim,
            num_points=num_points,
            max_variance=self._left.max_variance,
            horizon=self.horizon,
        )
        self.width(self._exploration)  # which raises if it is not made for the search space
        self._posterior: RoundPosterior | None = None
        self._rounds: list[tuple[float, ...]] = []
        self._asked: dict[int, int] = {}
        self._delays: list[int] = []
        self._lost: list[int] = []
        self._arrived: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.plan = self._planned(BEFORE_FIRST)

    @property
    def survivors(self) -> Tensor:
        """The actions that may still be the best, by all outcomes so far, ``m x d``.

        Of a box those that are looked at, all of them inside.
        """
        with self._one_call("survivors"):
            return self._ended(self._next_generator())[0].X.clone()

    @property
    def model_size(self) -> int:
        """Number of chosen points that the next action rests on."""
        return self._left.num_chosen

    def survives(self, X: Tensor) -> Tensor:
        """Return whether actions may still be the best, ``n`` for rows ``n x d``.

        Raises:
            InputDataError: if a row is no action of the search space.
        """
        with self._one_call("survives"):
            left, _ = self._ended(self._next_generator())
            return left.survives(self.search_space.snap(X))

    def recommend(self, context: Context | None = None, t: Time | None = None) -> Recommendation:
        """Return the remaining action with the highest posterior mean.

        Does not modify the optimizer. The posterior is that of the round in progress, as if it
        ended now, or of the latest round with outcomes if this one has none yet, so the standard
        deviation may be large. On a box, a local search starts from the best point of the pool.

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
            generator = self._next_generator()
            left, posterior = self._ended(generator)
            posterior = posterior or self._posterior
            if posterior is None:
                raise InputDataError("Expected an outcome within its round. Got none yet.")
            X = left.best(posterior, generator)
            mean, deviation = posterior.moments(X)
            mean *= self._signs[0]
            t = self._time_of(t)
            return Recommendation(
                X, mean.item(), deviation.item(), t, None, self.minimize, self.labels
            )

    def to_frame(self) -> pd.DataFrame:
        """Return a table of the rounds that have ended, one row for each.

        Columns: its ``number``; ``q``, the trials whose outcomes it was for; ``length``, the trials
        planned; ``num_chosen`` and ``num_arrived``, those asked, and those whose outcome had come;
        ``size_before`` and ``size_after``, the number of actions left, or the share of the box.
        """
        import pandas as pd

        return pd.DataFrame(self._rounds, columns=list(COLUMNS))

    def _check_can_ask(self) -> None:
        if self._num_asked >= self.horizon:
            raise ValueError(f"Expected at most horizon={self.horizon} asks. Got one more.")

    def _start_ask(self) -> None:
        super()._start_ask()
        if self._left.num_chosen == self.plan.length:
            # The round in progress ends, and the next one begins.
            plan = self._planned(self.plan)
            left, posterior = self._ended(self.generator)
            counts = self._left.num_chosen, len(self._arrived), self._left.size, left.size
            self._rounds.append((*self.plan, *counts))
            self._left, self._posterior = left, posterior or self._posterior
            self.plan, self._arrived = plan, {}

    def _choose(
        self, search_space: SearchSpace, q: int, t: float, context: Tensor | None
    ) -> Tensor:
        return self._left.choose(self.generator)

    def _open_trial(self, trial: Trial) -> None:
        # Only now: an ask that broke half-way was none. One that is attached is not the round's.
        if trial.asked is not None:
            self._left.condition(trial.X)
            self._asked[trial.id] = self._num_asked
        super()._open_trial(trial)

    def _check_outcome(self, trial: Trial, observation: Observations) -> None:
        self._check_noise(self._noise_of(observation).item())

    def _learn(self, trial: Trial, observation: Observations) -> None:
        if (number := self._asked.pop(trial.id, None)) is None:
            return
        self._delays.append(self._num_asked - number)
        if number > self._num_asked - self._left.num_chosen:
            self._arrived[number] = trial.X, observation.Y[:, 0], self._noise_of(observation)

    def _forget(self, trial: Trial) -> None:
        if (number := self._asked.pop(trial.id, None)) is not None:
            self._lost.append(self._num_asked - number)

    def _planned(self, previous: ExplorationRound) -> ExplorationRound:
        """Return the plan of a round that begins with the next ask."""
        bound: DelayBound = self.delay or NO_DELAY
        awaited = [self._num_asked - number for number in self._asked.values()] + self._lost
        if self.delay is None and (self._delays or awaited):
            bound = estimate_delay(self._delays, awaited)
        wait = bound.upper_bound(self.horizon, self.delta)
        return previous.next(self.horizon, wait, self.horizon - self._num_asked)

    def _ended(self, generator: Generator) -> tuple[SurvivingSet, RoundPosterior | None]:
        """Return what is left when the round ends now, and the posterior of its outcomes."""
        left, posterior = copy(self._left), None
        if self._arrived:
            # In the order of asking: that of arrival changes nothing, not even rounding.
            arrived = [self._arrived[number] for number in sorted(self._arrived)]
            X, Y, noise = (torch.cat(each) for each in zip(*arrived, strict=True))
            width = self.width(replace(self._exploration, num_arrived=len(arrived)))
            posterior = RoundPosterior(self.covar_module, X, Y, noise, width)
            left.remove(posterior, generator)
        left.start()
        return left, posterior

    def _noise_of(self, observation: Observations) -> Tensor:
        Y, Yvar = observation.Y[:, 0], observation.Yvar
        return torch.full_like(Y, self.noise_variance) if Yvar is None else Yvar[:, 0]

    def _check_noise(self, variance: float) -> None:
        if variance < (least := MIN_NOISE_SHARE * self._left.max_variance):
            raise InputDataError(
                f"Expected a noise variance >= {least:.3g}, {MIN_NOISE_SHARE:g} of the largest "
                f"prior variance: with less, rounding outdoes the noise. Got {variance:g}."
            )


class ExplorationRound(NamedTuple):
    """The plan of a round.

    Attributes:
        number: Number of the round, from 1.
        q: Number of trials whose outcomes the round needs.
        length: Number of trials: ``q``, and those asked while outcomes are pending.
    """

    number: int
    q: int
    length: int

    def next(self, horizon: int, upper_bound: float, remaining: int) -> ExplorationRound:
        r"""Return the plan of the round after this one (Vakili et al., 2023, Algorithm 1).

        .. math:: q_r = \lceil\sqrt{T q_{r-1}}\,\rceil, \quad q_0 = 1, \qquad
            t_r = \lceil q_r + u_T \rceil

        truncated to the rest of the horizon. The text of Section 5 omits the rounding of
        :math:`q_r`, the algorithm has it. With :math:`u_T = 0` these are the batches of BPE (Li,
        Scarlett, 2022).

        Args:
            horizon: T.
            upper_bound: :math:`u_T`, an upper bound on the delay, in rounds.
            remaining: Trials left until T.
        """
        q = math.isqrt(horizon * self.q - 1) + 1
        return ExplorationRound(self.number + 1, q, min(q + math.ceil(upper_bound), remaining))


BEFORE_FIRST = ExplorationRound(number=0, q=1, length=0)


def exploration_rounds(horizon: int, upper_bound: float) -> tuple[ExplorationRound, ...]:
    """Return the plans of all rounds up to the horizon.

    Args:
        horizon: T.
        upper_bound: :math:`u_T`, an upper bound on the delay, in rounds.
    """
    rounds, remaining = [BEFORE_FIRST], horizon
    while remaining > 0:
        rounds.append(rounds[-1].next(horizon, upper_bound, remaining))
        remaining -= rounds[-1].length
    return tuple(rounds[1:])
