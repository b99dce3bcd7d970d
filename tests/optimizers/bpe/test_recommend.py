import numpy as np
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from reference import rbf_posterior

from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.bpe.confidence import FixedWidth
from tvbo.optimizers.bpe.delays import NO_DELAY
from tvbo.spaces import Box, FiniteSpace

NOISE = 0.01
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()


def make(search_space, kernel):
    return BPEDelay(
        search_space, kernel, NOISE, 36, delay=NO_DELAY, width=FixedWidth(1.0),
        generator=torch.Generator().manual_seed(2),
    )  # fmt: skip


def value(X):
    return torch.sin(5 * X[:, 0]) * torch.cos(4 * X[:, 1])


def play(optimizer, rounds):
    trials = []
    for _ in range(rounds):
        trials.append(optimizer.ask())
        optimizer.tell(trials[-1], value(trials[-1].X).item())
    return torch.cat([trial.X for trial in trials])


def dense(points, X):
    Y = value(points).numpy()
    mean, variance = rbf_posterior(points.numpy(), Y, NOISE, X.numpy())
    return mean, np.sqrt(variance)


@pytest.mark.parametrize(("asks", "since"), [(4, 0), (6, 0), (20, 6)])
def test_largest_mean_of_the_newest_round(choices, kernel, asks, since):
    """Within the first round, at its end, and in the second: of what would be left by then."""
    optimizer = make(FiniteSpace(choices), kernel)
    points = play(optimizer, asks)[since:]
    left = optimizer.preview().survivors
    assert len(left) < 64
    mean, deviation = dense(points, left)
    best = optimizer.recommend()
    assert best.X.tolist() == left[mean.argmax()].unsqueeze(0).tolist()
    assert best.mean == pytest.approx(mean.max(), abs=1e-10)
    assert best.standard_deviation == pytest.approx(deviation[mean.argmax()], abs=1e-10)
    assert best.t == asks
    assert best.context is None


def test_before_the_first_outcome_of_a_round_the_last_one_counts(choices, kernel):
    optimizer = make(FiniteSpace(choices), kernel)
    points = play(optimizer, 6)
    optimizer.ask()
    mean, _ = dense(points, optimizer.survivors)
    best = optimizer.recommend(t=9.5)
    assert best.X.tolist() == optimizer.survivors[mean.argmax()].unsqueeze(0).tolist()
    assert best.t == 9.5


def test_on_a_box_it_is_near_the_best_of_a_grid(kernel):
    optimizer = make(Box(BOX), kernel)
    points = play(optimizer, 20)[6:]
    best = optimizer.recommend()
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 101).double()] * 2)
    preview = optimizer.preview()
    left = grid[optimizer.survives(grid)]
    left = left[preview.bounds.upper(left) >= preview.record.threshold]
    mean, _ = dense(points, left)
    assert best.mean >= mean.max() - 1e-6
    assert best.mean == pytest.approx(dense(points, best.X)[0].item(), abs=1e-10)
    assert optimizer.survives(best.X).item()
    assert preview.bounds.upper(best.X).item() >= preview.record.threshold


@pytest.mark.parametrize("kind", ["set", "box"])
def test_it_changes_nothing(choices, kernel, kind):
    search_space = FiniteSpace(choices) if kind == "set" else Box(BOX)
    plain, looked = make(search_space, kernel), make(search_space, kernel)
    for _ in range(8):
        assert torch.equal(play(plain, 1), play(looked, 1))
        looked.recommend()
    assert torch.equal(plain.generator.get_state(), looked.generator.get_state())
    assert plain.rounds == looked.rounds


def test_nothing_has_come(choices, kernel):
    optimizer = make(FiniteSpace(choices), kernel)
    optimizer.ask()
    with pytest.raises(InputDataError):
        optimizer.recommend()


def test_there_are_no_contexts(choices, kernel):
    optimizer = make(FiniteSpace(choices), kernel)
    play(optimizer, 1)
    with pytest.raises(BotorchTensorDimensionError, match="without contexts"):
        optimizer.recommend(context=torch.zeros(1))
