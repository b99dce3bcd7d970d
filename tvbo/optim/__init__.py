"""The maximum of an acquisition function, and actions that fill a space."""

from tvbo.optim.maximize import maximize
from tvbo.optim.space_filling import SpaceFilling

__all__ = ["SpaceFilling", "maximize"]
