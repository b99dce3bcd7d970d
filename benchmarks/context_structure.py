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
from gpytorch.kernels import Kernel, ScaleKernel
from rich.progress import track
from shared import mean_error, parser, show, squared_exponential
from torch import Tensor

from experiments.problems.contextual_panel import drifting_contextual_gp
from tvbo import recipes, run
from tvbo.kernels import ContextActionKernel
from tvbo.logs import DriftFit, fit_drift
from tvbo.models import TimeVaryingGP
from tvbo.spaces.row_index import action_context_rows

STRUCTURES = ("product", "additive", "both")
ACTIONS = torch.linspace(0, 1, 15, dtype=torch.float64).unsqueeze(-1)
CONTEXTS = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
RATE = 0.01
NOISE = 0.01
STEPS = 100


def joint(structure: str, action: float, context: float) -> Kernel:
    """Return a kernel over ``[action | context]`` of total variance 1."""
    columns = {"action_features": [0], "context_features": [1]}
    if structure == "additive":
        return ContextActionKernel(
            squared_exponential(action, 0.5),
            squared_exponential(context, 0.5),
            structure,
            **columns,
        )
    parts = squared_exponential(action), squared_exponential(context)
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
            **({"contexts": CONTEXTS} if recipe is recipes.tv_cgp_ucb else {}),
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
    fit = fit_drift(X[:, [0, 2]], Y, covar_module=squared_exponential(0.4, 1.0))
    found["merged"] = {
        "log_likelihood": fit.log_likelihood,
        "regret": regret(recipes.tv_gp_ucb, fit),
        "noise_variance": fit.noise_variance,
    }
    return found


def summary(truth: str, draws: list[dict[str, dict[str, float]]]) -> list[dict]:
    """Return a record of each structure; ``behind`` is the regret above that of each, in pairs."""

    def column(name: str, measure: str) -> Tensor:
        return torch.tensor([draw[name][measure] for draw in draws]).double()

    records = []
    for name in (*STRUCTURES, "merged"):
        measured = {measure: column(name, measure) for measure in draws[0][name]}
        record = {"truth": truth, "structure": name, "error": ["", ""]}
        record |= {measure: mean_error(values) for measure, values in measured.items()}
        for other in STRUCTURES:
            record[f"behind {other}"] = mean_error(measured["regret"] - column(other, "regret"))
        record["log_likelihood_by_draw"] = measured["log_likelihood"].tolist()
        records.append(record)
    return records


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, seeds=8).parse_args()
    draws = {
        truth: [one_draw(truth, seed) for seed in track(range(chosen.seeds), truth)]
        for truth in STRUCTURES
    }
    records = {truth: summary(truth, found) for truth, found in draws.items()}
    columns = {
        "truth": "{truth}",
        "structure": "{structure}",
        "log likelihood": "{log_likelihood[0]:.1f}",
        "error": "{error[0]:.4}",
        "noise variance": "{noise_variance[0]:.3f}",
        "regret": "{regret[0]:.3f} ± {regret[1]:.3f}",
    }
    for name in STRUCTURES:
        columns[f"above that of {name}, paired"] = (
            f"{{behind {name}[0]:.3f}} ± {{behind {name}[1]:.3f}}"
        )
    flat = [record for found in records.values() for record in found]
    show(f"{chosen.seeds} draws for each truth", columns, flat, chosen.json)


if __name__ == "__main__":
    main()
