"""The streaming model beside the joint normal distribution of outcomes and function."""

import math
import pickle
from copy import copy

import pytest
import reference
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch import Size

from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.models import StreamingGP, TimeVaryingGP

pytestmark = pytest.mark.usefixtures("double_by_default")


def decay(rate):
    kernel = TemporalDecayKernel()
    kernel.forgetting_rate = rate
    return kernel


def matern(nu, lengthscale=4.0):
    return reference.with_lengthscale(TemporalMaternKernel(nu=nu), lengthscale)


def season():
    return SeasonalKernel(period=6.0, num_harmonics=2)


def small_batch():
    return reference.rbf(0.4, batch_shape=Size([2]))


def scaled(kernel, scale):
    kernel = ScaleKernel(kernel)
    kernel.outputscale = scale
    return kernel


def one(temporal_kernel):
    return [reference.rbf(0.4)], [temporal_kernel]


# Kernels over actions, and over time or a rate.
CASES = {
    "none": lambda: one(0.0),
    "slow": lambda: one(0.03),
    "fast": lambda: one(0.5),
    "all": lambda: one(1.0),
    "decay": lambda: one(decay(0.1)),
    "scaled": lambda: one(scaled(decay(0.1), 2.0)),
    "constant": lambda: one(ConstantTemporalKernel()),
    "matern32": lambda: one(matern(1.5)),
    "matern52": lambda: one(matern(2.5)),
    "season": lambda: one(season()),
    "shared": lambda: ([reference.rbf(0.4)], [scaled(matern(1.5), 0.7), scaled(season(), 0.4)]),
    "three": lambda: (
        [reference.rbf(0.4), reference.rbf(1.0), scaled(reference.matern(0.5), 0.3)],
        [decay(0.3), matern(2.5), season()],
    ),
    "with a constant": lambda: (
        [reference.rbf(0.4), reference.rbf(1.0), reference.rbf(0.2)],
        [ConstantTemporalKernel(), decay(0.1), season()],
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]()


def make(small, case, **options):
    kernels, temporal = case
    kernel = kernels[0] if len(kernels) == 1 else kernels
    if isinstance(temporal[0], float):
        return small.streaming(temporal[0], kernel=kernel, **options)
    return StreamingGP(
        small.choices, kernel, noise_variance=small.noise, temporal_kernel=temporal, **options
    )


def covariance(case, X1, X2):
    """By the definition."""
    kernels, temporal = case
    kernels = kernels * len(temporal) if len(kernels) == 1 else kernels
    lag = (X1[:, -1:] - X2[:, -1]).abs()
    total = torch.zeros(lag.shape)
    for kernel, over_time in zip(kernels, temporal, strict=True):
        if isinstance(over_time, float):
            correlation = (1 - over_time) ** (lag / 2)
        else:
            correlation = over_time(X1[:, -1:], X2[:, -1:]).to_dense()
        total += kernel(X1[:, :-1], X2[:, :-1]).to_dense().detach() * correlation.detach()
    return total


def assert_exact(model, case, X, Y, Yvar, rows, atol=1e-8):
    """Mean and joint covariance of rows after outcomes."""
    K = covariance(case, X, X) + torch.diag(Yvar.flatten())
    cross = covariance(case, X, rows)
    posterior = model.posterior(rows)
    mean = cross.T @ torch.linalg.solve(K, Y)
    covar = covariance(case, rows, rows) - cross.T @ torch.linalg.solve(K, cross)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=atol)
    found = posterior.distribution.covariance_matrix
    torch.testing.assert_close(found, covar, rtol=0, atol=atol)
    single = model.posterior(rows.unsqueeze(-2))
    torch.testing.assert_close(single.variance.flatten(), covar.diagonal(), rtol=0, atol=atol)


def events(small, n, seed=0):
    """Rows at unequal steps, some at one time, a repeat, and outcomes with their own noise.

    Of 1,300, there are more rows than states of all choices.
    """
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(n, generator=generator).mul(4).floor().mul(0.3).cumsum(0)
    X, Y = small.data(times, seed)
    X[6] = X[5]
    return X, Y, 0.01 + torch.rand(n, 1, generator=generator)


def ahead(small, X):
    """All choices, each at a time of its own, none before those of ``X``."""
    rows = small.rows(X[:, -1].max())
    rows[:, -1] += torch.tensor([0.0, 1, 1, 2, 0.5, 0, 7, 3, 100])
    return rows


