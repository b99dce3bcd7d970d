"""Diagnosis of a run: one-step-ahead predictions, and what they say of the model."""

from tvbo.evaluation.diagnosis.diagnosis import Diagnosis, DiagnosisError, diagnose

__all__ = [
    "Diagnosis",
    "DiagnosisError",
    "diagnose",
]
