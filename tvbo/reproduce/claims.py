"""A paper's claims beside what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True)
class Claim:
    """One claim and whether it held here.

    Args:
        claim: The claim, in words.
        held: Whether the figure bears it out.
        figure: What was measured; the claim says in what units and which sign it should have.
        standard_error: Of the figure, over paired trials; None where there is one figure only.
        paper: The paper's own figure in words, where it states one.
    """

    claim: str
    held: bool
    figure: float
    standard_error: float | None
    paper: str = ""


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of a paper, done again.

    Args:
        name: Its name on the command line.
        title: What it shows.
        settings: Everything that was chosen, seeds included.
        results: By algorithm, by measure.
        claims: The claims.
        regret: By algorithm, ``trials x T``, for plots.
    """

    name: str
    title: str
    settings: dict
    results: dict[str, dict[str, float | None]]
    claims: list[Claim]
    regret: dict[str, Tensor] = field(repr=False)

    def to_dict(self) -> dict:
        """Everything but the curves, in JSON's types."""
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
    """Mean of independent samples and its standard error; None for a single one."""
    n = len(samples)
    return samples.mean().item(), (samples.std() / math.sqrt(n)).item() if n > 1 else None


def claim_below(claim: str, lower: Tensor, higher: Tensor) -> Claim:
    """A claim that one algorithm's measure is below another's, trial by trial.

    Args:
        claim: The claim, in words.
        lower: ``trials``, of the algorithm that should be below.
        higher: ``trials``, of the other.
    """
    figure, error = mean_and_error(torch.as_tensor(higher) - torch.as_tensor(lower))
    return Claim(claim, figure > 0, figure, error)
