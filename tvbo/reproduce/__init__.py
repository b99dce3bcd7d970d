"""Figures and tables of the papers, done again: one module per figure."""

from tvbo.reproduce.bedi_tables import bedi_table2, bedi_table3, bedi_table4
from tvbo.reproduce.bogunovic_fig2ab import bogunovic_fig2a, bogunovic_fig2b
from tvbo.reproduce.bogunovic_fig2cd import bogunovic_fig2c, bogunovic_fig2d
from tvbo.reproduce.bogunovic_fig3a import bogunovic_fig3a
from tvbo.reproduce.bogunovic_fig3cf import bogunovic_fig3cf
from tvbo.reproduce.claims import (
    Claim,
    Reproduction,
    claim_below,
    claim_rate,
    jackknife,
    mean_and_error,
)
from tvbo.reproduce.krause_fig2 import krause_fig2
from tvbo.reproduce.krause_fig3 import krause_fig3
from tvbo.reproduce.vakili_figures import vakili_fig2, vakili_fig3, vakili_fig4, vakili_fig5

__all__ = [
    "Claim",
    "Reproduction",
    "bedi_table2",
    "bedi_table3",
    "bedi_table4",
    "bogunovic_fig2a",
    "bogunovic_fig2b",
    "bogunovic_fig2c",
    "bogunovic_fig2d",
    "bogunovic_fig3a",
    "bogunovic_fig3cf",
    "claim_below",
    "claim_rate",
    "jackknife",
    "krause_fig2",
    "krause_fig3",
    "mean_and_error",
    "vakili_fig2",
    "vakili_fig3",
    "vakili_fig4",
    "vakili_fig5",
]
