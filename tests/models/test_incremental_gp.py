"""The factor grown row by row against the dense model with all the data."""

import copy
import io
import pickle

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean
from reference import dense_gp, matern

from tvbo.models import IncrementalGP, StreamingGP, TimeVaryingGP, incremental_gp
from tvbo.models.incremental import growing_cholesky
from tvbo.models.incremental.candidate_cache import MAX_LOOKUPS

pytestmark = pytest.mark.usefixtures("double_by_default")

RATE = 0.03
NOISE = 0.01


def kernel():
    scaled = ScaleKernel(matern([0.3, 0.5, 0.8], ard_num_dims=3)).double()
    scaled.outputscale = 1.7
    return scaled


def data(n, seed=0, repeats=0):
    """Rows [x1, x2, z, t] at times in random order, the last ones repeated, and outcomes."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    X[:, 3] = (20 * X[:, 3]).round()
    X[n - repeats :] = X[:repeats]
    return X, torch.randn(n, 1, generator=generator, dtype=torch.float64)


def dense(X, Y, Yvar=None, rate=RATE, **options):
    options = {"covar_module": kernel(), **options}
    return dense_gp(X, Y, NOISE if Yvar is None else Yvar, rate, **options).eval()


def incremental(rate=RATE, noise=NOISE):
    return IncrementalGP(dense(*data(0), rate=rate).covar_module, noise)


def observed(n=30, **options):
    model = incremental(**options)
    model.observe(*data(n))
    return model


def assert_same(model, other, X, atol=1e-9):
    with torch.no_grad():
        one, two = model.posterior(X), other.posterior(X)
        for name in ("mean", "variance"):
            torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=atol)
        one, two = (each.distribution.covariance_matrix for each in (one, two))
        torch.testing.assert_close(one, two, rtol=0, atol=atol)


AHEAD = data(24, seed=9)[0].reshape(4, 6, 4)


@pytest.mark.parametrize("rate", [0.0, RATE, 1.0])
@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.combinations
def test_posterior_equals_the_dense_one(rate, size):
    X, Y = data(60, repeats=9)
    model = incremental(rate)
    for x, y in zip(X.split(size), Y.split(size), strict=True):
        model.observe(x, y)
    assert model.num_observations == 60
    for rows in (AHEAD, AHEAD[0], AHEAD.reshape(24, 1, 4), X[:5]):
        assert_same(model, dense(X, Y, rate=rate), rows)


def test_more_observations_than_a_block_and_than_the_first_capacity():
    n = 2 * growing_cholesky.BLOCK + 11
    X, Y = data(n)
    model = incremental()
    for x, y in zip(X.split(50), Y.split(50), strict=True):
        model.observe(x, y)
    assert_same(model, dense(X, Y), AHEAD)


def test_own_noise_of_each_observation():
    X, Y = data(40, repeats=5)
    Yvar = 0.01 + torch.rand(40, 1, generator=torch.Generator().manual_seed(2))
    model = incremental()
    for part in torch.arange(40).split(3):
        model.observe(X[part], Y[part], Yvar[part])
    assert_same(model, dense(X, Y, Yvar), AHEAD)


@pytest.mark.draws_globally  # GPyTorch's mean does
def test_prior_mean():
    mean = LinearMean(4).double()
    X, Y = data(20)
    plain = dense(X, Y, mean_module=mean)
    model = IncrementalGP(plain.covar_module, NOISE, mean_module=mean)
    assert_same(model, dense(*data(0), mean_module=mean), AHEAD)
    model.observe(X, Y)
    assert_same(model, plain, AHEAD)
    with torch.no_grad():
        mean.weights.add_(1.0)
    assert_same(model, dense(X, Y, mean_module=model.mean_module), AHEAD)


def test_without_observations_it_is_the_prior():
    model = incremental()
    assert_same(model, dense(*data(0)), AHEAD, atol=1e-12)
    model.observe(*data(0))
    assert model.num_observations == 0
    assert_same(model, dense(*data(0)), AHEAD, atol=1e-12)


def test_what_was_given_may_change_afterwards():
    X, Y = data(20)
    given = kernel()
    model = IncrementalGP(given, NOISE)
    expected = IncrementalGP(given, NOISE)
    expected.observe(X[:, :3].clone(), Y.clone())
    x, y, ahead = X[:, :3].clone(), Y.clone(), AHEAD[0, :, :3].clone()
    model.observe(x, y)
    with torch.no_grad():
        model.posterior(ahead)
    x.zero_()
    y.zero_()
    ahead.add_(0.1)
    given.outputscale = 9.0
    assert_same(model, expected, ahead, atol=1e-12)


@pytest.mark.parametrize(
    "keep",
    [
        torch.arange(30) >= 10,
        torch.arange(30) < 12,
        torch.arange(30) % 3 != 1,
        torch.arange(30) == 17,
        torch.arange(30) < 0,
        torch.arange(30) < 30,
    ],
    ids=["newest", "oldest", "some", "one", "none", "all"],
)
def test_drop_is_never_having_observed(keep):
    X, Y = data(30)
    Yvar = 0.01 + torch.rand(30, 1, generator=torch.Generator().manual_seed(2))
    model = incremental()
    model.observe(X, Y, Yvar)
    assert_same(model, dense(X, Y, Yvar), AHEAD)  # so that there are candidates to forget
    model.drop(keep)
    assert model.num_observations == keep.sum()
    assert_same(model, dense(X[keep], Y[keep], Yvar[keep]), AHEAD)
    model.observe(X[:5], Y[:5] + 1)
    both = [torch.cat([v[keep], w]) for v, w in ((X, X[:5]), (Y, Y[:5] + 1))]
    noise = torch.cat([Yvar[keep], torch.full((5, 1), NOISE)])
    assert_same(model, dense(*both, noise), AHEAD)


def test_a_drop_that_fails_forgets_nothing(monkeypatch):
    model = observed()

    def fail(*args):
        raise InputDataError("certain")

    monkeypatch.setattr(incremental_gp, "innovation_root", fail)
    with pytest.raises(InputDataError, match="certain"):
        model.drop(torch.arange(30) > 3)
    assert model.num_observations == 30
    assert_same(model, dense(*data(30)), AHEAD)


def test_reset():
    model = observed()
    assert_same(model, dense(*data(30)), AHEAD)
    model.reset()
    assert model.num_observations == 0
    assert_same(model, dense(*data(0)), AHEAD, atol=1e-12)
    model.observe(*data(10, seed=4))
    assert_same(model, dense(*data(10, seed=4)), AHEAD)


@pytest.mark.parametrize("q", [1, 3])
def test_gradient_equals_that_of_the_dense_model(q):
    gradients = []
    for model in (observed(200), dense(*data(200))):
        X = AHEAD[:, :q].clone().requires_grad_()
        posterior = model.posterior(X)
        covar = posterior.distribution.covariance_matrix
        (posterior.mean.sin().sum() + posterior.variance.sqrt().sum() + covar.sum()).backward()
        gradients.append(X.grad)
    assert gradients[0].abs().min() > 0
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-8)


def test_remembered_candidates_are_extended(monkeypatch):
    """The rows asked about again: no solve but for what is new, and the same posterior."""
    X, Y = data(200)
    model, fresh = incremental(), incremental()
    rows = AHEAD.reshape(24, 1, 4)
    solved = []
    solve = growing_cholesky.GrowingCholesky.solve
    monkeypatch.setattr(
        growing_cholesky.GrowingCholesky,
        "solve",
        lambda self, B, known: (
            solved.append((self is model.factor, len(B))) or solve(self, B, known)
        ),
    )
    model.observe(X[:150], Y[:150])
    with torch.no_grad():
        model.posterior(rows)
    solved.clear()
    for i in range(150, 200, 10):
        model.observe(X[i : i + 10], Y[i : i + 10])
        fresh.reset()
        fresh.observe(X[: i + 10], Y[: i + 10])
        assert_same(model, fresh, rows, atol=1e-10)
        assert_same(model, fresh, AHEAD, atol=1e-10)  # the same rows, jointly
    # Cross-covariances of each ten with what is held, then the candidates' ten new rows.
    mine = [count for is_mine, count in solved if is_mine]
    assert mine == [count for i in range(150, 200, 10) for count in (i, 10)]
    # Observing a candidate needs no solve, and one row alone displaces none of them.
    solved.clear()
    model.observe(rows[3], Y[:1])
    assert solved == []
    with torch.no_grad():
        model.posterior(X[:1])
        model.posterior(rows)
    assert solved == [(True, n) for n in (201, 1)]
    with torch.no_grad():
        model.posterior(rows)
        model.posterior(rows[5:8])
    assert len(solved) == 2
    fresh.observe(rows[3], Y[:1])
    fresh._candidates = None
    assert_same(model, fresh, rows, atol=1e-10)
    # Other rows take their place.
    with torch.no_grad():
        model.posterior(X)
    assert model._candidates.rows.shape == X.shape


def test_a_subset_is_found_among_many_candidates():
    model, fresh = observed(), observed()
    X = data(3 * MAX_LOOKUPS, seed=5)[0]
    with torch.no_grad():
        model.posterior(X)
    for rows in (X[MAX_LOOKUPS:], X[: MAX_LOOKUPS - 1].flip(0), torch.cat([X[4:6], AHEAD[0]])):
        assert_same(model, fresh, rows, atol=1e-10)


def test_candidates_under_gradients_are_not_kept():
    model = observed()
    model.posterior(AHEAD.clone().requires_grad_())
    assert model._candidates is None


def test_copies_go_their_own_ways():
    model = observed()
    for new in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        new.observe(*data(5, seed=3))
        model_of_all = [torch.cat(pair) for pair in zip(data(30), data(5, seed=3), strict=True)]
        assert_same(new, dense(*model_of_all), AHEAD)
    assert_same(model, dense(*data(30)), AHEAD)


def test_moving_keeps_what_is_remembered():
    model = observed()
    with torch.no_grad():
        model.posterior(AHEAD)
    known = model._candidates
    assert model.to("cpu") is model
    assert torch.equal(model._candidates.V, known.V)
    model.to("meta")
    assert {model.factor.root.device.type, model._candidates.V.device.type} == {"meta"}


def test_it_says_what_it_is():
    model = observed(30)
    assert (model.num_outputs, model.batch_shape, model.width) == (1, torch.Size(), 4)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def through_file(model, new):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    new.load_state_dict(torch.load(file, weights_only=True))
    return new


def standardized(**options):
    """From a model with transforms of inputs and outcomes, and a mean."""
    X, Y = data(12, seed=3)
    model = TimeVaryingGP(
        X, 7.0 + 3.0 * Y, forgetting_rate=0.0, input_transform=Normalize(4, indices=[0, 1, 2])
    )
    return IncrementalGP.from_model(model.eval(), **options)


@pytest.mark.parametrize("make", [incremental, standardized])
@pytest.mark.parametrize("loaded_over", [0, 200])
def test_a_saved_state_restores_every_observation_to_the_last_bit(make, loaded_over):
    X, Y = data(200)
    model, new = make(), make()
    new.observe(X[:loaded_over], Y[:loaded_over])
    for x, y in zip(X[:150].split(3), Y[:150].split(3), strict=True):
        model.posterior(AHEAD.reshape(24, 1, 4))
        model.observe(x, y)
    new = through_file(model, new)
    assert new.num_observations == 150
    assert_same(new, model, AHEAD, atol=0.0)
    assert_same(new, model, AHEAD.reshape(24, 1, 4), atol=0.0)
    before = new.posterior(AHEAD).mean
    # What is observed later, some of it asked about before, finds the same.
    more = torch.cat([AHEAD.reshape(24, 4)[:2], X[150:]])
    for each in (model, new):
        for row in more:
            each.observe(row.unsqueeze(0), row[:1].unsqueeze(0))
        if each is model:
            assert torch.equal(new.posterior(AHEAD).mean, before)
    assert_same(new, model, AHEAD, atol=0.0)


def test_a_state_carries_the_scale_of_the_outcomes():
    X, Y = data(20)
    model, other = standardized(), standardized()
    other.covar_module.scale *= 2.0
    model.observe(X, Y)
    assert_same(through_file(model, other), model, AHEAD, atol=0.0)


def test_loading_leaves_what_shares_the_memory_alone():
    X, Y = data(60)
    model, other = observed(30), incremental()
    other.observe(X[30:], Y[30:])
    view = model.snapshot()
    before = view.posterior(AHEAD).mean
    model.load_state_dict(other.state_dict())
    assert torch.equal(view.posterior(AHEAD).mean, before)
    assert_same(model, other, AHEAD, atol=0.0)


@pytest.mark.parametrize(
    "other",
    [
        lambda: IncrementalGP(RBFKernel().double(), NOISE),
        lambda: StreamingGP(AHEAD[0, :, :3], MaternKernel().double(), RATE, NOISE),
        lambda: observed(0, rate=0.0).to(torch.float64).covar_module,
    ],
)
def test_a_state_of_another_kind_is_refused_and_nothing_lost(other):
    model = observed()
    before = model.posterior(AHEAD).mean
    with pytest.raises(RuntimeError, match="state"):
        model.load_state_dict(other().state_dict())
    assert torch.equal(model.posterior(AHEAD).mean, before)


def test_a_state_of_other_rows_is_refused_and_nothing_lost():
    model, other = (IncrementalGP(RBFKernel().double(), NOISE) for _ in range(2))
    model.observe(*data(5))
    other.observe(data(3)[0][:, :2], data(3)[1])
    state = model.state_dict()
    with pytest.raises(RuntimeError):
        model.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError):
        other.load_state_dict({**state, "factor._root": state["factor._root"][:4]})
    assert (model.num_observations, other.num_observations) == (5, 3)
