"""The cost model of the streaming posterior against measured points.

python benchmarks/scaling.py --json docs/results/scaling.json
"""

from __future__ import annotations

import statistics
import time

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from torch import Size, Tensor

from tvbo.models import StreamingGP
from tvbo.models.streaming import StreamingCost, streaming_cost

# Choices, ε, trials side by side, max_lateness.
POINTS = (
    (500, 0.03, 1, None),
    (2500, 0.3, 1, None),
    (2500, 0.03, 1, None),
    (2500, 0.03, 1, 0.0),
    (2500, 0.001, 1, 0.0),
    (2500, 0.0, 1, 0.0),
    (2500, 0.1, 20, 0.0),
    (46, 0.03, 1000, 0.0),
    (200, 0.1, 200, 0.0),
    (10000, 0.1, 1, 0.0),
)
MANY = (50, 0.9, 1000, 0.0)
"""Few rows for many trials, so that the cost of an entry dominates."""

SETTLED = 1.6
"""Rounds before the measurement, in multiples of the rows held, or of the choices."""
MEASURED = 200
PRODUCT = 1500
BANDWIDTH_BYTES = 400_000_000


def rounds(n: int, rate: float, trials: int, max_lateness: float | None) -> tuple[float, int]:
    """Return the median seconds of a round in the steady state, and the bytes held."""
    generator = torch.Generator().manual_seed(0)
    cost = streaming_cost(n, rate, batch_size=trials, max_lateness=max_lateness)
    model = StreamingGP(
        torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1),
        kernel(),
        rate,
        0.1,
        batch_shape=Size([trials]),
        max_lateness=max_lateness,
    )
    times = []
    # Merging begins when there are more rows than choices.
    settled = int(SETTLED * max(cost.rows, n if cost.merged else 0))
    for t in range(1, settled + MEASURED + 1):
        started = time.perf_counter()
        mean, variance = model.marginals(t)
        arm = (mean + variance.sqrt_()).argmax(dim=-1)
        rows = torch.cat([model.choices[arm], mean.new_full((trials, 1), t)], dim=-1)
        outcome = torch.randn(trials, 1, 1, dtype=torch.float64, generator=generator)
        model.observe(rows.unsqueeze(1), outcome)
        times.append(time.perf_counter() - started)
    tensors = [x for x in model.state_dict().values() if isinstance(x, Tensor)]
    held = sum(x.numel() * x.element_size() for x in tensors)
    return statistics.mean(times[-MEASURED:]), held


def kernel() -> RBFKernel:
    """Return a kernel with a long length-scale."""
    made = RBFKernel().double()
    made.lengthscale = 0.2
    return made


def machine() -> tuple[float, float, float, float]:
    """Return overhead per round, seconds per entry, bandwidth and speed of a product."""
    overhead, _ = rounds(4, 0.9, 1, 0.0)
    many, _ = rounds(*MANY)
    per_entry = (many - overhead) / (MANY[0] * MANY[2])
    big = torch.zeros(BANDWIDTH_BYTES // 8, dtype=torch.float64)
    square = torch.rand(PRODUCT, PRODUCT, dtype=torch.float64)
    reading, product = [], []
    for _ in range(5):
        started = time.perf_counter()
        big.sum()
        reading.append(time.perf_counter() - started)
        started = time.perf_counter()
        square @ square
        product.append(time.perf_counter() - started)
    return (
        overhead,
        per_entry,
        BANDWIDTH_BYTES / statistics.median(reading),
        2 * PRODUCT**3 / statistics.median(product),
    )


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    overhead, per_entry, bandwidth, speed = machine()
    results, table = [], []
    for point in POINTS:
        n, rate, trials, max_lateness = point
        cost: StreamingCost = streaming_cost(n, rate, batch_size=trials, max_lateness=max_lateness)
        predicted = cost.seconds(overhead, per_entry, bandwidth, speed)
        measured, held = rounds(*point)
        results.append(
            {
                "choices": n,
                "forgetting_rate": rate,
                "trials": trials,
                "max_lateness": max_lateness,
                "merged": cost.merged,
                "rows": cost.rows,
                "predicted_seconds": predicted,
                "measured_seconds": measured,
                "predicted_bytes": cost.memory,
                "measured_bytes": held,
            }
        )
        table.append(
            (
                f"{n}",
                f"{rate:g}",
                f"{trials}",
                "default" if max_lateness is None else f"{max_lateness:g}",
                f"{cost.rows:.0f}" + (" + matrix" if cost.merged else ""),
                f"{1e3 * predicted:.2f}",
                f"{1e3 * measured:.2f}",
                f"{cost.memory / 1e6:.1f}",
                f"{held / 1e6:.1f}",
            )
        )
    figures = {
        "overhead_seconds": overhead,
        "per_entry_seconds": per_entry,
        "bandwidth": bandwidth,
        "speed": speed,
        "points": results,
    }
    show(
        f"A round in the steady state; one thread, overhead {1e3 * overhead:.2f} ms, "
        f"{1e9 * per_entry:.0f} ns an entry, "
        f"{bandwidth / 1e9:.0f} GB/s, {speed / 1e9:.0f} Gflop/s",
        (
            "choices",
            "ε",
            "trials",
            "max_lateness",
            "rows",
            "model (ms)",
            "measured (ms)",
            "model (MB)",
            "measured (MB)",
        ),
        table,
        figures,
        chosen.json,
    )


if __name__ == "__main__":
    main()
