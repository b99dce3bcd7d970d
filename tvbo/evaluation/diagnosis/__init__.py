"""Diagnosis of a run: one-step-ahead predictions, and what they say of the model."""

from tvbo.evaluation.diagnosis.diagnose import diagnose
from tvbo.evaluation.diagnosis.diagnosis import Diagnosis
from tvbo.evaluation.diagnosis.recorded_run import DiagnosisError

__all__ = [
    "Diagnosis",
    "DiagnosisError",
    "diagnose",
]
