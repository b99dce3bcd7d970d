"""Tables 2, 3 and 4 of Bedi et al.: dense, compressed and sketched models on three problems."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import partial

import torch

from experiments.bedi.claims import reproduction
from experiments.bedi.hyperparameter_tuning import LogisticRegressionTuning
from experiments.bedi.setting import NOISE_VARIANCE, Setting
from experiments.claims import Reproduction
from experiments.data.digits import ClassificationData, digits
from experiments.problems.static_functions import ExampleFunction, Rosenbrock
from tvbo.test_functions.drifting_gp import unit_grid

HORIZON = 1000
TUNING_HORIZON = 500
REPEATS = 8
"""Number of trainings per choice for the table of mean accuracies."""


def bedi_table2(
    trials: int = 20,
    seed: int = 0,
    horizon: int = HORIZON,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Table 2: the example function (4.1), on 1,000 points of [0, 10].

    Args:
        trials: Number of paired replicates of the dense and the compressed model; the others take
            part in the first of them only.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        horizon: T, in rounds.
        progress: Whether to show a progress bar.
        executor: Executor that runs the replicates; None runs them serially. Clock times are then
            those of processes that share a machine.

    Raises:
        ValueError: if ``trials`` is not positive, or ``horizon`` below 2.
    """
    choices = 10 * unit_grid(1000, dim=1)
    setting = Setting(
        problem=partial(ExampleFunction, choices, noise_variance=NOISE_VARIANCE),
        choices=choices,
        horizon=horizon,
        paper_seconds={
            "UCB": (6.756, 5.335, 9.56),
            "EI": (7.594, 4.133, 10.578),
            "MPI": (5.199, 3.864, 9.429),
        },
        unit="s",
    )
    name, title = "bedi-table2", "sin x + cos x + 0.1 x on 1,000 points of [0, 10]"
    about = {"noise_variance": NOISE_VARIANCE}
    return reproduction(name, title, setting, trials, seed, progress, about, executor)


def bedi_table3(
    trials: int = 20,
    seed: int = 0,
    horizon: int = HORIZON,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Table 3: the negated Rosenbrock function (4.2), standardized, on 30 x 30 points.

    Its parameters are a = 1 and b = 10.

    Args:
        trials: Number of paired replicates of the dense and the compressed model; the others take
            part in the first of them only.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        horizon: T, in rounds.
        progress: Whether to show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive, or ``horizon`` below 2.
    """
    choices = 4 * unit_grid(30) - torch.tensor([2.0, 1.0], dtype=torch.float64)
    setting = Setting(
        problem=partial(Rosenbrock, choices, noise_variance=NOISE_VARIANCE),
        choices=choices,
        horizon=horizon,
        paper_seconds={
            "UCB": (2.412, 1.905, 3.143),
            "EI": (2.604, 2.246, 3.801),
            "MPI": (2.533, 2.186, 3.237),
        },
        unit="s",
    )
    name = "bedi-table3"
    title = "Rosenbrock function, standardized, on 900 points of [-2, 2] × [-1, 3]"
    about = {"noise_variance": NOISE_VARIANCE}
    return reproduction(name, title, setting, trials, seed, progress, about, executor)


def bedi_table4(
    data: ClassificationData | None = None,
    trials: int = 5,
    seed: int = 0,
    horizon: int = TUNING_HORIZON,
    epochs: int = 10,
    points: int = 5,
    progress: bool = True,
    executor: Executor | None = None,
) -> Reproduction:
    """Reproduce Table 4: learning rate, batch size, dropout and l2 of a logistic regression.

    An evaluation is a training, and the reward its accuracy on a hold-out set. Regret is computed
    from a table of mean accuracies, measured beforehand.

    Args:
        data: Data set; None is scikit-learn's digits, :func:`experiments.data.digits.mnist` reads
            the paper's.
        trials: Number of paired replicates of the dense and the compressed model; the others take
            part in the first of them only.
        seed: The replicates use the seeds ``seed, ..., seed + trials - 1``.
        horizon: T, in rounds.
        epochs: Passes through the training set in an evaluation.
        points: Grid points per side of the unit cube.
        progress: Whether to show a progress bar.
        executor: Executor that runs the replicates; None runs them serially.

    Raises:
        ValueError: if ``trials`` is not positive, or ``horizon`` below 2.
    """
    data = digits() if data is None else data
    choices = unit_grid(points, dim=4)
    table = LogisticRegressionTuning(data, choices, epochs)
    measured = table.measure(REPEATS, progress=progress)

    setting = Setting(
        problem=partial(LogisticRegressionTuning, data, choices, epochs, measured),
        choices=choices,
        horizon=horizon,
        paper_seconds={
            "UCB": (0.994, 0.282, 1.817),
            "EI": (0.992, 0.266, 2.072),
            "MPI": (0.993, 0.227, 1.840),
        },
        unit="h",
    )
    name = "bedi-table4"
    title = f"Logistic regression, 4 hyperparameters, {len(choices)} choices"
    about = {
        "training_examples": len(data.train_X),
        "epochs": epochs,
        "best_mean_accuracy": table.optimal_value(0.0),
        "measured_noise_variance": measured.noise_variance,
    }
    return reproduction(name, title, setting, trials, seed, progress, about, executor)
