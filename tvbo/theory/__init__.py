"""What the papers prove, as functions."""

from tvbo.theory.block_length import block_length
from tvbo.theory.composite import (
    additive_covariance,
    additive_information_gain,
    cgp_ucb_regret_bound,
    product_covariance,
    product_information_gain,
)
from tvbo.theory.greedy import InformationGain, greedy_information_gain
from tvbo.theory.information import drifting_covariance, information_by_round, mutual_information
from tvbo.theory.information_orders import (
    InformationOrder,
    linear_information_order,
    matern_information_order,
    squared_exponential_information_order,
)
from tvbo.theory.orders import (
    RegretOrder,
    lower_bound_order,
    r_gp_ucb_order,
    tv_gp_ucb_order,
)
from tvbo.theory.regret_bounds import (
    information_gain_by_blocks,
    r_gp_ucb_regret_bound,
    resetting_mismatch,
    tv_gp_ucb_regret_bound,
)
from tvbo.theory.smoothness import TailConstants, tail_constants

__all__ = [
    "InformationGain",
    "InformationOrder",
    "RegretOrder",
    "TailConstants",
    "additive_covariance",
    "additive_information_gain",
    "block_length",
    "cgp_ucb_regret_bound",
    "drifting_covariance",
    "greedy_information_gain",
    "information_by_round",
    "information_gain_by_blocks",
    "linear_information_order",
    "lower_bound_order",
    "matern_information_order",
    "mutual_information",
    "product_covariance",
    "product_information_gain",
    "r_gp_ucb_order",
    "r_gp_ucb_regret_bound",
    "resetting_mismatch",
    "squared_exponential_information_order",
    "tail_constants",
    "tv_gp_ucb_order",
    "tv_gp_ucb_regret_bound",
]
