"""What a loop asks of that which gives it a model."""

from __future__ import annotations

from typing import Protocol

from botorch.models.model import Model
from torch import Generator, Tensor

from tvbo.observations import Observations
from tvbo.optimizers.pending import Pending


class Surrogate(Protocol):
    """Gives the model that the next action rests on."""

    last_model: Model | None
    """The newest model, None before the first."""

    newest_fit: dict[str, list[float]] | None
    """What the newest fit learned, by name of the parameter; None before the first."""

    def model(self, observations: Observations, num_told: int, generator: Generator) -> Model:
        """The model of the observations that retention kept.

        Args:
            observations: Those of the call before, less what was dropped since, and new ones.
            num_told: Number of outcomes that entered so far, kept since or not; decides whether a
                fit is due.
            generator: Seeds the restarts of a fit.
        """

    def model_with(
        self,
        observations: Observations,
        rows: Tensor,
        pending: Pending,
        num_told: int,
        generator: Generator,
    ) -> Model:
        """The same, conditioned on open trials.

        Args:
            observations: As in :meth:`model`.
            rows: ``[action | context | time]`` of the open trials, ``q x d``, oldest first.
            pending: What stands in for their outcomes; one that counts them.
            num_told: As in :meth:`model`.
            generator: As in :meth:`model`.
        """

    def drop(self, observations: Observations, keep: Tensor, t: float) -> None:
        """Retention keeps, at time ``t``, only the observations that the mask ``keep`` names."""

    def changes(self, num_told: int) -> bool:
        """Whether the next model may have other hyperparameters than the last one."""

    def outcome_noise(self, observations: Observations) -> float | None:
        """Noise variance to expect of the next outcome; None if nothing is known of it."""

    def preview(self, observations: Observations) -> Model:
        """A model of any observations, with the hyperparameters of now; changes nothing here."""
