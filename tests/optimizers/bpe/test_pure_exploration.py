import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo.optimizers.bpe import FiniteSetWidth, SubExponentialDelay
from tvbo.optimizers.bpe.confidence import FixedWidth, PriorDrawWidth
from tvbo.recipes import bpe_delay

PAPER = SubExponentialDelay(mean=50, xi=9, b=1)


def asked(optimizer, choices):
    trials = []
    for _ in range(optimizer.horizon):
        trials.append(optimizer.ask())
        optimizer.tell(trials[-1], trials[-1].X.prod().item())
    return torch.cat([trial.X for trial in trials])


def test_the_papers_plan(choices, kernel):
    optimizer = bpe_delay(
        choices=choices,
        covar_module=kernel,
        noise_variance=0.02**2,
        horizon=1000,
        delta=0.01,
        delay=PAPER,
        width=6,
    )
    assert (optimizer.plan.q, optimizer.plan.length, optimizer.num_rounds) == (32, 108, 4)
    assert optimizer.width == FixedWidth(6)


def test_defaults(choices, kernel):
    optimizer = bpe_delay(choices=choices, covar_module=kernel, noise_variance=0.01, horizon=50)
    assert optimizer.delay is None
    assert optimizer.width == PriorDrawWidth()
    assert optimizer.delta == 0.1


def test_box(kernel):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    optimizer = bpe_delay(
        bounds=bounds, covar_module=kernel, noise_variance=0.01, horizon=5, width=2.0
    )
    X = asked(optimizer, None)
    assert ((X >= 0) & (X <= 1)).all()
    with pytest.raises(InputDataError):
        optimizer.attach(torch.tensor([2.0, 0.0]), t=1.0)


def test_finite_width_on_a_box(kernel):
    with pytest.raises(ValueError):
        bpe_delay(
            bounds=torch.tensor([[0.0], [1.0]]),
            covar_module=kernel,
            noise_variance=0.01,
            horizon=5,
            width=FiniteSetWidth(1.0, 0.1),
        )


@pytest.mark.parametrize("width", [torch.tensor(6.0), torch.tensor([6]), np.float32(6)])
def test_numbers_of_other_kinds(choices, kernel, width):
    optimizer = bpe_delay(
        choices=choices, covar_module=kernel, noise_variance=0.01, horizon=5, width=width
    )
    assert optimizer.width == FixedWidth(6.0)
