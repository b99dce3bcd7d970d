"""Asks for a batch, and for one of some choices: what is chosen, recorded, refused."""

from functools import partial

import pandas as pd
import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from gpytorch.kernels import RBFKernel
from torch import Generator

from tvbo import recipes
from tvbo.acquisition import BestMean, LogEI, MaxMean, ThompsonSampling
from tvbo.optimizers import Hallucinate, IgnorePending, Optimizer, TrialError

GRID = torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)
MIXED = {"x": (0.0, 1.0), "rule": ["a", "b", "c"]}
JOINT = partial(qLogNoisyExpectedImprovement, prune_baseline=False)


def kernel():
    made = RBFKernel().double()
    made.lengthscale = 0.2
    return made


def make(**options):
    given = {"bounds": [(0.0, 1.0)], "covar_module": kernel(), "forgetting_rate": 0.02}
    given |= {"noise_variance": 1e-3, "generator": Generator().manual_seed(0)}
    return recipes.tv_gp_ucb(**(given | options))


def bpe(bounds):
    return recipes.bpe_delay(bounds=bounds, covar_module=kernel(), noise_variance=0.1, horizon=9)


def value(X):
    return -((X[0, 0].item() - 0.4) ** 2)


def told(optimizer, rounds=4):
    for _ in range(rounds):
        trial = optimizer.ask()
        optimizer.tell(trial, value(trial.X))
    return optimizer


class Interruptible(Hallucinate):
    """Can be interrupted by the second ask of a batch."""

    armed = False

    def outcomes(self, rows, expected):
        if self.armed and len(rows) > 0:
            raise KeyboardInterrupt
        return super().outcomes(rows, expected)


