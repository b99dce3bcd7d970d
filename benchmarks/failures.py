"""Machines that trip, and crashes told as penalties: how often they recur, and what is learned.

A machine runs at x in [0, 1] and trips above 0.6; noise 0.05. Where a trip fails the trial, the
best setting would be 0.9, of 40 or 60 rounds; where it is told as a penalty, 0.4, of 40 rounds.
Each on a box, a grid of 21 settings, and a box with three modes, which add 0, -0.1 and -0.2.
`tv_gp_ucb` with all hyperparameters given, and its default, which learns them. Distances to the
best setting are means over the last 20 rounds, of the actions asked, and of the recommendation in
each fifth of them; ratios are to the distance with the least penalty.

Then the region that trips moves, 0.4 wide, and so does the best setting: on its own, or always
within the region; or any trial trips with probability 0.2. A loop that learns from trips is
compared with one that ignores them, and with one that is told the allowed settings at each ask.
Regret is that of the allowed settings asked in the last 20 rounds, against the best allowed one;
*best* is that of the best of them.

    python benchmarks/failures.py --json docs/results/failures.json
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from statistics import mean
from typing import Any

import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from rich.progress import track
from shared import mean_error, parser, show
from torch import Generator, Tensor

from tvbo import recipes
from tvbo.optimizers import GPOptimizer

SCENES, LOOPS = ("on its own", "around it", "by chance"), ("learns", "ignores", "is told")
LIMIT, NOISE, HORIZON, FIRST = 0.6, 0.05, {"given": 40, "learned": 60}, 20
PENALTIES = (0.3, 1e3, 1e6)
MODES = {"a": 0.0, "b": -0.1, "c": -0.2}
SPACES: dict[str, dict[str, Any]] = {
    "box": {"bounds": {"x": (0.0, 1.0)}},
    "grid": {"choices": torch.linspace(0.0, 1.0, 21, dtype=torch.float64).unsqueeze(-1)},
    "mixed": {"bounds": {"x": (0.0, 1.0), "mode": list(MODES)}},
}


def make(space: str, form: str, seed: int, **options: Any) -> GPOptimizer:
    """Return an optimizer over a space, with hyperparameters given or learned."""
    given = {}
    if form == "given":
        kernel = ScaleKernel(RBFKernel())
        kernel.outputscale, kernel.base_kernel.lengthscale = 0.25, 0.3
        given = {"covar_module": kernel, "forgetting_rate": 0.01, "noise_variance": NOISE**2}
    generator = Generator().manual_seed(seed)
    return recipes.tv_gp_ucb(**SPACES[space], **given, **options, generator=generator)


def play(space: str, form: str, seed: int, penalty: float | None) -> tuple[int, float, float]:
    """Return trips, and late distances to the best setting: of the asks, of the recommendations."""
    optimizer, generator = make(space, form, seed), Generator().manual_seed(1000 + seed)
    best, horizon = (0.9, HORIZON[form]) if penalty is None else (0.4, HORIZON["given"])
    num_trips, asked, recommended = 0, [], []
    for t in range(1, horizon + 1):
        trial = optimizer.ask(float(t))
        x = trial.X[0, 0].item()
        mode = trial.parameters["mode"] if space == "mixed" else "a"
        noise = torch.randn((), dtype=torch.float64, generator=generator).item()
        if x <= LIMIT:
            optimizer.tell(trial, 1 - 4 * (x - best) ** 2 + MODES[mode] + NOISE * noise)
        elif penalty is None:
            optimizer.fail(trial, "tripped")
        else:
            optimizer.tell(trial, -penalty)
        num_trips += x > LIMIT
        if t > FIRST:
            asked.append(abs(x - best))
        if t > FIRST and t % 5 == 0 and penalty is not None:
            recommended.append(abs(optimizer.recommend().X[0, 0].item() - best))
    return num_trips, mean(asked), mean(recommended or [math.nan])


def trip_region(t: float, seed: int, scene: str) -> tuple[float, float, float]:
    """Return the ends of the region that trips at a time, and the setting that would be best."""
    period, phase, other_period, other_phase = torch.rand(
        4, generator=Generator().manual_seed(7000 + seed)
    ).tolist()
    low = 0.3 + 0.3 * math.sin(2 * math.pi * (t / (60 + 60 * period) + phase))
    best = 0.5 + 0.4 * math.sin(2 * math.pi * (t / (60 + 60 * other_period) + other_phase))
    if scene == "around it":
        best = low + 0.1 + 0.2 * other_phase
    return (2.0, 2.0, best) if scene == "by chance" else (low, low + 0.4, best)


def play_moving(
    space: str, form: str, seed: int, scene: str, loop: str
) -> tuple[int, float, float]:
    """Return trips, and mean and least regret of the allowed settings of the last 20 rounds."""
    optimizer = make(space, form, seed, failures="ignore" if loop == "ignores" else "learn")
    generator, horizon = Generator().manual_seed(1000 + seed), HORIZON[form]
    settings = torch.linspace(0.0, 1.0, 21 if space == "grid" else 201, dtype=torch.float64)
    num_trips, regrets = 0, []
    for t in range(1, horizon + 1):
        low, high, best = trip_region(t, seed, scene)
        allowed = settings[(settings < low) | (settings > high)]
        trial = optimizer.ask(
            float(t), choices=allowed.unsqueeze(-1) if loop == "is told" else None
        )
        x = trial.X.item()
        noise = torch.randn((), dtype=torch.float64, generator=generator).item()
        by_chance = torch.rand((), generator=generator).item() < 0.2 and scene == "by chance"
        if low <= x <= high or by_chance:
            optimizer.fail(trial, "tripped")
            num_trips += 1
            continue
        optimizer.tell(trial, 1 - 4 * (x - best) ** 2 + NOISE * noise)
        if t > horizon - 20:
            regrets.append(4 * (x - best) ** 2 - 4 * (allowed - best).square().min().item())
    regrets = regrets or [math.nan]
    return num_trips, mean(regrets), min(regrets)


def ratio(values: Tensor, others: Tensor) -> tuple[float, float]:
    """Return the ratio of two means of paired values, and its standard error."""
    of_means = values.mean() / others.mean()
    error = (values - of_means * others).std() / math.sqrt(len(values)) / others.mean()
    return of_means.item(), error.item()


def moving(seeds: range) -> list[dict[str, Any]]:
    """Return trips and regrets where the region that trips moves, for each loop."""
    records = []
    cases = product((("box", "given"), ("grid", "given"), ("box", "learned")), SCENES, LOOPS)
    for (space, form), scene, loop in track([*cases]):
        played = [play_moving(space, form, seed, scene, loop) for seed in seeds]
        trips, regrets, best = torch.tensor(played, dtype=torch.float64).unbind(-1)
        record = {"space": space, "form": form, "scene": scene, "loop": loop, "runs": played}
        record |= {"trips": mean_error(trips), "regret": mean_error(regrets)}
        records.append(record | {"best": mean_error(best)})
    return records


def main() -> None:
    """Print trips, late distances, and their ratios to those of the least penalty."""
    chosen = parser(__doc__, seeds=10, first=0).parse_args()
    torch.set_num_threads(1)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    path = chosen.json and chosen.json.with_stem(chosen.json.stem + "_moving")
    show(
        f"a region that moves, {chosen.seeds} seeds",
        {
            "space": "{space}",
            "kernel": "{form}",
            "it trips": "{scene}",
            "loop": "{loop}",
            "trips": "{trips[0]:.1f} ± {trips[1]:.1f}",
            "regret": "{regret[0]:.3f} ± {regret[1]:.3f}",
            "best": "{best[0]:.3f} ± {best[1]:.3f}",
        },
        moving(seeds),
        path,
    )
    records = []
    for space, form, penalty in track([*product(SPACES, HORIZON, (None, *PENALTIES))]):
        played = [play(space, form, seed, penalty) for seed in seeds]
        trips, *distances = torch.tensor(played, dtype=torch.float64).unbind(-1)
        told = "fail" if penalty is None else f"tell {-penalty:g}"
        record = {"space": space, "form": form, "told": told, "trips": mean_error(trips)}
        if penalty == PENALTIES[0]:
            least = distances
        for name, late in zip(("asked", "recommended"), distances, strict=True):
            record[name] = None if penalty is None else mean_error(late)
            record[f"{name} ratio"] = (
                None if penalty is None else ratio(late, least[name != "asked"])
            )
        records.append(record | {"runs": played})

    def pair(name: str) -> Callable[[dict], str]:
        return lambda r: "" if r[name] is None else "{:.3g} ± {:.2g}".format(*r[name])

    columns = {"space": "{space}", "kernel": "{form}", "a trip is": "{told}"}
    pairs = ("trips", "asked", "asked ratio", "recommended", "recommended ratio")
    title = f"trips, and distances to the best setting, {chosen.seeds} seeds"
    show(title, columns | {name: pair(name) for name in pairs}, records, chosen.json)


if __name__ == "__main__":
    main()
