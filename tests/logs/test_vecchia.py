"""Blocks given the observations before them: exact where they cover all, close where nearly."""

import pytest
import torch
from linear_operator.utils.errors import NotPSDError

from tvbo.logs.dataset import DriftLog
from tvbo.logs.dense import DenseLikelihood
from tvbo.logs.vecchia import VecchiaLikelihood

pytestmark = pytest.mark.usefixtures("double_by_default")

RATES = [0.0, 1e-3, 0.03, 1.0, 1e9]


@pytest.fixture
def rows(generator):
    X = torch.rand(120, 3, generator=generator)
    X[:, 2] *= 60
    return X, torch.randn(120, 1, generator=generator)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("segmented", [False, True])
def test_exact_where_the_conditioning_set_covers_all(
    rows, make_kernel, evaluate, rate, known, segmented, generator
):
    Yvar = 0.1 + torch.rand(120, 1, generator=generator) if known else None
    labels = torch.randint(3, (120,), generator=generator) if segmented else None
    log = DriftLog.from_rows(*rows, Yvar, -1, labels)
    dense = evaluate(lambda k: DenseLikelihood(log, k, None), make_kernel(2), rate)
    likelihood = VecchiaLikelihood(log, make_kernel(2), None, block=25, conditioning_size=120)
    assert likelihood.neglected_weight(rate) == 0.0
    blocks = evaluate(
        lambda k: VecchiaLikelihood(log, k, None, block=25, conditioning_size=120),
        make_kernel(2),
        rate,
    )
    assert blocks[0] == pytest.approx(dense[0], rel=1e-11)
    assert blocks[1] == pytest.approx(dense[1], abs=1e-9)
    torch.testing.assert_close(blocks[2], dense[2], rtol=1e-9, atol=1e-9)


def test_close_where_it_nearly_does(rows, make_kernel, evaluate):
    log = DriftLog.from_rows(*rows, None, -1)
    exact = evaluate(lambda k: DenseLikelihood(log, k, None), make_kernel(2), 1.0)[0]
    errors = [
        abs(
            evaluate(
                lambda k, conditioning_size=conditioning_size: VecchiaLikelihood(
                    log, k, None, block=20, conditioning_size=conditioning_size
                ),
                make_kernel(2),
                1.0,
            )[0]
            - exact
        )
        for conditioning_size in (0, 10, 40)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-3


def test_gradient_equals_differences_where_rows_are_left_out(
    rows, make_kernel, evaluate, differences
):
    log = DriftLog.from_rows(*rows, None, -1)

    def likelihood_of(kernel):
        return VecchiaLikelihood(log, kernel, None, block=20, conditioning_size=30)

    gradient = evaluate(likelihood_of, make_kernel(2), 0.1)[2]
    expected = differences(likelihood_of, make_kernel(2), 0.1)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-4)


def test_a_singular_log_is_said_to_be_singular(make_kernel):
    X, Y = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    log = DriftLog.from_rows(X, Y, torch.zeros(3, 1), -1)
    with pytest.raises(NotPSDError):
        VecchiaLikelihood(log, make_kernel(), None)(torch.tensor(0.1), torch.tensor(1.0))
