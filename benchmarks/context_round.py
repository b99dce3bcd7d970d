"""One time step with 46 arms and five asks, each told before the next: CGP-UCB and plain BoTorch.

Arms are places in the plane, the context is the time of day on its circle, the kernel a product of
two Matérn kernels with ν = 2.5, everything given and nothing learned, ε = 0: the setting of Krause
and Ong (2011), Section 6.2. Plain BoTorch builds a SingleTaskGP with the same kernel for every ask
and evaluates UpperConfidenceBound at the 46 arms. Both are timed in turns, one
thread.

    python benchmarks/context_round.py --json docs/results/context_round.json
"""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from statistics import median

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import Kernel, MaternKernel
from gpytorch.means import ZeroMean
from rich.progress import track
from shared import parser, seconds, show
from torch import Tensor

from experiments.problems.time_of_day import time_of_day
from tvbo import recipes
from tvbo.acquisition import LogBeta
from tvbo.kernels import ContextActionKernel
from tvbo.optimizers import GPOptimizer

ARMS = 46
ASKS = 5
STEPS_PER_DAY = 288
NOISE = 0.1
BETA = LogBeta()
OBSERVATIONS = (500, 1000, 2000, 4000)


def matern(lengthscale: float) -> Kernel:
    """Return a Matérn-5/2 kernel."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = lengthscale
    return kernel


ACTION, CONTEXT = matern(0.3), matern(0.5)


def outcome(X: Tensor, context: Tensor) -> float:
    """Return a smooth function of arm and context."""
    return torch.sin(3 * X.sum() + context[0] + 2 * context[1] * X[0, 0]).item()


def log_of(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return arms, and ``n`` rows ``[arm | context]`` with outcomes, five per time of day."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.rand(ARMS, 2, dtype=torch.float64, generator=generator)
    chosen = arms[torch.randint(ARMS, (n,), generator=generator)]
    hours = torch.arange(n, dtype=torch.float64).div(ASKS, rounding_mode="floor") * 24
    contexts = time_of_day(hours / STEPS_PER_DAY)
    Y = torch.tensor([outcome(x[None], z) for x, z in zip(chosen, contexts, strict=True)])
    return arms, torch.cat([chosen, contexts], dim=-1), Y.double().unsqueeze(-1)


def ours(arms: Tensor, X: Tensor, Y: Tensor) -> GPOptimizer:
    """Return the optimizer of the recipe, with the log told."""
    optimizer = recipes.cgp_ucb(
        choices=arms,
        context_bounds=torch.tensor([[-1.0, -1.0], [1.0, 1.0]]),
        action_kernel=ACTION,
        context_kernel=CONTEXT,
        noise_variance=NOISE,
        beta=BETA,
    )
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        optimizer.tell(optimizer.attach(x[:2], float(i // ASKS), x[2:]), y)
    optimizer.ask(t=len(X) / ASKS, context=X[-1, 2:])
    return optimizer


class PlainBoTorch:
    """The loop of a user of BoTorch."""

    def __init__(self, arms: Tensor, X: Tensor, Y: Tensor):
        self.arms, self.X, self.Y = arms, X, Y

    def build(self) -> SingleTaskGP:
        """Return a model of all observations."""
        kernel = ContextActionKernel(
            deepcopy(ACTION), deepcopy(CONTEXT), action_features=[0, 1], context_features=[2, 3]
        )
        return SingleTaskGP(
            self.X,
            self.Y,
            torch.full_like(self.Y, NOISE),
            covar_module=kernel,
            mean_module=ZeroMean(),
            outcome_transform=None,
        )

    def step(self, context: Tensor) -> None:
        """Run five asks and tells."""
        rows = torch.cat([self.arms, context.expand(ARMS, -1)], dim=-1)
        for _ in range(ASKS):
            acquisition = UpperConfidenceBound(self.build(), beta=BETA(len(self.X)))
            with torch.no_grad():
                best, _ = optimize_acqf_discrete(acquisition, q=1, choices=rows)
                y = torch.full((1, 1), outcome(best[:, :2], context), dtype=torch.float64)
            self.X, self.Y = torch.cat([self.X, best]), torch.cat([self.Y, y])


def our_step(optimizer: GPOptimizer, t: float, context: Tensor) -> None:
    """Run five asks and tells."""
    for _ in range(ASKS):
        trial = optimizer.ask(t=t, context=context)
        optimizer.tell(trial, outcome(trial.X, context))


def measure(n: int, steps: int) -> dict:
    """Return the seconds of one time step after ``n`` observations."""
    arms, X, Y = log_of(n)
    optimizer = ours(arms, X, Y)
    plain = PlainBoTorch(arms, X, Y)
    taken = []
    for step in range(steps + 1):
        t = n / ASKS + 1 + step
        context = time_of_day(t * 24 / STEPS_PER_DAY)
        works = (
            partial(our_step, optimizer, t, context),
            partial(plain.step, context),
        )
        taken.append([seconds(work) for work in works])
    # The first step of each fills its caches.
    mine, built = (1e3 * median(each) for each in zip(*taken[1:], strict=True))
    return {
        "observations": n,
        "ours": mine,
        "built": built,
        "built_ratio": built / mine,
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, steps=5).parse_args()
    torch.set_num_threads(1)
    records = [measure(n, chosen.steps) for n in track(OBSERVATIONS, description="observations")]
    columns = {
        "observations": "{observations}",
        "cgp_ucb": "{ours:.1f} ms",
        "BoTorch, built again": "{built:.0f} ms",
        "ratio": "{built_ratio:.0f}",
    }
    show("One time step: 46 arms, 5 asks and tells", columns, records, chosen.json)


if __name__ == "__main__":
    main()
