"""Recipes: the algorithms of the papers, each a preset of the options of the builder."""

from tvbo.optimizers.recipes.bandits import d_ucb, fixed_action, last_best, sw_ucb
from tvbo.optimizers.recipes.contextual import cgp_ucb, linear_ucb, merged, separate, tv_cgp_ucb
from tvbo.optimizers.recipes.delayed import bpe, bpe_delay, gp_bucb, gp_ts_sdf, gp_ucb_sdf
from tvbo.optimizers.recipes.drifting import gp_ucb, r_gp_ucb, tv_gp_ucb
from tvbo.optimizers.recipes.others import bkb, compressed_gp, gp_ts, random_search, rexp3

__all__ = [
    "bkb",
    "bpe",
    "bpe_delay",
    "cgp_ucb",
    "compressed_gp",
    "d_ucb",
    "fixed_action",
    "gp_bucb",
    "gp_ts",
    "gp_ts_sdf",
    "gp_ucb",
    "gp_ucb_sdf",
    "last_best",
    "linear_ucb",
    "merged",
    "r_gp_ucb",
    "random_search",
    "rexp3",
    "separate",
    "sw_ucb",
    "tv_cgp_ucb",
    "tv_gp_ucb",
]
