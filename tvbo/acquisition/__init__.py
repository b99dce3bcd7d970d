"""Acquisitions, incumbents and β schedules."""

from tvbo.acquisition.at_present import AtPresent
from tvbo.acquisition.goals import Goals
from tvbo.acquisition.improvement import EI, BestMean, BestObserved, LogEI, MaxMean
from tvbo.acquisition.thompson import ThompsonSampling
from tvbo.acquisition.ucb import UCB, Acquisition, ConstantBeta, LogBeta

__all__ = [
    "EI",
    "UCB",
    "Acquisition",
    "AtPresent",
    "BestMean",
    "BestObserved",
    "ConstantBeta",
    "Goals",
    "LogBeta",
    "LogEI",
    "MaxMean",
    "ThompsonSampling",
]
