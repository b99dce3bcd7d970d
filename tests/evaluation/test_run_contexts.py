"""`run` with contexts, and what the history says of them."""

import math

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.test_functions import ContextualPanelProblem, PanelProblem, TimeOfDayPanel

T, N, M = 12, 5, 3


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


LISTED = tensor([0.1, 5.0], [0.3, 5.0], [0.3, 6.0])
VALUES = torch.rand(T, N, M, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DRAWN = LISTED[torch.randint(M, (T,), generator=torch.Generator().manual_seed(1))]


@pytest.fixture
def problem():
    return ContextualPanelProblem(VALUES, LISTED, noise_variance=0.01)


def contextual(problem, **declared):
    return recipes.tv_cgp_ucb(
        choices=problem.choices,
        action_kernel=RBFKernel(),
        context_kernel=RBFKernel(),
        forgetting_rate=0.1,
        noise_variance=0.1,
        **(declared or {"contexts": LISTED}),
    )


def without(problem):
    return recipes.tv_gp_ucb(
        choices=problem.choices, covar_module=RBFKernel(), forgetting_rate=0.1, noise_variance=0.1
    )


def optimal(contexts, times):
    """The largest value in each round, from the table."""
    places = [int((context == LISTED).all(-1).nonzero()) for context in contexts]
    return tensor(*[VALUES[int(t) - 1, :, j].max() for t, j in zip(times, places, strict=True)])


@pytest.mark.parametrize(
    "declared",
    [{"contexts": LISTED}, {"context_bounds": tensor([0.0, 5.0], [1.0, 6.0])}],
    ids=["list", "bounds"],
)
def test_the_optimizer_is_told_the_contexts(problem, declared):
    optimizer = contextual(problem, **declared)
    history = run(problem, optimizer, horizon=T, contexts=DRAWN, progress=False)
    assert torch.equal(history.contexts, DRAWN)
    assert torch.equal(torch.stack([r.trial.context for r in history.rounds]), DRAWN)
    log = history.observations()
    assert torch.equal(log.X, torch.cat([history.X, DRAWN, history.t[:, None]], dim=-1))
    assert torch.equal(log.X, optimizer.observations.X)
    assert torch.equal(log.Y, optimizer.observations.Y)
    value = tensor(*[r.value for r in history.rounds])
    torch.testing.assert_close(value, problem.evaluate_true(log.X))
    torch.testing.assert_close(history.regret, optimal(DRAWN, history.t) - value)
    assert (history.regret >= 0).all()


@pytest.mark.parametrize(
    "make", [without, lambda problem: recipes.random_search(choices=problem.choices)]
)
def test_without_contexts_it_is_scored_against_the_optimum_in_context(problem, make):
    optimizer = make(problem)
    history = run(problem, optimizer, horizon=T, contexts=DRAWN, progress=False)
    assert all(r.trial.context is None for r in history.rounds)
    assert torch.equal(history.contexts, DRAWN)
    value = tensor(*[r.value for r in history.rounds])
    torch.testing.assert_close(history.regret, optimal(DRAWN, history.t) - value)
    # The log has the contexts all the same.
    assert history.observations().X.shape == (T, 4)
    if optimizer.model_size:
        assert optimizer.observations.X.shape == (T, 2)


@pytest.mark.parametrize("recipe", [recipes.merged, recipes.separate])
def test_the_baselines_run(problem, recipe):
    optimizer = recipe(
        choices=problem.choices, contexts=LISTED, covar_module=RBFKernel(), noise_variance=0.1
    )
    history = run(problem, optimizer, horizon=T, contexts=DRAWN, progress=False)
    assert history.model_size.tolist() == list(range(T))
    assert torch.equal(torch.stack([r.trial.context for r in history.rounds]), DRAWN)


def test_the_context_of_the_time_of_day():
    times = torch.arange(0.0, 12.0, dtype=torch.float64) * 3
    panel = TimeOfDayPanel(VALUES[:, :, 0], times=times)
    optimizer = contextual(panel, contexts=panel.contexts)
    history = run(panel, optimizer, horizon=T, times=times, progress=False)
    angle = 2 * math.pi * times / 24
    torch.testing.assert_close(history.contexts, torch.stack([angle.cos(), angle.sin()], dim=-1))
    torch.testing.assert_close(
        history.regret + tensor(*[r.value for r in history.rounds]), VALUES[:, :, 0].amax(dim=1)
    )


def test_five_asks_at_each_time_see_one_another(problem):
    times = [t for t in range(1, 4) for _ in range(5)]
    contexts = DRAWN[:3].repeat_interleave(5, dim=0)
    optimizer = contextual(problem)
    history = run(problem, optimizer, horizon=15, times=times, contexts=contexts, progress=False)
    assert history.t.tolist() == [float(t) for t in times]
    assert history.model_size.tolist() == list(range(15))
    # By hand, with the noise of the run.
    again = contextual(problem)
    for r in history.rounds:
        trial = again.ask(t=r.trial.t, context=r.context)
        assert torch.equal(trial.X, r.trial.X)
        again.tell(trial, r.reward)


def test_outcomes_late_enter_with_their_contexts(problem):
    optimizer = contextual(problem)
    history = run(
        problem,
        optimizer,
        horizon=T,
        contexts=DRAWN,
        delay=lambda trial: 4.0 if trial.id % 2 else 1.0,
        progress=False,
    )
    assert [trial.id for trial in optimizer.open_trials] == [9, 11, 12]
    # The optimizer has them in the order of arrival, the log by round.
    mine = optimizer.observations.X[optimizer.observations.X[:, -1].argsort()]
    assert torch.equal(mine, history.observations().X)
    arrived = ~history.reward.isnan()
    assert torch.equal(mine[:, 1:3], DRAWN[arrived])


def test_frame_and_csv(problem, tmp_path):
    history = run(problem, contextual(problem), horizon=3, contexts=DRAWN[:3], progress=False)
    frame = history.to_frame()
    assert list(frame.columns)[:6] == ["trial", "t", "action_0", "context_0", "context_1", "reward"]
    assert frame[["context_0", "context_1"]].to_numpy().tolist() == DRAWN[:3].tolist()
    history.to_csv(tmp_path / "rounds.csv")
    written = pd.read_csv(tmp_path / "rounds.csv", dtype={"reason": str}).fillna({"reason": ""})
    pd.testing.assert_frame_equal(written, frame)


def test_no_contexts_no_columns():
    panel = PanelProblem(VALUES[:, :, 0])
    history = run(panel, without(panel), horizon=2, progress=False)
    assert history.contexts is None
    assert "context_0" not in history.to_frame().columns


def test_single_precision_contexts_are_logged_as_they_were_declared(problem):
    """The log is what the optimizer learned from, so that a fit of it finds the same contexts."""
    optimizer = contextual(problem)
    history = run(problem, optimizer, horizon=T, contexts=DRAWN.float(), progress=False)
    assert torch.equal(torch.stack([r.trial.context for r in history.rounds]), DRAWN)
    assert history.contexts.dtype == torch.float64
    assert torch.equal(history.observations().X, optimizer.observations.X)


def test_contexts_are_missing(problem):
    for optimizer in (contextual(problem), without(problem)):
        with pytest.raises(
            ValueError, match=r"contexts \(12 x 2\), since the problem has contexts"
        ):
            run(problem, optimizer, horizon=T, progress=False)
        assert optimizer.open_trials == ()


@pytest.mark.parametrize("shape", [(T - 1, 2), (T, 1), (T,), (T, 2, 1)])
def test_contexts_of_another_shape(problem, shape):
    optimizer = contextual(problem)
    with pytest.raises(ValueError, match="contexts of shape 12 x 2. Got contexts.shape"):
        run(problem, optimizer, horizon=T, contexts=torch.zeros(shape), progress=False)
    assert optimizer.open_trials == ()


@pytest.mark.parametrize("make", [contextual, without])
def test_a_context_that_is_not_finite_is_refused_before_the_first_ask(problem, make):
    optimizer, contexts = make(problem), DRAWN.clone()
    contexts[7, 1] = math.nan
    with pytest.raises(InputDataError, match=r"finite contexts?. Got nan at index \(7, 1\)"):
        run(problem, optimizer, horizon=T, contexts=contexts, progress=False)
    assert optimizer.open_trials == ()


def test_contexts_for_a_problem_without():
    panel = PanelProblem(VALUES[:, :, 0])
    with pytest.raises(ValueError, match="contexts of shape 12 x 0"):
        run(panel, without(panel), horizon=T, contexts=DRAWN, progress=False)
    # The optimizer expects what the problem does not have.
    with pytest.raises(BotorchTensorDimensionError, match="Expected a context of size 2.*Got none"):
        run(panel, contextual(panel), horizon=T, progress=False)
