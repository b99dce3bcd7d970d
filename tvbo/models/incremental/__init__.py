"""The parts of the posterior whose factor grows row by row."""

from tvbo.models.incremental.candidates import Candidates
from tvbo.models.incremental.factor import Factor
from tvbo.models.incremental.row_posterior import ConditionedGP, RowPosterior
from tvbo.models.incremental.whitened import Whitened

__all__ = ["Candidates", "ConditionedGP", "Factor", "RowPosterior", "Whitened"]
