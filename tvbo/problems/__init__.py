"""Problems to optimize: drifting and contextual test functions, and panels of recorded values."""

from tvbo.problems.base import DriftingProblem
from tvbo.problems.contextual_panel import (
    ContextualPanelProblem,
    drifting_contextual_gp,
)
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
from tvbo.problems.pd_control import PDControl
from tvbo.problems.rkhs import RKHSFunction
from tvbo.problems.static_functions import ExampleFunction, Rosenbrock, StaticFunction
from tvbo.problems.time_of_day import TimeOfDayPanel, time_of_day

__all__ = [
    "ContextualPanelProblem",
    "DriftingProblem",
    "EmpiricalPanel",
    "ExampleFunction",
    "MovingPeak",
    "PDControl",
    "PanelProblem",
    "RKHSFunction",
    "Rosenbrock",
    "StaticFunction",
    "TimeOfDayPanel",
    "covariance_root",
    "drifting_contextual_gp",
    "drifting_gp",
    "drifting_gp_log",
    "drifting_values",
    "time_of_day",
    "unit_grid",
]
