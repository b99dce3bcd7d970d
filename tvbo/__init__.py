"""Bayesian optimization for problems that do not hold still, on GPyTorch and BoTorch."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from tvbo.history import History
from tvbo.optimizers import recipes
from tvbo.runner import run

if TYPE_CHECKING:
    from tvbo.fitting import DriftFit, fit_drift

__version__ = version("botorch-tvbo")

__all__ = ["DriftFit", "History", "fit_drift", "recipes", "run"]


def __getattr__(name: str) -> object:
    """Import :mod:`tvbo.fitting` when it is first used: no optimizer needs it."""
    if name in ("DriftFit", "fit_drift"):
        from tvbo import fitting

        return getattr(fitting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
