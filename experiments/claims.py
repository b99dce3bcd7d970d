"""Claims of a paper, and measurements that confirm or contradict them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from tvbo.logs import DriftFit

BEYOND = 2.0
"""Number of standard errors by which a claim must hold where it says so."""

BEST_OF_TRAINING = "best arm of training, always"
"""What every table on a recorded panel has: the arm of the largest training mean, in all rounds."""


@dataclass(frozen=True)
class Claim:
    """A claim and whether the reproduction confirms it.

    Args:
        claim: The claim, in words.
        held: Whether the figure confirms it.
        figure: The measured number; the claim states its unit and its expected sign.
        standard_error: Standard error of the figure over paired replicates; None for one figure.
        paper: The number in the paper, in words, where it states one.
    """

    claim: str
    held: bool
    figure: float
    standard_error: float | None
    paper: str = ""


@dataclass(frozen=True)
class Reproduction:
    """A reproduced figure or table of a paper.

    Args:
        name: Its name on the command line.
        title: What it shows.
        settings: All settings, seeds included.
        results: The measures of each row, the same in all rows.
        claims: The claims.
        regret: Regret of each algorithm for plots, ``replicates x ... x T``; dimensions in between
            depend on the figure, such as test days.
        row_label: Label of the rows of ``results``.
        curves: Other curves for plots, by measure and algorithm, ``replicates x T``.
    """

    name: str
    title: str
    settings: dict
    results: dict[str, dict[str, float | None]]
    claims: list[Claim]
    regret: dict[str, Tensor] = field(repr=False)
    row_label: str = "algorithm"
    curves: dict[str, dict[str, Tensor]] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict:
        """Return all fields but the curves, in the types of JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "settings": self.settings,
            "results": self.results,
            "claims": [asdict(claim) for claim in self.claims],
        }

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")


def mean_and_error(samples: Tensor) -> tuple[float, float | None]:
    """Return the mean of independent samples and its standard error; None for a single one."""
    n = len(samples)
    return samples.mean().item(), (samples.std() / math.sqrt(n)).item() if n > 1 else None


def regret_result(regret: Tensor) -> dict[str, float | None]:
    """Return the mean average regret, with its standard error, from ``replicates x T``."""
    mean, error = mean_and_error(regret.mean(dim=1))
    return {"mean_regret": mean, "standard_error": error}


def jackknife(statistic: Callable[[Tensor], float], samples: Tensor) -> tuple[float, float | None]:
    """Return a statistic of independent replicates and its jackknife standard error.

    Args:
        statistic: A function from ``... x replicates`` to a number.
        samples: ``... x replicates``; each replicate is left out as a whole.

    Returns:
        The statistic of all replicates, and its standard error; None for fewer than three.
    """
    n = samples.shape[-1]
    if n < 3:
        return statistic(samples), None
    keep = ~torch.eye(n, dtype=torch.bool)
    without = torch.tensor([statistic(samples[..., row]) for row in keep], dtype=torch.float64)
    spread = (without - without.mean()).square().sum() * (n - 1) / n
    return statistic(samples), math.sqrt(spread)


def claims_against_training(regret: dict[str, Tensor], names: Sequence[str]) -> list[Claim]:
    """Return claims that algorithms are better than always playing the best arm of training.

    These are not claims of a paper.

    Args:
        regret: Mean regret by algorithm, ``trials`` each, that of :data:`BEST_OF_TRAINING` among
            them.
        names: Of the algorithms.
    """
    compared = [
        claim_below(
            f"{BEST_OF_TRAINING} minus {name}, mean regret: above two standard errors",
            regret[name],
            regret[BEST_OF_TRAINING],
            standard_errors=BEYOND,
        )
        for name in names
    ]
    return [replace(claim, paper="no claim") for claim in compared]


def claim_below(claim: str, lower: Tensor, higher: Tensor, standard_errors: float = 0.0) -> Claim:
    """Return the claim that the measure of one algorithm is below that of another, in pairs.

    It is confirmed if the mean difference, ``higher`` minus ``lower``, exceeds 0, or as many of its
    standard errors as are asked for; a single trial, which has none, then bears nothing out.

    Args:
        claim: The claim, in words.
        lower: ``trials``, of the algorithm that should be below.
        higher: ``trials``, of the other.
        standard_errors: By how many standard errors the mean difference must exceed 0.

    Raises:
        ValueError: if ``standard_errors`` is negative.
    """
    if not standard_errors >= 0:
        raise ValueError(f"Expected standard_errors >= 0. Got {standard_errors}.")
    figure, error = mean_and_error(torch.as_tensor(higher) - torch.as_tensor(lower))
    if standard_errors == 0:
        held = figure > 0
    else:
        held = error is not None and figure > standard_errors * error
    return Claim(claim, held, figure, error)


def claim_rate(claim: str, fit: DriftFit, low: float, high: float, paper: str) -> Claim:
    """Return the claim that the fitted ε, per unit of time, lies between ``low`` and ``high``.

    Args:
        claim: The claim, in words.
        fit: A fit with a 95 % interval.
        low: Smallest ε that confirms the claim.
        high: Largest ε that confirms the claim.
        paper: The paper's ε.
    """
    lower, upper = fit.forgetting_rate_interval
    # Width of the 95 % interval over 2 x 1.96.
    error = (upper - lower) / 3.92
    return Claim(claim, low <= fit.forgetting_rate <= high, fit.forgetting_rate, error, paper)
