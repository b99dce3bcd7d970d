"""The loop with a factor that grows: the same arms as with the model built anew each round."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from tvbo.acquisition import UCB, LogBeta
from tvbo.models import IncrementalGP
from tvbo.observations import Observations
from tvbo.optimizers import (
    ContextualSurrogate,
    GPOptimizer,
    GPSurrogate,
    IncrementalSurrogate,
    RefitEvery,
    RefitNever,
)
from tvbo.retention import KeepAll, SlidingWindow, StaleCutoff
from tvbo.search_space import Box, ContextBounds, FiniteSpace, InputLayout

NOISE = 0.01
UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
ARMS = torch.rand(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
PER_STEP = 3


def kernel(active_dims=None):
    each = RBFKernel(active_dims=active_dims).double()
    each.lengthscale = 0.3
    return each


def dense(rate=0.03, **options):
    """Actions 2-D, context 1-D."""
    options = {"covar_module": kernel(), "noise_variance": NOISE, **options}
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    return GPSurrogate(InputLayout(2, 1), bounds, forgetting_rate=rate, **options)


def loop(surrogate, retention=None, search_space=None):
    return GPOptimizer(
        FiniteSpace(ARMS, chunk=len(ARMS)) if search_space is None else search_space,
        surrogate,
        UCB(LogBeta()),
        retention=retention,
        layout=InputLayout(2, 1),
        generator=torch.Generator().manual_seed(5),
        contexts=ContextBounds(UNIT),
    )


def outcome(trial):
    """A drifting function with scatter that repeats."""
    x, z = trial.X.sum(), trial.context.sum()
    phase = torch.tensor(7.0 * trial.id)
    return torch.sin(4 * x * (1 + z) + trial.t / 9).item() + 0.1 * phase.sin().item()


def ask_context(round_number):
    """Several asks at one time, in a context that moves."""
    t = float((round_number - 1) // PER_STEP)
    return t, torch.tensor([0.5 + 0.5 * torch.tensor(t / 5).sin().item()], dtype=torch.float64)


def told(num=40, Yvar=None):
    """Observations of a log, out of order."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num, 4, generator=generator, dtype=torch.float64)
    X[:, 3] = (10 * X[:, 3]).round()
    Y = torch.randn(num, 1, generator=generator, dtype=torch.float64)
    return Observations(X, Y, None if Yvar is None else torch.full_like(Y, Yvar))


def rows(t):
    return InputLayout(2, 1).rows(ARMS, t, torch.tensor([0.3], dtype=torch.float64))


def assert_same(model, other, t, atol=1e-8):
    with torch.no_grad():
        got, expected = model.posterior(rows(t)), other.posterior(rows(t))
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("rate", "delay", "Yvar"), [(0.0, 0, None), (0.03, 0, None), (0.03, 4, 0.02)]
)
def test_the_same_arms_as_with_the_dense_surrogate(rate, delay, Yvar):
    chosen = []
    for surrogate in (IncrementalSurrogate(dense(rate)), dense(rate)):
        optimizer, waiting = loop(surrogate), []
        for round_number in range(1, 61):
            waiting.append(optimizer.ask(*ask_context(round_number)))
            if len(waiting) > delay:
                # The newer of two first.
                trial = waiting.pop(min(1, len(waiting) - 1))
                optimizer.tell(trial, outcome(trial), Yvar)
        chosen.append(optimizer.observations.X)
    assert torch.equal(*chosen)
    assert len(chosen[0].unique(dim=0)) > 20


@pytest.mark.parametrize(
    ("retention", "rate"),
    [(SlidingWindow(length=4), 0.03), (StaleCutoff(0.5, 0.1), 0.5), (KeepAll(), 0.03)],
)
def test_forgotten_observations_leave_the_model(retention, rate):
    optimizer = loop(IncrementalSurrogate(dense(rate)), retention)
    for round_number in range(1, 31):
        t, context = ask_context(round_number)
        trial = optimizer.ask(t, context)
        expected = dense(rate, refit=RefitNever()).preview(optimizer.observations)
        assert optimizer.model.num_observations == len(optimizer.observations)
        assert_same(optimizer.model, expected, t)
        optimizer.tell(trial, outcome(trial))
    assert (len(optimizer.observations) == 30) == (retention == KeepAll())


def test_what_weighs_nothing_goes_a_third_at_a_time(monkeypatch):
    """ε = 0.9: after 12 steps the weight is 1e-12."""
    drops = []
    drop = IncrementalGP.drop
    monkeypatch.setattr(
        IncrementalGP, "drop", lambda self, keep: drops.append(keep) or drop(self, keep)
    )
    rate, everything = 0.9, Observations.empty(4)
    optimizer = loop(IncrementalSurrogate(dense(rate)), StaleCutoff(rate, 1e-12))
    for round_number in range(1, 121):
        t, context = ask_context(round_number)
        trial = optimizer.ask(t, context)
        assert len(optimizer.observations) <= optimizer.model.num_observations
        assert optimizer.model.num_observations < 1.5 * len(optimizer.observations) + PER_STEP
        if round_number % 20 == 0:
            # The square root of the weight is how far the mean may move.
            assert_same(optimizer.model, dense(rate).preview(everything), t, atol=1e-6)
        optimizer.tell(trial, outcome(trial))
        everything = everything.append(optimizer.observations[-1:])
    assert 1 <= len(drops) <= 6
    assert all(int((~keep).sum()) >= len(keep) / 3 for keep in drops)


