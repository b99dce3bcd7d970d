"""Tuning of a classifier, where an evaluation is a training with random results."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from experiments.bedi.logistic_regression import Hyperparameters, train_logistic_regression
from experiments.data.digits import ClassificationData
from experiments.spread import progress_bar
from tvbo.randomness import PROBLEM_SEED, default_generator
from tvbo.spaces import FiniteSpace, InputLayout
from tvbo.spaces.observations import check_finite, check_last_dimension
from tvbo.test_functions.base import DriftingProblem
from tvbo.test_functions.drifting_gp import unit_grid

LEARNING_RATE = (-3.0, 1.0)
"""Range of its ``log10``."""

BATCH_SIZE = (3.0, 8.0)
"""Range of its ``log2``."""

DROPOUT = (0.0, 0.8)

L2 = (-6.0, -1.0)
"""Range of its ``log10``."""

MEASURE_SEED = PROBLEM_SEED + 1
"""Differs from the seed of evaluations, so that the table has independent noise."""


@dataclass(frozen=True, eq=False)
class MeasuredAccuracy:
    """Results of repeated trainings at each choice.

    Args:
        mean: ``n``, mean accuracy.
        variance: ``n``, variance of a single accuracy.
        repeats: Number of trainings per choice.
    """

    mean: Tensor
    variance: Tensor
    repeats: int

    @property
    def noise_variance(self) -> float:
        """Variance of one evaluation, averaged over the choices."""
        return self.variance.mean().item()


class LogisticRegressionTuning(DriftingProblem):
    r"""Tune the hyperparameters of a logistic regression.

    Bedi et al., Section 4.3. An action is a point of the unit cube: ``log10`` of the learning rate
    from -3 to 1, ``log2`` of the batch size from 3 to 8, input dropout from 0 to 0.8, and ``log10``
    of the l2 penalty from -6 to -1. A call trains, each time with new random draws, and returns
    the accuracy on the hold-out set. The paper states neither ranges nor a number of epochs.

    The value of a choice is its mean accuracy, which is estimated: :meth:`measure` trains
    ``repeats`` times at every choice, and regret is computed from that table. Its largest entry
    lies above the largest mean by chance, by about a standard error; all choices are scored by the
    same table. The noise variance depends strongly on the choice: ``measured.variance`` has it.
    Accuracies are far from 0 at most choices, so standardize them for a GP.

    Args:
        data: Training set and hold-out set.
        choices: The choices, ``n x 4``, in the unit cube; default a grid of 5 points per side, 625
            in all.
        epochs: Passes through the training set in a training.
        measured: An earlier table of the same data, choices and epochs.
        generator: Source of the randomness of evaluations; default a new one with a fixed seed.

    Raises:
        BotorchTensorDimensionError: if ``choices`` is not ``n x 4``, or ``measured`` of another
            number of choices.
        InputDataError: if a choice is not finite, is duplicated, or lies outside the unit cube.
        ValueError: if ``epochs`` is below 1.
    """

    def __init__(
        self,
        data: ClassificationData,
        choices: Tensor | None = None,
        epochs: int = 10,
        measured: MeasuredAccuracy | None = None,
        generator: Generator | None = None,
    ):
        if epochs < 1:
            raise ValueError(f"Expected epochs >= 1. Got {epochs}.")
        super().__init__(InputLayout(4), 0.0, generator)
        self.search_space = FiniteSpace(unit_grid(5, dim=4) if choices is None else choices)
        if self.search_space.dim != self.layout.num_actions:
            raise BotorchTensorDimensionError(
                "Expected choices of shape n x 4. "
                f"Got choices.shape={tuple(self.search_space.choices.shape)}."
            )
        for choice in self.choices:
            hyperparameters_at(choice)
        self.data = data
        self.epochs = epochs
        self.noise_variance = math.nan
        """Noise variance averaged over the choices; NaN until it is measured."""
        self.measured = None
        if measured is not None:
            self._take(measured)

    @property
    def choices(self) -> Tensor:
        """The actions, ``n x 4``."""
        return self.search_space.choices

    def __call__(self, X: Tensor) -> Tensor:
        """Return accuracies, ``n``, of new trainings at rows ``n x 5``."""
        check_last_dimension("X", X, self.layout.num_columns)
        check_finite("X", X)
        return self._train(X[:, : self.layout.num_actions], self.generator)

    def measure(
        self, repeats: int = 10, progress: bool = True, generator: Generator | None = None
    ) -> MeasuredAccuracy:
        """Train several times at every choice, to estimate values and the noise variance.

        Args:
            repeats: Number of trainings per choice, at least 2.
            progress: Whether to show a progress bar.
            generator: Source of its draws, separate from that of evaluations; default a new one
                with a fixed seed.

        Returns:
            The table, which can be passed to other instances.

        Raises:
            ValueError: if ``repeats`` is below 2.
        """
        if repeats < 2:
            raise ValueError(f"Expected repeats >= 2, to see the noise. Got {repeats}.")
        generator = default_generator(generator, MEASURE_SEED)
        choices = range(len(self.choices))
        accuracy = torch.stack(
            [
                self._train(self.choices[i].expand(repeats, -1), generator)
                for i in progress_bar(choices, "Training", shown=progress)
            ]
        )
        self._take(MeasuredAccuracy(accuracy.mean(-1), accuracy.var(-1), repeats))
        return self.measured

    def optimal_value(self, t: float, context: Tensor | None = None) -> float:
        """Return the largest mean accuracy among the choices, the same at all times."""
        return self._table().mean.max().item()

    def optimal_action(self, t: float) -> Tensor:
        """Return the choice, ``4``, with the largest mean accuracy."""
        return self.choices[self._table().mean.argmax()].clone()

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._table().mean[self.search_space.index(X[:, : self.layout.num_actions])]

    def _train(self, actions: Tensor, generator: Generator) -> Tensor:
        accuracies = [
            train_logistic_regression(self.data, hyperparameters_at(x), self.epochs, generator)
            for x in actions
        ]
        return torch.tensor(accuracies, dtype=torch.float64)

    def _take(self, measured: MeasuredAccuracy) -> None:
        if not measured.mean.shape == measured.variance.shape == (len(self.choices),):
            raise BotorchTensorDimensionError(
                f"Expected measured of {len(self.choices)} choices. "
                f"Got {tuple(measured.mean.shape)} and {tuple(measured.variance.shape)}."
            )
        self.measured = measured
        self.noise_variance = measured.noise_variance

    def _table(self) -> MeasuredAccuracy:
        if self.measured is None:
            raise RuntimeError(
                "Expected a table of mean accuracies, to score by. Got none yet: call measure()."
            )
        return self.measured


def hyperparameters_at(x: Tensor) -> Hyperparameters:
    """Return the hyperparameters at a point of the unit cube, ``4``.

    Raises:
        InputDataError: if the point lies outside.
    """
    if not ((x >= 0) & (x <= 1)).all():
        raise InputDataError(f"Expected an action in the unit cube. Got {x.tolist()}.")
    ranges = (LEARNING_RATE, BATCH_SIZE, DROPOUT, L2)
    rate, batch, dropout, l2 = (
        low + u * (high - low) for u, (low, high) in zip(x.tolist(), ranges, strict=True)
    )
    return Hyperparameters(
        learning_rate=10**rate, batch_size=round(2**batch), dropout=dropout, l2=10**l2
    )
