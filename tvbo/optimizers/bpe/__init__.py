"""Batched pure exploration, with outcomes that come late."""

from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.optimizers.bpe.bpe_delay import BPEDelay
from tvbo.optimizers.bpe.confidence import (
    CompactSetWidth,
    Exploration,
    FiniteSetWidth,
    FixedWidth,
    PriorDrawWidth,
    Width,
    WidthRule,
)
from tvbo.optimizers.bpe.delay_estimate import delay_distribution, estimate_delay
from tvbo.optimizers.bpe.delays import DelayBound, EstimatedDelay, WaitingRule
from tvbo.optimizers.bpe.exploration_rounds import ExplorationRound, exploration_rounds, next_round
from tvbo.optimizers.bpe.rounds import FinishedRound, Preview
from tvbo.optimizers.bpe.sub_exponential import SubExponentialDelay, SubExponentialTail
from tvbo.optimizers.bpe.surviving_region import SurvivingRegion
from tvbo.optimizers.bpe.surviving_set import SurvivingSet

__all__ = [
    "BPEDelay",
    "CompactSetWidth",
    "DelayBound",
    "EstimatedDelay",
    "Exploration",
    "ExplorationRound",
    "FinishedRound",
    "FiniteSetWidth",
    "FixedWidth",
    "Preview",
    "PriorDrawWidth",
    "RoundBounds",
    "SubExponentialDelay",
    "SubExponentialTail",
    "SurvivingRegion",
    "SurvivingSet",
    "WaitingRule",
    "Width",
    "WidthRule",
    "delay_distribution",
    "estimate_delay",
    "exploration_rounds",
    "next_round",
]
