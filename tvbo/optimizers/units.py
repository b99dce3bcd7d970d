"""The units of a caller: names of parameters, timestamps, and which outcomes are better."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, TypedDict

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from tvbo.optimizers.recommendation import Recommendation
from tvbo.spaces import (
    ContextSpace,
    InputLayout,
    Labels,
    Named,
    SearchSpace,
    Table,
    TimeScale,
)
from tvbo.spaces.context_space import context_table, table_rows
from tvbo.spaces.observations import Observations
from tvbo.storage.recorded import EventSink
from tvbo.values import as_numbers


class UnitOptions(TypedDict, total=False):
    """Options of every recipe: in which units its optimizer is asked and told.

    Args:
        minimize: Whether smaller outcomes are better, or of several objectives the names of those
            of which smaller values are; None is False. Outcomes are told and recommended as they
            are; models, acquisitions and priors are of their negatives.
        time_unit: Unit of time for timestamps, as pandas writes it, such as ``"1h"``: times are
            then ``pandas.Timestamp``, ``datetime``, ``numpy.datetime64`` or text in ISO 8601, and
            ``trial.t`` counts units since the beginning of 1970. None: times are numbers.
        time_zone: Time zone of timestamps, such as ``"UTC"``; those of other zones are converted,
            those without one refused. None: timestamps have no time zone.

    Raises:
        ValueError: if there is no such unit or zone, or a zone comes without a unit.
    """

    minimize: bool | Collection[str] | None
    time_unit: str | None
    time_zone: str | None


class UnitsMixin:
    """Reads actions, contexts, times and outcomes as a caller states them."""

    minimize: bool = False
    time_scale: TimeScale | None = None
    search_space: SearchSpace
    contexts: ContextSpace | None
    layout: InputLayout
    _num_trials: int
    _event_sink: EventSink | None
    # A replay repeats calls with the numbers that were recorded.
    _takes_numbers: bool = False
    _labels: Labels | None = None
    # Times of the open trials that were asked for, by number; and time and number of the newest
    # trial that was told.
    _asked_at: Mapping[int, float] = MappingProxyType({})
    _newest_told: tuple[float, int] = (-math.inf, 0)

    def set_units(
        self,
        minimize: bool | None = None,
        time_unit: str | None = None,
        time_zone: str | None = None,
    ) -> None:
        """Set the units, before anything is asked or told; see :class:`UnitOptions`.

        Raises:
            ValueError: if there are trials or a journal, or an option is out of range.
        """
        if self._num_trials or self._event_sink is not None:
            raise ValueError(
                "Expected units before the first trial and the journal. Got them after."
            )
        if not isinstance(minimize, bool | None):
            raise ValueError(
                f"Expected minimize to be True or False. Got {minimize!r}; names go with "
                "objectives."
            )
        if time_unit is None and time_zone is not None:
            raise ValueError(f"Expected time_unit with a time zone. Got time_zone={time_zone!r}.")
        self.minimize = minimize is True
        self.time_scale = None if time_unit is None else TimeScale(time_unit, time_zone)
        self._labels = self._read_labels()

    @property
    def labels(self) -> Labels:
        """Names of parameters, and the unit of time."""
        if self._labels is None:  # Pickled before parameters had names.
            self._labels = self._read_labels()
        return self._labels

    def _read_labels(self) -> Labels:
        contexts = None if self.contexts is None else self.contexts.parameters
        return Labels(self.search_space.parameters, contexts, self.time_scale)

    @property
    def _sign(self) -> float:
        """What an outcome is multiplied by, so that larger is better."""
        return -1.0 if self.minimize else 1.0

    @property
    def _signs(self) -> Tensor:
        """The same of each outcome, ``m``."""
        return torch.tensor([self._sign], dtype=torch.float64)

    def _as_told(
        self, observation: Observations
    ) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
        """Return one outcome, and the variances of its noise, in the caller's units."""
        Y = tuple((self._signs * observation.Y).flatten().tolist())
        return Y, None if observation.Yvar is None else tuple(observation.Yvar.flatten().tolist())

    def _read_action(self, X: Tensor | Named) -> Tensor:
        """Return an action of the search space as ``1 x d``."""
        rows = torch.atleast_2d(as_numbers("X", self.labels.action(X)))
        if len(rows) != 1:
            raise BotorchTensorDimensionError(
                f"Expected one action, 1 x {self.search_space.dim}. "
                f"Got X.shape={tuple(rows.shape)}."
            )
        return self.search_space.snap(rows)

    def _read_choices(self, choices: Table) -> Tensor:
        """Return actions of the search space, ``n x d``."""
        space = self.search_space
        return space.snap(table_rows(choices, self.labels.actions, space.dim, "choices", "n x d"))

    def _check_context(self, context: Tensor | Named | None) -> Tensor | None:
        if self.contexts is None and context is None:
            return None
        return self._declared_context(context)

    def _declared_context(self, context: Tensor | Named | None) -> Tensor:
        """Return a context as declared; raise if it was not, or none was."""
        if self.contexts is None:
            raise BotorchTensorDimensionError(
                f"This optimizer was declared without contexts. Got context {context!r}."
            )
        return self.contexts.snap(self.labels.context(context))

    def _check_table(self, contexts: Table | None) -> list[Tensor]:
        """Return several contexts, each as declared; None stands for a whole declared list."""
        return [self._declared_context(each) for each in context_table(self.contexts, contexts)]

    @property
    def _present(self) -> tuple[float, int]:
        """Time and number of the newest trial that was told, or was asked for and is open."""
        return max([self._newest_told, *((t, number) for number, t in self._asked_at.items())])

    def _time_of(self, t: Any) -> float:
        """Return a checked time; None stands for the present."""
        if t is not None:
            return self._number(t)
        now, number = self._present
        if number == 0:
            raise InputDataError(
                "Expected t, since nothing was asked or told that is not lost. Got none."
            )
        return now

    def _number(self, t: Any) -> float:
        """Return a checked time as a number; with a unit of time, it must be a timestamp."""
        if self.time_scale is not None and isinstance(t, Real) and not self._takes_numbers:
            raise InputDataError(
                f"Expected a timestamp for t, since time_unit was given. Got {t!r}."
            )
        return self.labels.number(t)

    def _time_to_ask(self, t: Any, round_number: int) -> float:
        """Return the time of an ask; None counts rounds."""
        if t is None and self.time_scale is not None:
            raise InputDataError("Expected t, since time_unit was given. Got none.")
        now = self._number(float(round_number) if t is None else t)
        present, number = self._present
        if now < present:
            stamp = self.labels.stamp
            state, way_out = "told", "an outcome stays, so begin a new run with the right times"
            if number in self._asked_at:
                state, way_out = "open", "fail or expire it"
            raise InputDataError(
                f"Expected t >= {stamp(present)}, the time of trial {number}, which is {state}: an "
                f"action is chosen for the present. Got t={stamp(now)}. If the time of trial "
                f"{number} is wrong, {way_out}."
            )
        return now

    def _seen(self, context: Tensor | None) -> Tensor | None:
        """Return the context if the rows of the model have columns for it, otherwise None."""
        return context if self.layout.num_contexts else None

    def _recommendation(
        self, X: Tensor, mean: float, deviation: float, t: float, context: Tensor | None = None
    ) -> Recommendation:
        """Return a recommendation in the caller's units."""
        return Recommendation(
            X, self._sign * mean, deviation, t, context, self.minimize, self.labels
        )
