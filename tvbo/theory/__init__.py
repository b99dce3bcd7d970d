"""What the papers prove, as functions."""

from tvbo.theory.block_length import block_length
from tvbo.theory.greedy import InformationGain, greedy_information_gain
from tvbo.theory.information import drifting_covariance, information_by_round, mutual_information
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
    "RegretOrder",
    "TailConstants",
    "block_length",
    "drifting_covariance",
    "greedy_information_gain",
    "information_by_round",
    "information_gain_by_blocks",
    "lower_bound_order",
    "mutual_information",
    "r_gp_ucb_order",
    "r_gp_ucb_regret_bound",
    "resetting_mismatch",
    "tail_constants",
    "tv_gp_ucb_order",
    "tv_gp_ucb_regret_bound",
]
