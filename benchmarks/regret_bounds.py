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
from matplotlib.axes import Axes
from report import parser, show
from torch import Generator, Tensor

from tvbo import recipes, run
from tvbo.acquisition import LogBeta, ResettingBeta, TimeVaryingBeta
from tvbo.plotting.figure import COLORS, new_figure, save_figure
from tvbo.problems import drifting_gp, unit_grid
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


def draw(ax: Axes, result: dict) -> None:
    """Draw bounds dashed and measured regret solid or dotted, in a color per algorithm."""
    rounds = range(1, HORIZON + 1)
    blue, orange = COLORS[0], COLORS[1]
    styles = {
        BOUNDS[0]: (orange, "--", 1.8),
        BOUNDS[1]: (blue, "--", 1.8),
        BOUNDS[2]: (COLORS[5], "-.", 3.0),
        "worst choice": ("black", "-", 2.2),
        "random choice": (COLORS[4], "-", 1.8),
        "R-GP-UCB, β of (16)": (orange, "-", 1.8),
        "TV-GP-UCB, β of (19)": (blue, "-", 1.8),
        "R-GP-UCB, practical β": (orange, ":", 1.8),
        "TV-GP-UCB, practical β": (blue, ":", 1.8),
    }
    curves = result["bound"] | result["measured"]
    for name, (color, line, width) in styles.items():
        label = f"bound: {name}" if name in BOUNDS else name
        # Wider lines are drawn first, since (20) and (21) nearly coincide.
        ax.plot(
            rounds,
            curves[name],
            color=color,
            linestyle=line,
            linewidth=width,
            label=label,
            zorder=3 - width / 10,
        )
    ax.set_yscale("log")
    ax.set_xlim(1, HORIZON)
    ax.set_xticks((1, 50, 100, 150, 200))
    ax.set_title(f"ε = {result['forgetting_rate']:g} per round, N = {result['block_length']}")
    ax.set_xlabel("round T")
    ax.grid(alpha=0.3)


def plot(results: list[dict], path: Path) -> None:
    """Plot one panel for each ε."""
    figure = new_figure(12.0, 6.4)
    axes = figure.subplots(1, len(results), sharey=True)
    for ax, result in zip(axes, results, strict=True):
        draw(ax, result)
    axes[0].set_ylabel("cumulative regret $R_T$\n(prior standard deviations, logarithmic)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        handlelength=4,
    )
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
