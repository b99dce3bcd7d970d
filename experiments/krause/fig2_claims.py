"""Claims and measures of Figure 2 of Krause, Ong (2011)."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from experiments.claims import BEYOND, Claim, claim_below, mean_and_error

NUM_RELATED = 3
"""Number of related molecules at the start; the next one is not related to them."""

SIMILAR = 0.1
"""Largest difference that counts as similar, as a share of CGP-UCB's regret."""


def worst_gap(regret: Tensor) -> Tensor:
    """Return the largest gap of Figure 2(b), between the best reward and the best found.

    Args:
        regret: ``... x tasks x horizon``.

    Returns:
        The largest gap over the tasks after each number of trials, ``... x horizon``.
    """
    return regret.cummin(dim=-1).values.amax(dim=-2)


def summarize(regret: Tensor, repeats: Tensor) -> dict[str, float | None]:
    """Return the measures of one algorithm.

    Args:
        regret: ``trials x tasks x horizon``.
        repeats: Share of repeated candidates, ``trials``.
    """
    mean, error = mean_and_error(regret.flatten(1).mean(dim=1))
    gap = worst_gap(regret)
    return {
        "mean_regret": mean,
        "standard_error": error,
        "related_molecules": regret[:, :NUM_RELATED].mean().item(),
        "fourth_molecule": regret[:, NUM_RELATED].mean().item(),
        "later_molecules": _mean_or_none(regret[:, NUM_RELATED + 1 :]),
        "worst_gap_at_end": gap[:, -1].mean().item(),
        "mean_worst_gap": gap.mean().item(),
        "share_of_repeats": repeats.mean().item(),
    }


def _mean_or_none(values: Tensor) -> float | None:
    return values.mean().item() if values.numel() else None


def make_claims(regret: dict[str, Tensor], end: str = "") -> list[Claim]:
    """Return the paper's claims, from ``trials x tasks x horizon`` of each algorithm.

    Args:
        regret: By algorithm.
        end: Appended to the words of each claim.

    Returns:
        Eleven; "better" and "worse" are those of the mean regret, by two paired standard errors.
    """
    related = {name: rows[:, :NUM_RELATED].mean(dim=(1, 2)) for name, rows in regret.items()}
    fourth = {name: rows[:, NUM_RELATED].mean(dim=1) for name, rows in regret.items()}
    every = {name: rows.mean(dim=(1, 2)) for name, rows in regret.items()}
    gap = {name: worst_gap(rows) for name, rows in regret.items()}
    over_t = {name: rows.mean(dim=1) for name, rows in gap.items()}
    at_end = {name: rows[:, -1] for name, rows in gap.items()}
    horizon = regret["merged"].shape[-1]
    first = f"on the {NUM_RELATED} related molecules"
    unrelated = "on the fourth molecule, which is not related"
    worst = "largest gap over the molecules"
    claims = [
        _similar(f"{first} merging and CGP-UCB are similar", related),
        _below(f"{first} CGP-UCB is better than separate", "CGP-UCB", "separate", related),
        _below(f"{first} merging is better than separate", "merged", "separate", related),
        _below(f"{unrelated}, merging is worse than CGP-UCB", "CGP-UCB", "merged", fourth),
        _below(f"{unrelated}, merging is worse than separate, too", "separate", "merged", fourth),
        _below("over all trials CGP-UCB is better than merging", "CGP-UCB", "merged", every),
        _below("over all trials CGP-UCB is better than separate", "CGP-UCB", "separate", every),
        _below(f"{worst}, mean over t, is smaller for CGP-UCB", "CGP-UCB", "merged", over_t),
        _below(f"{worst}, mean over t, is smaller for CGP-UCB", "CGP-UCB", "separate", over_t),
        _below(f"{worst} at t = {horizon} is smaller for CGP-UCB", "CGP-UCB", "merged", at_end),
        _below(f"{worst} at t = {horizon} is smaller for CGP-UCB", "CGP-UCB", "separate", at_end),
    ]
    return [replace(claim, claim=claim.claim + end) for claim in claims]


def _below(words: str, lower: str, higher: str, measure: dict[str, Tensor]) -> Claim:
    return claim_below(
        f"{words}: {higher} minus {lower}: above two standard errors",
        measure[lower],
        measure[higher],
        standard_errors=BEYOND,
    )


def _similar(words: str, measure: dict[str, Tensor]) -> Claim:
    """Return the claim that a difference and two standard errors stay within ``SIMILAR``.

    A small difference with a large standard error does not confirm it; nor does one replicate.
    """
    ours = measure["CGP-UCB"]
    figure, error = mean_and_error((measure["merged"] - ours) / ours.mean())
    return Claim(
        f"{words}: regret of merged over that of CGP-UCB, less 1: between -{SIMILAR} and {SIMILAR} "
        "with two standard errors",
        error is not None and abs(figure) + BEYOND * error <= SIMILAR,
        figure,
        error,
    )