SPACES = {
    "box": {},
    "finite": {"bounds": None, "choices": GRID},
    "mixed": {"bounds": MIXED},
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("acquisition", [None, JOINT], ids=["UCB", "qLogNEI"])
def test_a_batch_is_one_round_of_actions_that_differ(space, acquisition):
    optimizer = told(make(**SPACES[space], acquisition=acquisition))
    trials = optimizer.ask(q=3)
    assert [trial.id for trial in trials] == [5, 6, 7]
    assert {trial.t for trial in trials} == {5.0}
    assert len({tuple(trial.X[0].tolist()) for trial in trials}) == 3
    assert optimizer.open_trials == trials
    for trial in trials:
        optimizer.tell(trial, value(trial.X))
    assert optimizer.ask().t == 6.0


def test_a_batch_of_ucb_is_what_asking_on_chooses():
    one, two = told(make()), told(make())
    batch = one.ask(10.0, q=3)
    single = [two.ask(10.0) for _ in range(3)]
    assert [trial.X.item() for trial in batch] == [trial.X.item() for trial in single]


@pytest.mark.slow
def test_a_batch_under_constraints():
    optimizer = make(
        constraints={"load": (None, 0.5)}, objectives=["gain"], acquisition=JOINT, beta=None
    )
    for _ in range(8):
        trial = optimizer.ask()
        optimizer.tell(trial, {"gain": trial.X.item(), "load": trial.X.item()})
    trials = optimizer.ask(q=2)
    assert all(trial.X.item() < 0.55 for trial in trials)
    assert all(trial.feasibility > 0.9 for trial in trials)


def test_the_action_is_one_of_the_choices_of_the_moment():
    optimizer = make()
    generator = Generator().manual_seed(3)
    for _ in range(12):
        offered = torch.rand(5, 1, dtype=torch.float64, generator=generator)
        trial = optimizer.ask(choices=offered)
        assert torch.equal(trial.X[0], offered[trial.choice])
        optimizer.tell(trial, value(trial.X))
    best = optimizer.recommend(choices=[[0.1], [0.35], [0.9]])
    assert best.X.item() == 0.35
    assert abs(optimizer.recommend().X.item() - 0.4) < 0.06


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize(
    "acquisition",
    [LogEI(BestMean()), LogEI(MaxMean()), LogExpectedImprovement, qLogNoisyExpectedImprovement],
    ids=["LogEI", "on means", "BoTorch's LogEI", "qLogNEI"],
)
def test_every_incumbent_takes_choices(space, acquisition):
    """Actions were observed that are none of the choices."""
    optimizer = told(make(**SPACES[space], acquisition=acquisition), 5)
    draws = Generator().manual_seed(5)
    offered = torch.cat([optimizer.search_space.sample(draws) for _ in range(3)])
    trial = optimizer.ask(choices=offered)
    assert torch.equal(trial.X[0], offered[trial.choice])


def test_a_key_and_choices():
    optimizer = told(make())
    trial = optimizer.ask(key="k", choices=[[0.1], [0.9]])
    again = optimizer.ask(key="k", choices=[[0.5], trial.X[0].tolist()])
    assert (again.id, again.choice) == (trial.id, 1)
    with pytest.raises(TrialError):
        optimizer.ask(key="k", choices=[[0.5], [0.6]])


def test_a_batch_of_which_pending_trials_do_not_count():
    optimizer = told(make(pending=IgnorePending()))
    with pytest.raises(UnsupportedError):
        optimizer.ask(q=3)
    joint = told(make(pending=IgnorePending(), acquisition=JOINT))
    assert len({trial.X.item() for trial in joint.ask(q=3)}) == 3


def test_an_error_in_the_midst_of_a_batch_leaves_no_trial_open(monkeypatch):
    optimizer = told(make(pending=Interruptible()))
    monkeypatch.setattr(Interruptible, "armed", True)
    with pytest.raises(KeyboardInterrupt):
        optimizer.ask(q=3)
    assert optimizer.open_trials == ()
    assert optimizer.trial_log.newest[-1].reason.endswith("was interrupted")


def test_the_largest_upper_bound_among_the_choices():
    optimizer = told(make(**SPACES["finite"], beta=1.0))
    offered = GRID[[2, 9, 17]]
    trial = optimizer.ask(5.0, choices=offered)
    posterior = optimizer.model.posterior(
        torch.cat([offered, torch.full_like(offered, 5.0)], dim=-1)
    )
    upper = posterior.mean.flatten() + posterior.variance.flatten().sqrt()
    assert trial.choice == upper.argmax()


def test_choices_by_name():
    optimizer = make(bounds=MIXED)
    frame = pd.DataFrame({"x": [0.1, 0.5], "rule": ["b", "c"]})
    trial = optimizer.ask(choices=frame)
    assert trial.parameters == frame.iloc[trial.choice].to_dict()
    optimizer.tell(trial, 1.0)
    both = optimizer.ask(q=2, choices={"x": [0.2, 0.3], "rule": ["a"]})
    assert {each.parameters["rule"] for each in both} == {"a"}
    assert optimizer.recommend(choices=frame).parameters["rule"] in "bc"


LOOPS = {
    "UCB": {},
    "qLogNEI": {"acquisition": JOINT},
    "Thompson": {"acquisition": ThompsonSampling()},
    "mixed": {"bounds": MIXED},
    "finite": {"bounds": None, "choices": GRID},
    "learned": {
        "covar_module": None,
        "forgetting_rate": None,
        "noise_variance": None,
        "initial": 4,
    },
}


@pytest.mark.slow_cases("qLogNEI", "mixed", "Thompson", "learned")
@pytest.mark.parametrize("options", LOOPS.values(), ids=LOOPS)
def test_a_recorded_run_goes_on_from_requests(tmp_path, options):
    run = tmp_path / "run.db"

    def play(optimizer, rounds):
        for t in rounds:
            space = optimizer.search_space
            draws = Generator().manual_seed(t)
            offered = torch.cat([space.sample(draws) for _ in range(6)])
            trials = optimizer.ask(float(t), q=2) if t % 2 else ()
            one = optimizer.ask(float(t), choices=space.snap(offered))
            for trial in (*trials, one):
                optimizer.tell(trial, value(trial.X))

    whole = make(**options)
    play(whole, range(1, 7))
    parts = make(**options)
    parts.record(run)
    play(parts, range(1, 4))
    parts.close()
    with Optimizer.open(run, like=make(**options)) as again:
        play(again, range(4, 7))
        expected = whole.ask(8.0).X
        torch.testing.assert_close(again.ask(8.0).X, expected, rtol=1e-6, atol=1e-6)


def test_a_batch_that_is_cut_off_was_none(tmp_path, monkeypatch):
    run = tmp_path / "run.db"
    optimizer = make(pending=Interruptible())
    optimizer.record(run)
    told(optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(Interruptible, "armed", True)
        with pytest.raises(KeyboardInterrupt):
            optimizer.ask(q=3)
    optimizer.close()
    with Optimizer.open(run, like=make(pending=Interruptible())) as again:
        assert again.open_trials == ()
        assert [trial.id for trial in again.ask(q=3)] == [5, 6, 7]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"q": 0}, InputDataError),
        ({"q": 2.0}, InputDataError),
        ({"q": True}, InputDataError),
        ({"q": 2, "key": "a"}, InputDataError),
        ({"choices": [[0.5], [1.5]]}, InputDataError),
        ({"choices": [[0.5, 0.5]]}, BotorchTensorDimensionError),
        ({"choices": []}, ValueError),
        ({"choices": [{"x": 0.5}]}, InputDataError),
        ({"bounds": MIXED, "choices": {"x": (0.0, 0.2), "rule": ["a"]}}, InputDataError),
        ({"bounds": MIXED, "choices": {"x": "a", "rule": ["a"]}}, InputDataError),
        ({"recipe": bpe, "q": 2}, UnsupportedError),
        ({"recipe": bpe, "choices": GRID[:2]}, UnsupportedError),
    ],
)
def test_a_bad_request_changes_nothing(tmp_path, given, error):
    bounds = given.pop("bounds", [(0.0, 1.0)])
    optimizer = given.pop("recipe", make)(bounds=bounds)
    optimizer.record(tmp_path / "run.db")
    with pytest.raises(error):
        optimizer.ask(**given)
    assert (optimizer.num_trials, optimizer.open_trials) == (0, ())
    assert optimizer.ask().id == 1


def test_random_search_among_choices():
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)])
    found = {optimizer.ask(choices=[[0.1], [0.9]]).choice for _ in range(30)}
    assert found == {0, 1}
    assert len(optimizer.ask(q=4)) == 4
