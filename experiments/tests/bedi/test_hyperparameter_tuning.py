import pickle

import pytest
import torch

from experiments.bedi.hyperparameter_tuning import (
    LogisticRegressionTuning,
    hyperparameters_at,
)
from experiments.bedi.logistic_regression import train_logistic_regression
from experiments.data.digits import ClassificationData, digits
from tvbo import recipes, run
from tvbo.acquisition.improvement import BestMean, LogEI
from tvbo.test_functions.drifting_gp import unit_grid

CHOICES = torch.tensor(
    [[0.0, 1.0, 1.0, 1.0], [0.6, 0.4, 0.0, 0.0], [0.5, 0.6, 0.3, 0.5], [1.0, 0.0, 0.0, 1.0]],
    dtype=torch.float64,
)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def data(generator):
    """Two clouds of 40 points each that overlap."""
    Y = torch.arange(80) % 2
    X = torch.randn(80, 3, generator=generator) + 1.5 * Y.unsqueeze(-1)
    return ClassificationData(X[:40], Y[:40], X[40:], Y[40:], num_classes=2)


@pytest.fixture
def problem(data):
    return LogisticRegressionTuning(data, CHOICES, epochs=2)


def test_corners_and_centre_of_the_cube():
    low, high, middle = (hyperparameters_at(torch.full((4,), u)) for u in (0.0, 1.0, 0.5))
    assert (low.learning_rate, low.batch_size, low.dropout) == (pytest.approx(1e-3), 8, 0.0)
    assert low.l2 == pytest.approx(1e-6)
    assert (high.learning_rate, high.batch_size) == (pytest.approx(10.0), 256)
    assert (high.dropout, high.l2) == (pytest.approx(0.8), pytest.approx(0.1))
    # 2 ** 5.5 is 45.25.
    assert (middle.learning_rate, middle.batch_size) == (pytest.approx(0.1), 45)
    assert middle.l2 == pytest.approx(10**-3.5)


def test_an_evaluation_trains(problem, data):
    rows = problem.layout.rows(CHOICES, 3.0)
    source = torch.Generator().set_state(problem.generator.get_state())
    expected = [
        train_logistic_regression(data, hyperparameters_at(choice), 2, source) for choice in CHOICES
    ]
    assert problem(rows).tolist() == expected
    # From a fresh start each time.
    assert len({tuple(problem(rows).tolist()) for _ in range(5)}) > 1


def test_any_action_of_the_cube_can_be_evaluated(problem):
    accuracy = problem(tensor([0.11, 0.22, 0.33, 0.44, 7.0]))
    assert accuracy.shape == (1,)
    assert 0 <= accuracy.item() <= 1


def test_measure_is_mean_and_variance_of_trainings(problem, data):
    measured = problem.measure(
        repeats=5, progress=False, generator=torch.Generator().manual_seed(3)
    )
    source = torch.Generator().manual_seed(3)
    for i, choice in enumerate(CHOICES):
        how = hyperparameters_at(choice)
        scores = [train_logistic_regression(data, how, 2, source) for _ in range(5)]
        mean = sum(scores) / 5
        variance = sum((score - mean) ** 2 for score in scores) / 4
        assert measured.mean[i].item() == pytest.approx(mean, abs=1e-14)
        assert measured.variance[i].item() == pytest.approx(variance, abs=1e-14)
        row = problem.layout.rows(choice.unsqueeze(0), 1.0)
        assert problem.evaluate_true(row).item() == measured.mean[i]
    assert problem.noise_variance == pytest.approx(measured.variance.mean().item())
    assert problem.noise_variance > 0
    assert measured.repeats == 5
    assert problem.optimal_value(9.0) == measured.mean.max()
    assert torch.equal(problem.optimal_action(9.0), CHOICES[measured.mean.argmax()])


def test_measuring_leaves_later_evaluations_as_they_are(problem, data):
    other = LogisticRegressionTuning(data, CHOICES, epochs=2)
    other.measure(repeats=2, progress=False)
    rows = problem.layout.rows(CHOICES, 0.0)
    assert torch.equal(problem(rows), other(rows))


def test_a_table_is_shared_and_saved(problem, data):
    measured = pickle.loads(pickle.dumps(problem.measure(repeats=2, progress=False)))
    other = LogisticRegressionTuning(data, CHOICES, epochs=2, measured=measured)
    rows = problem.layout.rows(CHOICES, 0.0)
    assert torch.equal(other.evaluate_true(rows), problem.evaluate_true(rows))
    assert other.noise_variance == problem.noise_variance


def test_default_choices(data):
    problem = LogisticRegressionTuning(data)
    assert torch.equal(problem.choices, unit_grid(5, dim=4))
    assert problem.epochs == 10


@pytest.mark.slow
def test_a_loop_on_the_digits_finds_good_hyperparameters():
    problem = LogisticRegressionTuning(digits(), CHOICES, epochs=1)
    problem.measure(repeats=2, progress=False)
    # Hardly trained, or driven to and fro, and two that work: 0.88 and 0.82.
    mean = problem.measured.mean.tolist()
    assert max(mean[0], mean[3]) < 0.4 < 0.7 < min(mean[1], mean[2])
    # Which comes first is drawn.
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        optimizer = recipes.tv_gp_ucb(choices=CHOICES, forgetting_rate=0.0, generator=generator)
        optimizer.acquisition = LogEI(BestMean())
        # The first fit waits for 12 outcomes, three of each choice.
        history = run(problem, optimizer, horizon=17, progress=False)
        assert history.regret[-3:].max() < 0.1
