from itertools import pairwise

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel
from reference import rbf_posterior

from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.bpe.confidence import FixedWidth
from tvbo.optimizers.bpe.delays import NO_DELAY
from tvbo.optimizers.bpe.surviving_region import SurvivingRegion
from tvbo.spaces import Box

NOISE = 0.01
BETA = 3.0
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


def dense(points, Y, X):
    """Posterior mean and standard deviation."""
    mean, variance = rbf_posterior(points, Y, NOISE, X)
    return mean, np.sqrt(variance)


def objective(X):
    return torch.sin(5 * X[:, 0]) * torch.cos(4 * X[:, 1]) + X[:, 0]


@pytest.fixture(scope="module")
def finished():
    """BPE on a box, each round's points and outcomes, and how the region stood after each."""
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    optimizer = BPEDelay(
        Box(UNIT),
        kernel,
        NOISE,
        horizon=60,
        delay=NO_DELAY,
        width=FixedWidth(BETA),
        generator=torch.Generator().manual_seed(3),
    )
    noise = torch.Generator().manual_seed(4)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 60, dtype=torch.float64)] * 2)
    data, left, inside, pools = [], [grid], [], []
    for _ in range(60):
        trial = optimizer.ask()
        if optimizer.plan.number > len(data):
            data.append(([], []))
            left.append(grid[optimizer.survives(grid)])
            pools.append(bool(optimizer.survives(optimizer.survivors).all()))
        inside.append(bool(optimizer.survives(trial.X)))
        Y = objective(trial.X).item() + 0.1 * torch.randn(1, generator=noise).item()
        data[-1][0].append(trial.X.numpy()[0])
        data[-1][1].append(Y)
        optimizer.tell(trial, Y)
    return optimizer, [(np.array(X), np.array(Y)) for X, Y in data], grid, left[1:], inside, pools


@pytest.mark.slow
def test_points_lie_in_the_region(finished):
    _, _, _, _, inside, pools = finished
    assert all(inside)
    assert all(pools)


def test_region_shrinks_within_itself(finished):
    optimizer, data, grid, left, _, _ = finished
    assert len(data) == len(left) == 3
    for larger, smaller in pairwise(left):
        assert {tuple(x) for x in smaller.tolist()} < {tuple(x) for x in larger.tolist()}
    sizes = [(r.size_before, r.size_after) for r in optimizer.rounds]
    assert sizes[0][0] == 1.0
    assert sizes[0][1] == sizes[1][0]
    # A share of Sobol points is near that of a grid.
    assert sizes[1][1] == pytest.approx(len(left[-1]) / len(grid), abs=0.03)


def test_constraints_against_the_dense_formulas(finished):
    optimizer, data, grid, left, _, _ = finished
    kept = np.ones(len(grid), dtype=bool)
    for (points, Y), record, now in zip(data, optimizer.rounds, left[1:], strict=False):
        mean, deviation = dense(points, Y, grid.numpy())
        lower = (mean - BETA * deviation)[kept].max()
        # The largest lower bound is found: no point of the grid that was left has a larger one.
        assert lower <= record.threshold + 1e-9
        # Nor is it more than what lies between the points of the grid.
        assert record.threshold <= lower + 0.05
        kept &= mean + BETA * deviation >= record.threshold
        np.testing.assert_array_equal(grid.numpy()[kept], now.numpy())


def test_choices_are_nearly_the_most_uncertain(finished):
    """Against a grid of the region: at least nine tenths of the largest variance there."""
    _, data, _, left, _, _ = finished
    for (points, _), now in zip(data, left, strict=True):
        for k in range(1, len(points)):
            there = dense(points[:k], np.zeros(k), points[k : k + 1])[1].item() ** 2
            best = dense(points[:k], np.zeros(k), now.numpy())[1].max() ** 2
            assert there >= 0.9 * best


def test_maximizer_is_left(finished):
    _, _, grid, left, _, _ = finished
    best = grid[objective(grid).argmax()]
    assert (left[-1] == best).all(dim=-1).any()


def test_variances_against_the_dense_formula(kernel, generator):
    region = SurvivingRegion(Box(UNIT), kernel, NOISE, generator)
    for _ in range(70):
        region.condition(region.choose(generator))
    chosen = region.chosen.numpy()
    deviation = dense(chosen, np.zeros(70), region.X.numpy())[1]
    np.testing.assert_allclose(region.variance.numpy(), deviation**2, atol=1e-10, rtol=0)


def test_small_region_is_still_looked_at(generator):
    """With almost no width only a neighbourhood of the peak is left, with hardly a Sobol point."""
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.2, dtype=torch.float64)
    optimizer = BPEDelay(
        Box(UNIT),
        kernel,
        1e-4,
        horizon=40,
        delay=NO_DELAY,
        width=FixedWidth(1e-3),
        generator=generator,
    )
    for _ in range(8):
        trial = optimizer.ask()
        optimizer.tell(trial, objective(trial.X).item())
    assert optimizer.rounds[0].size_after < 0.001
    assert len(optimizer.survivors) >= 1024
    assert optimizer.survives(optimizer.survivors).all()
    spread = optimizer.survivors.amax(dim=0) - optimizer.survivors.amin(dim=0)
    assert (spread > 0).all()
    assert (spread < 0.05).all()


def test_same_seed_same_choices(kernel):
    asked = []
    for _ in range(2):
        optimizer = BPEDelay(
            Box(UNIT),
            kernel,
            NOISE,
            horizon=12,
            delay=NO_DELAY,
            width=FixedWidth(BETA),
            generator=torch.Generator().manual_seed(5),
        )
        asked.append([])
        for _ in range(12):
            trial = optimizer.ask()
            optimizer.tell(trial, objective(trial.X).item())
            asked[-1].append(trial.X)
    assert torch.equal(torch.cat(asked[0]), torch.cat(asked[1]))


def test_outside_the_box(kernel):
    optimizer = BPEDelay(Box(UNIT), kernel, NOISE, horizon=12)
    with pytest.raises(InputDataError, match="within bounds"):
        optimizer.survives(torch.tensor([[2.0, 0.0]]))


def test_kernel_without_finite_variances(generator):
    scaled = ScaleKernel(RBFKernel()).double()
    scaled.raw_outputscale.data.fill_(torch.nan)
    with pytest.raises(ValueError):
        SurvivingRegion(Box(UNIT), scaled, NOISE, generator)
