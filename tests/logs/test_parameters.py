"""Noise and kernel parameters as one vector."""

import math

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo.logs import NuisanceParameters

pytestmark = pytest.mark.usefixtures("double_by_default")


def test_noise_comes_first_and_fixed_parameters_not_at_all():
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.raw_outputscale.requires_grad_(False)
    nuisance = NuisanceParameters(kernel, None, outcome_variance=2.0)
    assert nuisance.names == ["noise variance", *["base_kernel.lengthscale"] * 2]
    assert nuisance.start[0] == pytest.approx(math.log(0.2))
    assert nuisance.bounds[0] == pytest.approx((math.log(2e-6), math.log(20.0)))


def test_place_sets_the_kernel_and_gives_the_noise():
    kernel = RBFKernel(ard_num_dims=2)
    nuisance = NuisanceParameters(kernel, None, outcome_variance=1.0)
    noise = nuisance.assign([math.log(0.3), 1.0, -2.0])
    assert noise.item() == pytest.approx(0.3)
    assert noise.requires_grad
    assert kernel.raw_lengthscale.flatten().tolist() == [1.0, -2.0]
    fixed = NuisanceParameters(kernel, 0.7, outcome_variance=1.0)
    assert fixed.assign([3.0, 4.0]) == 0.7
    assert kernel.raw_lengthscale.flatten().tolist() == [3.0, 4.0]


def test_each_name_at_a_bound_is_said_once():
    kernel = RBFKernel(ard_num_dims=2)
    nuisance = NuisanceParameters(kernel, None, outcome_variance=1.0)
    ends = [low for low, _ in nuisance.bounds]
    assert nuisance.at_bounds(ends) == ["noise variance", "lengthscale"]
    assert nuisance.at_bounds(nuisance.start) == []


def test_an_unenforced_constraint_gives_the_bounds():
    kernel = RBFKernel(lengthscale_constraint=Interval(0.1, 5.0, transform=None))
    nuisance = NuisanceParameters(kernel, 1.0, outcome_variance=1.0)
    [(low, high)] = nuisance.bounds
    assert (low, high) == pytest.approx((0.1, 5.0))
    assert torch.equal(kernel.raw_lengthscale.detach().flatten(), torch.as_tensor(nuisance.start))


def test_a_range_open_to_one_side_has_one_end():
    kernel = RBFKernel(lengthscale_constraint=GreaterThan(0.0, transform=None))
    nuisance = NuisanceParameters(kernel, 1.0, outcome_variance=1.0)
    assert nuisance.bounds == [(0.0, math.inf)]
    assert nuisance.at_bounds([0.7]) == []
    assert nuisance.at_bounds([1e4]) == []
    assert nuisance.at_bounds([0.0]) == ["lengthscale"]
