"""Recipes for late outcomes: without delay their undelayed forms, with delay what they say."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.acquisition import LogBeta
from tvbo.feedback.pending import Hallucinate, IgnorePending, Minimum
from tvbo.models import StreamingGP
from tvbo.optimizers import RefitEvery
from tvbo.problems import drifting_gp, unit_grid

CHOICES = torch.rand(15, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
NOISE = 0.02
LOWEST = -2.0


def rbf():
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    return kernel


FORMS = {
    "gp_bucb": (recipes.gp_bucb, {}, recipes.gp_ucb),
    "gp_ucb_sdf": (recipes.gp_ucb_sdf, {"minimum": LOWEST}, recipes.gp_ucb),
    "gp_ts_sdf": (recipes.gp_ts_sdf, {"minimum": LOWEST}, recipes.gp_ts),
}


def settings(where, how):
    options = {"choices": CHOICES} if where == "finite" else {"bounds": BOUNDS}
    options["generator"] = torch.Generator().manual_seed(3)
    if how == "given":
        return options | {"covar_module": rbf(), "noise_variance": NOISE}
    every = {"every-round": 1, "every-fourth": 4}[how]
    # Two numbers to learn, lengthscale and mean: the first fit is that of four outcomes.
    return options | {"covar_module": rbf(), "noise_variance": NOISE, "refit": RefitEvery(every)}


def reward(trial):
    return math.sin(5 * trial.X.sum().item()) + 0.1 * math.sin(17.0 * trial.id)


def choices_of(optimizer, n, delay=0, fate=lambda trial: "tell"):
    """Actions of ``n`` rounds, outcomes told so many rounds later, or failed or never answered."""
    waiting, chosen = [], []
    for t in range(1, n + 1):
        trial = optimizer.ask(float(t))
        chosen.append(trial.X)
        waiting.append(trial)
        if len(waiting) > delay:
            answered = waiting.pop(0)
            kind = fate(answered)
            if kind == "tell":
                optimizer.tell(answered, reward(answered))
            elif kind == "fail":
                optimizer.fail(answered, "lost")
    return torch.cat(chosen)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("where", "how"),
    [
        ("finite", "given"),
        ("finite", "every-round"),
        ("finite", "every-fourth"),
        ("box", "given"),
        ("box", "every-round"),
    ],
)
@pytest.mark.combinations
def test_without_delay_the_choices_are_those_of_the_undelayed_form(form, where, how):
    """Bit for bit."""
    recipe, options, plain = FORMS[form]
    n = 6 if where == "box" else 9
    one, two = (
        recipe(**options, **settings(where, how)),
        plain(**settings(where, how)),
    )
    assert torch.equal(choices_of(one, n), choices_of(two, n))
    assert torch.equal(one.generator.get_state(), two.generator.get_state())
    assert one.model_size == two.model_size == n
    assert (one.surrogate.newest_fit is None) == (how == "given")


@pytest.mark.parametrize("form", FORMS)
def test_without_delay_also_where_the_function_drifts(form):
    recipe, options, plain = FORMS[form]
    given = settings("finite", "given")
    one = recipe(**options, forgetting_rate=0.05, **given)
    if plain is recipes.gp_ucb:
        two = recipes.tv_gp_ucb(forgetting_rate=0.05, **settings("finite", "given"))
    else:
        two = plain(forgetting_rate=0.05, **settings("finite", "given"))
    assert torch.equal(choices_of(one, 30), choices_of(two, 30))


@pytest.mark.parametrize("form", FORMS)
def test_a_trial_that_failed_at_once_leaves_no_trace(form):
    """As if every outcome had come at once: nothing was ever open at an ask."""
    recipe, options, plain = FORMS[form]
    one, two = (
        recipe(**options, **settings("finite", "given")),
        plain(**settings("finite", "given")),
    )

    def fate(trial):
        return "fail" if trial.id % 3 == 0 else "tell"

    assert torch.equal(choices_of(one, 20, fate=fate), choices_of(two, 20, fate=fate))
    assert one.closed.num_failed == two.closed.num_failed == 6


@pytest.mark.parametrize(
    ("recipe", "options", "policy"),
    [
        (recipes.gp_bucb, {}, Hallucinate()),
        (recipes.gp_ucb_sdf, {"minimum": LOWEST}, Minimum(LOWEST)),
    ],
    ids=["gp_bucb", "gp_ucb_sdf"],
)
def test_with_delay_they_are_gp_ucb_with_a_policy(recipe, options, policy):
    given = settings("finite", "given")
    one = recipe(**options, **given)
    two = recipes.gp_ucb(pending=policy, **settings("finite", "given"))
    assert torch.equal(choices_of(one, 30, delay=6), choices_of(two, 30, delay=6))
    assert one.pending == policy


def test_with_delay_gp_ts_sdf_is_gp_ts_with_a_policy():
    one = recipes.gp_ts_sdf(minimum=LOWEST, **settings("finite", "given"))
    two = recipes.gp_ts(pending=Minimum(LOWEST), **settings("finite", "given"))
    plain = recipes.gp_ts(**settings("finite", "given"))
    assert isinstance(plain.pending, IgnorePending)
    chosen = choices_of(one, 30, delay=6)
    assert torch.equal(chosen, choices_of(two, 30, delay=6))
    assert not torch.equal(chosen, choices_of(plain, 30, delay=6))


@pytest.mark.parametrize("recipe", [recipes.gp_bucb, recipes.gp_ucb])
def test_open_trials_are_not_tried_again(recipe):
    """GP-BUCB goes where least is known; GP-UCB asks for the best over and over."""
    told = recipe(beta=4.0, **settings("finite", "given"))
    told.tell(told.attach(CHOICES[0], 0.0), 1.0)
    X = [told.ask(float(t)).X for t in range(1, 9)]
    different = len(torch.unique(torch.cat(X), dim=0))
    assert different == (8 if recipe is recipes.gp_bucb else 1)


def test_gp_bucb_by_hand():
    """Algorithm 2 in numpy: mean by what came, standard deviation by all that was chosen."""
    optimizer = recipes.gp_bucb(**settings("finite", "given"))
    C = CHOICES.numpy()

    def k(A, B):
        return np.exp(-((A[:, None] - B[None]) ** 2).sum(-1) / (2 * 0.3**2))

    beta = LogBeta()
    chosen, outcomes, waiting = [], {}, []
    for t in range(1, 25):
        trial = optimizer.ask(float(t))
        if chosen:
            came = [i for i in range(len(chosen)) if i in outcomes]
            A = np.array(chosen)
            K = k(A, A) + NOISE * np.eye(len(A))
            variance = 1 - (k(A, C) * np.linalg.solve(K, k(A, C))).sum(0)
            mean = np.zeros(len(C))
            if came:
                weights = np.linalg.solve(K[np.ix_(came, came)], [outcomes[i] for i in came])
                mean = k(A[came], C).T @ weights
            index = mean + math.sqrt(beta(t)) * np.sqrt(variance)
            here = int((CHOICES == trial.X).all(-1).nonzero())
            assert index[here] == pytest.approx(index.max(), abs=1e-8)
        chosen.append(trial.X.numpy()[0])
        waiting.append(trial)
        # Out of order: every other one, the newest first.
        while len(waiting) > 5:
            late = waiting.pop(-2 if t % 2 else 0)
            outcomes[late.id - 1] = reward(late)
            optimizer.tell(late, reward(late))


@pytest.mark.parametrize(
    ("form", "where"),
    [("gp_bucb", "box"), ("gp_ucb_sdf", "finite"), ("gp_ts_sdf", "box"), ("gp_ts", "finite")],
)
def test_with_delay_in_all_forms(form, where):
    """Learned hyperparameters of BoTorch's default kernel; late, failed and lost outcomes."""
    recipe, options, _ = FORMS.get(form, (recipes.gp_ts, {}, None))
    space = {"choices": CHOICES} if where == "finite" else {"bounds": BOUNDS}
    optimizer = recipe(**options, **space, refit=RefitEvery(6), forgetting_rate=None)
    fates = ["tell", "tell", "fail", "tell", "never"]
    chosen = choices_of(optimizer, 11, delay=2, fate=lambda trial: fates[trial.id % 5])
    assert torch.isfinite(chosen).all()
    assert (chosen >= 0).all()
    assert (chosen <= 1).all()
    assert len(optimizer.open_trials) == 2 + 2


