"""Seconds of a drift fit on 20,000 observations, compared with one dense likelihood.

PYTHONPATH=. python benchmarks/drift_fit.py --json docs/results/drift_fit.json

The panel is the Intel Lab's three training days (needs TVBO_DATA), 46 sensors at 432 times; its
kernel is the empirical covariance with a learned scale, its noise is learned. The panel with gaps
is the same with one reading in twenty left out at random. The irregular log is drawn from the model
that the panel's fit gives: 20,000 rows over the same three days, sensors and times at random.
One thread. The dense likelihood is measured on the first rows of the panel and extrapolated as n³.
"""

from __future__ import annotations

import time

import torch
from gpytorch.kernels import ScaleKernel
from shared import parser, seconds, show
from torch import Tensor

from experiments.data.intel_lab import intel_lab
from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import DriftFit, fit_drift
from tvbo.logs.dataset import DriftLog, panel_rows
from tvbo.logs.likelihood import LogLikelihood

DENSE_SIZE = 9000
MISSING = 0.05
IRREGULAR_ROWS = 20_000


def dense_seconds(X: Tensor, Y: Tensor, covar_module: ScaleKernel) -> dict:
    """Time one dense likelihood of the first rows, without and with its gradient."""
    log = DriftLog.from_rows(X[:DENSE_SIZE], Y[:DENSE_SIZE], None, -1)
    likelihood = LogLikelihood(log, covar_module, None)
    rate, noise = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.25, 0.002))
    with torch.no_grad():
        value = seconds(lambda: likelihood(rate, noise))
    gradient = seconds(lambda: likelihood(rate, noise)[0].backward())
    growth = (len(X) / DENSE_SIZE) ** 3
    return {
        "rows": DENSE_SIZE,
        "value": value,
        "gradient": gradient,
        "as_cube_value": growth * value,
        "as_cube_gradient": growth * gradient,
    }


def whole_fit(what: str, X: Tensor, Y: Tensor, covar_module: ScaleKernel) -> tuple[dict, DriftFit]:
    """Time a fit of all hyperparameters with its interval."""
    started = time.perf_counter()
    fit = fit_drift(X, Y, covar_module=covar_module)
    figures = {
        "what": what,
        "observations": len(X),
        "seconds": time.perf_counter() - started,
        "forgetting_rate": fit.forgetting_rate,
        "forgetting_rate_interval": fit.forgetting_rate_interval,
        "noise_variance": fit.noise_variance,
        "outputscale": fit.outputscale,
        "messages": fit.messages,
    }
    return figures, fit


def with_gaps(values: Tensor, generator: torch.Generator) -> Tensor:
    """Return the panel with one reading in twenty left out."""
    missing = torch.rand(values.shape, dtype=torch.float64, generator=generator) < MISSING
    return torch.where(missing, torch.nan, values)


def irregular_log(
    fit: DriftFit, covar: Tensor, span: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return rows ``[arm | time]``, and outcomes drawn from the model of a fit in sequence."""

    def normal(n: int) -> Tensor:
        return torch.randn(n, dtype=torch.float64, generator=generator)

    n, arms = IRREGULAR_ROWS, len(covar)
    arm = torch.randint(arms, (n,), generator=generator)
    times = span * torch.rand(n, dtype=torch.float64, generator=generator).sort().values
    kept = (1 - fit.forgetting_rate) ** (times.diff(prepend=times[:1]) / 2)
    root = torch.linalg.cholesky(fit.outputscale * covar)
    state, values = root @ normal(arms), []
    for step, place in zip(kept.tolist(), arm.tolist(), strict=True):
        state = step * state + (1 - step**2) ** 0.5 * (root @ normal(arms))
        values.append(state[place])
    Y = fit.mean + torch.stack(values) + fit.noise_variance**0.5 * normal(n)
    return torch.stack([arm.double(), times], dim=-1), Y.unsqueeze(-1)


def main() -> None:
    """Run the benchmark, print a table, save JSON."""
    chosen = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    recorded = intel_lab()
    values, covar = recorded.train, recorded.covar_module.covar_matrix
    times = torch.arange(len(values), dtype=torch.float64)
    kernel = ScaleKernel(CovarianceMatrixKernel(covar)).double()
    X, Y = panel_rows(values, times)

    panel, fit = whole_fit("full panel", X, Y, kernel)
    gaps, _ = whole_fit("5 % missing", *panel_rows(with_gaps(values, generator), times), kernel)
    span = (times[-1] - times[0]).item()
    irregular, _ = whole_fit("irregular log", *irregular_log(fit, covar, span, generator), kernel)
    dense = dense_seconds(X, Y, kernel)
    columns = {
        "what": "{what}",
        "rows": "{observations}",
        "s": "{seconds:.2f}",
        "of one dense value": lambda r: f"1/{dense['as_cube_value'] / r['seconds']:.0f}",
        "of panel": lambda r: f"{r['seconds'] / panel['seconds']:.1f}",
        "ε per 10 min": "{forgetting_rate:.3f}",
        "95 %": "{forgetting_rate_interval[0]:.3f} to {forgetting_rate_interval[1]:.3f}",
    }
    records = [panel, gaps, irregular]
    title = (
        "The whole fit, one thread; one dense likelihood of {rows} rows {value:.1f} s, with its "
    )
    title += "gradient {gradient:.1f} s, as n³ {as_cube_value:.0f} s and {as_cube_gradient:.0f} s"
    show(title.format_map(dense), columns, records, chosen.json, [*records, dense])


if __name__ == "__main__":
    main()
