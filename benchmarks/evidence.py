r"""Which form of drift the evidence of a panel picks, on panels drawn from each form.

Panels of 50 arms at 500 times, drawn from exponential decay, Matérn-3/2, two exponential decays and
a strict season with exponential decay, with parameters that differ from panel to panel. A choice is
right if it names both the drift and whether there is a season.

    OMP_NUM_THREADS=1 python benchmarks/evidence.py --first 100 --workers 2 \
        --json docs/results/evidence.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

from tvbo.kernels import SeasonalKernel, TemporalDecayKernel, TemporalKernel, TemporalMaternKernel
from tvbo.logs import fit_panel

ARMS, TIMES = 50, 500
NOISE_VARIANCE, MEAN_VARIANCE, SEASON_VARIANCE = 0.1, 1.0, 0.5


def decay(rate: float) -> TemporalDecayKernel:
    """Return exponential decay with ε = rate."""
    kernel = TemporalDecayKernel().double()
    kernel.forgetting_rate = rate
    return kernel


def _matern(rng: Generator) -> list[tuple[float, TemporalKernel]]:
    kernel = TemporalMaternKernel().double()
    kernel.lengthscale = rng.uniform(5, 20)
    return [(1.0, kernel)]


def _season(rng: Generator) -> list[tuple[float, TemporalKernel]]:
    kernel = SeasonalKernel(float(rng.choice([24, 50, 96])), num_harmonics=3).double()
    return [(1.0, decay(rng.uniform(0.02, 0.2))), (SEASON_VARIANCE, kernel)]


FORMS: dict[str, Callable[[Generator], list[tuple[float, TemporalKernel]]]] = {
    "exponential": lambda rng: [(1.0, decay(rng.uniform(0.02, 0.2)))],
    "matern32": _matern,
    "two-scales": lambda rng: [
        (0.5, decay(rng.uniform(0.4, 0.8))),
        (0.5, decay(rng.uniform(0.01, 0.04))),
    ],
    "season": _season,
}
"""Variance and temporal kernel of the parts of each form."""


def draw(form: str, seed: int, arms: int = ARMS, times: int = TIMES) -> torch.Tensor:
    """Return a panel ``times x arms`` drawn from a form."""
    rng = np.random.default_rng([seed, list(FORMS).index(form)])
    places = rng.uniform(size=(arms, 2))
    squares = ((places[:, None] - places) ** 2).sum(-1)
    root = np.linalg.cholesky(np.exp(-0.5 * squares / 0.3**2) + 1e-9 * np.eye(arms))
    lags = torch.arange(times, dtype=torch.float64)
    lags = (lags[:, None] - lags).abs()
    values = rng.normal(size=arms) * MEAN_VARIANCE**0.5
    values = values + rng.normal(size=(times, arms)) * NOISE_VARIANCE**0.5
    for variance, kernel in FORMS[form](rng):
        covar = kernel.correlation(lags).detach().numpy()
        in_time = np.linalg.cholesky(covar + 1e-9 * np.eye(times))
        values += variance**0.5 * in_time @ rng.normal(size=(times, arms)) @ root.T
    return torch.as_tensor(values)


def pick(job: tuple[str, int]) -> tuple[str, str]:
    """Return the form of a panel, and what its evidence picks."""
    torch.set_num_threads(1)
    form, seed = job
    fit = fit_panel(
        draw(form, seed), torch.arange(TIMES, dtype=torch.float64), temporal_kernel="auto"
    )
    name = fit.evidence[fit.chosen].temporal_kernel
    return form, name if fit.season is None else f"{name} + season"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.repeats)
    jobs = [(form, seed) for seed in seeds for form in FORMS]
    picked: dict[str, Counter[str]] = {form: Counter() for form in FORMS}
    right = {form: form for form in FORMS} | {"season": "exponential + season"}
    with ProcessPoolExecutor(options.workers) as executor:
        for done, (form, choice) in enumerate(executor.map(pick, jobs), start=1):
            picked[form][choice] += 1
            if done % len(FORMS) == 0:
                rows = [f"{f} {picked[f][right[f]]}/{sum(picked[f].values())}" for f in FORMS]
                print("; ".join(rows), flush=True)
                if options.json is not None:
                    # After each panel of every form, since a run takes an hour.
                    result = {
                        "arms": ARMS,
                        "times": TIMES,
                        "first_seed": options.first,
                        "repeats": done // len(FORMS),
                        "picked": {form: dict(counts) for form, counts in picked.items()},
                        "right": {form: picked[form][right[form]] for form in FORMS},
                    }
                    options.json.write_text(json.dumps(result, indent=2) + "\n")
    for form in FORMS:
        print(form, dict(picked[form]))


if __name__ == "__main__":
    main()
