"""Seconds of an evaluation with gradient: panel likelihood against dense likelihood.

python benchmarks/panel_likelihood.py --json docs/results/panel_likelihood.json
"""

from __future__ import annotations

import statistics
import time

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show

from tvbo.logs import DenseLikelihood, DriftLog, Panel, PanelLikelihood, panel_rows
from tvbo.test_functions import drifting_gp, unit_grid

SIZES = ((16, 25), (16, 50), (16, 100), (36, 100))
REPEATS = 5


def seconds(likelihood: DenseLikelihood | PanelLikelihood) -> tuple[float, float]:
    """Return the median time of a value and its gradient, and the value."""
    times = []
    for _ in range(REPEATS):
        rate = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
        noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        started = time.perf_counter()
        value, _ = likelihood(rate, noise)
        value.backward()
        times.append(time.perf_counter() - started)
    return statistics.median(times), value.item()


def measure(arms: int, steps: int) -> dict:
    """Time both likelihoods on one drawn panel."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    problem = drifting_gp(
        unit_grid(round(arms**0.5)), kernel, 0.05, horizon=steps, noise_variance=0.1
    )
    arm_rows, Y = panel_rows(problem.values, problem.times)
    X = torch.cat([problem.choices[arm_rows[:, 0].long()], arm_rows[:, 1:]], dim=-1)
    log = DriftLog.from_rows(X, Y, None, -1)
    dense_seconds, dense_value = seconds(DenseLikelihood(log, kernel, None))
    panel_seconds, panel_value = seconds(PanelLikelihood(Panel.from_log(log), kernel, None))
    return {
        "arms": arms,
        "times": steps,
        "observations": arms * steps,
        "dense_seconds": dense_seconds,
        "panel_seconds": panel_seconds,
        "ratio": dense_seconds / panel_seconds,
        "relative_difference": abs(panel_value - dense_value) / abs(dense_value),
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    results = [measure(*size) for size in SIZES]
    rows = [
        (
            f"{r['arms']} × {r['times']}",
            f"{r['observations']}",
            f"{r['dense_seconds']:.4f}",
            f"{r['panel_seconds']:.4f}",
            f"{r['ratio']:.1f}",
            f"{r['relative_difference']:.1e}",
        )
        for r in results
    ]
    columns = ("arms × times", "observations", "dense (s)", "panel (s)", "ratio", "difference")
    title = "One likelihood with gradient (length-scale, rate, noise), medians"
    show(title, columns, rows, results, chosen.json)


if __name__ == "__main__":
    main()
