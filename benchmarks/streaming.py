"""Seconds of a round of the streaming posterior, against BoTorch and by round.

python benchmarks/streaming.py --json docs/results/streaming.json
"""

from __future__ import annotations

import math
import pickle
import statistics
import time
from copy import deepcopy

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from gpytorch.means import ZeroMean
from shared import parser, seconds, show, squared_exponential
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.acquisition import LogBeta
from tvbo.kernels.batch import ColumnKernel
from tvbo.models import StreamingGP
from tvbo.models.time_varying_gp import make_temporal_kernel
from tvbo.optimizers import GPOptimizer
from tvbo.test_functions.drifting_gp import unit_grid

RATE, NOISE, POINTS = 0.03, 0.01, 50
BETA = LogBeta()
EARLY, LATE = 5_000, 50_000
WINDOW = 500
"""Number of rounds over which the median is taken."""
USUAL_STEP = 500
USUAL_REPEATS = 7


def temporal() -> ColumnKernel:
    """Return the temporal kernel on the time column."""
    return ColumnKernel(make_temporal_kernel(RATE), [2])


def loop_over(choices: Tensor, rate: float) -> GPOptimizer:
    """Return TV-GP-UCB with everything given."""
    return recipes.tv_gp_ucb(
        choices=choices,
        covar_module=squared_exponential(0.2),
        forgetting_rate=rate,
        noise_variance=NOISE,
    )


def long_run(choices: Tensor, generator: Generator) -> dict:
    """Run a loop of 50,000 rounds; outcomes are noise, which does not affect the cost.

    A copy of the loop is kept at t = 5,000, and at the end both are run alternately, so that
    machine load affects both alike.
    """
    late = loop_over(choices, RATE)
    outcomes = torch.randn(LATE + WINDOW + 1, dtype=torch.float64, generator=generator)
    early = late
    for t in range(1, LATE + 1):
        late.tell(late.ask(t), outcomes[t])
        if t == EARLY:
            early = deepcopy(late)
    loops = {EARLY: early, LATE: late}
    times: dict[int, list[float]] = {start: [] for start in loops}
    for i in range(1, WINDOW + 1):
        for start, loop in loops.items():
            began = time.perf_counter()
            loop.tell(loop.ask(start + i), outcomes[start + i])
            times[start].append(time.perf_counter() - began)
    median = {start: statistics.median(taken) for start, taken in times.items()}
    return {
        "early_round": EARLY,
        "late_round": LATE,
        "early_seconds": median[EARLY],
        "late_seconds": median[LATE],
        "ratio": median[LATE] / median[EARLY],
        "early_bytes": len(pickle.dumps(early)),
        "late_bytes": len(pickle.dumps(late)),
    }


def triad_seconds(numbers: int) -> float:
    """Return the seconds in which this machine reads as many numbers, by ``a = b + 3 c``."""
    a, b, c = torch.rand(3, 4_000_000, dtype=torch.float64)
    best = min(seconds(lambda: torch.add(b, c, alpha=3.0, out=a)) for _ in range(10))
    return best * numbers / (3 * len(a))


def one_pass(points: int, rate: float, pending: int = 0) -> tuple[float, float]:
    """Return milliseconds of a round, and of reading the rows that have not faded once."""
    choices, num_rows = unit_grid(points), math.ceil(math.log(1e-12) / math.log(1 - rate))
    loop = loop_over(choices, rate)
    generator, waiting, taken = Generator().manual_seed(0), [], []
    for t in range(1, num_rows + 151):
        began = time.process_time()
        waiting.append(loop.ask(t))
        if len(waiting) > pending:
            place = int(torch.randint(len(waiting), (1,), generator=generator))
            loop.tell(waiting.pop(place), math.sin(t))
        taken.append(time.process_time() - began)
    return 1e3 * statistics.mean(taken[-150:]), 1e3 * triad_seconds(num_rows * len(choices))


def model_round(n: int) -> float:
    """Return CPU milliseconds of an outcome and the argmax over n choices, ε = 0.05."""
    choices = torch.rand(n, 2, dtype=torch.float64, generator=Generator().manual_seed(0))
    model, taken = StreamingGP(choices, squared_exponential(0.3), 0.05, NOISE), []
    for t in range(1, 851):
        began = time.process_time()
        row = torch.cat([choices[t * 7919 % n], torch.tensor([float(t)], dtype=torch.float64)])
        model.observe(row[None], torch.tensor([[0.3]], dtype=torch.float64))
        mean, variance = model.marginals(t)
        (mean + 2 * variance.sqrt()).argmax()
        taken.append(time.process_time() - began)
    return 1e3 * statistics.mean(taken[-650:])


def pickled(rounds: int) -> float:
    """Return the MB of a loop on 21 choices, ε = 0.05, pickled."""
    loop = loop_over(torch.linspace(0, 1, 21, dtype=torch.float64)[:, None], 0.05)
    for t in range(1, rounds + 1):
        loop.tell(loop.ask(t), math.sin(t))
    return len(pickle.dumps(loop)) / 1e6


