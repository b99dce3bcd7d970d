"""The loop with a factor that grows: the same arms as with the model built anew each round."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from states import updated

from tvbo.acquisition import UCB, LogBeta
from tvbo.fit.contextual_model_fitter import ContextualModelFitter
from tvbo.fit.model_fitter import ModelFitter
from tvbo.optimizers import GPOptimizer, OutcomeModel, RefitEvery, RefitNever
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.retention import KeepAll, SlidingWindow, StaleCutoff
from tvbo.spaces import Box, ContextBounds, FiniteSpace, InputLayout
from tvbo.spaces.observations import Observations

NOISE = 0.01
UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
ARMS = torch.rand(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
PER_STEP = 3


def kernel(active_dims=None):
    each = RBFKernel(active_dims=active_dims).double()
    each.lengthscale = 0.3
    return each


def fitter(rate=0.03, **options):
    """Actions 2-D, context 1-D."""
    options = {"covar_module": kernel(), "noise_variance": NOISE, **options}
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    return ModelFitter(InputLayout(2, 1), bounds, forgetting_rate=rate, **options)


def exact(fitter, observations, num_told=40):
    """The dense model of some observations."""
    return fitter.fit(observations, num_told, torch.Generator())


def loop(state, retention=None, search_space=None):
    return GPOptimizer(
        FiniteSpace(ARMS) if search_space is None else search_space,
        [OutcomeModel(state, retention)],
        UCB(LogBeta()),
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


@pytest.mark.slow_cases("0.03-4-0.02")
@pytest.mark.parametrize(
    ("rate", "delay", "Yvar"), [(0.0, 0, None), (0.03, 0, None), (0.03, 4, 0.02)]
)
def test_the_same_arms_as_with_the_dense_state(rate, delay, Yvar):
    chosen = []
    for state in (IncrementalState(fitter(rate)), DenseState(fitter(rate))):
        optimizer, waiting = loop(state), []
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
    optimizer = loop(IncrementalState(fitter(rate)), retention)
    for round_number in range(1, 31):
        t, context = ask_context(round_number)
        trial = optimizer.ask(t, context)
        expected = exact(fitter(rate, refit=RefitNever()), optimizer.observations)
        assert optimizer.model.num_observations == len(optimizer.observations)
        assert_same(optimizer.model, expected, t)
        optimizer.tell(trial, outcome(trial))
    assert (len(optimizer.observations) == 30) == (retention == KeepAll())


@pytest.mark.slow
def test_refit_follows_the_fitter():
    learner = fitter(
        None, covar_module=ScaleKernel(kernel()), noise_variance=None, refit=RefitEvery(20)
    )
    optimizer, models = loop(IncrementalState(learner)), []
    for round_number in range(1, 46):
        t, context = ask_context(round_number)
        trial = optimizer.ask(t, context)
        if not models or models[-1] is not optimizer.posterior_state.last_model:
            models.append(optimizer.posterior_state.last_model)
        fitted = learner.last_model
        if len(fitted.train_targets) == len(optimizer.observations) > 0:
            assert_same(optimizer.model, fitted, t, atol=1e-7)
        # What was learned then, on all that is held now.
        expected = exact(learner.copy(), optimizer.observations, num_told=0)
        assert expected.forgetting_rate == fitted.forgetting_rate
        assert_same(optimizer.model, expected, t, atol=1e-7)
        optimizer.tell(trial, outcome(trial))
    assert fitted.forgetting_rate != 0.05
    # In each round until the first fit at twenty outcomes, then at forty.
    assert len(models) == 22


def test_recommend_and_policy_go_with_it():
    incremental, plain = loop(IncrementalState(fitter())), loop(DenseState(fitter()))
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
    for state in (IncrementalState(fitter()), DenseState(fitter())):
        box = Box(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), num_restarts=2, raw_samples=32)
        optimizer = loop(state, search_space=box)
        for round_number in range(1, 7):
            trial = optimizer.ask(*ask_context(round_number))
            optimizer.tell(trial, outcome(trial))
        found.append(optimizer.observations.X)
    torch.testing.assert_close(*found, rtol=0, atol=1e-3)


def test_a_contextual_model(generator):
    plain = ContextualModelFitter(
        InputLayout(2, 1),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        UNIT,
        structure="additive",
        action_kernel=kernel(),
        context_kernel=MaternKernel(nu=1.5).double(),
        forgetting_rate=0.03,
        noise_variance=NOISE,
    )
    model = updated(IncrementalState(plain), told(), 40, generator)
    assert_same(model, exact(plain, told()), 11.0)


def test_unknown_noise(generator):
    state = IncrementalState(fitter(noise_variance=None, refit=RefitNever()))
    with pytest.raises(InputDataError):
        updated(state, told(), 40, generator)
    model = updated(state, told(Yvar=0.3), 40, generator)
    assert_same(model, exact(fitter(noise_variance=0.3), told()), 11.0)


def test_noise_free_repeats_go_on_as_with_the_dense_model(generator):
    """GPyTorch raises a noise variance of 0 to its least, and so does the loop."""
    twice = Observations(
        told(6).X.repeat(2, 1), told(6).Y.repeat(2, 1), torch.zeros(12, 1).double()
    )
    model = updated(IncrementalState(fitter(0.0)), twice, 12, generator)
    with pytest.warns(match="[Vv]ery small noise"):
        expected = exact(fitter(0.0), twice)
    assert_same(model, expected, 11.0, atol=1e-6)
