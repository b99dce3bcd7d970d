"""Problems to optimize: drifting and contextual test functions, and panels of recorded values."""

from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.drifting_gp import drifting_gp
from tvbo.test_functions.moving_peak import MovingPeak
from tvbo.test_functions.panel import PanelProblem

__all__ = ["DriftingProblem", "MovingPeak", "PanelProblem", "drifting_gp"]