def botorch_step(train_X: Tensor, train_Y: Tensor, candidates: Tensor, beta: float) -> Tensor:
    """Run BoTorch's step with fixed hyperparameters: build, then evaluate all candidates."""
    model = SingleTaskGP(
        train_X,
        train_Y,
        torch.full_like(train_Y, NOISE),
        covar_module=ColumnKernel(squared_exponential(0.2), [0, 1]) * temporal(),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    acquisition = UpperConfidenceBound(model, beta=beta)
    with torch.no_grad():
        best, _ = optimize_acqf_discrete(acquisition, q=1, choices=candidates)
    return best


def at(choices: Tensor, t: float) -> Tensor:
    """Return choices as rows at a time."""
    return torch.cat([choices, choices.new_full((len(choices), 1), t)], dim=-1)


def usual_step(choices: Tensor, generator: Generator) -> dict:
    """Time a round at t = 500 in both: choose an action and add its outcome."""
    arms = torch.randint(len(choices), (USUAL_STEP,), generator=generator)
    times = torch.arange(1, USUAL_STEP + 1, dtype=torch.float64)
    train_X = torch.cat([choices[arms], times.unsqueeze(-1)], dim=-1)
    train_Y = torch.randn(USUAL_STEP, 1, dtype=torch.float64, generator=generator)
    optimizer = loop_over(choices, RATE)
    ours, theirs = [], []
    for row, outcome in zip(train_X[:-1], train_Y[:-1], strict=True):
        optimizer.tell(optimizer.attach(row[:2], row[2].item()), outcome)
    for i in range(USUAL_REPEATS):
        # An outcome is told before each ask, so that it is a new round.
        t = USUAL_STEP - 1 + i
        row = torch.cat([train_X[i, :2], torch.tensor([t], dtype=torch.float64)])
        optimizer.tell(optimizer.attach(row[:2], t), train_Y[i])
        ours.append(seconds(lambda t=t: optimizer.ask(t + 1)))
        theirs.append(
            seconds(
                lambda: botorch_step(
                    train_X, train_Y, at(choices, USUAL_STEP + 1.0), BETA(USUAL_STEP)
                )
            )
        )
    streaming, usual = statistics.median(ours), statistics.median(theirs)
    return {
        "round": USUAL_STEP,
        "streaming_seconds": streaming,
        "botorch_seconds": usual,
        "ratio": usual / streaming,
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    choices = unit_grid(POINTS)
    generator = torch.Generator().manual_seed(0)
    step = usual_step(choices, generator)
    run = long_run(choices, generator)
    records = [
        {"what": f"one round, t = {LATE:,} against {EARLY:,} (ms)", "wanted": "at most 1.1"}
        | {"first": 1e3 * run["late_seconds"], "second": 1e3 * run["early_seconds"]},
        {"what": f"memory of the loop, t = {LATE:,} against {EARLY:,} (MB)", "wanted": "flat"}
        | {"first": run["late_bytes"] / 1e6, "second": run["early_bytes"] / 1e6},
        {"what": f"BoTorch's step against a round, t = {USUAL_STEP} (ms)", "wanted": "at least 50"}
        | {"first": 1e3 * step["botorch_seconds"], "second": 1e3 * step["streaming_seconds"]},
    ]
    passes = [one_pass(POINTS, RATE), one_pass(316, 0.1), one_pass(POINTS, RATE, pending=50)]
    names = ["2,500 choices, ε = 0.03", "99,856 choices, ε = 0.1", "the first, 50 trials pending"]
    records += [
        {"what": f"a round against one pass over its rows, {name} (CPU ms)", "wanted": wanted}
        | {"first": own, "second": once}
        for name, wanted, (own, once) in zip(names, ["4", "2", "8"], passes, strict=True)
    ]
    records.append(
        {"what": "pickled loop on 21 choices, t = 2,000 against 600 (MB)", "wanted": "flat"}
        | {"first": pickled(2000), "second": pickled(600)}
    )
    small, *others = [(n, model_round(n)) for n in (200, 1000, 3000)]
    records += [
        {"what": f"observe, marginals, argmax, {n:,} choices against 200 (CPU ms)", "wanted": ""}
        | {"first": own, "second": small[1]}
        for n, own in others
    ]
    columns = {
        "what": "{what}",
        "first": "{first:.2f}",
        "second": "{second:.2f}",
        "ratio": lambda r: f"{r['first'] / r['second']:.2f}",
        "wanted": "{wanted}",
    }
    figures = {"long_run": run, "usual_step": step}
    title = "Streaming posterior, 2,500 candidates, ε = 0.03, one thread"
    show(title, columns, records, chosen.json, figures)


if __name__ == "__main__":
    main()
