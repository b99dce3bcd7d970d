"""Structures of the kernel: product, additive or both, for each truth; and no context.

Functions are drawn from the joint model: 15 actions and 6 contexts on [0, 1], RBF kernels of
length-scales 0.2 and 0.3, variances together 1, ε = 0.01 per step, σ² = 0.01. Each structure learns
everything from a log of 100 random pairs, one per step (`fit_drift`). Its error is that of the
posterior mean at 100 pairs drawn apart, at the same times; its regret that of 100 rounds of
TV-CGP-UCB on a new draw, with what was learned. *merged* learns and chooses without the context.

    python benchmarks/context_structure.py --seeds 8 --json docs/results/context_structure.json
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from report import parser, show
from rich.progress import track
from torch import Tensor

from tvbo import recipes, run
from tvbo.kernels import ContextActionKernel
from tvbo.logs import DriftFit, fit_drift
from tvbo.models import TimeVaryingGP
from tvbo.spaces import action_context_rows
from tvbo.test_functions import drifting_contextual_gp

STRUCTURES = ("product", "additive", "both")
ACTIONS = torch.linspace(0, 1, 15, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
RATE = 0.01
NOISE = 0.01
STEPS = 100


def smooth(lengthscale: float, outputscale: float = 1.0) -> ScaleKernel:
    """Return a scaled RBF kernel."""
    kernel = ScaleKernel(RBFKernel()).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = lengthscale, outputscale
    return kernel


def joint(structure: str, action: float, context: float) -> Kernel:
    """Return a kernel over ``[action | context]`` of total variance 1."""
    columns = {"action_features": [0], "context_features": [1]}
    if structure == "additive":
        return ContextActionKernel(smooth(action, 0.5), smooth(context, 0.5), structure, **columns)
    parts = smooth(action).base_kernel, smooth(context).base_kernel
    kernel = ContextActionKernel(*parts, structure, **columns).double()
    if structure == "both":
        kernel.outputscales = [1 / 3] * 3
        return kernel
    kernel = ScaleKernel(kernel).double()
    kernel.outputscale = 1.0
    return kernel


def error(fit: DriftFit, X: Tensor, Y: Tensor, test_X: Tensor, test_f: Tensor) -> float:
    """Return the root mean square error of the posterior mean at test rows."""
    model = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, fit.noise_variance),
        forgetting_rate=fit.forgetting_rate,
        covar_module=fit.covar_module,
        mean_module=fit.mean_module,
        outcome_transform=None,
    ).eval()
    with torch.no_grad():
        mean = model.posterior(test_X).mean.squeeze(-1)
    return (mean - test_f).square().mean().sqrt().item()


def one_draw(truth: str, seed: int) -> dict[str, dict[str, float]]:
    """Return log likelihood, error, regret and learned noise variance by structure."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (ACTIONS, CONTEXTS, joint(truth, 0.2, 0.3), RATE, STEPS, NOISE)
    log = drifting_contextual_gp(*drawn, generator)
    pairs = action_context_rows(ACTIONS, CONTEXTS)
    chosen = pairs[torch.randint(len(pairs), (2 * STEPS,), generator=generator)]
    rows = torch.cat([chosen, log.times.repeat(2).unsqueeze(-1)], dim=-1)
    X, test_X = rows[:STEPS], rows[STEPS:]
    Y, test_f = log(rows)[:STEPS].unsqueeze(-1), log.evaluate_true(test_X)
    sent = CONTEXTS[torch.randint(len(CONTEXTS), (STEPS,), generator=generator)]

    def regret(recipe, fit: DriftFit) -> float:
        # Function and noise are the same for all.
        problem = drifting_contextual_gp(*drawn, torch.Generator().manual_seed(1000 + seed))
        optimizer = recipe(
            choices=ACTIONS,
            contexts=CONTEXTS,
            covar_module=fit.covar_module,
            mean_module=fit.mean_module,
            forgetting_rate=fit.forgetting_rate,
            noise_variance=fit.noise_variance,
        )
        history = run(problem, optimizer, horizon=STEPS, contexts=sent, progress=False)
        return history.regret.mean().item()

    found = {}
    for structure in STRUCTURES:
        fit = fit_drift(X, Y, covar_module=joint(structure, 0.4, 0.4))
        found[structure] = {
            "log_likelihood": fit.log_likelihood,
            "error": error(fit, X, Y, test_X, test_f),
            "regret": regret(recipes.tv_cgp_ucb, fit),
            "noise_variance": fit.noise_variance,
        }
    fit = fit_drift(X[:, [0, 2]], Y, covar_module=smooth(0.4))
    found["merged"] = {
        "log_likelihood": fit.log_likelihood,
        "regret": regret(recipes.merged, fit),
        "noise_variance": fit.noise_variance,
    }
    return found


