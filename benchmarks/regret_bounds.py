"""Regret bounds of Bogunovic et al. (2016) against the measured regret.

The paper's synthetic setting on a coarser grid: SE kernel of length-scale 0.2 on 15 x 15 points of
the unit square, noise variance 0.01, 200 rounds. The bounds hold for the theorems' β and with
probability 0.9; regret is measured with that β and with the practical one, 0.8 log(4 t).

    python benchmarks/regret_bounds.py --json docs/results/regret_bounds.json \
        --plot docs/results/regret_bounds.png
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from torch import Generator, Tensor

from tvbo import recipes, run
from tvbo.acquisition import LogBeta, ResettingBeta, TimeVaryingBeta
from tvbo.plotting.figure import ALGORITHM_COLORS, new_figure, save_figure
from tvbo.test_functions import drifting_gp, unit_grid
from tvbo.theory import (
    block_length,
    greedy_information_gain,
    information_gain_by_blocks,
    r_gp_ucb_regret_bound,
    tail_constants,
    tv_gp_ucb_regret_bound,
)

RATES = (0.001, 0.01, 0.03)
SIDE, LENGTHSCALE, NOISE, HORIZON, DELTA = 15, 0.2, 0.01, 200, 0.1
BOUNDS = ("R-GP-UCB, (17)", "TV-GP-UCB, (21)", "TV-GP-UCB, (20)")


def se_kernel() -> RBFKernel:
    """Return the kernel of the paper's synthetic experiments."""
    kernel = RBFKernel().double()
    kernel.lengthscale = LENGTHSCALE
    return kernel


def smoothness(side: int = 40, draws: int = 400) -> dict:
    """Return constants of (9) and (10), from the mean suprema of draws and their differences."""
    generator = Generator().manual_seed(0)
    drawn = drifting_gp(unit_grid(side), se_kernel(), 1.0, draws, generator=generator).values
    slopes = drawn.reshape(draws, side, side).diff(dim=1) * (side - 1)
    a0, b0 = tail_constants(drawn.abs().amax(dim=1).mean().item(), 1.0)
    a1, b1 = tail_constants(slopes.abs().amax(dim=(1, 2)).mean().item(), 1 / LENGTHSCALE)
    return {"a0": a0, "b0": b0, "a1": a1, "b1": b1}


def schedules(constants: dict) -> tuple[ResettingBeta, TimeVaryingBeta]:
    """Return the schedules (16) and (19) on the unit square."""
    options = {"dim": 2, "delta": DELTA, "a": constants["a1"], "b": constants["b1"]}
    return ResettingBeta(**options), TimeVaryingBeta(**options)


def bounds(rate: float, constants: dict) -> dict[str, list[float]]:
    """Return the bounds after 1, ..., T rounds, with upper bounds on the information gains."""
    covar = se_kernel()(unit_grid(SIDE)).to_dense().detach()
    static = greedy_information_gain(covar, HORIZON, NOISE).ceiling.tolist()
    drifting = greedy_information_gain(covar, HORIZON, NOISE, rate).ceiling.tolist()
    resetting_beta, varying_beta = schedules(constants)
    block = block_length(rate, HORIZON)
    made = {name: [] for name in BOUNDS}
    for t in range(1, HORIZON + 1):
        resetting = r_gp_ucb_regret_bound(
            horizon=t,
            block=block,
            beta=resetting_beta(t),
            static_gain=static[block - 1],
            noise_variance=NOISE,
            forgetting_rate=rate,
            delta=DELTA,
            a0=constants["a0"],
            b0=constants["b0"],
        )
        by_blocks = min(
            information_gain_by_blocks(
                horizon=t,
                block=n,
                static_gain=static[n - 1],
                noise_variance=NOISE,
                forgetting_rate=rate,
            )
            for n in range(1, t + 1)
        )
        tracking = partial(
            tv_gp_ucb_regret_bound, horizon=t, beta=varying_beta(t), noise_variance=NOISE
        )
        made[BOUNDS[0]].append(resetting)
        made[BOUNDS[1]].append(tracking(information_gain=by_blocks))
        made[BOUNDS[2]].append(tracking(information_gain=drifting[t - 1]))
    return made


