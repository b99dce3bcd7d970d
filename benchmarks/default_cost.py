"""What the loop costs with nothing given: CPU seconds of an ask, memory, and regret at an edge.

Each row runs in a process of its own, with one thread. *One model* is a GP of Matérn-5/2 over
actions and time, with lengthscales and noise learned by L-BFGS-B from where they were, and UCB by
its gradient: in closed form as ours is, and no average.

    python benchmarks/default_cost.py --json docs/results/default_cost.json
"""

from __future__ import annotations

import os
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import MaternKernel
from rich.progress import track
from scipy.optimize import minimize
from shared import mean_error, parser, seconds, show, squared_exponential
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.acquisition import UCB, ConstantBeta
from tvbo.recipes import DEFAULT_BETA
from tvbo.retention import KeepAll

CPU = time.process_time


def unit_box(d: int) -> Tensor:
    """Return the bounds of the unit cube, ``2 x d``."""
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)


def outcome(X: Tensor, t: float, generator: Generator) -> float:
    """Return a smooth function that drifts, with noise."""
    noise = torch.randn((), dtype=torch.float64, generator=generator)
    return (torch.sin(5 * X.sum() + t / 30) + 0.1 * noise).item()


def first_ask_with_a_context(n: int) -> str:
    """Time the first ask after each outcome, of two floats and a context, with four pending."""
    generator = Generator().manual_seed(0)
    optimizer = recipes.tv_cgp_ucb(bounds=unit_box(2), context_bounds=unit_box(1))
    for t in range(1, n + 1):
        drawn = torch.rand(3, dtype=torch.float64, generator=generator)
        trial = optimizer.attach(drawn[:2], t, drawn[2:])
        optimizer.tell(trial, outcome(trial.X, t, generator))
    asks = []
    for t in range(n + 1, n + 7):
        ask = partial(optimizer.ask, t, torch.rand(1, dtype=torch.float64, generator=generator))
        asks.append(seconds(ask, CPU))
        while len(optimizer.open_trials) < 4:
            ask()
        optimizer.tell(optimizer.open_trials[0], 0.3)
    return f"{median(asks[1:]):.3f} s"


