"""What the bounds, gains and orders refuse, and the value that they name."""

import math

import pytest
import torch

from experiments.theory.composite import cgp_ucb_regret_bound, product_information_gain
from experiments.theory.compression import compression_regret_exponent, model_order_exponent
from experiments.theory.greedy import greedy_information_gain
from experiments.theory.information import drifting_covariance, mutual_information
from experiments.theory.information_orders import matern_information_order
from experiments.theory.orders import r_gp_ucb_order, tv_gp_ucb_order
from experiments.theory.regret_bounds import tv_gp_ucb_regret_bound

BOUND = {"horizon": 200, "beta": 20.0, "information_gain": 60.0, "noise_variance": 0.04}


@pytest.mark.parametrize(
    ("refused", "args", "options", "value"),
    [
        (product_information_gain, (), {"horizon": 5, "rank": 1.5, "factor_gain": 1.0}, "1.5"),
        (cgp_ucb_regret_bound, (), BOUND | {"beta": -1.0}, "-1"),
        (tv_gp_ucb_regret_bound, (), BOUND | {"information_gain": math.nan}, "nan"),
        (compression_regret_exponent, (1.1,), {}, "1.1"),
        (model_order_exponent, (0.6, 2), {}, "0.6"),
        (greedy_information_gain, (torch.eye(2), 2.5, 0.1), {}, "2.5"),
        (mutual_information, (torch.ones(2, 3), 0.1), {}, "(2, 3)"),
        (mutual_information, (torch.tensor([[1.0, 0.5], [0.2, 1.0]]), 0.1), {}, "0.3"),
        (drifting_covariance, (torch.eye(2), [1.0, 2.0], -0.1), {}, "-0.1"),
        (matern_information_order, (1, 1.0), {}, "1.0"),
        (r_gp_ucb_order, (), {"nu": 2.0}, "2.0"),
        (tv_gp_ucb_order(), (10, 2), {}, "2"),
    ],
)
def test_bad_arguments(refused, args, options, value):
    with pytest.raises(ValueError) as error:
        refused(*args, **options)
    assert value in str(error.value)
