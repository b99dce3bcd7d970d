"""BoTorch models whose function drifts in time."""

from tvbo.models.time_varying_gp import TimeVaryingGP

__all__ = ["TimeVaryingGP"]
