"""The book-keeping of every ask/tell loop: rounds, open trials, and what is refused."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Generator, Tensor

from tvbo.acquisition import Domain
from tvbo.columns import Columns
from tvbo.contexts import ContextList, Contexts
from tvbo.observations import Observations
from tvbo.optimizers.trial import Trial
from tvbo.randomness import default_generator


class TrialError(ValueError):
    """A trial that the optimizer does not know, or that was told already."""


class Optimizer(ABC):
    """Ask for an action, tell its outcome; outcomes in any order, any time later.

    Args:
        domain: The set of actions.
        columns: How the rows that the model sees are laid out; by default actions, the contexts
            that were declared, and time.
        generator: Source of every random choice; default a fresh one with seed 0.
        contexts: The contexts to expect; None where there are none. They may be declared and yet
            have no place in ``columns``: then each trial has its context, and the model ignores it.

    Raises:
        BotorchTensorDimensionError: if ``columns`` do not fit the domain or the contexts.
    """

    def __init__(
        self,
        domain: Domain,
        columns: Columns | None = None,
        generator: Generator | None = None,
        contexts: Contexts | None = None,
    ):
        num_contexts = 0 if contexts is None else contexts.dim
        if columns is None:
            columns = Columns(domain.dim, num_contexts)
        if columns.num_actions != domain.dim or columns.num_contexts not in (0, num_contexts):
            raise BotorchTensorDimensionError(
                f"Expected columns for {domain.dim} actions and 0 or {num_contexts} contexts, as "
                f"declared. Got {columns}."
            )
        self.domain = domain
        self.contexts = contexts
        self.columns = columns
        self.generator = default_generator(generator)
        self._open: dict[int, Trial] = {}
        self._num_trials = 0
        self._num_asked = 0
        self._t = -math.inf

    @property
    def open_trials(self) -> tuple[Trial, ...]:
        """Trials whose outcome has not been told, oldest first."""
        return tuple(self._open.values())

    @property
    def model_size(self) -> int:
        """Number of observations that the next action rests on."""
        return 0

    def ask(self, t: float | None = None, context: Tensor | None = None) -> Trial:
        """The next action to try.

        Args:
            t: The present time, in the user's unit, never before that of an earlier ask or of an
                outcome told; None counts rounds 1, 2, ...
            context: The present context, ``c``, where contexts were declared. Several asks at one
                time, with a tell after each, see one another's outcomes.

        Returns:
            A trial, open until it is told, unless it is ``skipped``.

        Raises:
            InputDataError: if ``t`` is not finite, or lies before an earlier ask or outcome, or
                ``context`` is not finite or none of those declared.
            BotorchTensorDimensionError: if ``context`` has the wrong size, is missing, or none was
                declared.
        """
        round_number = self._num_asked + 1
        t = check_time(float(round_number) if t is None else t)
        if t < self._t:
            raise InputDataError(
                f"Expected t >= {self._t}, the time of an earlier ask or outcome: an action is "
                f"chosen for the present. Got t={t}."
            )
        context = self._check_context(context)
        X = self._choose(round_number, t, context)
        trial = self._judge(self._new_trial(X, t, context))
        self._num_asked = round_number
        self._t = t
        return trial if trial.skipped else self._open_trial(trial)

    def attach(self, X: Tensor, t: float, context: Tensor | None = None) -> Trial:
        """Open a trial with an action of the caller's choice, such as a row of a log.

        Args:
            X: The action, ``d`` or ``1 x d``.
            t: Its time; earlier than the present is allowed.
            context: Its context, where contexts were declared.

        Raises:
            InputDataError: if the action is not in the domain, the context none of those declared,
                or a value is not finite.
            BotorchTensorDimensionError: if a shape does not fit, or a declared context is missing:
                an outcome seen in no known context cannot be compared with others.
        """
        X = torch.atleast_2d(torch.as_tensor(X, dtype=torch.float64))
        if len(X) != 1:
            raise BotorchTensorDimensionError(
                f"Expected one action, 1 x {self.domain.dim}. Got X.shape={tuple(X.shape)}."
            )
        X, t, context = self.domain.snap(X), check_time(t), self._check_context(context)
        return self._open_trial(self._new_trial(X, t, context))

    def tell(
        self, trial: Trial | int, Y: Tensor | float, Yvar: Tensor | float | None = None
    ) -> None:
        """The outcome of a trial.

        Args:
            trial: The trial or its id.
            Y: Its reward, one number; larger is better.
            Yvar: Variance of the noise in ``Y``, where known.

        Raises:
            TrialError: if the trial is unknown, was told already, or was skipped.
            InputDataError: if ``Y`` or ``Yvar`` is not finite, or ``Yvar`` negative. The trial
                stays open.
            BotorchTensorDimensionError: if ``Y`` or ``Yvar`` is more than one number.
        """
        trial = self._find(trial)
        observation = Observations(
            X=self.columns.rows(trial.X, trial.t, self._seen(trial.context)),
            Y=as_scalar("Y", Y),
            Yvar=None if Yvar is None else as_scalar("Yvar", Yvar),
        )
        self._learn(trial, observation)
        del self._open[trial.id]
        self._t = max(self._t, trial.t)

    @abstractmethod
    def _choose(self, round_number: int, t: float, context: Tensor | None) -> Tensor:
        """The action, ``1 x d``, for this round."""

    @abstractmethod
    def _learn(self, trial: Trial, observation: Observations) -> None:
        """Take in one outcome."""

    def _check_context(self, context: Tensor | None) -> Tensor | None:
        if self.contexts is not None:
            return self.contexts.snap(context)
        if context is not None:
            raise BotorchTensorDimensionError(
                f"This optimizer was declared without contexts. Got context {context!r}."
            )
        return None

    def _check_table(self, contexts: Tensor | None) -> list[Tensor]:
        """Several contexts, each as declared; None for all of a declared list."""
        if contexts is None:
            if not isinstance(self.contexts, ContextList):
                raise ValueError(
                    "Expected contexts (m x c): only a declared list of them can be left out. "
                    "Got none."
                )
            contexts = self.contexts.contexts
        contexts = torch.as_tensor(contexts, dtype=torch.float64)
        if contexts.ndim == 1 and self.contexts is not None and self.contexts.dim == 1:
            contexts = contexts.unsqueeze(-1)
        if contexts.ndim != 2 or len(contexts) == 0:
            raise ValueError(
                f"Expected contexts of shape m x c. Got contexts.shape={tuple(contexts.shape)}."
            )
        return [self._check_context(context) for context in contexts]

    def _time_of(self, t: float | None) -> float:
        """A time to look at; None is that of the latest ask or outcome."""
        if t is None and self._t == -math.inf:
            raise InputDataError("Expected t, since nothing was asked or told yet. Got none.")
        return self._t if t is None else check_time(t)

    def _seen(self, context: Tensor | None) -> Tensor | None:
        """The context as far as the model's rows have a place for it."""
        return context if self.columns.num_contexts else None

    def _judge(self, trial: Trial) -> Trial:
        """The trial that was chosen, with what is expected of its outcome."""
        return trial

    def _new_trial(self, X: Tensor, t: float, context: Tensor | None) -> Trial:
        self._num_trials += 1
        return Trial(self._num_trials, X, t, context)

    def _open_trial(self, trial: Trial) -> Trial:
        self._open[trial.id] = trial
        return trial

    def _find(self, trial: Trial | int) -> Trial:
        trial_id = trial.id if isinstance(trial, Trial) else trial
        known = isinstance(trial_id, int) and 1 <= trial_id <= self._num_trials
        if known and isinstance(trial, Trial) and trial.skipped:
            raise TrialError(
                f"Expected an open trial. Got trial {trial_id}, skipped: it was not worth its "
                "evaluation. Attach its action to tell an outcome nevertheless."
            )
        if known and trial_id not in self._open:
            raise TrialError(
                f"Expected an open trial. Got trial {trial_id}, told already or skipped."
            )
        if known:
            mine = self._open[trial_id]
            if isinstance(trial, Trial) and not _same(trial, mine):
                raise TrialError(
                    f"Expected a trial of this optimizer. Got a trial {trial_id} that differs: "
                    f"{trial}; here it is {mine}."
                )
            return mine
        raise TrialError(
            f"Expected an open trial, one of {sorted(self._open)}. Got unknown trial {trial_id!r}."
        )


def _same(one: Trial, two: Trial) -> bool:
    """Whether two trials ask the same question."""
    if one.t != two.t or (one.context is None) != (two.context is None):
        return False
    if one.context is not None and not torch.equal(one.context, two.context):
        return False
    return torch.equal(one.X, two.X)


def check_time(t: float) -> float:
    """Return ``t`` as a float; raise unless it is finite."""
    t = float(t)
    if not math.isfinite(t):
        raise InputDataError(f"Expected a finite time. Got t={t}.")
    return t


def as_scalar(name: str, value: Tensor | float) -> Tensor:
    """One number as a ``1 x 1`` float64 tensor."""
    value = torch.as_tensor(value, dtype=torch.float64)
    if value.numel() != 1:
        raise BotorchTensorDimensionError(
            f"Expected {name} to be one number. Got {name}.shape={tuple(value.shape)}."
        )
    return value.detach().reshape(1, 1)
