"""The algorithms of the papers, each a choice of parts."""

from tvbo.optimizers.recipes.baselines import random_search, rexp3
from tvbo.optimizers.recipes.bkb import bkb
from tvbo.optimizers.recipes.compressed import compressed_gp
from tvbo.optimizers.recipes.contextual import cgp_ucb, linear_ucb, tv_cgp_ucb
from tvbo.optimizers.recipes.delayed import gp_bucb, gp_ts_sdf, gp_ucb_sdf
from tvbo.optimizers.recipes.drifting import gp_ucb, r_gp_ucb, tv_gp_ucb
from tvbo.optimizers.recipes.pure_exploration import bpe, bpe_delay
from tvbo.optimizers.recipes.thompson import gp_ts
from tvbo.optimizers.recipes.without_context import merged, separate

__all__ = [
    "bkb",
    "bpe",
    "bpe_delay",
    "cgp_ucb",
    "compressed_gp",
    "gp_bucb",
    "gp_ts",
    "gp_ts_sdf",
    "gp_ucb",
    "gp_ucb_sdf",
    "linear_ucb",
    "merged",
    "r_gp_ucb",
    "random_search",
    "rexp3",
    "separate",
    "tv_cgp_ucb",
    "tv_gp_ucb",
]
