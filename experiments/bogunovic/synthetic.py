"""The synthetic setting of Bogunovic et al. (2016), Section 5.1, replicates in one tensor."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Size, Tensor

from experiments.spread import spread
from experiments.sweeps import Replicates, ucb_sweep
from tvbo.acquisition import LogBeta
from tvbo.models import StreamingGP
from tvbo.test_functions.drifting_gp import covariance_root, unit_grid

HORIZON = 200
POINTS_PER_SIDE = 50
LENGTHSCALE = 0.2
NOISE_VARIANCE = 0.01
BETA = LogBeta(c1=0.8, c2=4.0)
SIDE_BY_SIDE = 25
"""Number of replicates in one tensor: a small overhead per round, with 100 MB of rows."""


@dataclass(frozen=True)
class Player:
    """An algorithm with its parameters.

    Args:
        forgetting_rate: The assumed ε; 0 is GP-UCB.
        reset_every: Block length N of R-GP-UCB, None for no reset.
    """

    forgetting_rate: float = 0.0
    reset_every: int | None = None


@dataclass(frozen=True)
class Synthetic:
    """A kernel on a grid of the unit square.

    Args:
        kernel: Kernel over actions.
        nu: Smoothness of the kernel; infinity for the squared exponential.
        points: Grid points per side.
        horizon: T.
    """

    kernel: Kernel
    nu: float
    points: int
    horizon: int

    @classmethod
    def squared_exponential(
        cls, points: int = POINTS_PER_SIDE, horizon: int = HORIZON
    ) -> Synthetic:
        """Return the setting with a squared exponential kernel of length-scale 0.2."""
        return cls(_with_lengthscale(RBFKernel()), float("inf"), points, horizon)

    @classmethod
    def matern(cls, points: int = POINTS_PER_SIDE, horizon: int = HORIZON) -> Synthetic:
        """Return the setting with a Matérn kernel, ν = 2.5, of length-scale 0.2."""
        return cls(_with_lengthscale(MaternKernel(nu=2.5)), 2.5, points, horizon)

    def regret(
        self,
        players: Mapping[str, tuple[float, Player]],
        trials: int,
        seed: int,
        label: str,
        progress: bool,
        executor: Executor | None = None,
    ) -> dict[str, Tensor]:
        """Return the regret of each algorithm, ``replicates x T``.

        Replicate ``i`` of every algorithm has the seed ``seed + i``: for the same true ε they have
        the same function, the same noise, and the same first action after each start.

        Args:
            players: The true ε and the algorithm of each name.
            trials: Number of replicates.
            seed: Seed of the first.
            label: Description of the progress bar.
            progress: Whether to show a progress bar.
            executor: Executor that runs :data:`SIDE_BY_SIDE` replicates at a time; None runs them
                serially.

        Raises:
            ValueError: if ``trials`` is not positive.
        """
        if trials < 1:
            raise ValueError(f"Expected trials >= 1. Got {trials}.")
        rates = dict.fromkeys(rate for rate, _ in players.values())
        steps = [(rate, seeds) for rate in rates for seeds in _groups(seed, trials)]
        played = spread(partial(self._meet, players), steps, executor, label, progress)
        return {
            name: torch.cat([part[name] for part in played if name in part]) for name in players
        }

    def _meet(
        self, players: Mapping[str, tuple[float, Player]], step: tuple[float, range]
    ) -> dict[str, Tensor]:
        """Return the regret of a group of replicates, for each algorithm with this true ε."""
        rate, seeds = step
        root = _root(pickle.dumps(self.kernel), self.points)
        drawn = Replicates.draw(root, rate, self.horizon, NOISE_VARIANCE, seeds)
        return {
            name: self._play(player, drawn)
            for name, (true_rate, player) in players.items()
            if true_rate == rate
        }

    def _play(self, player: Player, drawn: Replicates) -> Tensor:
        model = StreamingGP(
            unit_grid(self.points),
            self.kernel,
            player.forgetting_rate,
            NOISE_VARIANCE,
            batch_shape=Size([len(drawn)]),
        )
        return ucb_sweep(model, drawn, BETA, player.reset_every)

    def settings(self, trials: int, seed: int) -> dict:
        """Return the settings to record."""
        return {
            "trials": trials,
            "seed": seed,
            "kernel": type(self.kernel).__name__,
            "lengthscale": LENGTHSCALE,
            "grid": f"{self.points} x {self.points}",
            "horizon": self.horizon,
            "noise_variance": NOISE_VARIANCE,
            "c1": BETA.c1,
            "c2": BETA.c2,
        }


@lru_cache(maxsize=1)
def _root(kernel: bytes, points: int) -> Tensor:
    """Return the Cholesky factor for draws, computed once per process."""
    return covariance_root(unit_grid(points), pickle.loads(kernel))


def _groups(seed: int, trials: int) -> list[range]:
    """Return the seeds in groups that run in one tensor."""
    end = seed + trials
    return [range(i, min(i + SIDE_BY_SIDE, end)) for i in range(seed, end, SIDE_BY_SIDE)]


def _with_lengthscale(kernel: Kernel) -> Kernel:
    kernel = kernel.double()
    kernel.lengthscale = LENGTHSCALE
    return kernel
