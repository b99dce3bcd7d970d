"""The cost model of the streaming posterior against measured points.

python benchmarks/scaling.py --json docs/results/scaling.json
"""

from __future__ import annotations

import statistics
import time

import torch
from shared import median_seconds, parser, show, squared_exponential
from torch import Size, Tensor

from tvbo.models import StreamingGP
from tvbo.models.streaming.cost import streaming_cost

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
        squared_exponential(0.2),
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


def machine() -> tuple[float, float, float, float]:
    """Return overhead per round, seconds per entry, bandwidth and speed of a product."""
    overhead, _ = rounds(4, 0.9, 1, 0.0)
    many, _ = rounds(*MANY)
    per_entry = (many - overhead) / (MANY[0] * MANY[2])
    big = torch.zeros(BANDWIDTH_BYTES // 8, dtype=torch.float64)
    square = torch.rand(PRODUCT, PRODUCT, dtype=torch.float64)
    reading, product = median_seconds(big.sum, lambda: square @ square, repeats=5)
    return overhead, per_entry, BANDWIDTH_BYTES / reading, 2 * PRODUCT**3 / product


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    overhead, per_entry, bandwidth, speed = machine()
    records = []
    for point in POINTS:
        n, rate, trials, max_lateness = point
        cost = streaming_cost(n, rate, batch_size=trials, max_lateness=max_lateness)
        measured, held = rounds(*point)
        records.append(
            {
                "choices": n,
                "forgetting_rate": rate,
                "trials": trials,
                "max_lateness": "default" if max_lateness is None else f"{max_lateness:g}",
                "rows": f"{cost.rows:.0f}" + (" + matrix" if cost.merged else ""),
                "predicted_seconds": cost.seconds(overhead, per_entry, bandwidth, speed),
                "measured_seconds": measured,
                "predicted_bytes": cost.memory,
                "measured_bytes": held,
            }
        )
    figures = {
        "overhead_seconds": overhead,
        "per_entry_seconds": per_entry,
        "bandwidth": bandwidth,
        "speed": speed,
        "points": records,
    }
    columns = {
        "choices": "{choices}",
        "ε": "{forgetting_rate:g}",
        "trials": "{trials}",
        "max_lateness": "{max_lateness}",
        "rows": "{rows}",
        "model (ms)": lambda r: f"{1e3 * r['predicted_seconds']:.2f}",
        "measured (ms)": lambda r: f"{1e3 * r['measured_seconds']:.2f}",
        "model (MB)": lambda r: f"{r['predicted_bytes'] / 1e6:.1f}",
        "measured (MB)": lambda r: f"{r['measured_bytes'] / 1e6:.1f}",
    }
    title = (
        f"A round in the steady state; one thread, overhead {1e3 * overhead:.2f} ms, "
        f"{1e9 * per_entry:.0f} ns an entry, {bandwidth / 1e9:.0f} GB/s, {speed / 1e9:.0f} Gflop/s"
    )
    show(title, columns, records, chosen.json, figures)


if __name__ == "__main__":
    main()
