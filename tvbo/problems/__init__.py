"""Objectives that drift: drawn, synthetic and recorded."""

from tvbo.problems.base import DriftingProblem
from tvbo.problems.drifting_gp import (
    covariance_root,
    drifting_gp,
    drifting_gp_log,
    drifting_values,
    unit_grid,
)
from tvbo.problems.empirical import EmpiricalPanel
from tvbo.problems.moving_peak import MovingPeak
from tvbo.problems.panel import PanelProblem

__all__ = [
    "DriftingProblem",
    "EmpiricalPanel",
    "MovingPeak",
    "PanelProblem",
    "covariance_root",
    "drifting_gp",
    "drifting_gp_log",
    "drifting_values",
    "unit_grid",
]
