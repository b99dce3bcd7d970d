"""Seconds of a round with other temporal kernels and their sums, against one exponential decay.

python benchmarks/temporal_round.py --json docs/results/temporal_round.json
"""

from __future__ import annotations

import statistics
import time
from copy import deepcopy

import torch
from shared import parser, show, squared_exponential
from torch import Generator

from tvbo import recipes
from tvbo.kernels import TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.kernels.temporal import memory_length
from tvbo.optimizers import GPOptimizer
from tvbo.recipes import NEGLIGIBLE_WEIGHT
from tvbo.test_functions.drifting_gp import unit_grid

RATE, NOISE, POINTS = 0.03, 0.01, 50
EARLY, LATE, WINDOW = 5_000, 50_000, 300
"""Rounds at which loops are timed, and number of rounds over which the median is taken."""
EVERY = 100
"""Rounds from one ask to the next before a time, and number of asks just before it."""
MOST = 1.3
"""Largest ratio to one exponential decay, for each number of state."""


def decay(rate: float) -> TemporalDecayKernel:
    """Return exponential decay."""
    made = TemporalDecayKernel().double()
    made.forgetting_rate = rate
    return made


def matern() -> TemporalMaternKernel:
    """Return Matérn-3/2 that remembers for as long as the exponential decay."""
    made = TemporalMaternKernel().double()
    made.lengthscale = 1.0
    made.lengthscale = memory_length([decay(RATE)], NEGLIGIBLE_WEIGHT) / memory_length(
        [made], NEGLIGIBLE_WEIGHT
    )
    return made


def loops() -> dict[str, tuple[int, GPOptimizer]]:
    """Return loops by the name of their drift, with the number of states."""
    choices = unit_grid(POINTS)
    whole = squared_exponential(0.2)
    thirds = [squared_exponential(lengthscale, 1 / 3) for lengthscale in (0.1, 0.2, 0.5)]
    drifts: dict[str, tuple[object, TemporalKernel | list[TemporalKernel]]] = {
        "exponential": (whole, decay(RATE)),
        "Matérn-3/2": (whole, matern()),
        "three exponentials": (thirds, [decay(10 * RATE), decay(3 * RATE), decay(RATE)]),
    }
    made = {}
    for name, (covar_module, temporal_kernel) in drifts.items():
        each = temporal_kernel if isinstance(temporal_kernel, list) else [temporal_kernel]
        made[name] = (
            sum(kernel.num_states for kernel in each),
            recipes.tv_gp_ucb(
                choices=choices,
                covar_module=covar_module,
                temporal_kernel=temporal_kernel,
                noise_variance=NOISE,
            ),
        )
    return made


def measure(late: int, generator: Generator) -> dict:
    """Run all loops, and time those kept at two times alternately, so that load affects all.

    Outcomes are noise, which does not affect the cost. Before a time, most actions are random and
    attached as from a log, which leaves the same rows and takes less time than as many asks.
    """
    outcomes = torch.randn(late + WINDOW + 1, dtype=torch.float64, generator=generator)
    actions = torch.randint(POINTS**2, (late + 1,), generator=generator)
    choices, running, states = unit_grid(POINTS), {}, {}
    for name, (num_states, loop) in loops().items():
        states[name] = num_states
        for t in range(1, late + 1):
            asked = t % EVERY == 0 or t % EARLY > EARLY - EVERY
            trial = loop.ask(float(t)) if asked else loop.attach(choices[actions[t]], float(t))
            loop.tell(trial, outcomes[t].item())
            if t == EARLY:
                running[name, EARLY] = deepcopy(loop)
        running[name, late] = loop
    times: dict[tuple[str, int], list[float]] = {key: [] for key in running}
    for i in range(1, WINDOW + 1):
        for (name, start), loop in running.items():
            began = time.perf_counter()
            loop.tell(loop.ask(float(start + i)), outcomes[start + i].item())
            times[name, start].append(time.perf_counter() - began)
    median = {key: statistics.median(taken) for key, taken in times.items()}
    return {
        name: {
            "num_states": num_states,
            "num_rows": running[name, late].model.num_rows,
            "early_ms": 1e3 * median[name, EARLY],
            "late_ms": 1e3 * median[name, late],
            "to_exponential": median[name, EARLY] / median["exponential", EARLY],
            "most": MOST * num_states,
        }
        for name, num_states in states.items()
    }


def main() -> None:
    """Measure, print a table, and save the figures if a path is given."""
    given = parser(__doc__, late=LATE).parse_args()
    figures = measure(given.late, torch.Generator().manual_seed(0))
    records = [{"drift": name, **each} for name, each in figures.items()]
    columns = {
        "drift": "{drift}",
        "states": "{num_states}",
        "rows": "{num_rows}",
        f"ms at t = {EARLY:,}": "{early_ms:.2f}",
        f"ms at t = {given.late:,}": "{late_ms:.2f}",
        "to exponential": "{to_exponential:.2f}",
        "at most": "{most:.1f}",
    }
    show(f"A round, {POINTS**2:,} choices", columns, records, given.json)


if __name__ == "__main__":
    main()