def test_weightless_and_weighty_observations_go_together(generator):
    surrogate = IncrementalSurrogate(dense(0.5), tol=1e-3)
    X = torch.cat([told(12).X[:, :3], torch.arange(12.0).unsqueeze(-1)], dim=-1)
    observations = Observations(X, told(12).Y)
    surrogate.model(observations, 12, generator)
    keep = torch.arange(12) != 0
    surrogate.drop(observations, keep, 12.0)
    observations = observations[keep]
    assert surrogate.model(observations, 12, generator).num_observations == 12
    keep = torch.arange(11) != 9
    surrogate.drop(observations, keep, 12.0)
    observations = observations[keep].append(told(1))
    model = surrogate.model(observations, 13, generator)
    assert model.num_observations == 11
    assert_same(model, dense(0.5).preview(observations), 12.0)


def test_dropping_what_the_model_never_saw(generator):
    surrogate = IncrementalSurrogate(dense())
    surrogate.drop(told(), torch.arange(40) > 3, 9.0)
    assert surrogate.last_model is None
    surrogate.model(told()[:30], 30, generator)
    keep = torch.arange(40) < 35
    surrogate.drop(told(), keep, 9.0)
    model = surrogate.model(told()[keep], 40, generator)
    assert model.num_observations == 35
    assert_same(model, dense().preview(told()[keep]), 11.0)


def test_refit_follows_the_dense_surrogate():
    learner = dense(
        None, covar_module=ScaleKernel(kernel()), noise_variance=None, refit=RefitEvery(20)
    )
    optimizer, models = loop(IncrementalSurrogate(learner)), []
    for round_number in range(1, 46):
        t, context = ask_context(round_number)
        trial = optimizer.ask(t, context)
        if not models or models[-1] is not optimizer.surrogate.last_model:
            models.append(optimizer.surrogate.last_model)
        fitted = learner.last_model
        if len(fitted.train_targets) == len(optimizer.observations) > 0:
            assert_same(optimizer.model, fitted, t, atol=1e-7)
        # What was learned then, on all that is held now.
        expected = learner.preview(optimizer.observations)
        assert expected.forgetting_rate == fitted.forgetting_rate
        assert_same(optimizer.model, expected, t, atol=1e-7)
        optimizer.tell(trial, outcome(trial))
    assert fitted.forgetting_rate != 0.05
    # In each round until the first fit at twenty outcomes, then at forty.
    assert len(models) == 22


def test_preview_is_a_model_of_its_own(generator):
    surrogate = IncrementalSurrogate(dense())
    assert_same(surrogate.preview(told()), dense().preview(told()), 11.0)
    model = surrogate.model(told(), 40, generator)
    part = told()[torch.arange(40) > 25]
    preview = surrogate.preview(part)
    assert isinstance(preview, IncrementalGP)
    assert_same(preview, dense().preview(part), 11.0)
    assert surrogate.preview(told()[:0]).num_observations == 0
    assert surrogate.last_model is model
    assert model.num_observations == 40


def test_recommend_and_policy_go_with_it():
    incremental, plain = loop(IncrementalSurrogate(dense())), loop(dense())
    for round_number in range(1, 20):
        for optimizer in (incremental, plain):
            trial = optimizer.ask(*ask_context(round_number))
            optimizer.tell(trial, outcome(trial))
    contexts = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(-1)
    for t in (7.0, 12.0):
        one, two = (optimizer.policy(contexts, t) for optimizer in (incremental, plain))
        assert torch.equal(one.X, two.X)
        torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
def test_in_a_box():
    found = []
    for surrogate in (IncrementalSurrogate(dense()), dense()):
        box = Box(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), num_restarts=2, raw_samples=32)
        optimizer = loop(surrogate, search_space=box)
        for round_number in range(1, 7):
            trial = optimizer.ask(*ask_context(round_number))
            optimizer.tell(trial, outcome(trial))
        found.append(optimizer.observations.X)
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


def test_a_contextual_surrogate(generator):
    plain = ContextualSurrogate(
        InputLayout(2, 1),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        UNIT,
        structure="additive",
        action_kernel=kernel(),
        context_kernel=MaternKernel(nu=1.5).double(),
        forgetting_rate=0.03,
        noise_variance=NOISE,
    )
    model = IncrementalSurrogate(plain).model(told(), 40, generator)
    assert_same(model, plain.preview(told()), 11.0)


def test_the_kernel_may_stand_in_any_columns(generator):
    """A kernel that names its columns itself, and several of them."""
    own = kernel([0, 1]) * MaternKernel(nu=1.5, active_dims=[2]).double()
    model = IncrementalSurrogate(dense(covar_module=own)).model(told(), 40, generator)
    assert_same(model, dense(covar_module=own).preview(told()), 11.0)


def test_unknown_noise(generator):
    surrogate = IncrementalSurrogate(dense(noise_variance=None, refit=RefitNever()))
    with pytest.raises(InputDataError, match="Yvar with every outcome"):
        surrogate.model(told(), 40, generator)
    model = surrogate.model(told(Yvar=0.3), 40, generator)
    assert_same(model, dense(noise_variance=0.3).preview(told()), 11.0)


def test_noise_free_repeats_go_on_as_with_the_dense_model(generator):
    """GPyTorch raises a noise variance of 0 to its least, and so does the loop."""
    twice = Observations(
        told(6).X.repeat(2, 1), told(6).Y.repeat(2, 1), torch.zeros(12, 1).double()
    )
    model = IncrementalSurrogate(dense(0.0)).model(twice, 12, generator)
    with pytest.warns(match="[Vv]ery small noise"):
        expected = dense(0.0).preview(twice)
    assert_same(model, expected, 11.0, atol=1e-6)
