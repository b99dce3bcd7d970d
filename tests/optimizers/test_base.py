"""Ask and tell: what is refused, and that nothing is lost by it."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from tvbo import recipes
from tvbo.optimizers import TrialError
from tvbo.optimizers.random_search import RandomSearch


@pytest.fixture
def optimizer():
    return recipes.random_search(bounds=torch.tensor([[0.0, 0.0], [1.0, 2.0]]))


@pytest.fixture
def learner():
    from gpytorch.kernels import RBFKernel

    return recipes.tv_gp_ucb(
        choices=torch.arange(5.0).unsqueeze(-1),
        covar_module=RBFKernel(),
        forgetting_rate=0.1,
        noise_variance=0.1,
    )


def test_rounds_are_counted_where_no_time_is_given(optimizer):
    trials = [optimizer.ask() for _ in range(3)]
    assert [trial.t for trial in trials] == [1.0, 2.0, 3.0]
    assert [trial.id for trial in trials] == [1, 2, 3]
    assert optimizer.open_trials == tuple(trials)
    assert trials[0].X.shape == (1, 2)
    assert trials[0].X.dtype == torch.float64


def test_outcomes_in_any_order_by_trial_or_id(learner):
    first, second = learner.ask(), learner.ask()
    learner.tell(second.id, 2.0)
    learner.tell(first, torch.tensor([[1.0]]))
    assert learner.open_trials == ()
    assert learner.observations.Y.flatten().tolist() == [2.0, 1.0]
    # Each with the time at which it was sampled.
    assert learner.observations.X[:, -1].tolist() == [2.0, 1.0]


def test_a_trial_is_told_once(optimizer):
    trial = optimizer.ask()
    optimizer.tell(trial, 1.0)
    with pytest.raises(TrialError, match="Got trial 1, told already"):
        optimizer.tell(trial, 1.0)


@pytest.mark.parametrize("unknown", [7, 0, "abc", [1]])
def test_an_unknown_trial_is_refused(optimizer, unknown):
    optimizer.ask()
    with pytest.raises(TrialError, match=r"one of \[1\]. Got unknown trial"):
        optimizer.tell(unknown, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused_and_the_trial_stays_open(learner, bad):
    trial = learner.ask()
    with pytest.raises(InputDataError, match="Expected finite Y"):
        learner.tell(trial, bad)
    with pytest.raises(InputDataError, match="Expected finite Yvar"):
        learner.tell(trial, 1.0, Yvar=bad)
    with pytest.raises(InputDataError, match="Yvar >= 0"):
        learner.tell(trial, 1.0, Yvar=-1.0)
    assert learner.open_trials == (trial,)
    assert len(learner.observations) == 0
    learner.tell(trial, 1.0)
    assert len(learner.observations) == 1


def test_a_reward_is_one_number(optimizer):
    trial = optimizer.ask()
    with pytest.raises(
        BotorchTensorDimensionError, match="Y to be one number. Got Y.shape=\\(2,\\)"
    ):
        optimizer.tell(trial, torch.zeros(2))


def test_noise_variance_with_every_reward_or_with_none(learner):
    learner.tell(learner.ask(), 1.0, Yvar=0.1)
    trial = learner.ask()
    with pytest.raises(InputDataError, match="Yvar with every observation or with none"):
        learner.tell(trial, 1.0)
    assert learner.open_trials == (trial,)


def test_time_does_not_run_backwards_in_ask(optimizer):
    optimizer.ask(t=5.0)
    with pytest.raises(InputDataError, match="Expected t >= 5.0.*Got t=4.0"):
        optimizer.ask(t=4.0)
    # Nothing was lost: the same time again, and a later one, are fine.
    assert optimizer.ask(t=5.0).id == 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_time_must_be_finite(optimizer, bad):
    with pytest.raises(InputDataError, match="Expected a finite time"):
        optimizer.ask(t=bad)


def test_context_was_not_declared(optimizer):
    with pytest.raises(BotorchTensorDimensionError, match="declared without context"):
        optimizer.ask(context=torch.zeros(1))
    assert optimizer.open_trials == ()


def test_attach_opens_a_trial_of_the_callers_choice_at_an_earlier_time(learner):
    learner.ask(t=10.0)
    trial = learner.attach(torch.tensor([3.0]), t=2.0)
    learner.tell(trial, 0.7)
    assert learner.observations.X.tolist() == [[3.0, 2.0]]


def test_a_trial_of_another_optimizer_is_refused(optimizer):
    other = recipes.random_search(
        bounds=torch.tensor([[0.0, 0.0], [1.0, 2.0]]), generator=torch.Generator().manual_seed(9)
    )
    mine = optimizer.ask()
    with pytest.raises(TrialError, match="Expected a trial of this optimizer. Got a trial 1"):
        optimizer.tell(other.ask(), 1.0)
    assert optimizer.open_trials == (mine,)


def test_an_action_is_not_chosen_for_a_time_before_what_was_observed(learner):
    learner.tell(learner.attach([3.0], t=99.0), 1.0)
    with pytest.raises(InputDataError, match=r"t >= 99.0.* trial 1.*Got t=1.0"):
        learner.ask()
    assert learner.ask(t=99.0).t == 99.0


def test_attach_refuses_what_is_outside(optimizer, learner):
    with pytest.raises(InputDataError, match=r"within bounds .*. Got \[0.5, 3.0\]"):
        optimizer.attach([0.5, 3.0], t=1.0)
    with pytest.raises(InputDataError, match=r"among the 5 choices. Got \[0.5\]"):
        learner.attach([0.5], t=1.0)
    with pytest.raises(BotorchTensorDimensionError, match="last dimension 2"):
        optimizer.attach([0.5], t=1.0)
    with pytest.raises(InputDataError, match="Expected finite X"):
        optimizer.attach([0.5, float("nan")], t=1.0)
    with pytest.raises(BotorchTensorDimensionError, match="Expected one action"):
        optimizer.attach(torch.zeros(2, 2), t=1.0)
    assert optimizer.open_trials == ()


def test_a_fresh_optimizer_without_generator_repeats(optimizer):
    again = recipes.random_search(bounds=torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    assert torch.equal(optimizer.ask().X, again.ask().X)


class Patient(RandomSearch):
    """A user's own, which waits within ask, and overrides what it likes."""

    def __init__(self, search_space):
        super().__init__(search_space)
        self.calls = []

    def ask(self, t=None, context=None):
        trial = super().ask(t, context)
        calls, self.calls = self.calls, []
        with ThreadPoolExecutor(1) as pool:
            for call in calls:
                with pytest.raises(RuntimeError, match="Expected one call at a time. Got "):
                    pool.submit(call).result()
        # The thread that is in it may call again.
        self.fail(trial, "a crash")
        return trial

    def recommend(self, context=None, t=None):
        return "its own"


def test_one_thread_at_a_time(optimizer):
    patient = Patient(optimizer.search_space)
    patient.calls = [
        patient.ask,
        patient.recommend,
        patient.close,
        lambda: patient.attach([[0.0, 0.0]], t=1.0),
        lambda: patient.tell(1, 0.5),
        lambda: patient.fail(1, "a crash"),
        lambda: patient.expire(1),
    ]
    patient.ask()
    assert len(patient.open_trials) == 0
    # Another may go on afterwards.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(patient.ask).result().id == 2
        assert pool.submit(patient.recommend).result() == "its own"


def test_copies_are_called_by_themselves(learner):
    """A copy that is made within a call is not in that call."""
    learner.ask()
    with learner._call_guard.enter("ask"), ThreadPoolExecutor(1) as pool:
        for copy in (deepcopy(learner), pickle.loads(pickle.dumps(learner))):
            assert pool.submit(copy.ask).result().id == 2
