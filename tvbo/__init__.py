"""Bayesian optimization for problems that do not hold still, on GPyTorch and BoTorch."""

from importlib.metadata import version

from tvbo.history import History
from tvbo.optimizers import recipes
from tvbo.runner import run

__version__ = version("botorch-tvbo")

__all__ = ["History", "recipes", "run"]
