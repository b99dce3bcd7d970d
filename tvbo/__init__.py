"""Bayesian optimization for problems that do not hold still, on GPyTorch and BoTorch."""

from importlib.metadata import version

from tvbo.evaluation import History, run, run_async
from tvbo.optimizers import recipes

__version__ = version("botorch-tvbo")

__all__ = ["History", "recipes", "run", "run_async"]
