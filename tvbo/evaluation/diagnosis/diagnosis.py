"""The result of a diagnosis: what the model predicted in each round, and what came."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tvbo.evaluation.diagnosis.calibration import Calibration, PredictedTrial
from tvbo.evaluation.diagnosis.findings import FEWEST, facts, findings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Diagnosis:
    """Whether the model of a run is to be trusted, by its predictions of outcomes not yet observed.

    Args:
        optimizer: Name of its class.
        trials: The trials that were asked, in order, with the predictions made then.
        counts: Number of trials that are told, open, failed, expired, skipped, and discarded by
            retention.
        ask_seconds: Seconds that each ask took, ``n``; None where that was not recorded.
        messages: What is to be known of the figures.
    """

    optimizer: str
    trials: list[PredictedTrial]
    counts: dict[str, int]
    ask_seconds: Tensor | None = None
    messages: list[str] = field(default_factory=list)

    @cached_property
    def calibration(self) -> Calibration:
        """The errors of the predictions, of those made by a fitted model."""
        return Calibration([trial for trial in self.trials if trial.is_judged])

    @cached_property
    def findings(self) -> list[str]:
        """What casts doubt on the model, one sentence each."""
        return list(findings(self.trials, self.calibration, self.counts))

    def sentences(self) -> list[str]:
        """Return what the figures say: the findings, or that there are none, then facts.

        Each test of a finding errs in at most some 5 % of the runs of a right model.
        """
        seconds = [] if self.ask_seconds is None else self.ask_seconds.tolist()
        sentences, judged = list(self.findings), self.calibration
        if judged.num_independent < FEWEST:
            sentences.append(
                f"{judged.num_independent} independent outcomes of the fitted model are too few to "
                f"judge it: {FEWEST} or more are."
            )
        elif not sentences:
            sentences.append(f"Nothing stands out in {len(judged)} outcomes.")
        return sentences + list(facts(self.trials, judged, self.counts, seconds))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per trial: prediction, outcome, error, model size, hyperparameters.

        These are in the user's units, and NaN where the model had none of that name, as the rate of
        another form of drift, and before the first fit.
        """
        import pandas as pd

        rows = []
        for trial in self.trials:
            known = trial.prediction
            row = {
                "trial": known.trial_id,
                "t": known.t,
                "mean": known.mean,
                "deviation": math.sqrt(known.variance + known.noise_variance),
                "outcome": trial.outcome,
                "z": trial.z,
                "pit": torch.special.ndtr(torch.tensor(trial.z, dtype=torch.float64)).item(),
                "judged": trial.is_judged,
                "model_size": trial.model_size,
                "form": trial.form,
                "half_life": trial.half_life,
                "fitted": trial.is_fitted,
            }
            for name, value in trial.parameters.items():
                row[name] = value if trial.is_fitted else math.nan
            rows.append(row)
        frame = pd.DataFrame(rows)
        if self.ask_seconds is not None:
            frame["ask_seconds"] = self.ask_seconds.tolist()
        return frame

    def to_csv(self, path: str | Path) -> None:
        """Write :meth:`to_frame` as CSV."""
        self.to_frame().to_csv(path, index=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and sentences, in types of JSON; None for what is not finite."""
        calibration = self.calibration
        names = ("coverage", "mean", "deviation", "lag_correlation", "outlier_limit")
        numbers = {name: _finite(getattr(calibration, name)) for name in names}
        rows = self.to_frame().to_dict("records")
        return {
            "optimizer": self.optimizer,
            "findings": self.findings,
            "sentences": self.sentences(),
            "messages": list(self.messages),
            "counts": dict(self.counts),
            "num_outcomes": len(calibration),
            "num_independent": calibration.num_independent,
            "calibration": numbers | {"coverage_interval": list(calibration.coverage_interval)},
            "outliers": [
                {"trial": trial.prediction.trial_id, "z": trial.z} for trial in calibration.outliers
            ],
            "trials": [{name: _finite(value) for name, value in row.items()} for row in rows],
        }

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def __str__(self) -> str:
        """Return the sentences, a line each."""
        return "\n".join([*self.sentences(), *self.messages])

    __repr__ = __str__


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
