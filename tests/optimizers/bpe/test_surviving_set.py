import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from reference import rbf_posterior

from tvbo.optimizers.bpe import surviving_set
from tvbo.optimizers.bpe.bounds import RoundBounds
from tvbo.optimizers.bpe.confidence import Width
from tvbo.optimizers.bpe.surviving_set import SurvivingSet
from tvbo.spaces import FiniteSpace

NOISE = 0.0004


def dense_variance(points, X, noise=NOISE):
    return rbf_posterior(points, np.zeros(len(points)), noise, X)[1]


@pytest.mark.parametrize("cached", [True, False])
def test_variances_against_the_dense_formula(choices, kernel, generator, monkeypatch, cached):
    if not cached:
        monkeypatch.setattr(surviving_set, "MAX_CACHED", 0)
    region = SurvivingSet(FiniteSpace(choices), kernel, NOISE)
    X = choices.numpy()
    for _ in range(200):
        before = region.variance.numpy().copy()
        chosen = region.choose(generator)
        region.condition(chosen)
        # The greedy choice: nothing has a larger variance, up to what counts as a tie.
        place = np.flatnonzero((chosen.numpy() == X).all(axis=1)).item()
        assert before[place] >= before.max() - 1e-10
        dense = dense_variance(region.chosen.numpy(), X)
        np.testing.assert_allclose(region.variance.numpy(), dense, atol=1e-10, rtol=0)


def test_variances_after_a_removal(choices, kernel, generator):
    region = SurvivingSet(FiniteSpace(choices), kernel, NOISE)
    for _ in range(20):
        region.condition(region.choose(generator))
    points = region.chosen
    Y = torch.sin(6 * points[:, 0]) * points[:, 1]
    bounds = RoundBounds.given(kernel, points, Y, torch.full((20,), NOISE).double(), Width(1.0))
    region.remove(bounds, generator)
    assert 0 < region.size < 64
    assert len(region.chosen) == 0
    for _ in range(30):
        region.condition(region.choose(generator))
    dense = dense_variance(region.chosen.numpy(), region.X.numpy())
    np.testing.assert_allclose(region.variance.numpy(), dense, atol=1e-10, rtol=0)


def test_ties_are_broken_by_the_generator(choices, kernel):
    first = []
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        first.append(
            tuple(SurvivingSet(FiniteSpace(choices), kernel, NOISE).choose(draw)[0].tolist())
        )
    # 60 draws out of 64: about 39 different ones.
    assert len(set(first)) > 25


def test_ties_up_to_rounding_are_ties(kernel):
    """After the middle of a symmetric set, its two ends are alike, however they are rounded."""
    X = torch.tensor([[0.1], [0.3 + 1e-14], [0.5]], dtype=torch.float64)
    ends = set()
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        region = SurvivingSet(FiniteSpace(X), kernel, NOISE)
        region.condition(X[1:2])
        ends.add(region.choose(draw).item())
    assert ends == {0.1, 0.5}


def test_survives(choices, kernel, generator):
    region = SurvivingSet(FiniteSpace(choices), kernel, NOISE)
    points = choices[[0, 63]]
    bounds = RoundBounds.given(
        kernel,
        points,
        torch.tensor([0.0, 5.0]).double(),
        torch.full((2,), NOISE).double(),
        Width(1.0),
    )
    region.remove(bounds, generator)
    left = region.survives(choices)
    assert torch.equal(choices[left], region.X)
    assert left[63]
    assert not left[0]


def test_kernel_without_finite_variances(choices):
    scaled = ScaleKernel(RBFKernel()).double()
    scaled.raw_outputscale.data.fill_(torch.nan)
    with pytest.raises(ValueError):
        SurvivingSet(FiniteSpace(choices), scaled, NOISE)
