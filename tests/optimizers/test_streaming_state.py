"""The loop on a finite set: at every round the posterior of the model with all the data."""

import pickle

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import ScaleKernel
from reference import rbf
from states import updated

from tvbo import recipes
from tvbo.fit.model_fitter import ModelFitter
from tvbo.models import StreamingGP, TimeVaryingGP
from tvbo.optimizers import RefitEvery, RefitNever
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.pending import IgnorePending
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.retention import KeepAll, SlidingWindow, StaleCutoff
from tvbo.spaces import InputLayout
from tvbo.spaces.observations import Observations
from tvbo.test_functions.drifting_gp import unit_grid

CHOICES = unit_grid(4)
NOISE = 0.01


def dense_model(observations, rate):
    fitter = ModelFitter(
        InputLayout(2),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        rbf(),
        rate,
        NOISE,
        refit=RefitNever(),
    )
    return fitter.fit(observations, len(observations), torch.Generator())


def assert_same(model, other, t, atol=1e-8):
    rows = InputLayout(2).rows(CHOICES, t)
    got, expected = model.posterior(rows), other.posterior(rows)
    for name in ("mean", "variance"):
        torch.testing.assert_close(getattr(got, name), getattr(expected, name), rtol=0, atol=atol)


def outcome(trial):
    """A drifting function with scatter that repeats."""
    phase = 7.0 * trial.id
    return (
        torch.sin(4 * trial.X.sum() + trial.t / 9).item() + 0.1 * torch.tensor(phase).sin().item()
    )


def make(rate=0.05, recipe=recipes.tv_gp_ucb, **options):
    options = {"covar_module": rbf(), "noise_variance": NOISE, **options}
    if recipe is recipes.tv_gp_ucb:
        options["forgetting_rate"] = rate
    return recipe(choices=CHOICES, **options)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.combinations
def test_every_round_equals_the_dense_model(rate, delay, with_noise):
    optimizer = make(rate, retention=KeepAll(), pending=IgnorePending())
    waiting = []
    for t in range(1, 61):
        trial = optimizer.ask(float(t))
        assert isinstance(optimizer.model, StreamingGP)
        assert_same(optimizer.model, dense_model(optimizer.observations, rate), t)
        waiting.append(trial)
        # Told in twos, the newer first.
        if len(waiting) > delay and t % 2 == 0:
            for late in (waiting.pop(1 if delay else 0), waiting.pop(0)):
                optimizer.tell(late, outcome(late), Yvar=0.01 + late.id % 3 if with_noise else None)
    assert len(optimizer.observations) == 60 - len(waiting)


@pytest.mark.parametrize(
    ("options", "rate", "most"),
    [
        ({"recipe": recipes.r_gp_ucb, "every": 12}, 0.0, 11),
        ({"retention": SlidingWindow(length=7)}, 0.05, 7),
    ],
)
def test_forgotten_observations_leave_the_model(options, rate, most):
    optimizer = make(**options)
    for t in range(1, 40):
        trial = optimizer.ask(float(t))
        assert len(optimizer.observations) <= most
        assert optimizer.model.num_rows == len(optimizer.observations)
        assert_same(optimizer.model, dense_model(optimizer.observations, rate), t)
        optimizer.tell(trial, outcome(trial))


def test_stale_observations_go_without_building_anew(monkeypatch):
    """ε = 0.5: what is 40 rounds old weighs 1e-12 and goes, by default."""
    optimizer, everything = (
        make(0.5, pending=IgnorePending()),
        Observations.empty(3),
    )
    assert optimizer.retention == StaleCutoff(0.5, 1e-12)
    optimizer.ask(1.0)
    resets, rows = [], []
    monkeypatch.setattr(StreamingGP, "reset", _counted(StreamingGP.reset, resets))
    for t in range(1, 101):
        trial = optimizer.ask(float(t))
        rows.append(optimizer.model.num_rows)
        assert len(optimizer.observations) <= 40
        if t % 10 == 0:
            assert_same(optimizer.model, dense_model(everything, 0.5), t)
        optimizer.tell(trial, outcome(trial))
        everything = everything.append(optimizer.observations[-1:])
    assert resets == []
    assert rows == list(range(100))


@pytest.mark.slow
def test_refit_builds_anew():
    optimizer = make(
        None, covar_module=ScaleKernel(rbf()), noise_variance=None, refit=RefitEvery(10)
    )
    models = []
    for t in range(1, 41):
        trial = optimizer.ask(float(t))
        if not models or models[-1] is not optimizer.model:
            models.append(optimizer.model)
        fitted = optimizer.posterior_state.fitter.last_model
        assert optimizer.model.forgetting_rate == fitted.forgetting_rate
        if t > 1:
            # The refit's hyperparameters on all that is held now.
            now = TimeVaryingGP(
                optimizer.observations.X,
                optimizer.observations.Y,
                forgetting_rate=fitted.forgetting_rate.item(),
                covar_module=fitted.covar_module.kernels[0].base_kernel,
                likelihood=fitted.likelihood,
                mean_module=fitted.mean_module,
                outcome_transform=None,
            )
            assert_same(optimizer.model, now.eval(), t, atol=1e-7)
        optimizer.tell(trial, outcome(trial))
    # Each round until there is enough to learn from, then at every tenth outcome.
    assert isinstance(fitted, TimeVaryingGP)
    assert 4 <= len(models) <= 20


