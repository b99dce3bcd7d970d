"""Which acquisition functions evaluate several actions as one batch."""

from __future__ import annotations

from botorch.acquisition import AcquisitionFunction, MCAcquisitionFunction
from botorch.acquisition.multi_objective.base import MultiObjectiveMCAcquisitionFunction

from tvbo.acquisition.chance_constrained import ChanceConstrained


def takes_batches(acq_function: AcquisitionFunction) -> bool:
    """Return whether its values at rows ``b x q x d`` are those of batches of ``q`` actions."""
    if isinstance(acq_function, ChanceConstrained):
        acq_function = acq_function.acq_function
    return isinstance(acq_function, MCAcquisitionFunction | MultiObjectiveMCAcquisitionFunction)
