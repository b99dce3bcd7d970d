"""Diagnose a run: were outcomes as the model predicted them?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.special import ndtr

from tvbo.evaluation.diagnosis.calibration import Calibration, calibration_of
from tvbo.evaluation.diagnosis.findings import facts, findings
from tvbo.models.at_bounds import AtBound
from tvbo.optimizers import Optimizer
from tvbo.recorded_trial import RecordedTrial
from tvbo.storage import RunRows, read_run
from tvbo.storage.rows import damaged
from tvbo.values import shortened

if TYPE_CHECKING:
    import pandas as pd


class DiagnosisError(ValueError):
    """A run that cannot be diagnosed."""


@dataclass(frozen=True)
class Diagnosis:
    """Whether the model of a run is to be trusted, by its predictions of outcomes not yet observed.

    Args:
        optimizer: Name of its class.
        trials: A row for each trial that was asked, in order: its number ``trial``, ``round`` and
            time ``t``; ``opened`` and ``ended``, numbers in the order of all changes of the run;
            ``mean`` and ``deviation`` of the prediction, noise included, by the ``model_size``
            observations held then; the ``outcome``, its error ``z`` in predictive standard
            deviations, and the predicted probability ``pit`` of a smaller one; whether the model
            was ``fitted`` by then, and whether the error is ``judged``; the ``form`` of drift, its
            ``half_life`` in units of time, parameters ``at_bounds``, and ``ask_seconds``; then
            hyperparameters in the user's units, NaN where the model had none of that name, and
            before the first fit.
        counts: Number of trials by state, and how many were discarded by retention, or attached.
    """

    optimizer: str
    trials: pd.DataFrame
    counts: Mapping[str, int]

    @property
    def hyperparameters(self) -> pd.DataFrame:
        """The columns of hyperparameters."""
        return self.trials.loc[:, "ask_seconds":].iloc[:, 1:]

    @cached_property
    def calibration(self) -> Calibration:
        """The errors of the predictions, of those made by a fitted model."""
        return calibration_of(self.trials[self.trials["judged"]])

    @cached_property
    def findings(self) -> list[str]:
        """What casts doubt on the model, one sentence each."""
        return list(findings(self.trials, self.calibration, self.counts))

    def sentences(self) -> list[str]:
        """Return what the figures say: the findings, or that there are none, then facts.

        Each test of a finding errs in at most some 5 % of the runs of a right model.
        """
        found = self.findings
        return found + list(facts(self.trials, self.calibration, self.counts, bool(found)))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures and sentences, in types of JSON; None for what is not finite."""
        rows = self.trials.to_dict("records")
        return {
            "optimizer": self.optimizer,
            "findings": self.findings,
            "sentences": self.sentences(),
            "counts": dict(self.counts),
            "calibration": {name: _finite(each) for name, each in asdict(self.calibration).items()},
            "trials": [{name: _finite(value) for name, value in row.items()} for row in rows],
        }

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def __str__(self) -> str:
        """Return the sentences, a line each."""
        return "\n".join(self.sentences())

    __repr__ = __str__


def diagnose(source: Optimizer | RunRows | str | Path) -> Diagnosis:
    """Compare each outcome of a run with what its model predicted before.

    What was predicted of a trial is read from the record of its ask: it rests on the outcomes that
    were observed by then. Predictions made before the first fit, and attached trials, are not
    judged; of several outcomes the first one is.

    Args:
        source: A recorded run: its file or URL, its rows, or the optimizer that is recorded.

    Raises:
        DiagnosisError: if it is no recorded run, its optimizer has no Gaussian process, or nothing
            was asked of it.
        tvbo.storage.StorageError: if the run cannot be read, or is damaged.

    Example:
        >>> print(diagnose("run.db"))
    """
    import pandas as pd

    found = source.recorded_at if isinstance(source, Optimizer) else source
    if not isinstance(found, RunRows | str | Path):
        raise DiagnosisError(
            "Expected a recorded run: its file, its URL, or its optimizer. Got "
            f"{shortened(repr(source))}, which is not recorded: record a run by "
            "optimizer.record(path) before its first ask."
        )
    rows = found if isinstance(found, RunRows) else read_run(found)
    asked = [trial for trial in rows.trials if trial.round is not None]
    if not asked:
        raise DiagnosisError("Expected a run in which a trial was asked. Got none.")
    if not rows.predictions:
        raise DiagnosisError(
            "Expected an optimizer with a Gaussian process, which predicts the outcomes. Got "
            f"{rows.class_name}."
        )
    discarded = sum(not trial.informative for trial in asked) - rows.counts["skipped"]
    attached = len(rows.trials) - len(asked)
    counts = {**rows.counts, "discarded": discarded, "attached": attached}
    trials = pd.DataFrame([_row_of(rows, trial) for trial in asked])
    return Diagnosis(rows.class_name, trials, counts)


def _row_of(rows: RunRows, trial: RecordedTrial) -> dict[str, Any]:
    """Return a trial that was asked, with what was predicted of it."""
    outcome = trial.Y[0] if trial.Y else math.nan
    try:
        ask = rows.predictions[trial.id]
        is_fitted, expected = ask["is_fitted"], ask["noise_variance"]
        hyperparameters = dict(ask["hyperparameters"])
        if expected is not None:
            hyperparameters["noise_deviation"] = math.sqrt(expected)
        noise = trial.Yvar[0] if trial.Yvar else expected
        deviation = math.nan if noise is None else math.sqrt(ask["variance"] + noise)
        # Where there is neither variance nor noise, an error has no unit.
        z = (outcome - ask["mean"]) / (deviation or math.nan)
        row = {
            "trial": trial.id,
            **{name: getattr(trial, name) for name in ("round", "t", "opened", "ended")},
            "mean": ask["mean"],
            "deviation": deviation,
            "outcome": outcome,
            "z": z,
            "pit": float(ndtr(z)),
            "judged": is_fitted and math.isfinite(z),
            "fitted": is_fitted,
            **{name: ask[name] for name in ("model_size", "form", "half_life")},
            "at_bounds": [
                AtBound(str(path), int(entry), str(side), float(value))
                for path, entry, side, value in ask["at_bounds"]
            ],
            "ask_seconds": ask["seconds"],
        }
        named = {name: float(value) for name, value in hyperparameters.items() if is_fitted}
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(rows.name, f"the ask of trial {trial.id}") from error
    # A name that is forged replaces no column.
    return row | named | row


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
