"""Figures and tables of the papers, done again: one module per figure."""

from tvbo.reproduce.bogunovic_fig3a import bogunovic_fig3a
from tvbo.reproduce.claims import Claim, Reproduction, claim_below, mean_and_error

__all__ = ["Claim", "Reproduction", "bogunovic_fig3a", "claim_below", "mean_and_error"]
