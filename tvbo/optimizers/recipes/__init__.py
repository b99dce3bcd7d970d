"""Recipes: the algorithms of the papers, each a preset of the options of the builder."""

from tvbo.optimizers.recipes.contextual import cgp_ucb, linear_ucb, tv_cgp_ucb
from tvbo.optimizers.recipes.delayed import bpe_delay
from tvbo.optimizers.recipes.drifting import gp_ucb, r_gp_ucb, tv_gp_ucb
from tvbo.optimizers.recipes.others import compressed_gp, gp_ts, random_search

__all__ = [
    "bpe_delay",
    "cgp_ucb",
    "compressed_gp",
    "gp_ts",
    "gp_ucb",
    "linear_ucb",
    "r_gp_ucb",
    "random_search",
    "tv_cgp_ucb",
    "tv_gp_ucb",
]
