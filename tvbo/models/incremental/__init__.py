"""Parts of :class:`tvbo.models.IncrementalGP`, whose Cholesky factor grows row by row."""

from tvbo.models.incremental.candidate_cache import CandidateCache
from tvbo.models.incremental.growing_cholesky import GrowingCholesky
from tvbo.models.incremental.row_model import RowModel
from tvbo.models.incremental.row_posterior import ConditionedGP, RowPosterior
from tvbo.models.incremental.whitened import Whitened

__all__ = [
    "CandidateCache",
    "ConditionedGP",
    "GrowingCholesky",
    "RowModel",
    "RowPosterior",
    "Whitened",
]
