"""ε and the parameters of both kernels, recovered from logs drawn from the joint model.

Logs of 300 observations, one per unit of time, at random 2-D actions and 1-D contexts; SE kernels
of length-scales 0.3 (action) and 0.5 (context), σ² = 0.05. Product: variance 1. Both: variances 0.4
(action), 0.3 (context) and 0.6 (interaction). Everything is learned by `fit_drift`: ε, noise,
scales, both length-scales and the mean.

    python benchmarks/context_recovery.py --draws 100 --json docs/results/context_recovery.json
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from report import parser, show
from rich.progress import track

from tvbo.kernels import ContextActionKernel
from tvbo.logs import fit_drift
from tvbo.test_functions import drifting_gp_log

RATE = 0.03
NOISE = 0.05
ACTION, CONTEXT = 0.3, 0.5
SCALES = {"product": [1.0], "both": [0.4, 0.3, 0.6]}
NAMES = {"product": ["variance"], "both": ["action", "context", "interaction"]}


def joint_kernel(structure: str) -> Kernel:
    """Return the kernel over ``[action | context]`` with the true parameters."""
    parts = [RBFKernel().double() for _ in range(2)]
    parts[0].lengthscale, parts[1].lengthscale = ACTION, CONTEXT
    kernel = ContextActionKernel(
        *parts, structure, action_features=[0, 1], context_features=[2]
    ).double()
    if structure == "both":
        kernel.outputscales = SCALES[structure]
        return kernel
    scaled = ScaleKernel(kernel, outputscale_constraint=GreaterThan(1e-6)).double()
    scaled.outputscale = 1.0
    return scaled


def started(structure: str) -> Kernel:
    """Return the same kernel with typical initial parameters."""
    kernel = joint_kernel(structure)
    inner = kernel if structure == "both" else kernel.base_kernel
    inner.action_kernel.base_kernel.lengthscale = 0.6
    inner.context_kernel.base_kernel.lengthscale = 0.25
    if structure == "both":
        inner.outputscales = [1.0, 1.0, 1.0]
    return kernel


def one_fit(seed: int, structure: str, n: int = 300) -> dict:
    """Draw one log, fit it, and return the results."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(n, 3, dtype=torch.float64, generator=generator)
    times = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    train_X = torch.cat([rows, times], dim=-1)
    truth = joint_kernel(structure)
    train_Y = drifting_gp_log(train_X, truth, RATE, NOISE, generator=generator)
    fit = fit_drift(train_X, train_Y, covar_module=started(structure))
    low, high = fit.forgetting_rate_interval
    kernel = fit.covar_module
    inner = kernel if structure == "both" else kernel.base_kernel
    scales = inner.outputscales.tolist() if structure == "both" else [kernel.outputscale.item()]
    return {
        "seed": seed,
        "forgetting_rate": fit.forgetting_rate,
        "interval": [low, high],
        "covered": low <= RATE <= high,
        "action length-scale": inner.action_kernel.base_kernel.lengthscale.item(),
        "context length-scale": inner.context_kernel.base_kernel.lengthscale.item(),
        "noise variance": fit.noise_variance,
        **dict(zip(NAMES[structure], scales, strict=True)),
        "messages": fit.messages,
    }


def summary(structure: str, fits: list[dict]) -> dict:
    """Return the coverage, and the estimates of each parameter against the truth."""
    n = len(fits)
    covered = sum(fit["covered"] for fit in fits) / n
    truth = {
        "forgetting_rate": RATE,
        "action length-scale": ACTION,
        "context length-scale": CONTEXT,
        "noise variance": NOISE,
        **dict(zip(NAMES[structure], SCALES[structure], strict=True)),
    }
    estimates = {}
    for name, value in truth.items():
        values = torch.tensor([fit[name] for fit in fits], dtype=torch.float64)
        low, median, high = values.quantile(
            torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        ).tolist()
        estimates[name] = {"truth": value, "median": median, "p10": low, "p90": high}
    return {
        "structure": structure,
        "draws": n,
        "coverage": covered,
        "coverage_standard_error": (covered * (1 - covered) / n) ** 0.5,
        "estimates": estimates,
        "with_messages": sum(bool(fit["messages"]) for fit in fits),
        "fits": fits,
    }


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    options = parser(__doc__)
    options.add_argument("--draws", type=int, default=100)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    results = []
    for structure in SCALES:
        work = partial(one_fit, structure=structure)
        with ProcessPoolExecutor(
            chosen.workers, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            fits = list(
                track(
                    pool.map(work, range(chosen.draws)), description=structure, total=chosen.draws
                )
            )
        results.append(summary(structure, fits))
    rows = [
        (
            r["structure"],
            f"{r['coverage']:.0%} ± {r['coverage_standard_error']:.0%}",
            name,
            f"{each['truth']:.3g}",
            f"{each['median']:.3g}",
            f"{each['p10']:.3g} to {each['p90']:.3g}",
        )
        for r in results
        for name, each in r["estimates"].items()
    ]
    columns = ("structure", "ε within its 95 % interval", "parameter", "truth", "median", "10–90 %")
    show(f"{chosen.draws} draws each", columns, rows, results, chosen.json)


if __name__ == "__main__":
    main()
