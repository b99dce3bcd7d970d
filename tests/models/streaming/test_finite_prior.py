import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo.models import StreamingGP
from tvbo.models.streaming import FiniteCovariance, finite_prior

pytestmark = pytest.mark.usefixtures("double_by_default")

TRIALS = torch.tensor([0, 1, 1, 0])
FIRST = torch.tensor([[0, 3], [8, 8], [1, 2], [4, 7]])
SECOND = torch.tensor([[5, 3, 1], [0, 8, 2], [1, 1, 1], [6, 7, 0]])


@pytest.fixture(params=["shared", "own", "computed"])
def case(request, small, monkeypatch):
    """A covariance and the matrices, ``2 x 9 x 9``, that it stands for."""
    own = request.param == "own"
    kernel = small.rbf(torch.tensor([0.2, 0.6]), (2,)) if own else small.rbf()
    if request.param == "computed":
        monkeypatch.setattr(finite_prior, "MAX_CACHED", 80)
    covariance = FiniteCovariance(small.choices, kernel, torch.Size([2]))
    assert (covariance.matrix is None) == (request.param == "computed")
    return covariance, kernel(small.choices).to_dense().detach().expand(2, 9, 9)


def test_entries(case):
    covariance, dense = case
    each = TRIALS.unsqueeze(-1)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(covariance.rows(TRIALS, FIRST), dense[each, FIRST], **close)
    torch.testing.assert_close(
        covariance.between(TRIALS, FIRST, SECOND),
        dense[each.unsqueeze(-1), FIRST.unsqueeze(-1), SECOND.unsqueeze(-2)],
        **close,
    )
    torch.testing.assert_close(
        covariance.variances(TRIALS, FIRST), dense[each, FIRST, FIRST], **close
    )


def test_of_some_batch_elements(case):
    covariance, dense = case
    taken = covariance.take(torch.tensor([1, 1, 0]))
    trials = torch.arange(3)
    expected = dense[[1, 1, 0]][trials.unsqueeze(-1), FIRST[:3]]
    torch.testing.assert_close(taken.rows(trials, FIRST[:3]), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.03])
def test_a_set_too_large_for_a_matrix(small, monkeypatch, rate):
    X, Y = small.data([*range(100), 97.5])
    dense = small.dense(X, Y, rate)
    monkeypatch.setattr(finite_prior, "MAX_CACHED", 80)
    model = small.streaming(rate, max_lateness=3.0)
    for part in torch.arange(101).split(3):
        model.observe(X[part], Y[part])
    small.assert_same(model, dense, small.rows(100))
    more = model.condition_on_observations(small.rows(100)[:1], torch.ones(2, 1, 1))
    assert more.posterior(small.rows(100)).mean.shape == (2, 9, 1)
    again = small.streaming(rate, max_lateness=3.0)
    again.load_state_dict(model.state_dict())
    small.assert_same(again, model, small.rows(100), atol=0.0)


def test_own_kernels_on_a_set_too_large(small, monkeypatch):
    monkeypatch.setattr(finite_prior, "MAX_CACHED", 100)
    small.streaming(0.1, batch_shape=torch.Size([2]))  # one kernel for all: it fits
    with pytest.raises(ValueError):
        StreamingGP(small.choices, RBFKernel(batch_shape=torch.Size([2])), 0.1, 0.1)
