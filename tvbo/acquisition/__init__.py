"""Acquisitions, incumbents and β schedules."""

from tvbo.acquisition.analytic import (
    UCB,
    Acquisition,
    BetaSchedule,
    ConstantBeta,
    LogBeta,
    ResettingBeta,
    TimeVaryingBeta,
    unit_of,
)
from tvbo.acquisition.at_present import AtPresent
from tvbo.acquisition.chance_constrained import ChanceConstrained, constrained
from tvbo.acquisition.contextual_beta import CompactBeta, FiniteBeta, RKHSBeta
from tvbo.acquisition.edge_correction import EdgeCorrectedUCB
from tvbo.acquisition.goals import Goals
from tvbo.acquisition.improvement import EI, MPI, PI, LogEI, LogPI
from tvbo.acquisition.incumbent import BestMean, BestObserved, Incumbent, MaxMean
from tvbo.acquisition.thompson import DrawnFunction, DrawnValues, ThompsonSampling

__all__ = [
    "EI",
    "MPI",
    "PI",
    "UCB",
    "Acquisition",
    "AtPresent",
    "BestMean",
    "BestObserved",
    "BetaSchedule",
    "ChanceConstrained",
    "CompactBeta",
    "ConstantBeta",
    "DrawnFunction",
    "DrawnValues",
    "EdgeCorrectedUCB",
    "FiniteBeta",
    "Goals",
    "Incumbent",
    "LogBeta",
    "LogEI",
    "LogPI",
    "MaxMean",
    "RKHSBeta",
    "ResettingBeta",
    "ThompsonSampling",
    "TimeVaryingBeta",
    "constrained",
    "unit_of",
]
