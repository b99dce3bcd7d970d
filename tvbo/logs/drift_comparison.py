"""Forms of drift of a log with one action at a time, compared by evidence and by prediction."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gpytorch.kernels import Kernel

from tvbo.kernels import TemporalKernel
from tvbo.logs.panel_evidence import CANDIDATES, PanelCandidate
from tvbo.logs.panel_file import describe, make_kernel
from tvbo.logs.saved import check_index, from_plain, kernel_from_data, kernel_to_data


@dataclass(frozen=True)
class DriftComparison:
    """Forms of drift of a log, and the model of the one that was chosen.

    Args:
        evidence: The forms that were compared.
        chosen: Index of the one that was chosen.
        reason: Why, in a sentence.
        messages: Remarks on the reliability of the comparison.
        temporal_kernels: Temporal kernels of the chosen form.
        covar_modules: Kernel over actions of each of them.
        noise_variance: σ²; None if each outcome had a known one.
        mean: The prior mean.
    """

    evidence: list[PanelCandidate] = field(repr=False)
    chosen: int
    reason: str
    messages: list[str]
    temporal_kernels: list[TemporalKernel] = field(repr=False)
    covar_modules: list[Kernel] = field(repr=False)
    noise_variance: float | None
    mean: float

    @property
    def is_exponential(self) -> bool:
        """Whether one exponential decay was chosen."""
        return self.evidence[self.chosen].temporal_kernel == CANDIDATES[0].name

    def to_dict(self) -> dict[str, Any]:
        """Return all of it in types of JSON, for :meth:`from_dict`."""
        return {
            "evidence": [asdict(row) for row in self.evidence],
            "chosen": self.chosen,
            "reason": self.reason,
            "messages": self.messages,
            "temporal_kernels": [describe(kernel) for kernel in self.temporal_kernels],
            "covar_modules": [kernel_to_data(kernel) for kernel in self.covar_modules],
            "noise_variance": self.noise_variance,
            "mean": self.mean,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DriftComparison:
        """Return what :meth:`to_dict` described."""
        made = {
            "evidence": [from_plain(PanelCandidate, row) for row in values["evidence"]],
            "temporal_kernels": [make_kernel(words) for words in values["temporal_kernels"]],
            "covar_modules": [kernel_from_data(data) for data in values["covar_modules"]],
        }
        new = from_plain(cls, {**values, **made})
        check_index("chosen", new.chosen, new.evidence)
        if not 1 <= len(new.covar_modules) == len(new.temporal_kernels):
            raise ValueError(
                "Expected a kernel over actions for each temporal kernel. "
                f"Got {len(new.covar_modules)} and {len(new.temporal_kernels)}."
            )
        return new
