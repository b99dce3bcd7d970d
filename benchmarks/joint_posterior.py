"""Seconds of the joint posterior of all choices of a streaming model, against single rows.

python benchmarks/joint_posterior.py --json docs/results/joint_posterior.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from torch import Generator

from tvbo.models import StreamingGP
from tvbo.test_functions import unit_grid

RATE, NOISE, POINTS, OBSERVATIONS = 0.03, 0.01, 50, 500
REPEATS = 201


def alternately(*works: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    """Return the median seconds of functions called in turn, so that load affects all alike."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, seconds in zip(works, taken, strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds) for seconds in taken]


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    choices = unit_grid(POINTS)
    model = StreamingGP(choices, kernel, RATE, NOISE)
    generator = Generator().manual_seed(0)
    for t in range(OBSERVATIONS):
        place = torch.randint(len(choices), (1,), generator=generator)
        row = torch.cat([choices[place], torch.tensor([[float(t)]]).to(choices)], dim=-1)
        model.observe(row, torch.randn(1, 1, dtype=torch.float64, generator=generator))
    now = choices.new_full((len(choices), 1), float(OBSERVATIONS))
    rows = torch.cat([choices, now], dim=-1)
    single, joint, mean = alternately(
        lambda: model.posterior(rows.unsqueeze(-2)).variance,
        lambda: model.posterior(rows).variance,
        lambda: model.posterior(rows).mean,
    )
    (covariance,) = alternately(
        lambda: model.posterior(rows).distribution.covariance_matrix, repeats=3
    )
    figures = {
        "choices": len(choices),
        "observations": OBSERVATIONS,
        "single_rows_variance_seconds": single,
        "joint_variance_seconds": joint,
        "joint_mean_seconds": mean,
        "joint_covariance_seconds": covariance,
        "ratio": joint / single,
    }
    table = [
        ("variance, a batch of single rows", f"{1000 * single:.2f}", "1.00"),
        ("variance, all rows jointly", f"{1000 * joint:.2f}", f"{joint / single:.2f}"),
        ("mean, all rows jointly", f"{1000 * mean:.2f}", f"{mean / single:.2f}"),
        ("covariance matrix", f"{1000 * covariance:.0f}", f"{covariance / single:.0f}"),
    ]
    show(
        f"Posterior of {len(choices):,} choices after {OBSERVATIONS} observations, one thread",
        ("what", "ms", "ratio"),
        table,
        figures,
        chosen.json,
    )


if __name__ == "__main__":
    main()
