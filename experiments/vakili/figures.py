"""Figures 2 to 5 of Vakili et al. (2023): cumulative regret with delayed outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

import torch
from torch import Tensor

from experiments.claims import BEYOND, Claim, Reproduction, claim_below, mean_and_error
from experiments.vakili.setting import (
    BPE,
    BPE_DELAY,
    DELTA,
    FUNCTION_SEEDS,
    GP_UCB_SDF,
    LENGTHSCALES,
    MULTIPLIER,
    NOISE_VARIANCE,
    PLAYERS,
    RATES,
    THEOREM,
    XI,
    B,
    Setting,
    function,
    regret,
    row,
)

LATEST = RATES[-1]
STRAIGHT = 0.1
"""Largest residual of a straight line that counts as linear, as a share of its rise."""

WIDTHS = "two standard errors"


def vakili_fig2(
    trials: int = 10,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
    setting: Setting = Setting(),  # noqa: B008 (frozen)
) -> Reproduction:
    """Reproduce Figure 2: BPE-Delay, GP-UCB-SDF and others, with Poisson delays of mean 50.

    BPE-Delay runs as the authors run it, with bounds of six standard deviations and the printed
    u_T, for which no theorem holds, and as Theorem 6.1 requires. In addition to the paper's figure:
    BPE, GP-TS-SDF, GP-BUCB without its initialization, and GP-UCB with open trials ignored.

    Args:
        trials: Number of paired replicates on each of the two functions.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``; the functions have
            their own.
        progress: Show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.
        setting: Size of the experiment.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    curves = regret(
        setting, list(PLAYERS), [LATEST], trials, seed, "vakili-fig2", progress, executor
    )
    total = _totals(curves)
    claims = [
        claim_below(
            f"{f}: {other} minus {ours}, R_T: above 0 by more than {WIDTHS}",
            total[row(f, LATEST, ours)],
            total[row(f, LATEST, other)],
            standard_errors=BEYOND,
        )
        for ours in (BPE_DELAY, THEOREM)
        for f in LENGTHSCALES
        for other in GP_UCB_SDF
    ]
    claims += [_best(f, total) for f in LENGTHSCALES]
    title = f"Cumulative regret, Poisson delays of mean {LATEST}"
    return _reproduction("vakili-fig2", title, setting, trials, seed, curves, claims)


def vakili_fig3(
    trials: int = 10,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
    setting: Setting = Setting(),  # noqa: B008 (frozen)
) -> Reproduction:
    """Reproduce Figure 3: BPE-Delay by mean delay; arguments as :func:`vakili_fig2`."""
    curves = regret(setting, [BPE_DELAY], RATES, trials, seed, "vakili-fig3", progress, executor)
    total = _totals(curves)
    claims = []
    for f in LENGTHSCALES:
        by_rate = torch.stack([total[row(f, rate, BPE_DELAY)] for rate in RATES])
        slope, residual = line_fit(RATES, by_rate)
        claims.append(
            claim_below(
                f"{f}: slope of R_T against λ, least squares, per unit of λ: above 0 by more than "
                f"{WIDTHS}",
                0 * slope,
                slope,
                standard_errors=BEYOND,
            )
        )
        rise = slope.mean().item() * (RATES[-1] - RATES[0])
        claims.append(
            Claim(
                f"{f}: R_T grows linearly: largest residual of the line through the means: at most "
                f"{STRAIGHT} of its rise, {rise:.4g}",
                rise > 0 and residual <= STRAIGHT * rise,
                residual,
                None,
                "linear excess",
            )
        )
    title = "Cumulative regret of BPE-Delay"
    return _reproduction("vakili-fig3", title, setting, trials, seed, curves, claims)


def vakili_fig4(
    trials: int = 10,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
    setting: Setting = Setting(),  # noqa: B008 (frozen)
) -> Reproduction:
    """Reproduce Figure 4: GP-UCB-SDF by mean delay; arguments as :func:`vakili_fig2`.

    BPE-Delay runs as well, for comparison of the jump in regret.
    """
    players = [*GP_UCB_SDF, BPE_DELAY]
    curves = regret(setting, players, RATES, trials, seed, "vakili-fig4", progress, executor)
    total = _totals(curves)

    def excess(f: str, player: str, first: int, last: int) -> Tensor:
        return total[row(f, last, player)] - total[row(f, first, player)]

    claims = []
    none, moderate, late = RATES
    for f in LENGTHSCALES:
        for player in GP_UCB_SDF:
            jump = excess(f, player, none, moderate)
            claims.append(
                claim_below(
                    f"{f}: {player} jumps: what λ = {moderate} adds to R_T, minus what it adds for "
                    f"BPE-Delay: above 0 by more than {WIDTHS}",
                    excess(f, BPE_DELAY, none, moderate),
                    jump,
                    standard_errors=BEYOND,
                )
            )
            claims.append(
                claim_below(
                    f"{f}: {player} jumps already at a moderate delay: what λ = {moderate} adds, "
                    f"minus what λ = {late} adds to that: above 0 by more than {WIDTHS}",
                    excess(f, player, moderate, late),
                    jump,
                    standard_errors=BEYOND,
                )
            )
    title = "Cumulative regret of GP-UCB-SDF"
    return _reproduction("vakili-fig4", title, setting, trials, seed, curves, claims)


