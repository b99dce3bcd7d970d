"""Machines that trip, and crashes told as penalties: how often they recur, and what is learned.

A machine runs at x in [0, 1] and trips above 0.6; noise 0.05. Where a trip fails the trial, the
best setting would be 0.9, of 40 or 60 rounds; where it is told as a penalty, 0.4, of 40 rounds.
Each on a box, a grid of 21 settings, and a box with three modes, which add 0, -0.1 and -0.2.
`tv_gp_ucb` with all hyperparameters given, and its default, which learns them. Distances to the
best setting are means over the last 20 rounds, of the actions asked, and of the recommendation in
each fifth of them; ratios are to the distance with the least penalty.

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

LIMIT, NOISE, HORIZON, FIRST = 0.6, 0.05, {"given": 40, "learned": 60}, 20
PENALTIES = (0.3, 1e3, 1e6)
MODES = {"a": 0.0, "b": -0.1, "c": -0.2}
SPACES: dict[str, dict[str, Any]] = {
    "box": {"bounds": {"x": (0.0, 1.0)}},
    "grid": {"choices": torch.linspace(0.0, 1.0, 21, dtype=torch.float64).unsqueeze(-1)},
    "mixed": {"bounds": {"x": (0.0, 1.0), "mode": list(MODES)}},
}


def make(space: str, form: str, seed: int) -> GPOptimizer:
    """Return an optimizer over a space, with hyperparameters given or learned."""
    given = {}
    if form == "given":
        kernel = ScaleKernel(RBFKernel())
        kernel.outputscale, kernel.base_kernel.lengthscale = 0.25, 0.3
        given = {"covar_module": kernel, "forgetting_rate": 0.01, "noise_variance": NOISE**2}
    return recipes.tv_gp_ucb(**SPACES[space], **given, generator=Generator().manual_seed(seed))


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


def ratio(values: Tensor, others: Tensor) -> tuple[float, float]:
    """Return the ratio of two means of paired values, and its standard error."""
    of_means = values.mean() / others.mean()
    error = (values - of_means * others).std() / math.sqrt(len(values)) / others.mean()
    return of_means.item(), error.item()


def main() -> None:
    """Print trips, late distances, and their ratios to those of the least penalty."""
    chosen = parser(__doc__, seeds=10).parse_args()
    torch.set_num_threads(1)
    records = []
    for space, form, penalty in track([*product(SPACES, HORIZON, (None, *PENALTIES))]):
        played = [play(space, form, seed, penalty) for seed in range(chosen.seeds)]
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
