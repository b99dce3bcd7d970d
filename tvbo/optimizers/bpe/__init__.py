"""Batched pure exploration, with outcomes that come late."""

from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.optimizers.bpe.bpe_delay import BPEDelay
from tvbo.optimizers.bpe.delays import DelayBound, EstimatedDelay, WaitingRule
from tvbo.optimizers.bpe.rounds import FinishedRound, Preview
from tvbo.optimizers.bpe.surviving_region import SurvivingRegion
from tvbo.optimizers.bpe.surviving_set import SurvivingSet

__all__ = [
    "BPEDelay",
    "DelayBound",
    "EstimatedDelay",
    "FinishedRound",
    "Preview",
    "RoundBounds",
    "SurvivingRegion",
    "SurvivingSet",
    "WaitingRule",
]
