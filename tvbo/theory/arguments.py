"""Checks of arguments shared by the modules of this package."""

from __future__ import annotations

import math


def check_positive(**values: float) -> None:
    """Raise unless every value is positive and finite; the keywords are their names."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"Expected {name} > 0 and finite. Got {value}.")


def check_not_negative(**values: float) -> None:
    """Raise unless every value is at least 0 and finite."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"Expected {name} >= 0 and finite. Got {value}.")


def check_count(**values: int) -> None:
    """Raise unless every value is a whole number, at least 1."""
    for name, value in values.items():
        if not 1 <= value < math.inf or value != int(value):
            raise ValueError(f"Expected {name} to be a whole number >= 1. Got {value}.")


def check_rate(forgetting_rate: float) -> None:
    """Raise unless ε lies in [0, 1]."""
    if not 0 <= forgetting_rate <= 1:
        raise ValueError(f"Expected forgetting_rate in [0, 1]. Got {forgetting_rate}.")


def check_probability(delta: float) -> None:
    """Raise unless the probability of failure lies in (0, 1)."""
    if not 0 < delta < 1:
        raise ValueError(f"Expected delta in (0, 1). Got {delta}.")
