r"""Which form of drift a fit of a panel picks, on panels drawn from each form.

Panels of 50 arms at 500 times, drawn from exponential decay, Matérn-3/2, two exponential decays and
a strict season with exponential decay, with parameters that differ from panel to panel. A choice is
right if it names both the drift and whether there is a season.

    OMP_NUM_THREADS=1 python benchmarks/evidence.py --first 100 --workers 2 \
        --json docs/results/evidence.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from numpy.random import Generator
from shared import in_workers, parser, show

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
    """Return the form of a panel, and what its fit picks."""
    form, seed = job
    fit = fit_panel(draw(form, seed), torch.arange(TIMES, dtype=torch.float64))
    return form, fit.form if fit.season is None else f"{fit.form} + season"


def main() -> None:
    """Print what was picked of each form."""
    options = parser(__doc__, repeats=100, first=0, workers=1).parse_args()
    seeds = range(options.first, options.first + options.repeats)
    picked = in_workers(pick, [(form, seed) for seed in seeds for form in FORMS], options.workers)
    records = []
    for form in FORMS:
        choices = Counter(choice for of, choice in picked if of == form)
        right = choices["exponential + season" if form == "season" else form]
        records.append({"form": form, "right": right, "picked": dict(choices)})
    columns = {"drawn from": "{form}", "right": "{right}", "picked": "{picked}"}
    title = f"{options.repeats} panels of {ARMS} arms at {TIMES} times of each form"
    show(title, columns, records, options.json)


if __name__ == "__main__":
    main()
