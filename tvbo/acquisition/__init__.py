"""How the next action is chosen: β schedules, acquisitions, domains."""

from tvbo.acquisition.beta import (
    BetaSchedule,
    ConstantBeta,
    LogBeta,
    ResettingBeta,
    TimeVaryingBeta,
)
from tvbo.acquisition.bkb_beta import BKBBeta, bkb_qbar
from tvbo.acquisition.contextual_beta import CompactBeta, FiniteBeta, RKHSBeta
from tvbo.acquisition.domain import Box, Choices, Domain
from tvbo.acquisition.improvement import EI, MPI, PI, LogEI, LogPI
from tvbo.acquisition.incumbent import BestMean, BestObserved, Incumbent, MaxMean
from tvbo.acquisition.situation import UCB, Acquisition, Situation
from tvbo.acquisition.thompson import DrawnValues, ThompsonSampling

__all__ = [
    "EI",
    "MPI",
    "PI",
    "UCB",
    "Acquisition",
    "BKBBeta",
    "BestMean",
    "BestObserved",
    "BetaSchedule",
    "Box",
    "Choices",
    "CompactBeta",
    "ConstantBeta",
    "Domain",
    "DrawnValues",
    "FiniteBeta",
    "Incumbent",
    "LogBeta",
    "LogEI",
    "LogPI",
    "MaxMean",
    "RKHSBeta",
    "ResettingBeta",
    "Situation",
    "ThompsonSampling",
    "TimeVaryingBeta",
    "bkb_qbar",
]
