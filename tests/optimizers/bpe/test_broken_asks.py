"""An ask that broke half-way, where no journal is kept, was none."""

import pytest
import torch

from tvbo.optimizers.base import Optimizer
from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.bpe.confidence import FixedWidth
from tvbo.optimizers.bpe.delay_estimate import estimate_delay
from tvbo.optimizers.bpe.delays import NO_DELAY, EstimatedDelay
from tvbo.spaces import Box, FiniteSpace

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


def value(trial):
    return (torch.sin(6 * trial.X[0, 0]) * trial.X[0, 1]).item()


@pytest.fixture(params=["set", "box"])
def search_space(request, choices):
    return FiniteSpace(choices) if request.param == "set" else Box(BOX)


def make(search_space, kernel, delay=NO_DELAY, horizon=36):
    return BPEDelay(search_space, kernel, 0.01, horizon, delay=delay, width=FixedWidth(2.0))


def interrupt(optimizer, monkeypatch):
    """Ctrl-C after an action was chosen, before the ask counts."""

    def stop(self, *events):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "_recorded", stop)
        with pytest.raises(KeyboardInterrupt):
            optimizer.ask()


def test_outcomes_stay_with_their_actions(search_space, kernel, monkeypatch):
    optimizer = make(search_space, kernel)
    trials = []
    for n in range(6):
        if n in (0, 2, 5):
            interrupt(optimizer, monkeypatch)
        trials.append(optimizer.ask())
        optimizer.tell(trials[-1], value(trials[-1]))
    interrupt(optimizer, monkeypatch)
    asked = torch.cat([trial.X for trial in trials])
    record = optimizer.rounds[0]
    assert torch.equal(optimizer.bounds.X, asked)
    assert (record.num_chosen, record.num_arrived) == (6, 6)
    assert record.first_trial == trials[0].id
    # As if it had asked for these, and for no other.
    mean, _ = optimizer.bounds.moments(asked)
    covar = kernel(asked, asked).to_dense()
    Y = torch.tensor([value(trial) for trial in trials], dtype=torch.float64)
    solved = torch.linalg.solve(covar + 0.01 * torch.eye(6).double(), Y)
    torch.testing.assert_close(mean, (covar @ solved).detach(), atol=1e-10, rtol=0)


def test_choices_rest_on_what_was_asked(search_space, kernel, monkeypatch):
    optimizer = make(search_space, kernel, horizon=100)
    first = optimizer.ask()
    for _ in range(3):
        interrupt(optimizer, monkeypatch)
    second = optimizer.ask()
    assert optimizer.model_size == 2
    X = optimizer.survivors
    asked = torch.cat([first.X, second.X])
    cross = kernel(asked, X).to_dense().detach()
    covar = kernel(asked, asked).to_dense().detach() + 0.01 * torch.eye(2).double()
    variance = 1 - (cross * torch.linalg.solve(covar, cross)).sum(dim=0)
    torch.testing.assert_close(optimizer._region.variance, variance, atol=1e-10, rtol=0)


def test_no_delay_is_learned_from_an_ask_that_was_none(choices, kernel, monkeypatch):
    optimizer = make(FiniteSpace(choices), kernel, delay=EstimatedDelay(), horizon=400)
    interrupt(optimizer, monkeypatch)
    trials = [optimizer.ask() for _ in range(20)]
    for trial in trials[10:]:
        optimizer.tell(trial, 0.0)  # 9 to 0 asks after their own
    optimizer.ask()
    expected = estimate_delay(range(10), range(10, 20)).upper_bound(400, 0.1)
    assert optimizer.preview().record.upper_bound == pytest.approx(expected, rel=1e-12)


def test_a_round_ends_once(search_space, kernel):
    """The rule that plans the next one breaks at first."""

    class Broken:
        plans = 0

        def shortest(self, horizon, delta):
            return 0.0

        def wait(self, horizon, delta, arrived, awaited):
            self.plans += 1
            if self.plans == 2:
                raise RuntimeError("no answer")
            return 0.0

    optimizer = make(search_space, kernel, delay=Broken())
    for _ in range(6):
        trial = optimizer.ask()
        optimizer.tell(trial, value(trial))
    expected = optimizer.preview().record
    with pytest.raises(RuntimeError, match="no answer"):
        optimizer.ask()
    assert optimizer.rounds == ()
    assert optimizer.bounds is None
    optimizer.ask()
    (record,) = optimizer.rounds
    assert record.num_chosen == expected.num_chosen == 6
    assert record.threshold == pytest.approx(expected.threshold, abs=1e-6)


def test_the_action_just_asked_can_be_attached(search_space, kernel):
    """It is not the round's, though it is the very tensor."""
    optimizer = make(search_space, kernel)
    trial = optimizer.ask()
    attached = optimizer.attach(trial.X, t=1.0)
    optimizer.tell(attached, 1e3)
    assert optimizer.model_size == 1
    assert optimizer.preview().record.num_arrived == 0
