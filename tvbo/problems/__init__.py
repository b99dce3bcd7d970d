"""Objectives that drift: drawn, synthetic and recorded."""

from tvbo.problems.base import DriftingProblem
from tvbo.problems.drifting_gp import drifting_gp, drifting_gp_log, unit_grid
from tvbo.problems.moving_peak import MovingPeak
from tvbo.problems.panel import PanelProblem

__all__ = [
    "DriftingProblem",
    "MovingPeak",
    "PanelProblem",
    "drifting_gp",
    "drifting_gp_log",
    "unit_grid",
]
