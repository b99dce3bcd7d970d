"""Time of day and drift: ε fitted to a log of one day and to a log of six days.

Two random actions an hour on [0, 1]. The truth is a daily cycle, the same slowly forgotten
(ε = 0.005 per hour), or a drift without a cycle (ε = 0.02): cycle, both, drift. RBF kernels of
length-scales 0.3 over the action and 1 over the time of day on the circle, variance 1, σ² = 0.01.
`fit_drift` learns everything from the first day and from all six, with the column of the time of
day and, without it, over the action alone.

    python benchmarks/context_cycle.py --seeds 3 --json docs/results/context_cycle.json
"""

from __future__ import annotations

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from report import parser, show
from rich.progress import track

from tvbo.kernels import ContextActionKernel
from tvbo.logs import DriftFit, fit_drift
from tvbo.test_functions import drifting_gp_log, time_of_day

NOISE = 0.01
PER_HOUR = 2
DAYS = (1, 6)
# A length-scale of 1,000 on a circle 2 wide: the function is the same at all times of day.
TRUTHS = {"cycle": (0.0, 1.0), "both": (0.005, 1.0), "drift": (0.02, 1000.0)}


def smooth(lengthscale: float) -> ScaleKernel:
    """Return a scaled RBF kernel of variance 1."""
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, 1.0
    return kernel


def daily(action: float, circle: float) -> ScaleKernel:
    """Return a product kernel over ``[action | point on the circle]`` of variance 1."""
    parts = smooth(action).base_kernel, smooth(circle).base_kernel
    joint = ContextActionKernel(*parts, action_features=[0], context_features=[1, 2])
    kernel = ScaleKernel(joint).double()
    kernel.outputscale = 1.0
    return kernel


def learned(fit: DriftFit) -> dict:
    """Return the results of a fit."""
    return {
        "forgetting_rate": fit.forgetting_rate,
        "interval": list(fit.forgetting_rate_interval),
        "lengthscales": list(fit.lengthscales),
        "log_likelihood": fit.log_likelihood,
        "lr_pvalue": fit.lr_pvalue,
        "messages": list(fit.messages),
    }


def one_log(truth: str, seed: int) -> list[dict]:
    """Fit one draw; return a record for its first day and one for all its days."""
    rate, circle = TRUTHS[truth]
    generator = torch.Generator().manual_seed(seed)
    n = PER_HOUR * 24 * max(DAYS)
    hours = torch.arange(n).double() / PER_HOUR
    actions = torch.rand(n, 1, generator=generator, dtype=torch.float64)
    rows = torch.cat([actions, time_of_day(hours), hours.unsqueeze(-1)], dim=-1)
    Y = drifting_gp_log(rows, daily(0.3, circle), rate, NOISE, generator=generator)
    records = []
    for days in DAYS:
        seen = hours < 24 * days
        X = rows[seen]
        options = {"num_starts": 2, "time_unit": "hour"}
        fit = learned(fit_drift(X, Y[seen], covar_module=daily(0.6, 0.6), **options))
        bare = learned(fit_drift(X[:, [0, 3]], Y[seen], covar_module=smooth(0.6), **options))
        low, high = fit["interval"]
        records.append(
            {
                "truth": truth,
                "true_rate": rate,
                "seed": seed,
                "days": days,
                "covered": low <= rate <= high,
                **fit,
                "without_context": bare,
            }
        )
    return records


def main() -> None:
    """Run the benchmark, print a table, save JSON.

    Columns: held, whether the interval contains the true ε; circle, the length-scale on the circle;
    ε alone, ε without the column of the time of day.
    """
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3)
    chosen = options.parse_args()
    todo = [(truth, seed) for truth in TRUTHS for seed in range(chosen.seeds)]
    results = [record for each in track(todo, description="logs") for record in one_log(*each)]
    table = [
        (
            r["truth"],
            f"{r['true_rate']:g}",
            f"{r['days']}",
            f"{r['forgetting_rate']:.4f}",
            "{:.4f} to {:.4f}".format(*r["interval"]),
            "yes" if r["covered"] else "no",
            f"{r['lengthscales'][-1]:.2f}",
            f"{r['without_context']['forgetting_rate']:.3f}",
        )
        for r in results
    ]
    columns = (
        "truth",
        "true ε",
        "days",
        "ε",
        "95 % interval",
        "held",
        "circle",
        "ε alone",
    )
    show(f"{chosen.seeds} draws for each truth", columns, table, results, chosen.json)


if __name__ == "__main__":
    main()
