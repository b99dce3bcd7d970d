"""Problems to optimize: drifting and contextual test functions, and panels of recorded values."""

from tvbo.problems.base import DriftingProblem
from tvbo.problems.box_problem import BoxProblem
from tvbo.problems.contextual_panel import (
    ContextualPanelProblem,
    drifting_contextual_gp,
)
from tvbo.problems.drifting_features import DriftingFeatures
from tvbo.problems.drifting_gp import (
    covariance_root,
    drifting_gp,
    drifting_gp_log,
    drifting_values,
    unit_grid,
)
from tvbo.problems.dynamic_functions import DynamicFunction
from tvbo.problems.dynamic_problems import dynamic_problems
from tvbo.problems.empirical import EmpiricalPanel
from tvbo.problems.moving_functions import (
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)
from tvbo.problems.moving_peak import MovingPeak
from tvbo.problems.panel import PanelProblem
from tvbo.problems.pd_control import PDControl
from tvbo.problems.rkhs import RKHSFunction
from tvbo.problems.simulated_service import SimulatedService
from tvbo.problems.static_functions import ExampleFunction, Rosenbrock, StaticFunction
from tvbo.problems.time_of_day import TimeOfDayPanel, time_of_day

__all__ = [
    "BoxProblem",
    "ContextualPanelProblem",
    "DriftingFeatures",
    "DriftingProblem",
    "DynamicFunction",
    "EmpiricalPanel",
    "ExampleFunction",
    "MovingPeak",
    "MovingPeaks",
    "PDControl",
    "PanelProblem",
    "RKHSFunction",
    "Rosenbrock",
    "RotatingOptimum",
    "SeasonalOptimum",
    "SimulatedService",
    "StaticFunction",
    "SuddenJump",
    "TimeOfDayPanel",
    "covariance_root",
    "drifting_contextual_gp",
    "drifting_gp",
    "drifting_gp_log",
    "drifting_values",
    "dynamic_problems",
    "time_of_day",
    "unit_grid",
]
