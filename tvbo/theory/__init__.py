"""Results of the papers as functions: regret bounds, information gains, confidence widths."""

from tvbo.theory.block_length import block_length
from tvbo.theory.composite import (
    additive_covariance,
    additive_information_gain,
    cgp_ucb_regret_bound,
    product_covariance,
    product_information_gain,
)
from tvbo.theory.compression import (
    compression_budget,
    compression_regret_exponent,
    information_model_order_bound,
    model_order_bound,
    model_order_exponent,
    variance_threshold,
)
from tvbo.theory.compression_regret import (
    compressed_ei_regret_bound,
    compressed_ucb_finite_regret_bound,
    compressed_ucb_regret_bound,
    compressed_ucb_run_regret_bound,
)
from tvbo.theory.confidence import (
    CompactSetWidth,
    Exploration,
    FiniteSetWidth,
    FixedWidth,
    PriorDrawWidth,
    Width,
    WidthRule,
)
from tvbo.theory.cusum import (
    average_run_length,
    cusum_step,
    cusum_threshold,
    detection_delay,
    detection_probability,
)
from tvbo.theory.delay_estimate import delay_distribution, estimate_delay
from tvbo.theory.delays import SubExponentialDelay, SubExponentialTail
from tvbo.theory.exploration_regret import bpe_delay_regret_bound, surviving_regret_bound
from tvbo.theory.exploration_rounds import ExplorationRound, exploration_rounds, next_round
from tvbo.theory.greedy import InformationGain, greedy_information_gain
from tvbo.theory.information import (
    drifting_covariance,
    effective_dimension,
    information_by_round,
    mutual_information,
)
from tvbo.theory.information_orders import (
    InformationOrder,
    linear_information_order,
    matern_information_order,
    squared_exponential_information_order,
)
from tvbo.theory.orders import (
    DelayedRegretOrder,
    RegretOrder,
    bpe_delay_order,
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
    "CompactSetWidth",
    "DelayedRegretOrder",
    "Exploration",
    "ExplorationRound",
    "FiniteSetWidth",
    "FixedWidth",
    "InformationGain",
    "InformationOrder",
    "PriorDrawWidth",
    "RegretOrder",
    "SubExponentialDelay",
    "SubExponentialTail",
    "TailConstants",
    "Width",
    "WidthRule",
    "additive_covariance",
    "additive_information_gain",
    "average_run_length",
    "block_length",
    "bpe_delay_order",
    "bpe_delay_regret_bound",
    "cgp_ucb_regret_bound",
    "compressed_ei_regret_bound",
    "compressed_ucb_finite_regret_bound",
    "compressed_ucb_regret_bound",
    "compressed_ucb_run_regret_bound",
    "compression_budget",
    "compression_regret_exponent",
    "cusum_step",
    "cusum_threshold",
    "delay_distribution",
    "detection_delay",
    "detection_probability",
    "drifting_covariance",
    "effective_dimension",
    "estimate_delay",
    "exploration_rounds",
    "greedy_information_gain",
    "information_by_round",
    "information_gain_by_blocks",
    "information_model_order_bound",
    "linear_information_order",
    "lower_bound_order",
    "matern_information_order",
    "model_order_bound",
    "model_order_exponent",
    "mutual_information",
    "next_round",
    "product_covariance",
    "product_information_gain",
    "r_gp_ucb_order",
    "r_gp_ucb_regret_bound",
    "resetting_mismatch",
    "squared_exponential_information_order",
    "surviving_regret_bound",
    "tail_constants",
    "tv_gp_ucb_order",
    "tv_gp_ucb_regret_bound",
    "variance_threshold",
]
