"""The default plays a few rounds, with outcomes of any usual size."""

import math

import pytest
import torch

from tvbo import recipes

GRID = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).unsqueeze(-1)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("space", [{"choices": GRID}, {"bounds": [(-1.0, 1.0)]}])
def test_equal_seeds_choose_alike_at_any_size_of_the_outcomes(space, size):
    def play():
        optimizer = recipes.tv_gp_ucb(generator=torch.Generator().manual_seed(0), **space)
        for t in range(8):
            trial = optimizer.ask(t=float(t))
            optimizer.tell(trial, size * math.cos(trial.X.item() + 0.1 * t))
        return optimizer.observations.X

    first = play()
    assert first.isfinite().all()
    torch.testing.assert_close(first, play())
