"""Figures 2(c) and 2(d) of Bogunovic et al. (2016): a wrong ε, a wrong N."""

from __future__ import annotations

from concurrent.futures import Executor

import torch
from scipy.stats import spearmanr
from torch import Tensor

from experiments.bogunovic.synthetic import Player, Synthetic
from experiments.claims import (
    BEYOND,
    Claim,
    Reproduction,
    claim_below,
    jackknife,
    regret_result,
)
from tvbo.logs.block_length import block_length

TRUE_RATE = 0.01
ASSUMED_RATES = (0.0, 0.001, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
FAR_UNDER, SLIGHTLY_UNDER, MUCH_OVER = 0.001, 0.007, 0.03
HARMLESS, SLOW = 0.05, 0.25
"""Largest relative increase of regret that counts as harmless or slow."""

BLOCK_LENGTHS = (5, 10, 15, 20, 30, 38, 50, 75, 100, 150, 200)
TOO_SMALL = 5
ROBUST = 0.25
"""Largest relative change of mean regret that counts as robust."""

STEADILY = 0.8
"""Smallest rank correlation that counts as a steady rise."""


def bogunovic_fig2c(
    trials: int = 200,
    seed: int = 0,
    progress: bool = True,
    setting: Synthetic | None = None,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Figure 2(c): TV-GP-UCB with a wrong ε, where the true one is 0.01.

    Args:
        trials: Number of paired replicates.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        progress: Show a progress bar.
        setting: Grid and horizon; default the paper's.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    players = {_rate_name(rate): Player(forgetting_rate=rate) for rate in ASSUMED_RATES}
    regret, setting = _play(players, trials, seed, "bogunovic-fig2c", progress, setting, executor)
    mean = {rate: regret[_rate_name(rate)].mean(dim=1) for rate in ASSUMED_RATES}
    worst_other = max(ASSUMED_RATES[1:], key=lambda rate: mean[rate].mean().item())
    return Reproduction(
        name="bogunovic-fig2c",
        title=f"TV-GP-UCB with a wrong ε (true ε = {TRUE_RATE})",
        settings=setting.settings(trials, seed)
        | {"true_rate": TRUE_RATE, "assumed_rates": list(ASSUMED_RATES)},
        results={name: _result(rows) for name, rows in regret.items()},
        claims=[
            _small_change(
                f"slightly under-estimating is harmless: regret at ε = {SLIGHTLY_UNDER} over that "
                f"at {TRUE_RATE}, less 1: at most {HARMLESS}",
                mean[SLIGHTLY_UNDER],
                mean[TRUE_RATE],
                HARMLESS,
            ),
            _small_change(
                f"over-estimating hurts slowly: regret at ε = {MUCH_OVER} over that at "
                f"{TRUE_RATE}, less 1: at most {SLOW}",
                mean[MUCH_OVER],
                mean[TRUE_RATE],
                SLOW,
            ),
            claim_below(
                f"under-estimating tenfold (ε = {TRUE_RATE / 10}) costs more than over-estimating "
                f"tenfold ({TRUE_RATE * 10}): difference above 0 by more than two standard errors",
                mean[TRUE_RATE * 10],
                mean[TRUE_RATE / 10],
                standard_errors=BEYOND,
            ),
            _large_change(
                f"beyond some point under-estimating costs much: regret at ε = 0 over that at "
                f"{FAR_UNDER}, less 1: above {SLOW} by more than two standard errors (added later)",
                mean[0.0],
                mean[FAR_UNDER],
            ),
            claim_below(
                "ε = 0 (GP-UCB) is the worst of the range: its regret minus that of the worst "
                f"other (ε = {worst_other}): above 0 by more than two standard errors",
                mean[worst_other],
                mean[0.0],
                standard_errors=BEYOND,
            ),
        ],
        regret=regret,
        row_label="assumed ε",
    )


def bogunovic_fig2d(
    trials: int = 200,
    seed: int = 0,
    progress: bool = True,
    setting: Synthetic | None = None,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Figure 2(d): R-GP-UCB by block length N; arguments as :func:`bogunovic_fig2c`.

    Raises:
        ValueError: if there are fewer than two replicates, so that there is no spread.
    """
    if trials < 2:
        raise ValueError(f"Expected trials >= 2, to see how they spread. Got {trials}.")
    players = {_block_name(N): Player(reset_every=N) for N in BLOCK_LENGTHS}
    regret, setting = _play(players, trials, seed, "bogunovic-fig2d", progress, setting, executor)
    mean = {N: regret[_block_name(N)].mean(dim=1) for N in BLOCK_LENGTHS}
    matched = block_length(TRUE_RATE, setting.horizon)
    longest = BLOCK_LENGTHS[-1]
    return Reproduction(
        name="bogunovic-fig2d",
        title=f"R-GP-UCB over its block length N (true ε = {TRUE_RATE})",
        settings=setting.settings(trials, seed)
        | {
            "true_rate": TRUE_RATE,
            "block_lengths": list(BLOCK_LENGTHS),
            "matched_block_length": matched,
        },
        results={name: _result(rows) for name, rows in regret.items()},
        claims=[
            claim_below(
                f"too small an N is bad: regret at N = {TOO_SMALL} minus that at N = {matched}: "
                "above 0 by more than two standard errors",
                mean[matched],
                mean[TOO_SMALL],
                standard_errors=BEYOND,
            ),
            _small_change(
                f"the mean is robust to a large N: regret at N = {longest} over that at "
                f"N = {matched}, less 1: between -{ROBUST} and {ROBUST}",
                mean[longest],
                mean[matched],
                ROBUST,
                both_sides=True,
            ),
            _spread_grows(
                f"the spread grows with N: standard deviation at N = {longest} minus that at "
                f"N = {matched}: above 0 by more than two standard errors",
                mean[matched],
                mean[longest],
            ),
            _spread_rank(matched, mean),
        ],
        regret=regret,
        row_label="block length",
    )


def _play(
    players: dict[str, Player],
    trials: int,
    seed: int,
    name: str,
    progress: bool,
    setting: Synthetic | None,
    executor: Executor | None,
) -> tuple[dict[str, Tensor], Synthetic]:
    setting = Synthetic.squared_exponential() if setting is None else setting
    meeting = {who: (TRUE_RATE, player) for who, player in players.items()}
    return setting.regret(meeting, trials, seed, name, progress, executor), setting


def _rate_name(rate: float) -> str:
    return f"{rate:g}"


def _block_name(length: int) -> str:
    return f"N = {length}"


def _result(regret: Tensor) -> dict[str, float | None]:
    average = regret.mean(dim=1)
    deviation = average.std().item() if len(average) > 1 else None
    return regret_result(regret) | {"standard_deviation": deviation}


def _small_change(
    claim: str, changed: Tensor, matched: Tensor, limit: float, both_sides: bool = False
) -> Claim:
    """Return the claim that mean regret changes by no more than a limit."""
    change, error = _relative_change(changed, matched)
    return Claim(claim, (abs(change) if both_sides else change) <= limit, change, error)


def _large_change(claim: str, changed: Tensor, matched: Tensor) -> Claim:
    change, error = _relative_change(changed, matched)
    return Claim(claim, error is not None and change - SLOW > BEYOND * error, change, error)


def _relative_change(changed: Tensor, matched: Tensor) -> tuple[float, float | None]:
    """Return the relative change of mean regret, with its standard error over pairs."""
    return jackknife(
        lambda pairs: (pairs[0].mean() / pairs[1].mean() - 1).item(),
        torch.stack([changed, matched]),
    )


def _spread_grows(claim: str, matched: Tensor, longest: Tensor) -> Claim:
    growth, error = jackknife(
        lambda pairs: (pairs[1].std() - pairs[0].std()).item(), torch.stack([matched, longest])
    )
    return Claim(claim, error is not None and growth > BEYOND * error, growth, error)


def _spread_rank(matched: int, mean: dict[int, Tensor]) -> Claim:
    """Return the claim that the standard deviation rises with N, a rough figure for few N."""
    lengths = [N for N in BLOCK_LENGTHS if matched <= N]
    rank = spearmanr(lengths, [mean[N].std().item() for N in lengths]).statistic
    return Claim(
        f"it grows steadily: rank correlation of N >= {matched} and standard deviation: at least "
        f"{STEADILY}",
        bool(rank >= STEADILY),
        float(rank),
        None,
    )
