"""Problems to optimize: drifting and contextual test functions, and panels of recorded values."""

from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.box_problem import BoxProblem
from tvbo.test_functions.contextual_panel import (
    ContextualPanelProblem,
    drifting_contextual_gp,
)
from tvbo.test_functions.drifting_features import DriftingFeatures
from tvbo.test_functions.drifting_gp import (
    covariance_root,
    drifting_gp,
    drifting_gp_log,
    drifting_values,
    unit_grid,
)
from tvbo.test_functions.dynamic_functions import DynamicFunction
from tvbo.test_functions.dynamic_problems import dynamic_problems
from tvbo.test_functions.empirical import EmpiricalPanel
from tvbo.test_functions.moving_functions import (
    MovingPeaks,
    RotatingOptimum,
    SeasonalOptimum,
    SuddenJump,
)
from tvbo.test_functions.moving_peak import MovingPeak
from tvbo.test_functions.panel import PanelProblem
from tvbo.test_functions.pd_control import PDControl
from tvbo.test_functions.simulated_service import SimulatedService
from tvbo.test_functions.static_functions import ExampleFunction, Rosenbrock, StaticFunction
from tvbo.test_functions.time_of_day import TimeOfDayPanel, time_of_day

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