def vakili_fig5(
    trials: int = 10,
    seed: int = 0,
    progress: bool = True,
    executor: Executor | None = None,
    setting: Setting = Setting(),  # noqa: B008 (frozen)
) -> Reproduction:
    """Reproduce Figure 5: BPE and BPE-Delay; arguments as :func:`vakili_fig2`.

    The paper does not state the mean of the delays; here it is that of Figure 2, 50.
    """
    players = [BPE_DELAY, BPE]
    curves = regret(setting, players, [LATEST], trials, seed, "vakili-fig5", progress, executor)
    total = _totals(curves)
    claims = [
        claim_below(
            f"{f}: BPE minus BPE-Delay, R_T: above 0 by more than {WIDTHS}",
            total[row(f, LATEST, BPE_DELAY)],
            total[row(f, LATEST, BPE)],
            standard_errors=BEYOND,
        )
        for f in LENGTHSCALES
    ]
    title = f"Cumulative regret of BPE and BPE-Delay, Poisson delays of mean {LATEST}"
    return _reproduction("vakili-fig5", title, setting, trials, seed, curves, claims)


def line_fit(setting: Sequence[float], measured: Tensor) -> tuple[Tensor, float]:
    """Fit least squares lines.

    Args:
        setting: ``m`` values.
        measured: ``m x replicates``.

    Returns:
        The slope of each replicate, ``replicates``, and the largest distance of the means over
        replicates from the line through them.
    """
    x = torch.tensor(setting, dtype=torch.float64)
    design = torch.stack([torch.ones_like(x), x], dim=1)
    lines = torch.linalg.lstsq(design, measured).solution
    residuals = (measured - design @ lines).mean(dim=1)
    return lines[1], residuals.abs().max().item()


def _best(f: str, total: dict[str, Tensor]) -> Claim:
    """Return the claim that BPE-Delay is the best algorithm."""
    mean = {player: total[row(f, LATEST, player)].mean().item() for player in PLAYERS}
    best = min(mean, key=mean.get)
    rivals = (player for player in PLAYERS if player not in (BPE_DELAY, THEOREM))
    rival = min(rivals, key=mean.get)
    compared = claim_below(
        f"{f}: BPE-Delay is the best of all. Best here: {best}. R_T of {rival} minus that of "
        f"BPE-Delay: above 0 by more than {WIDTHS}",
        total[row(f, LATEST, BPE_DELAY)],
        total[row(f, LATEST, rival)],
        standard_errors=BEYOND,
    )
    return Claim(
        compared.claim, compared.held, compared.figure, compared.standard_error, "no claim"
    )


def _totals(curves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return R_T of each run, ``replicates``."""
    return {name: rows.sum(dim=1) for name, rows in curves.items()}


def _reproduction(
    name: str,
    title: str,
    setting: Setting,
    trials: int,
    seed: int,
    curves: dict[str, Tensor],
    claims: list[Claim],
) -> Reproduction:
    return Reproduction(
        name=name,
        title=title,
        settings=_settings(setting, trials, seed),
        results={which: _result(rows) for which, rows in curves.items()},
        claims=claims,
        regret=curves,
        row_label="function, λ, algorithm",
    )


def _result(rows: Tensor) -> dict[str, float | None]:
    mean, error = mean_and_error(rows.sum(dim=1))
    return {
        "R_T": mean,
        "standard_error": error,
        "R_T/2": rows[:, : rows.shape[1] // 2].sum(dim=1).mean().item(),
        "mean_regret_of_last_tenth": rows[:, -max(1, rows.shape[1] // 10) :].mean().item(),
    }


def _settings(setting: Setting, trials: int, seed: int) -> dict:
    """Return the settings to record."""
    drawn = {f: function(setting, f, torch.Generator()) for f in LENGTHSCALES}
    return {
        "trials": trials,
        "seed": seed,
        "grid": f"{setting.points} x {setting.points} of [-5, 5]^2",
        "horizon": setting.horizon,
        "interpolation_points": setting.num_centers,
        "lengthscales": LENGTHSCALES,
        "function_seeds": FUNCTION_SEEDS,
        "rkhs_norms": {f: problem.norm for f, problem in drawn.items()},
        "maxima": {f: problem.optimal_value(0.0) for f, problem in drawn.items()},
        "minima": {f: problem.minimum for f, problem in drawn.items()},
        "regret_of_uniform_choice": {
            f: setting.horizon * (problem.values.max() - problem.values.mean()).item()
            for f, problem in drawn.items()
        },
        "noise_variance": NOISE_VARIANCE,
        "xi": XI,
        "b": B,
        "delta": DELTA,
        "multiplier_of_bpe": MULTIPLIER,
    }