def one_run(job: tuple[float, int], constants: dict) -> dict[str, Tensor]:
    """Return the cumulative regret of algorithms, random and worst choices on one draw."""
    rate, seed = job
    choices = unit_grid(SIDE)
    options = {"choices": choices, "covar_module": se_kernel(), "noise_variance": NOISE}
    resetting_beta, varying_beta = schedules(constants)
    resetting = partial(recipes.r_gp_ucb, every=block_length(rate, HORIZON), **options)
    tracking = partial(recipes.tv_gp_ucb, forgetting_rate=rate, **options)
    optimizers = {
        "R-GP-UCB, β of (16)": resetting(beta=resetting_beta),
        "TV-GP-UCB, β of (19)": tracking(beta=varying_beta),
        "R-GP-UCB, practical β": resetting(beta=LogBeta()),
        "TV-GP-UCB, practical β": tracking(beta=LogBeta()),
    }
    regret = {}
    for name, optimizer in optimizers.items():
        generator = Generator().manual_seed(seed)
        problem = drifting_gp(choices, se_kernel(), rate, HORIZON, NOISE, generator)
        regret[name] = run(problem, optimizer, horizon=HORIZON, progress=False).regret.cumsum(dim=0)
    best = problem.values.amax(dim=1)
    regret["random choice"] = (best - problem.values.mean(dim=1)).cumsum(dim=0)
    regret["worst choice"] = (best - problem.values.amin(dim=1)).cumsum(dim=0)
    return regret


def measure(rate: float, seeds: int, workers: int, constants: dict) -> dict:
    """Return bounds and mean measured regret by round at one ε."""
    work = partial(one_run, constants=constants)
    with ProcessPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        runs = list(pool.map(work, [(rate, seed) for seed in range(seeds)]))
    stacked = {name: torch.stack([one[name] for one in runs]) for name in runs[0]}
    return {
        "forgetting_rate": rate,
        "seeds": seeds,
        "block_length": block_length(rate, HORIZON),
        "constants": constants,
        "bound": bounds(rate, constants),
        "measured": {name: rows.mean(dim=0).tolist() for name, rows in stacked.items()},
        "largest": {name: rows[:, -1].max().item() for name, rows in stacked.items()},
    }


def figures(result: dict) -> dict:
    """Return the figures for JSON, with every 20th round of the curves."""
    thinned = {
        part: {name: curve[19::20] for name, curve in result[part].items()}
        for part in ("bound", "measured")
    }
    return result | thinned | {"rounds": list(range(20, HORIZON + 1, 20))}


def plot(results: list[dict], path: Path) -> None:
    """Plot bounds and measured regret after the last round, a mark for each ε."""
    rows = {
        "bound of R-GP-UCB": BOUNDS[0],
        "bound of TV-GP-UCB": BOUNDS[2],
        "the worst action, every time": "worst choice",
        "a random action, every time": "random choice",
        "R-GP-UCB as the bound has it": "R-GP-UCB, β of (16)",
        "TV-GP-UCB as the bound has it": "TV-GP-UCB, β of (19)",
        "R-GP-UCB as used in practice": "R-GP-UCB, practical β",
        "TV-GP-UCB as used in practice": "TV-GP-UCB, practical β",
    }
    figure = new_figure(7.5, 4.2)
    ax = figure.subplots()
    for height, key in enumerate(reversed(rows.values())):
        color = ALGORITHM_COLORS.get(key.split(",")[0].casefold(), "0.4")
        for result, marker in zip(results, "os^", strict=True):
            last = (result["bound"] | result["measured"])[key][-1]
            ax.plot(last, height, marker, color=color, ms=8, alpha=0.8)
    for result, marker in zip(results, "os^", strict=True):
        label = f"ε = {result['forgetting_rate']:g} per round"
        ax.plot([], [], marker, color="0.4", label=label)
    worst = max(result["measured"]["worst choice"][-1] for result in results)
    ax.set_xscale("log")
    ax.axvspan(worst, 1e12, color="0.9", linewidth=0)
    ax.set_xlim(10, 1e12)
    ax.text(4 * worst, 2.5, "more than can be lost:\na bound here says nothing", color="0.3")
    ax.set_yticks(range(len(rows)), list(rows)[::-1])
    ax.set_xlabel(f"total regret of {HORIZON} rounds (prior standard deviations, logarithmic)")
    ax.grid(axis="x", alpha=0.3)
    ax.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path)


def main() -> None:
    """Run the benchmark, print a table, save JSON and a figure."""
    options = parser(__doc__)
    options.add_argument("--plot", type=Path, help="save the picture")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--workers", type=int, default=2)
    chosen = options.parse_args()
    constants = smoothness()
    results = [measure(rate, chosen.seeds, chosen.workers, constants) for rate in RATES]
    names = [*results[0]["bound"], *results[0]["measured"]]
    rows = [
        (name, *(f"{(r['bound'] | r['measured'])[name][-1]:.3g}" for r in results))
        for name in names
    ]
    columns = ("R_200", *(f"ε = {rate:g}" for rate in RATES))
    saved = [figures(result) for result in results]
    show("Bounds and measured regret", columns, rows, saved, chosen.json)
    if chosen.plot is not None:
        plot(results, chosen.plot)


if __name__ == "__main__":
    main()