def test_learning_in_each_round_stays_with_the_dense_model():
    for options in ({"refit": RefitEvery(1)}, {"noise_variance": None}):
        assert isinstance(make(**options).posterior_state, DenseState)
    for options in ({}, {"refit": RefitEvery(2)}):
        assert isinstance(make(**options).posterior_state, StreamingState)
    box = recipes.tv_gp_ucb(
        bounds=torch.tensor([[0.0], [1.0]]),
        covar_module=rbf(),
        forgetting_rate=0.1,
        noise_variance=NOISE,
    )
    assert isinstance(box.posterior_state, IncrementalState)


def test_unknown_noise():
    optimizer = make(0.1, noise_variance=None, refit=RefitNever())
    optimizer.tell(optimizer.ask(), 1.0)
    with pytest.raises(InputDataError, match="Yvar with every outcome"):
        optimizer.ask()


def test_an_observation_beyond_reach_builds_anew(monkeypatch, generator):
    rate = 0.01
    fitter = ModelFitter(InputLayout(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), rbf(), rate, NOISE)
    state = StreamingState(fitter, CHOICES)
    X = torch.cat([CHOICES.repeat(13, 1), torch.arange(208.0).unsqueeze(-1)], dim=-1)[:200]
    seen = Observations(X, torch.sin(X[:, -1:]))
    model = updated(state, seen[:0], 0, generator)
    # Merge early: the default provides for the last 256.
    object.__setattr__(model.eviction_policy, "max_lateness", 5.0)
    for n in range(1, 201):
        updated(state, seen[:n], n, generator)
    assert model.earliest > 100
    resets = []
    monkeypatch.setattr(StreamingGP, "reset", _counted(StreamingGP.reset, resets))
    late = X[:1].clone()
    late[:, -1] = 50.5
    seen = seen.append(Observations(late, torch.ones(1, 1, dtype=torch.float64)))
    model = updated(state, seen, 201, generator)
    assert len(resets) == 1
    assert_same(model, dense_model(seen, rate), 200.0)


def test_nothing_to_drop_before_the_first_model():
    fitter = ModelFitter(InputLayout(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), rbf(), 0.1, NOISE)
    state = StreamingState(fitter, CHOICES)
    state.drop(Observations.empty(3), torch.ones(0, dtype=torch.bool), 1.0)
    assert state.last_model is None


def _counted(method, calls):
    def counted(self):
        calls.append(self)
        return method(self)

    return counted


def test_a_run_is_no_larger_once_old_outcomes_have_no_weight():
    """They have none from an age of 263 on, and nothing else grows."""
    optimizer, sizes = make(0.1), {}
    for t in range(1, 561):
        asks = t % 50 == 0
        trial = (
            optimizer.ask(float(t)) if asks else optimizer.attach(CHOICES[t % 16, None], float(t))
        )
        optimizer.tell(trial, outcome(trial))
        sizes[t] = len(pickle.dumps(optimizer)) if t in (350, 560) else 0
    assert optimizer.model_size < 350
    assert sizes[560] < 1.05 * sizes[350]


def test_limits_reach_the_model_and_a_later_outcome_is_still_exact():
    """With max_lateness 0 nothing may come late: the model is then built anew."""
    fitter = ModelFitter(InputLayout(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), rbf(), 0.05, NOISE)
    state = StreamingState(fitter, CHOICES, tol=1e-9, max_rows=500, max_lateness=0.0)
    rows = InputLayout(2).rows(CHOICES[:3], 5.0)
    observations = Observations(rows, torch.ones(3, 1, dtype=torch.float64))
    model = updated(state, observations, 3, torch.Generator())
    assert (
        model.eviction_policy.tol,
        model.eviction_policy.max_rows,
        model.eviction_policy.max_lateness,
    ) == (1e-9, 500, 0.0)
    late = Observations(
        InputLayout(2).rows(CHOICES[5:6], 2.0), torch.ones(1, 1, dtype=torch.float64) * 3
    )
    observations = observations.append(late)
    model = updated(state, observations, 4, torch.Generator())
    assert_same(model, dense_model(observations, 0.05), 6.0, atol=1e-10)


def test_noise_free_repeats_go_on_as_with_the_dense_model():
    """GPyTorch raises a noise variance of 0 to its least, and so does the loop."""
    optimizer = make(0.0, beta=0.0)
    for _ in range(12):
        trial = optimizer.ask()
        optimizer.tell(trial, trial.X.sum().item(), Yvar=0.0)
    best = optimizer.observations.X[-3:, :2]
    assert (best == best[0]).all()


@pytest.mark.parametrize("max_rows", [4, 10])
def test_late_outcomes_of_a_small_model_are_taken(max_rows):
    fitter = ModelFitter(InputLayout(2), torch.tensor([[0.0, 0.0], [1.0, 1.0]]), rbf(), 0.3, NOISE)
    state = StreamingState(fitter, CHOICES, max_rows=max_rows)
    observations = Observations.empty(3)
    generator = torch.Generator().manual_seed(0)
    for i in range(30):
        t = float(i if i % 3 else max(i - 5, 0))
        row = InputLayout(2).rows(
            CHOICES[int(torch.randint(16, (1,), generator=generator))][None], t
        )
        observations = observations.append(
            Observations(row, torch.randn(1, 1, generator=generator, dtype=torch.float64))
        )
        model = updated(state, observations, i + 1, generator)
        assert model.num_rows <= max_rows
