"""How the next action is chosen: β schedules, acquisitions, domains."""

from tvbo.acquisition.beta import (
    BetaSchedule,
    ConstantBeta,
    LogBeta,
    ResettingBeta,
    TimeVaryingBeta,
)
from tvbo.acquisition.contextual_beta import CompactBeta, FiniteBeta, RKHSBeta
from tvbo.acquisition.domain import Box, Choices, Domain
from tvbo.acquisition.situation import UCB, Acquisition, Situation

__all__ = [
    "UCB",
    "Acquisition",
    "BetaSchedule",
    "Box",
    "Choices",
    "CompactBeta",
    "ConstantBeta",
    "Domain",
    "FiniteBeta",
    "LogBeta",
    "RKHSBeta",
    "ResettingBeta",
    "Situation",
    "TimeVaryingBeta",
]
