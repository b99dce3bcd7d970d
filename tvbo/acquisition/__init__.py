"""Acquisitions, incumbents and β schedules."""

from tvbo.acquisition.analytic import UCB, Acquisition, ConstantBeta, LogBeta
from tvbo.acquisition.at_present import AtPresent
from tvbo.acquisition.goals import Goals
from tvbo.acquisition.improvement import EI, LogEI
from tvbo.acquisition.incumbent import BestMean, BestObserved, MaxMean
from tvbo.acquisition.thompson import ThompsonSampling

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
