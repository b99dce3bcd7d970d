"""Batched pure exploration, with outcomes that come late."""

from tvbo.optimizers.bpe.bpe_delay import BPEDelay
from tvbo.optimizers.bpe.confidence import FiniteSetWidth
from tvbo.optimizers.bpe.delays import SubExponentialDelay

__all__ = ["BPEDelay", "FiniteSetWidth", "SubExponentialDelay"]
