"""ε and the parameters of both kernels, recovered from logs drawn from the joint model.

Logs of 300 observations, one per unit of time, at random 2-D actions and 1-D contexts; SE kernels
of length-scales 0.3 (action) and 0.5 (context), σ² = 0.05. Product: variance 1. Both: variances 0.4
(action), 0.3 (context) and 0.6 (interaction). Everything is learned by `fit_drift`: ε, noise,
scales, both length-scales and the mean.

    python benchmarks/context_recovery.py --draws 100 --json docs/results/context_recovery.json
"""

from __future__ import annotations

from functools import partial

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from shared import in_workers, parser, show

from tvbo.kernels import ContextActionKernel
from tvbo.logs import fit_drift
from tvbo.test_functions.drifting_gp import drifting_gp_log

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
        "forgetting_rate": fit.forgetting_rate,
        "covered": low <= RATE <= high,
        "action length-scale": inner.action_kernel.base_kernel.lengthscale.item(),
        "context length-scale": inner.context_kernel.base_kernel.lengthscale.item(),
        "noise variance": fit.noise_variance,
        **dict(zip(NAMES[structure], scales, strict=True)),
    }


def summary(structure: str, fits: list[dict]) -> list[dict]:
    """Return a record of each parameter: its estimates against the truth, and the coverage of ε."""
    covered = sum(fit["covered"] for fit in fits) / len(fits)
    truth = {
        "forgetting_rate": RATE,
        "action length-scale": ACTION,
        "context length-scale": CONTEXT,
        "noise variance": NOISE,
        **dict(zip(NAMES[structure], SCALES[structure], strict=True)),
    }
    records = []
    for name, value in truth.items():
        values = torch.tensor([fit[name] for fit in fits], dtype=torch.float64)
        low, median, high = values.quantile(torch.tensor([0.1, 0.5, 0.9]).double()).tolist()
        records.append(
            {
                "structure": structure,
                "coverage": covered,
                "error": (covered * (1 - covered) / len(fits)) ** 0.5,
                "parameter": name,
                "truth": value,
                "median": median,
                "p10": low,
                "p90": high,
            }
        )
    return records


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, draws=100, workers=2).parse_args()
    records = []
    for structure in SCALES:
        fits = in_workers(
            partial(one_fit, structure=structure), range(chosen.draws), chosen.workers
        )
        records += summary(structure, fits)
    columns = {
        "structure": "{structure}",
        "ε within its 95 % interval": "{coverage:.0%} ± {error:.0%}",
        "parameter": "{parameter}",
        "truth": "{truth:.3g}",
        "median": "{median:.3g}",
        "10–90 %": "{p10:.3g} to {p90:.3g}",
    }
    show(f"{chosen.draws} draws each", columns, records, chosen.json)


if __name__ == "__main__":
    main()