@pytest.fixture
def problem():
    return drifting_gp(unit_grid(4), rbf(), 0.1, horizon=40, noise_variance=NOISE)


@pytest.mark.parametrize("form", FORMS)
def test_outcomes_that_never_come(problem, form):
    """Every third is lost; the loop goes on, and says so."""
    recipe, options, _ = FORMS[form]
    optimizer = recipe(
        choices=problem.choices,
        covar_module=rbf(),
        forgetting_rate=0.1,
        noise_variance=NOISE,
        **options,
    )

    def delay(trial):
        return math.inf if trial.id % 3 == 0 else 2.5 * (trial.id % 4)

    history = run(problem, optimizer, horizon=40, delay=delay, progress=False)
    lost = [each.trial.id for each in history.rounds if math.isnan(each.reward)]
    on_time = {i for i in range(1, 41) if i + delay_of(i) <= 40}
    assert set(lost) == set(range(1, 41)) - on_time
    assert {trial.id for trial in optimizer.open_trials} == set(lost)
    assert optimizer.closed.num_told == len(on_time)
    assert isinstance(optimizer.model, StreamingGP)
    expired = optimizer.expire_overdue(1000.0, 10.0)
    assert {trial.id for trial in expired} == set(lost)
    assert optimizer.open_trials == ()


def delay_of(i):
    return math.inf if i % 3 == 0 else 2.5 * (i % 4)


def test_nothing_ever_comes(problem):
    optimizer = recipes.gp_bucb(choices=problem.choices, covar_module=rbf(), noise_variance=NOISE)
    history = run(problem, optimizer, horizon=20, delay=lambda trial: math.inf, progress=False)
    assert all(math.isnan(each.reward) for each in history.rounds)
    assert optimizer.model_size == 0
    # All 16 actions were tried for their variance alone before any was repeated often.
    assert len(torch.unique(history.X[:, :2], dim=0)) >= 12


@pytest.mark.parametrize("bad", [-1.0, math.nan, -math.inf])
def test_a_delay_that_is_none(problem, bad):
    optimizer = recipes.gp_bucb(choices=problem.choices, covar_module=rbf(), noise_variance=NOISE)
    with pytest.raises(ValueError, match=f"Expected a delay >= 0. Got {bad} for trial 1"):
        run(problem, optimizer, horizon=3, delay=lambda trial: bad, progress=False)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("recipe", [recipes.gp_ucb_sdf, recipes.gp_ts_sdf])
def test_a_minimum_that_is_not_finite(recipe, bad):
    with pytest.raises(ValueError, match="least value of the function, a finite number"):
        recipe(minimum=bad, choices=CHOICES, covar_module=rbf(), noise_variance=NOISE)


@pytest.mark.parametrize("recipe", [recipes.gp_ucb_sdf, recipes.gp_ts_sdf])
def test_a_minimum_is_needed(recipe):
    with pytest.raises(TypeError, match="minimum"):
        recipe(choices=CHOICES, covar_module=rbf(), noise_variance=NOISE)
