"""Regret bounds of compression and of late outcomes against the measured regret.

Compression (Bedi et al.): draws of a GP with the SE kernel, length-scale 1, on 200 points of
[0, 10], noise variance 0.01, 1,000 rounds, budgets ½ log(1 + T^-α). Late outcomes (Vakili et al.):
functions of known norm on 15 x 15 points of [-5, 5]², SE kernel of length-scale 1, noise standard
deviation 0.02, 1,000 rounds, Poisson delays. The bounds hold with probability 0.9. A bound is
vacuous if it is not below the regret of the worst action in every round.

    python benchmarks/static_regret_bounds.py --json docs/results/static_regret_bounds.json
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import RBFKernel
from report import parser, show
from rich.progress import track
from torch import Generator, Tensor

from tvbo import History, recipes, run
from tvbo.acquisition import CompactBeta, FiniteBeta, LogBeta, LogEI
from tvbo.evaluation import PoissonDelay
from tvbo.test_functions import drifting_gp, unit_grid
from tvbo.test_functions.rkhs import RKHSFunction
from tvbo.theory import (
    CompactSetWidth,
    FiniteSetWidth,
    FixedWidth,
    SubExponentialDelay,
    SubExponentialTail,
    bpe_delay_regret_bound,
    compressed_ei_regret_bound,
    compressed_ucb_finite_regret_bound,
    compressed_ucb_regret_bound,
    compressed_ucb_run_regret_bound,
    compression_budget,
    exploration_rounds,
    greedy_information_gain,
    information_model_order_bound,
    mutual_information,
    surviving_regret_bound,
    tail_constants,
)
from tvbo.theory.confidence import Exploration

HORIZON, DELTA = 1000, 0.1
ALPHAS = (0.25, 0.5, 0.75)
LINE, LINE_NOISE = 10 * unit_grid(200, dim=1), 0.01
SQUARE, SQUARE_NOISE_SD = 10 * unit_grid(15) - 5, 0.02
DELAYS = (0.0, 50.0)
COVER = (10 / math.sqrt(2) + 1) ** 2
"""c of Assumption 4.2 here: a function of norm C has a slope of at most C, its norm over l."""


def kernel() -> RBFKernel:
    """Return the kernel of both settings."""
    made = RBFKernel().double()
    made.lengthscale = 1.0
    return made


def compact_beta() -> CompactBeta:
    """Return β for the interval [0, 10], with constants from the mean supremum of slopes."""
    drawn = drifting_gp(LINE, kernel(), 1.0, 400, generator=Generator().manual_seed(0)).values
    slopes = drawn.diff(dim=1).abs().amax(dim=1) * (len(LINE) - 1) / 10
    a, b = tail_constants(slopes.mean().item(), 1.0)
    return CompactBeta(dim=1, delta=DELTA, side=10.0, a=a, b=b)


def told(history: History) -> tuple[Tensor, Tensor]:
    """Return the index of each admitted action and its outcome."""
    rows = [r for r in history.rounds if not math.isnan(r.reward)]
    X = torch.stack([r.trial.X[0] for r in rows])
    index = (X.unsqueeze(1) - LINE).abs().sum(dim=-1).argmin(dim=1)
    return index, torch.tensor([r.reward for r in rows], dtype=torch.float64)


def largest_score(covar: Tensor, index: Tensor, Y: Tensor) -> float:
    """Return R of Theorem 3.4 in a run, by the posterior after each admitted outcome."""
    largest = 0.0
    for n in range(1, len(index) + 1):
        held = index[:n]
        K = covar[held][:, held] + LINE_NOISE * torch.eye(n, dtype=torch.float64)
        weights = torch.linalg.solve(K, covar[held])
        variance = covar.diagonal() - (covar[held] * weights).sum(dim=0)
        score = (Y[:n] @ weights - Y[:n].max()).abs() / variance.clamp_min(1e-12).sqrt()
        largest = max(largest, score.max().item())
    return largest


def compression(alpha: float, seeds: int) -> dict[str, list[float]]:
    """Return bounds and measured regret at one α, a list over seeds for each."""
    covar = kernel()(LINE).to_dense().detach()
    budget = compression_budget(horizon=HORIZON, alpha=alpha, dim=1)
    order = information_model_order_bound(covar, noise_variance=LINE_NOISE, budget=budget)
    ceiling = greedy_information_gain(covar, HORIZON, LINE_NOISE).ceiling
    gain = ceiling[min(order, HORIZON) - 1].item()
    finite, compact = FiniteBeta(len(LINE), DELTA), compact_beta()
    shared = {"horizon": HORIZON, "noise_variance": LINE_NOISE}
    limited = {**shared, "budget": budget, "information_gain": gain}
    made: dict[str, list[float]] = {
        "bound (3.4), compact": [
            compressed_ucb_regret_bound(**limited, beta=compact(HORIZON), compact=True)
        ],
        "bound (3.2)": [compressed_ucb_regret_bound(**limited, beta=finite(HORIZON))],
        "bound (3.5)": [],  # of α = 1/2 only
    }
    if alpha == 0.5:
        made["bound (3.5)"] = [
            compressed_ucb_finite_regret_bound(
                **shared, beta=finite(HORIZON), total_variance=covar.trace().item()
            )
        ]
    names = ("bound (3.6), EI", "R of EI", "bound of the run, Lemma 8.4", "points of the run")
    rules = {
        "UCB, β of (3.4)": {"beta": compact},
        "UCB, β of (3.2)": {"beta": finite},
        "UCB, practical β": {"beta": LogBeta()},
        "EI": {"acquisition": LogEI()},  # EI itself underflows to ties once the noise dominates
    }
    for name in (*names, "worst action", "random choice", *rules):
        made[name] = []
    for seed in track(range(seeds), f"α = {alpha:g}"):
        for name, rule in rules.items():
            generator = Generator().manual_seed(seed)
            problem = drifting_gp(LINE, kernel(), 0.0, HORIZON, LINE_NOISE, generator)
            optimizer = recipes.compressed_gp(
                choices=LINE,
                covar_module=kernel(),
                noise_variance=LINE_NOISE,
                budget=budget,
                **rule,
            )
            history = run(problem, optimizer, horizon=HORIZON, progress=False)
            made[name].append(history.regret.sum().item())
            if name == "UCB, β of (3.2)":
                index, _ = told(history)
                learned = mutual_information(covar[index][:, index], LINE_NOISE).item()
                made["bound of the run, Lemma 8.4"].append(
                    compressed_ucb_run_regret_bound(
                        **{**limited, "information_gain": learned},
                        beta=finite(HORIZON),
                        num_refused=HORIZON - len(index),
                    )
                )
                made["points of the run"].append(float(len(index)))
            if name == "EI":
                score = largest_score(covar, *told(history))
                made["R of EI"].append(score)
                made["bound (3.6), EI"].append(
                    compressed_ei_regret_bound(**limited, beta=finite(HORIZON), largest_score=score)
                )
        values = problem.values[0]
        made["worst action"].append(HORIZON * (values.max() - values.min()).item())
        made["random choice"].append(HORIZON * (values.max() - values.mean()).item())
    return made


def late(rate: float, seeds: int) -> dict[str, list[float]]:
    """Return bounds and measured regret at one mean delay, a list over seeds for each."""
    noise = SQUARE_NOISE_SD**2
    covar = kernel()(SQUARE).to_dense().detach()
    gains = greedy_information_gain(covar, HORIZON, noise).ceiling.tolist()
    delay = SubExponentialDelay.poisson(rate) if rate else SubExponentialDelay.constant(0.0)
    tail = SubExponentialTail(delay)
    wait = tail.upper_bound(HORIZON, DELTA)
    rounds = exploration_rounds(HORIZON, wait)
    made: dict[str, list[float]] = {}
    for seed in track(range(seeds), f"delay {rate:g}"):
        problem = RKHSFunction.draw(
            SQUARE, kernel(), noise_variance=noise, generator=Generator().manual_seed(seed)
        )
        finite = FiniteSetWidth(problem.norm, SQUARE_NOISE_SD)
        options = {
            "horizon": HORIZON,
            "upper_bound": wait,
            "delta": DELTA,
            "information_gain": gains,
            "largest_regret": 2 * problem.norm,
            "noise_variance": noise,
            "dim": 2,
        }
        box = CompactSetWidth(problem.norm, SQUARE_NOISE_SD, COVER)
        last = rounds[-2].q
        width = finite.width(
            Exploration(DELTA, len(rounds), last, noise, 2, len(SQUARE), 1.0, HORIZON)
        )
        values = {
            "bound of step 3, compact": bpe_delay_regret_bound(box, **options, num_points=None),
            "bound of step 3, finite": bpe_delay_regret_bound(
                finite, **options, num_points=len(SQUARE)
            ),
            "worst action": HORIZON * (problem.values.max() - problem.values.min()).item(),
            "random choice": HORIZON * (problem.values.max() - problem.values.mean()).item(),
        }
        for name, rule in {"width of Theorem 6.1": finite, "multiplier 6": FixedWidth(6.0)}.items():
            optimizer = recipes.bpe_delay(
                choices=SQUARE,
                covar_module=kernel(),
                noise_variance=noise,
                horizon=HORIZON,
                delta=DELTA,
                delay=tail,
                width=rule,
                generator=Generator().manual_seed(seed),
            )
            waits = PoissonDelay(rate, generator=Generator().manual_seed(seed)) if rate else None
            history = run(problem, optimizer, horizon=HORIZON, delay=waits, progress=False)
            values[name] = history.regret.sum().item()
            if rule is finite:
                values["largest regret in the last round"] = (
                    history.regret[-rounds[-1].length :].max().item()
                )
                values["bound (25) on it"] = surviving_regret_bound(
                    width,
                    num_outcomes=last,
                    information_gain=gains[last - 1],
                    noise_variance=noise,
                )
        for name, value in values.items():
            made.setdefault(name, []).append(value)
    return made


def rows_of(results: list[dict[str, list[float]]]) -> list[tuple[str, ...]]:
    """Return a row for each name: the mean over seeds, and whether a bound is vacuous."""
    rows = []
    for name in results[0]:
        cells = []
        for result in results:
            if not result[name]:
                cells.append("–")
                continue
            mean = math.fsum(result[name]) / len(result[name])
            worst = math.fsum(result["worst action"]) / len(result["worst action"])
            bounds_a_run = name.startswith("bound") and "(25)" not in name
            verdict = f" ({'vacuous' if mean >= worst else 'not vacuous'})" if bounds_a_run else ""
            cells.append(f"{mean:,.4g}{verdict}")
        rows.append((name, *cells))
    return rows


def main() -> None:
    """Run the benchmark, print two tables, save JSON."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    compressed = [compression(alpha, chosen.seeds) for alpha in ALPHAS]
    delayed = [late(rate, chosen.seeds) for rate in DELAYS]
    figures = {
        "seeds": chosen.seeds,
        "compression": dict(zip(map(str, ALPHAS), compressed, strict=True)),
        "late": dict(zip(map(str, DELAYS), delayed, strict=True)),
    }
    columns = ("R_1000, compression", *(f"α = {alpha:g}" for alpha in ALPHAS))
    show("Compressed GP-UCB and EI", columns, rows_of(compressed), None, None)
    columns = ("R_1000, late outcomes", *(f"mean delay {rate:g}" for rate in DELAYS))
    show("BPE-Delay", columns, rows_of(delayed), figures, chosen.json)


if __name__ == "__main__":
    main()
