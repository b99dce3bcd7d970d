from types import SimpleNamespace

import pytest
import reference
import torch

from tvbo.models import StreamingGP

NOISE = 0.04
SIDE = torch.linspace(0, 1, 3, dtype=torch.float64)
CHOICES = torch.cartesian_prod(SIDE, SIDE)


def rbf(lengthscale=0.4):
    return reference.rbf(lengthscale)


def streaming(rate, noise=NOISE, kernel=None, **options):
    return StreamingGP(CHOICES, kernel or rbf(), rate, noise, **options)


def dense(X, Y, rate, noise=NOISE, kernel=None):
    """The same hyperparameters in a model with a data set; noise a number or one for each row."""
    return reference.dense_gp(X, Y, noise, rate, kernel or rbf())


def data(times, seed=0):
    """Rows of random choices at the times, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.as_tensor(times, dtype=torch.float64).unsqueeze(-1)
    place = torch.randint(len(CHOICES), (len(times),), generator=generator)
    Y = torch.randn(len(times), 1, dtype=torch.float64, generator=generator)
    return torch.cat([CHOICES[place], times], dim=-1), Y


def rows(t):
    """All choices at a time."""
    return torch.cat([CHOICES, torch.full((len(CHOICES), 1), float(t), dtype=torch.float64)], -1)


def assert_same(model, other, X, atol=1e-10):
    """Mean and joint covariance of the rows ``X``."""
    with torch.no_grad():
        one, two = model.posterior(X), other.posterior(X)
        torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=atol)
        torch.testing.assert_close(one.variance, two.variance, rtol=0, atol=atol)
        torch.testing.assert_close(
            one.distribution.covariance_matrix,
            two.distribution.covariance_matrix,
            rtol=0,
            atol=atol,
        )


@pytest.fixture
def small():
    """A 3 x 3 grid, and how a streaming and a dense model of it are made and compared."""
    return SimpleNamespace(
        choices=CHOICES,
        noise=NOISE,
        rbf=rbf,
        streaming=streaming,
        dense=dense,
        data=data,
        rows=rows,
        assert_same=assert_same,
    )