class OneModel:
    """The one model: what was tried, and the logarithms of lengthscales and noise."""

    def __init__(self) -> None:
        self.X, self.Y = np.empty((0, 4)), np.empty(0)
        self.logs = np.array([-1.0, -1, -1, 3, -2])

    def ask(self, t: float) -> None:
        """Learn from the newest 100, and maximize the upper bound."""
        X, y = self.X[-100:], self.Y[-100:]
        y = (y - y.mean()) / y.std()
        squares = np.square(X[:, None] - X).reshape(-1, 4).T.copy()
        eye, prior = np.eye(len(X)), np.array([0.0, 0, 0, 3, -3])

        def matern(squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            r = np.sqrt(5 * squares)
            decay = np.exp(-r)
            return (1 + r + r * r / 3) * decay, 5 / 3 * (1 + r) * decay

        def negative(logs: np.ndarray) -> tuple[float, np.ndarray]:
            rates, noise = np.exp(-2 * logs[:4]), np.exp(logs[4])
            covar, slope = matern(rates @ squares)
            covar = covar.reshape(eye.shape) + noise * eye
            inverse = np.linalg.inv(covar)
            solved, distance = inverse @ y, logs - prior
            weights = np.outer(solved, solved) - inverse
            by_logs = [*(-0.5 * rates * (squares @ (slope * weights.ravel())))]
            gradient = np.array([*by_logs, -0.5 * noise * np.trace(weights)]) + distance
            logdet = np.linalg.slogdet(covar)[1]
            return 0.5 * (y @ solved + logdet + distance @ distance), gradient

        limits = [(-4, 6)] * 4 + [(-9, 1)]
        self.logs = minimize(negative, self.logs, jac=True, bounds=limits).x
        rates = np.exp(-2 * self.logs[:4])
        covar = matern(rates @ squares)[0].reshape(eye.shape) + np.exp(self.logs[4]) * eye
        inverse = np.linalg.inv(covar)
        solved = inverse @ y

        def upper(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows = np.concatenate([x, np.full((len(x), 1), t)], axis=1)
            difference = rows[:, None] - X
            covar, slope = matern(np.square(difference) @ rates)
            V = covar @ inverse
            deviation = np.sqrt(np.maximum(1 - (V * covar).sum(-1), 1e-10))
            by_squares = (solved - 1.6 * V / deviation[:, None]) * slope
            gradient = (by_squares[..., None] * difference * rates).sum(1)[:, :3]
            return -covar @ solved - 1.6 * deviation, gradient

        starts = draw_sobol_samples(unit_box(3), n=512, q=1, seed=len(self.Y)).squeeze(1).numpy()
        starts = starts[np.argsort(upper(starts)[0])[:8]]
        fmin_l_bfgs_b_batched(upper, starts, [(0, 1)] * 3, maxiter=2000)


def round_beside_one_model() -> str:
    """Time rounds 105 to 140 in three dimensions, and those of the one model on the same data."""
    optimizer, other, generator = recipes.tv_gp_ucb(bounds=unit_box(3)), OneModel(), Generator()
    taken = []
    for t in range(1, 141):
        ours = seconds(partial(optimizer.ask, t), CPU)
        (trial,) = optimizer.open_trials
        Y = outcome(trial.X, t, generator)
        ours += seconds(partial(optimizer.tell, trial, Y), CPU)
        other.X = np.vstack([other.X, [*trial.X[0].tolist(), t]])
        other.Y = np.append(other.Y, Y)
        if t > 104:
            taken.append((ours, seconds(partial(other.ask, t + 1), CPU)))
    ours, one = (mean(each) for each in zip(*taken, strict=True))
    return f"{1e3 * ours:.0f} ms; one model {1e3 * one:.0f} ms; {ours / one:.1f} times"


def first_ask_of_many(n: int) -> str:
    """Time the first ask after ``n`` outcomes that are all kept, with a kernel that is given."""
    kernel, generator = MaternKernel(ard_num_dims=3).double(), Generator().manual_seed(0)
    kernel.lengthscale = 0.3
    given = {"covar_module": kernel, "forgetting_rate": 1e-4, "noise_variance": 0.01}
    optimizer = recipes.tv_gp_ucb(bounds=unit_box(3), retention=KeepAll(), **given)
    for t in range(n):
        trial = optimizer.attach(torch.rand(3, dtype=torch.float64, generator=generator), t)
        optimizer.tell(trial, outcome(trial.X, t, generator))
    taken = seconds(partial(optimizer.ask, n), CPU)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return f"{taken:.1f} s; {peak:.2f} GB"


def regret_at_a_corner(seeds: range) -> str:
    """Play a quadratic whose optimum is a corner in four dimensions, corrected for it and not."""
    sample = torch.rand(4000, 4, dtype=torch.float64, generator=Generator().manual_seed(1))
    plain = UCB(ConstantBeta(DEFAULT_BETA), edge_correction=False)
    regrets: tuple[list[float], list[float]] = ([], [])
    for seed in seeds:
        generator = Generator().manual_seed(seed)
        corner = torch.randint(2, (4,), generator=generator).double()
        scale = (sample - corner).square().sum(-1).std().item()
        noise = 0.1 * torch.randn(60, dtype=torch.float64, generator=generator)
        for kept, options in zip(regrets, ({}, {"acquisition": plain}), strict=True):
            own = Generator().manual_seed(seed)
            optimizer = recipes.tv_gp_ucb(bounds=unit_box(4), generator=own, **options)
            lost = []
            for t in range(1, 61):
                trial = optimizer.ask(t)
                lost.append((trial.X - corner).square().sum().item() / scale)
                optimizer.tell(trial, noise[t - 1].item() - lost[-1])
            kept.append(mean(lost[16:]))
    return "; without it ".join("{:.3f} ± {:.3f}".format(*mean_error(each)) for each in regrets)


def pickled_size() -> str:
    """Return the size of a pickled loop on 21 choices after 600 and 2,000 rounds."""
    choices = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
    given = {"forgetting_rate": 0.05, "noise_variance": 0.01}
    optimizer = recipes.tv_gp_ucb(choices=choices, covar_module=squared_exponential(0.3), **given)
    generator = Generator().manual_seed(0)
    sizes = []
    for t in range(1, 2001):
        trial = optimizer.ask(t)
        optimizer.tell(trial, outcome(trial.X, t, generator))
        if t in (600, 2000):
            sizes.append(f"{len(pickle.dumps(optimizer)) / 1e3:.0f} kB")
    return "; ".join(sizes)


def recorded_asks(n: int) -> str:
    """Time asks of a recorded run on a box, from the 110th on; its memory and files at the end."""
    optimizer, generator = recipes.tv_gp_ucb(bounds=unit_box(2)), Generator()
    asks, held = [], []
    with tempfile.TemporaryDirectory() as folder, optimizer:
        optimizer.record(Path(folder) / "run.db")
        for t in range(1, n + 1):
            asks.append(seconds(partial(optimizer.ask, t), CPU))
            (trial,) = optimizer.open_trials
            optimizer.tell(trial, outcome(trial.X, t, generator))
            if t in (n // 2, n):
                status = Path("/proc/self/status").read_text().split()
                memory = int(status[status.index("VmRSS:") + 1]) / 1e3
                held.append(f"{memory:.0f} MB, {len(os.listdir('/proc/self/fd'))} files")
    p50, p99 = np.quantile(asks[110:], [0.5, 0.99])
    return f"p50 {p50:.3f} s, p99 {p99:.3f} s; {held[0]}; at the end {held[1]}"


ROWS: dict[str, Callable[[], str]] = {
    "first ask, a context, 36 outcomes": partial(first_ask_with_a_context, 36),
    "first ask, a context, 1,000 outcomes": partial(first_ask_with_a_context, 1000),
    "a round at n = 100, three dimensions": round_beside_one_model,
    "first ask, kernel given, 10,000 outcomes": partial(first_ask_of_many, 10_000),
    "regret at a corner, seeds 7101 to 7110": partial(regret_at_a_corner, range(7101, 7111)),
    "pickled, 21 choices, given, 600 and 2,000 rounds": pickled_size,
    "1,200 recorded asks": partial(recorded_asks, 1200),
}


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    records = []
    for name, work in track(ROWS.items(), "rows"):
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            alone.submit(torch.set_num_threads, 1).result()
            records.append({"what": name, "figure": alone.submit(work).result()})
        print(*records[-1].values(), sep=": ", flush=True)
    show("The default", {"what": "{what}", "figure": "{figure}"}, records, chosen.json)


if __name__ == "__main__":
    main()
