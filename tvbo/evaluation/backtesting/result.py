"""The result of a backtest: mean regret by algorithm, paired differences, a verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from tvbo.logs.paired import correlation_length
from tvbo.spaces.times import duration, parse_timedelta

if TYPE_CHECKING:
    import pandas as pd

FEWEST_BLOCKS = 10
"""Fewest blocks from which there is a verdict."""

LENGTHS = 2.0
"""Times over which differences correlate, in a block."""


class Estimate(NamedTuple):
    """A mean, and its standard error; None where there are fewer than two blocks."""

    mean: float
    standard_error: float | None


@dataclass(frozen=True, repr=False)
class BacktestResult:
    """What each algorithm lost against the best arm at each time.

    Args:
        regret: By algorithm, the best value at a time minus that of the chosen arm, ``starts x S``
            over all test stretches, one after another; one start where two chose the same arms.
        arms_chosen: By algorithm, the index of the chosen arm, ``starts x S``.
        times: Times that were played, ``S``.
        fold_of_time: Index of the fold of each time, ``S``.
        labels: By algorithm, its name in the verdict.
        arms: Names of the arms.
        given_block: Length of a block of times, for standard errors, in units of time; None is by
            :attr:`block_length`.
        time_unit: Name of the unit of time.
        unit: Name of the unit of the outcomes, or empty.
        folds: Rows of each fold, of training and those played; empty for a simulation.
        simulated: Whether the values were drawn from a model.
        is_undecided: Whether that model rests on a log that says nothing about its drift, so that
            there is no verdict.
        messages: What a reader has to know of the numbers.
    """

    regret: Mapping[str, Tensor]
    arms_chosen: Mapping[str, Tensor]
    times: Tensor
    fold_of_time: Tensor
    labels: Mapping[str, str]
    arms: Sequence[str]
    given_block: float | None
    time_unit: str = "1"
    unit: str = ""
    folds: Sequence[tuple[range, range]] = ()
    simulated: bool = False
    is_undecided: bool = False
    messages: Sequence[str] = field(default_factory=list)

    @cached_property
    def block_length(self) -> float:
        """Length of a block in units of time, whose means are taken as independent.

        Twice the time over which the differences that the verdict tells correlate, and at least a
        day.
        """
        if self.given_block is not None:
            return self.given_block
        gaps = self.times.diff()
        step = gaps[gaps > 0].median().item() if (gaps > 0).any() else 1.0
        gaps_of_rivals = [self._gap(self.subject, other).numpy() for other in self.rivals]
        longest = max(map(correlation_length, gaps_of_rivals), default=1.0)
        length = math.ceil(LENGTHS * longest) if longest > 1 else 1
        unit = duration(self.time_unit)
        day = 0.0 if unit is None else float(parse_timedelta("day", "1D") / unit)
        return max(length * step, day)

    @cached_property
    def blocks(self) -> Tensor:
        """Label of the block of each time, ``S``; each fold begins a block."""
        begins = self.fold_of_time.diff(prepend=self.fold_of_time[:1] - 1) != 0
        since = self.times - self.times[begins][self.fold_of_time]
        # Sums such as 0.7 + 0.1 and 0.8 are one time, whichever way they are rounded.
        place = (since / self.block_length + 1e-9).floor()
        return (begins | (place.diff(prepend=place[:1]) != 0)).cumsum(0) - 1

    @cached_property
    def results(self) -> dict[str, Estimate]:
        """Mean regret of each algorithm, over times and starts, with its standard error."""
        of_times = {name: rows.nanmean(dim=0) for name, rows in self.regret.items()}
        return {name: block_estimate(rows, self.blocks) for name, rows in of_times.items()}

    def difference(self, name: str, other: str) -> Estimate:
        """Return by how much the mean regret of ``name`` is below that of ``other``.

        It is paired: the two are compared at the same times and starts, and the standard error is
        that of the difference.

        Raises:
            KeyError: if there is no such algorithm.
        """
        return block_estimate(self._gap(name, other), self.blocks)

    @property
    def _num_folds(self) -> int:
        return int(self.fold_of_time.max()) + 1

    @property
    def subject(self) -> str:
        """The algorithm that the verdict is about: ``fitted``, or else the best of all."""
        if "fitted" in self.regret:
            return "fitted"
        return min(self.regret, key=lambda name: self.regret[name].mean().item())

    @property
    def rivals(self) -> list[str]:
        """Those that the verdict compares with: ``always_best``, and the best of the others."""
        own = self.arms_chosen[self.subject]
        # One that chose the same arms, such as the recipe that was fitted, says nothing.
        others = [n for n in self.regret if not torch.equal(self.arms_chosen[n], own)]
        others.sort(key=lambda name: (name != "always_best", self.regret[name].nanmean().item()))
        return others[:2]

    @property
    def verdict(self) -> str:
        """The result in a sentence: the subject, and by how much it is better or worse.

        Two are told apart at 95 %, by Student's t; there is no verdict from fewer than ten blocks.
        """
        if self.is_undecided:
            return "No verdict: the log says nothing about its drift, so its model decides nothing."
        count = len(self.blocks.unique())
        if count < FEWEST_BLOCKS and not self.simulated:
            return (
                f"No verdict: the {len(self.times)} times that were played are {count} independent "
                f"blocks of {self.block_length:.4g} × {self.time_unit}, fewer than {FEWEST_BLOCKS}."
            )
        if count < 2:
            return "No verdict: a single function was drawn from the fitted model."
        subject = self.subject
        mean = self.results[subject].mean
        parts = [self._compared(subject, other) for other in self.rivals]
        unit = f" {self.unit}" if self.unit else ""
        sentence = "; ".join([f"{self.labels[subject]}, mean regret {mean:.3g}{unit}", *parts])
        if not self.simulated:
            return sentence + "."
        return (
            f"In a simulation, on {self._num_folds} functions drawn from the fitted model: "
            f"{sentence}."
        )

    def _compared(self, name: str, other: str) -> str:
        gap, error = self.difference(name, other)
        label, word = self.labels[other], "better" if gap >= 0 else "worse"
        if error is None:
            return f"{abs(gap):.3g} {word} than {label}"
        amount = f"{abs(gap):.3g} ± {error:.2g}"
        blocks = len(self.blocks[~self._gap(name, other).isnan()].unique())
        if abs(gap) <= stdtrit(blocks - 1, 0.975) * error:
            return f"not told apart from {label} ({amount} {word})"
        return f"{amount} {word} than {label}"

    def _gap(self, name: str, other: str) -> Tensor:
        return (self.regret[other] - self.regret[name]).nanmean(dim=0)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per algorithm, the best first.

        ``difference`` is by how much the subject of the verdict is better, with its standard error.
        """
        import pandas as pd

        rows = []
        for name, (mean, error) in sorted(self.results.items(), key=lambda item: item[1].mean):
            row = {"algorithm": name, "mean_regret": mean, "standard_error": error}
            if name != self.subject:
                gap = self.difference(self.subject, name)
                row |= {"difference": gap.mean, "difference_standard_error": gap.standard_error}
            rows.append(row)
        return pd.DataFrame(rows).set_index("algorithm")

    def rounds_frame(self) -> pd.DataFrame:
        """Return a row per algorithm, start and time: fold, time, arm and regret."""
        import pandas as pd

        frames = [
            pd.DataFrame(
                {
                    "algorithm": name,
                    "start": start,
                    "fold": self.fold_of_time,
                    "t": self.times,
                    "arm": [self.arms[arm] for arm in arms.tolist()],
                    "regret": regret,
                }
            )
            for name, rows in self.regret.items()
            for start, (regret, arms) in enumerate(zip(rows, self.arms_chosen[name], strict=True))
        ]
        return pd.concat(frames, ignore_index=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers by algorithm and what they rest on, in types of JSON."""
        results, differences = {}, {}
        for name, (mean, error) in self.results.items():
            by_fold = [self.regret[name][:, self.fold_of_time == k] for k in range(self._num_folds)]
            results[name] = {
                "label": self.labels[name],
                "mean_regret": mean,
                "standard_error": error,
                "mean_regret_by_fold": [regret.nanmean().item() for regret in by_fold],
            }
            gaps = {other: self.difference(name, other) for other in self.regret if other != name}
            differences[name] = {
                other: {"better_by": gap.mean, "standard_error": gap.standard_error}
                for other, gap in gaps.items()
            }
        return {
            "verdict": self.verdict,
            "results": results,
            "differences": differences,
            "simulated": self.simulated,
            "unit": self.unit,
            "time_unit": self.time_unit,
            "num_times": len(self.times),
            "num_starts": max(len(regret) for regret in self.regret.values()),
            "block_length": self.block_length,
            "num_blocks": len(self.blocks.unique()),
            "folds": [
                {"train": [train.start, train.stop], "test": [test.start, test.stop]}
                for train, test in self.folds
            ],
            "messages": list(self.messages),
        }

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`rounds_frame` as CSV."""
        self.rounds_frame().to_csv(path, index=False)

    def __repr__(self) -> str:
        return "\n".join([self.to_frame().to_string(float_format="{:.4g}".format), self.verdict])


def block_estimate(series: Tensor, blocks: Tensor) -> Estimate:
    r"""Return the mean of a series, with a standard error from blocks of times.

    With :math:`n_b` values of mean :math:`m_b` in block ``b`` of ``B``, N values in all of mean m:

    .. math:: \text{se}^2 = \frac{B}{B - 1} \sum_b \Big(\frac{n_b}{N}\Big)^2 (m_b - m)^2,

    which is the variance of the block means over B where blocks are equally long. Values within a
    block may depend on one another; blocks are taken as independent.

    Args:
        series: ``S``; NaN is left out.
        blocks: Label of the block of each value, ``S``.
    """
    known = ~series.isnan()
    _, index = blocks[known].unique(return_inverse=True)
    counts = torch.bincount(index).double()
    means = torch.zeros_like(counts).index_add(0, index, series[known]) / counts
    shares = counts / counts.sum()
    mean = (means * shares).sum().item()
    B = len(means)
    if B < 2:
        return Estimate(mean, None)
    variance = B / (B - 1) * (shares * (means - mean)).square().sum().item()
    return Estimate(mean, math.sqrt(variance))