def shuffled(model, X, Y, Yvar, seed=0):
    """Open all in the order of time, and tell most of them, in any order; return those told."""
    generator = torch.Generator().manual_seed(seed)
    waiting = []
    for i in range(len(X)):
        waiting.append(i)
        model.set_X_pending(X[waiting], Yvar[waiting])
        while len(waiting) > 5:
            told = waiting.pop(int(torch.randint(6, (1,), generator=generator)))
            model.observe(X[[told]], Y[[told]], Yvar[[told]])
    told = torch.ones(len(X), dtype=torch.bool)
    told[waiting] = False
    return told


@pytest.mark.parametrize("way", ["at once", "in parts", "late", "pending", "lost", "batch"])
def test_equals_the_definition(small, case, way):
    check_definition(small, case, way, 20)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["late", "pending", "lost", "batch"])
@pytest.mark.parametrize("name", ["slow", "three"])
def test_equals_the_definition_after_more_rows_than_states(small, name, way):
    check_definition(small, CASES[name](), way, 1300)


def check_definition(small, case, way, n):
    X, Y, Yvar = events(small, n)
    model = make(small, case, batch_shape=Size([2]) if way == "batch" else None)
    told = torch.ones(n, dtype=torch.bool)
    if way == "at once":
        model.observe(X, Y, Yvar)
    elif way == "in parts":
        for part in torch.arange(n).split([1, 3, 1, *[5] * ((n - 5) // 5)]):
            model.observe(X[part], Y[part], Yvar[part])
    elif way == "late":
        for part in torch.arange(n).roll(n // 3).split(n // 5):
            model.observe(X[part], Y[part], Yvar[part])
    elif way == "batch":
        for part in torch.arange(n).split(3):
            two = (torch.stack([Y[part], -Y[part]]), torch.stack([Yvar[part]] * 2))
            model.observe(X[part], *two)
        mean, variance = model.marginals(X[-1, -1])
        torch.testing.assert_close(mean[0], -mean[1])
        alone = make(small, case)
        alone.observe(X, Y, Yvar)
        torch.testing.assert_close(mean[0], alone.marginals(X[-1, -1])[0], rtol=0, atol=1e-8)
        torch.testing.assert_close(variance[1], alone.marginals(X[-1, -1])[1], rtol=0, atol=1e-8)
        return
    else:
        told = shuffled(model, X, Y, Yvar)
        held = (X[told], Y[told], Yvar[told])
        assert_exact(model, case, *held, ahead(small, X))
        if way == "lost":
            model.set_X_pending(X[:0])
            assert len(model.X_pending) == 0
        else:
            model.observe(X[~told].flip(0), Y[~told].flip(0), Yvar[~told].flip(0))
            told[:] = True
    assert_exact(model, case, X[told], Y[told], Yvar[told], ahead(small, X))
    # At times before the newest event.
    rows = ahead(small, X)
    rows[:, -1] -= 4.0
    if n == 20:
        assert_exact(model, case, X[told], Y[told], Yvar[told], rows)
    mean, variance = model.marginals(X[-1, -1] + 1)
    posterior = model.posterior(small.rows(X[-1, -1] + 1))
    torch.testing.assert_close(mean, posterior.mean[:, 0])
    torch.testing.assert_close(variance, posterior.variance[:, 0], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_what_stands_in_for_pending_outcomes(small, rate):
    X, Y, Yvar = events(small, 20)
    model = small.streaming(rate)
    told = shuffled(model, X, Y, Yvar)
    pending = model.X_pending
    assert sorted(pending.tolist()) == sorted(X[~told].tolist())
    expected = model.posterior(pending.unsqueeze(-2)).mean.flatten()
    torch.testing.assert_close(model.expected_outcomes, expected)
    values, places = torch.arange(5.0).unsqueeze(-1), (~told).nonzero().flatten()
    with_values = Y.index_copy(0, places, values)
    stands_in = model.condition_on_observations(pending, values, Yvar[places])
    assert_exact(stands_in, one(rate), X, with_values, Yvar, ahead(small, X))
    more, outcomes, its_noise = small.rows(X[-1, -1] + 1)[:2], torch.ones(2, 1), Yvar[:2]
    for i in range(2):
        stands_in.observe(more[[i]], outcomes[[i]], its_noise[[i]])
    later = torch.cat([X, more]), torch.cat([with_values, outcomes]), torch.cat([Yvar, its_noise])
    assert_exact(stands_in, one(rate), *later, ahead(small, more))
    # One comes with another noise than it was opened with.
    outcome, noise = torch.tensor([[2.0]]), torch.tensor([[0.5]])
    model.observe(pending[[2]], outcome, noise)
    with_values[places[2]], Yvar = outcome[0], Yvar.index_copy(0, places[2:3], noise)
    others = [0, 1, 3, 4]
    stands_in = model.condition_on_observations(pending[others], values[others])
    Yvar[places[others]] = small.noise
    assert_exact(stands_in, one(rate), X, with_values, Yvar, ahead(small, X))


# Of the last one none are rotated, and some are in single precision.
@pytest.mark.parametrize(("rate", "n"), [(0.0, 560), (0.01, 560), (0.5, 224)])
def test_fewer_rows_explain_the_same_for_a_smooth_kernel(rate, n):
    choices = torch.linspace(0, 1, 400).unsqueeze(-1)
    generator = torch.Generator().manual_seed(0)
    temporal = one(rate)
    place = torch.randint(400, (n,), generator=generator)
    X = torch.cat([choices[place], torch.arange(n).unsqueeze(-1) / 4], dim=-1)
    Y, Yvar = torch.randn(n, 1, generator=generator), torch.full((n, 1), 0.04)
    model = StreamingGP(choices, temporal[0][0], rate, 0.04)
    for part in torch.arange(n).split(7):
        model.observe(X[part], Y[part])
    assert model.num_rows < 300
    rows = torch.cat([choices[::40], torch.full((10, 1), n / 4)], dim=-1)
    rows[::2, -1] += 3.0
    assert_exact(model, temporal, X, Y, Yvar, rows)


@pytest.mark.slow
def test_memory_is_flat(small):
    """As many numbers after 2,000 rounds as after 600."""
    choices = torch.linspace(0, 1, 21).unsqueeze(-1)
    model = StreamingGP(choices, small.rbf(), 0.05, small.noise)
    sizes = {}
    for t in range(1, 2001):
        row = torch.cat([choices[t % 21], torch.tensor([float(t)])]).unsqueeze(0)
        model.observe(row, torch.tensor([[math.sin(t)]]))
        sizes[t] = len(pickle.dumps(model)) if t in (1200, 2000) else 0
    assert sizes[2000] < 1.1 * sizes[1200] < 1.1e6


def test_prior_mean(small):
    mean = ConstantMean()
    mean.constant.data.fill_(3.0)
    X, Y, Yvar = events(small, 20)
    model, plain = small.streaming(0.1, mean_module=mean), small.streaming(0.1)
    for each, outcomes in ((model, Y + 3), (plain, Y)):
        told = shuffled(each, X, outcomes, Yvar)
        each.observe(X[~told], outcomes[~told], Yvar[~told])
    rows = small.rows(X[-1, -1] + 1)
    torch.testing.assert_close(model.posterior(rows).mean, plain.posterior(rows).mean + 3)
    torch.testing.assert_close(model.marginals(99.0)[0], plain.marginals(99.0)[0] + 3)
    torch.testing.assert_close(model.train_targets, plain.train_targets + 3)


def test_copies_are_independent(small):
    X, Y, Yvar = events(small, 20)
    model = small.streaming(0.1)
    told = shuffled(model, X, Y, Yvar)
    before = model.marginals(99.0)
    copies = [copy(model), pickle.loads(pickle.dumps(model))]
    copies.append(model.condition_on_observations(ahead(small, X)[:1], torch.ones(1, 1)))
    for each in copies:
        each.observe(*small.data([50.0, 51.0]))
    for was, now in zip(before, model.marginals(99.0), strict=True):
        assert torch.equal(was, now)
    loaded = small.streaming(0.1)
    loaded.load_state_dict(model.state_dict())
    small.assert_same(loaded, model, small.rows(99.0), atol=1e-12)
    model.observe(X[~told], Y[~told], Yvar[~told])
    assert len(loaded.X_pending) == 5
    model.reset()
    assert model.num_rows == 0
    assert (model.marginals(0.0)[0] == 0).all()


def test_a_state_of_other_choices_is_refused(small):
    other = StreamingGP(small.choices + 1, small.rbf(), 0.1, small.noise)
    with pytest.raises(ValueError, match="choices"):
        small.streaming(0.1).load_state_dict(other.state_dict())


def test_batches_with_actions_of_their_own(small):
    model = small.streaming(0.1, batch_shape=Size([3]))
    X, Y, _ = events(small, 20)
    rows, outcomes = torch.stack([X] * 3), torch.stack([Y, -Y, 2 * Y])
    rows[1, :, :2], rows[2, :, :2] = X[:, :2].flip(0), 1 - X[:, :2]
    for part in torch.arange(20).split(4):
        model.observe(rows[:, part], outcomes[:, part])
    at = ahead(small, X)
    several, joint = model.posterior(at.reshape(9, 1, 1, 3)), model.posterior(at)
    assert several.mean.shape == (9, 3, 1, 1)
    for i in range(3):
        alone = small.streaming(0.1)
        alone.observe(rows[i], outcomes[i])
        expected = alone.posterior(at)
        torch.testing.assert_close(joint.mean[i], expected.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(several.mean[:, i, 0], expected.mean, rtol=0, atol=1e-9)
        covar = joint.distribution.covariance_matrix[i]
        expected = expected.distribution.covariance_matrix
        torch.testing.assert_close(covar, expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            several.variance[:, i].flatten(), expected.diagonal(), rtol=0, atol=1e-9
        )


def test_from_model(small, case):
    kernels, temporal = case
    if isinstance(temporal[0], float) or any(isinstance(each, ScaleKernel) for each in temporal):
        pytest.skip("A dense model has its amplitudes in the kernels over actions.")
    X, Y, Yvar = events(small, 20)
    dense = TimeVaryingGP(
        X,
        3 * Y + 5,
        Yvar,
        covar_module=kernels[0] if len(kernels) == 1 else kernels,
        temporal_kernel=temporal,
    )
    model = StreamingGP.from_model(dense, small.choices)
    model.observe(X, 3 * Y + 5, Yvar)
    small.assert_same(model, dense, small.rows(X[-1, -1] + 1), atol=1e-8)


ACQUISITIONS = {
    "UCB": lambda model, rows, sampler: UpperConfidenceBound(model, beta=2.0),
    "LogEI": lambda model, rows, sampler: LogExpectedImprovement(model, best_f=0.5),
    "qLogNEI": lambda model, rows, sampler: qLogNoisyExpectedImprovement(
        model, rows[:3], sampler=sampler, prune_baseline=False, cache_root=False
    ),
    "qKG": lambda model, rows, sampler: qKnowledgeGradient(model, num_fantasies=4, sampler=sampler),
}


@pytest.mark.draws_globally  # BoTorch's samplers do
@pytest.mark.parametrize("name", ACQUISITIONS)
def test_acquisitions_equal_those_of_the_dense_model(small, name):
    X, Y = small.data([0, 0, 1, 2.5, 4, 4, 3, 7])
    model = small.streaming(0.03)
    model.observe(X, Y)
    rows = small.rows(8.0)
    q = 5 if name == "qKG" else 1
    X = torch.stack([rows[[i, *range(q - 1)]] for i in range(9)])
    if q > 1:
        X[:, 1:, -1] = 9.0  # what is learned at 8 is used at 9
    values = []
    for each in (model, small.dense(*small.data([0, 0, 1, 2.5, 4, 4, 3, 7]), 0.03)):
        sampler = SobolQMCNormalSampler(Size([4]), seed=0)
        with torch.no_grad():
            values.append(ACQUISITIONS[name](each, rows, sampler)(X))
    # The first three are the baseline of qLogNEI: they improve on themselves by rounding alone.
    torch.testing.assert_close(values[0][3:], values[1][3:], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "kernel",
    [reference.rbf(0.2), scaled(reference.matern(), 0.7), reference.matern(nu=0.5)],
    ids=["rbf", "scaled matern52", "matern12"],
)
def test_a_large_set_is_evaluated_when_it_is_needed(kernel):
    """Of 6,084 choices no covariance matrix is stored."""
    grid = torch.linspace(0, 1, 78)
    choices = torch.cartesian_prod(grid, grid)
    model = StreamingGP(choices, kernel, 0.1, 0.04)
    X = torch.cat([choices[[10, 3000, 5000]], torch.arange(3.0).unsqueeze(-1)], dim=-1)
    Y = torch.tensor([[1.0], [-1.0], [0.5]])
    model.observe(X[:2], Y[:2])
    model.observe(X[2:], Y[2:])
    rows = torch.cat([choices, torch.full((6084, 1), 3.0)], dim=-1)
    _, variance = model.marginals(3.0)
    single = model.posterior(rows.unsqueeze(-2))
    torch.testing.assert_close(single.variance.flatten(), variance)
    small = torch.arange(0, 6084, 100)
    dense = reference.dense_gp(X, Y, 0.04, 0.1, kernel)
    expected = dense.posterior(rows[small])
    found = model.posterior(rows[small])
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        found.distribution.covariance_matrix,
        expected.distribution.covariance_matrix,
        rtol=0,
        atol=1e-9,
    )


def test_float64_whatever_comes_in(small):
    model = StreamingGP(small.choices.float(), small.rbf(), 0.1, 0.1)
    X, Y = small.data([1.0, 2.0])
    model.observe(X.float(), Y.float())
    posterior = model.posterior(small.rows(3).float())
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tol": 0.0}, ValueError),
        ({"noise": -0.1}, ValueError),
        ({"noise": math.inf}, ValueError),
        ({"rate": 1.5}, ValueError),
        ({"rate": math.nan}, ValueError),
        ({"rate": torch.rand(2)}, BotorchTensorDimensionError),
        ({"noise": torch.rand(2)}, ValueError),
        ({"kernel": small_batch()}, ValueError),
        ({"rate": None}, ValueError),
        ({"temporal_kernel": decay(0.1)}, ValueError),
        ({"rate": None, "temporal_kernel": []}, ValueError),
        ({"rate": None, "temporal_kernel": TemporalMaternKernel(active_dims=[2])}, ValueError),
        ({"rate": None, "temporal_kernel": RBFKernel()}, TypeError),
    ],
)
def test_bad_parameters(small, options, error):
    options = {"rate": 0.1, **options}
    with pytest.raises(error):
        small.streaming(**options)


@pytest.mark.parametrize(
    ("change", "error", "value"),
    [
        ({"X": [[0.3, 0.0, 1.0]]}, InputDataError, "0.3"),
        ({"X": [[0.0, 0.0, math.nan]]}, InputDataError, "nan"),
        ({"X": [[0.0, 1.0]]}, BotorchTensorDimensionError, "2"),
        ({"X": [[[0.0, 0.0, 1.0]]] * 2}, BotorchTensorDimensionError, "2"),
        ({"Y": [[math.inf]]}, InputDataError, "inf"),
        ({"Y": [[1.0, 1.0]]}, BotorchTensorDimensionError, "2"),
        ({"Yvar": [[-0.5]]}, InputDataError, "-0.5"),
        ({"Yvar": [0.5]}, BotorchTensorDimensionError, "1"),
        ({"X": [[0.0, 0.0, 2.0]] * 2, "Y": [[1.0]] * 2, "Yvar": [[0.0]] * 2}, InputDataError, None),
    ],
)
def test_bad_observations_leave_the_model_as_it_was(small, change, error, value):
    model = small.streaming(0.1)
    model.observe(*small.data([0.0, 3.0]))
    before = model.marginals(4.0)
    given = {"X": [[0.0, 0.0, 1.0]], "Y": [[1.0]], **change}
    with pytest.raises(error, match=value):
        model.observe(**{name: torch.tensor(value) for name, value in given.items()})
    for was, now in zip(before, model.marginals(4.0), strict=True):
        assert torch.equal(was, now)


def test_bad_questions(small):
    model = small.streaming(0.1)
    model.observe(*small.data([1.0, 4.0]))
    for t in (3.0, math.nan):
        with pytest.raises(InputDataError, match=str(int(t)) if t == 3.0 else "nan"):
            model.marginals(t)
    with pytest.raises(UnsupportedError):
        model.posterior(small.rows(5).requires_grad_(True))
    with pytest.raises(UnsupportedError):
        model.posterior(small.rows(5), output_indices=[1])
    batch = small.streaming(0.1, batch_shape=Size([3]))
    with pytest.raises(BotorchTensorDimensionError):
        batch.posterior(small.rows(5).expand(2, 9, 3))
    apart = small.rows(5)[:1].expand(3, 1, 3).clone()
    apart[1, 0, -1] = 6.0
    with pytest.raises(InputDataError):
        batch.observe(apart, torch.ones(3, 1, 1))