def figures(values: Tensor) -> list[float]:
    """Return the mean and its standard error."""
    return [values.mean().item(), (values.std() / len(values) ** 0.5).item()]


def summary(truth: str, draws: list[dict[str, dict[str, float]]]) -> list[dict]:
    """Return a record per structure; ``behind`` is the regret above that of each, in pairs."""

    def column(name: str, measure: str) -> Tensor:
        return torch.tensor([draw[name][measure] for draw in draws]).double()

    records = []
    for name in (*STRUCTURES, "merged"):
        measured = {measure: column(name, measure) for measure in draws[0][name]}
        behind = {
            other: figures(measured["regret"] - column(other, "regret"))
            for other in STRUCTURES
            if other != name
        }
        records.append(
            {
                "truth": truth,
                "structure": name,
                "draws": len(draws),
                **{measure: figures(values) for measure, values in measured.items()},
                "behind": behind,
                "by_draw": {measure: values.tolist() for measure, values in measured.items()},
            }
        )
    return records


def likelihoods(truth: str, records: list[dict]) -> tuple[str, ...]:
    """Return a row of the last table: which structure the likelihood selects by draw."""
    product, additive, both = (
        torch.tensor(record["by_draw"]["log_likelihood"]) for record in records[: len(STRUCTURES)]
    )
    row = [truth, f"{(product > additive).sum()} of {len(product)}"]
    # Akaike's criterion: product has one scale, additive two, both three.
    for gain, asked in ((both - product, 2), (both - additive, 1)):
        row += [f"{gain.min():.1f} to {gain.max():.1f}", f"{(gain > asked).sum()}"]
    return tuple(row)


def main() -> None:
    """Run the benchmark, print three tables, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=8)
    chosen = options.parse_args()
    todo = [(truth, seed) for seed in range(chosen.seeds) for truth in STRUCTURES]
    draws: dict[str, list] = {truth: [] for truth in STRUCTURES}
    for truth, seed in track(todo, description="draws"):
        draws[truth].append(one_draw(truth, seed))
    records = {truth: summary(truth, found) for truth, found in draws.items()}
    flat = [record for found in records.values() for record in found]
    written = "{:.3f} ± {:.3f}".format
    table = [
        (
            r["truth"],
            r["structure"],
            f"{r['log_likelihood'][0]:.1f}",
            f"{r['error'][0]:.3f}" if "error" in r else "",
            f"{r['noise_variance'][0]:.3f}",
            written(*r["regret"]),
        )
        for r in flat
    ]
    columns = ("truth", "structure", "log likelihood", "error", "noise variance", "regret")
    show(f"{chosen.seeds} draws for each truth", columns, table, flat, chosen.json)
    table = [
        (
            r["truth"],
            r["structure"],
            *(written(*r["behind"][s]) if s in r["behind"] else "" for s in STRUCTURES),
        )
        for r in flat
    ]
    columns = ("truth", "structure", *STRUCTURES)
    show("Regret above that of each structure, paired by draw", columns, table, None, None)
    columns = ("truth", "product above additive", "both - product", "> 2", "both - additive", "> 1")
    table = [likelihoods(truth, found) for truth, found in records.items()]
    show("Log likelihood by draw, nats", columns, table, None, None)


if __name__ == "__main__":
    main()
