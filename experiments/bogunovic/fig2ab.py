"""Figures 2(a) and 2(b) of Bogunovic et al. (2016): gradual forgetting and resetting."""

from __future__ import annotations

from concurrent.futures import Executor

from torch import Tensor

from experiments.bogunovic.synthetic import Player, Synthetic
from experiments.claims import BEYOND, Claim, Reproduction, claim_below, regret_result
from tvbo.logs.block_length import block_length

RATES = (0.001, 0.01, 0.03)


def bogunovic_fig2a(
    trials: int = 200, seed: int = 0, progress: bool = True, executor: Executor | None = None
) -> Reproduction:
    """Reproduce Figure 2(a): TV-GP-UCB and R-GP-UCB with the squared exponential kernel.

    Args:
        trials: Number of paired replicates.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        progress: Show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive.
    """
    return matched_case(
        Synthetic.squared_exponential(),
        "bogunovic-fig2a",
        "Average regret, squared exponential kernel",
        trials,
        seed,
        progress,
        executor,
    )


def bogunovic_fig2b(
    trials: int = 200, seed: int = 0, progress: bool = True, executor: Executor | None = None
) -> Reproduction:
    """Reproduce Figure 2(b), with the Matérn kernel; arguments as :func:`bogunovic_fig2a`."""
    return matched_case(
        Synthetic.matern(),
        "bogunovic-fig2b",
        "Average regret, Matérn kernel with ν = 2.5",
        trials,
        seed,
        progress,
        executor,
    )


def matched_case(
    setting: Synthetic,
    name: str,
    title: str,
    trials: int,
    seed: int,
    progress: bool,
    executor: Executor | None = None,
) -> Reproduction:
    """Run both algorithms with the parameters that match the true ε, and GP-UCB."""
    blocks = {rate: block_length(rate, setting.horizon, dim=2, nu=setting.nu) for rate in RATES}
    players = {}
    for rate in RATES:
        players[label("TV-GP-UCB", rate)] = rate, Player(forgetting_rate=rate)
        players[label("R-GP-UCB", rate)] = rate, Player(reset_every=blocks[rate])
        players[label("GP-UCB", rate)] = rate, Player()
    regret = setting.regret(players, trials, seed, name, progress, executor)
    claims = []
    for rate in RATES:
        smooth, afresh = (regret[label(who, rate)] for who in ("TV-GP-UCB", "R-GP-UCB"))
        claims.append(
            claim_below(
                f"ε = {rate}: R-GP-UCB (N = {blocks[rate]}) minus TV-GP-UCB, average regret: "
                "above 0 by more than two standard errors",
                smooth.mean(dim=1),
                afresh.mean(dim=1),
                standard_errors=BEYOND,
            )
        )
        if 2 * blocks[rate] <= setting.horizon:
            claims += _oscillation(rate, blocks[rate], smooth, afresh)
    return Reproduction(
        name=name,
        title=title,
        settings=setting.settings(trials, seed)
        | {"block_lengths": {str(rate): block for rate, block in blocks.items()}},
        results={who: regret_result(rows) for who, rows in regret.items()},
        claims=claims,
        regret=regret,
        row_label="algorithm, true ε",
    )


def label(algorithm: str, rate: float) -> str:
    """Return the name of an algorithm at a true ε."""
    return f"{algorithm}, ε = {rate}"


def _oscillation(rate: float, block: int, smooth: Tensor, afresh: Tensor) -> list[Claim]:
    """Return claims on regret just after a reset minus regret just before the next one.

    The first block is left out, since all algorithms start there.
    """

    def swing(regret: Tensor) -> Tensor:
        whole = regret.shape[1] // block
        blocks = regret[:, block : whole * block].reshape(len(regret), whole - 1, block)
        quarter = max(1, block // 4)
        return (blocks[..., :quarter].mean(dim=-1) - blocks[..., -quarter:].mean(dim=-1)).mean(1)

    return [
        claim_below(
            f"ε = {rate}: R-GP-UCB oscillates: its regret in the first quarter of a block minus "
            "that in the last: above 0 by more than two standard errors",
            0 * swing(afresh),
            swing(afresh),
            standard_errors=BEYOND,
        ),
        claim_below(
            f"ε = {rate}: TV-GP-UCB is steadier: the same figure, R-GP-UCB's minus the size of "
            "TV-GP-UCB's: above 0 by more than two standard errors",
            swing(smooth).abs(),
            swing(afresh),
            standard_errors=BEYOND,
        ),
    ]
