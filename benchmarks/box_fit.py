"""The first fit of `tv_gp_ucb` on a box, against BoTorch's fit of a SingleTaskGP to the same rows.

    python benchmarks/box_fit.py --repeats 3 --json docs/results/box_fit.json

Noisy values of the moving peak at random actions, one a round. Ours learns two forms of drift;
BoTorch's model has time as one more input, normalized. CPU seconds, one thread, medians of several
fits in turns.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from shared import median_seconds, parser, show
from torch import Generator, Tensor

from tvbo.fit.model_fitter import ModelFitter
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.test_functions import MovingPeak

SIZES = (50, 200, 1000)
NOISE = 0.05


def log_of(n: int) -> tuple[MovingPeak, Tensor, Tensor]:
    """Return the problem, and ``n`` rows with their outcomes."""
    generator = Generator().manual_seed(0)
    peak = MovingPeak(period=100.0, noise_variance=NOISE**2, generator=generator)
    actions = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    X = torch.cat([actions, torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]], dim=-1)
    return peak, X, peak(X).unsqueeze(-1)


def ours(bounds: Tensor, X: Tensor, Y: Tensor) -> None:
    """Fit as the recipe does for the first time."""
    fitter = ModelFitter(InputLayout(2), bounds, temporal_kernel="auto")
    fitter.fit(Observations(X, Y), len(X), Generator().manual_seed(0))


def botorch(X: Tensor, Y: Tensor) -> None:
    """Fit as BoTorch's tutorials do."""
    model = SingleTaskGP(X, Y, input_transform=Normalize(3))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__, repeats=5).parse_args()
    torch.set_num_threads(1)
    records = []
    for n in SIZES:
        peak, X, Y = log_of(n)
        fits = partial(ours, peak.bounds, X, Y), partial(botorch, X, Y)
        mine, other = median_seconds(*fits, repeats=chosen.repeats, clock=time.process_time)
        records.append({"n": n, "ours": mine, "botorch": other, "ratio": mine / other})
    columns = {"n": "{n:,}", "ours": "{ours:.3f}", "BoTorch": "{botorch:.3f}"}
    columns["ratio"] = "{ratio:.2f}"
    show("CPU seconds of a first fit", columns, records, chosen.json)


if __name__ == "__main__":
    main()
