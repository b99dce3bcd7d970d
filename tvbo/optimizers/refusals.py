"""What is refused: a trial that is not open, an outcome out of range, a reason without words."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from botorch.exceptions.errors import InputDataError

from tvbo.optimizers.trial_log import TrialLog
from tvbo.spaces.observations import Observations
from tvbo.trial import Trial
from tvbo.values import shortened

LONGEST_REASON = 10_000
"""Characters of a reason that are kept."""

LARGEST_OUTCOME = 1e50
"""Largest outcome, in prior standard deviations. A prediction may have 1e-5 of the prior standard
deviation, and the search for the best action computes fourth powers of the ratio."""


class TrialError(ValueError):
    """A trial that the optimizer does not know, or that is no longer open."""


def find_open(
    trial: Trial | int, open_trials: Mapping[int, Trial], trial_log: TrialLog, num_trials: int
) -> Trial:
    """Return the open trial that a trial or its id stands for.

    Args:
        trial: The trial or its id.
        open_trials: The open trials by id.
        trial_log: The log of trials that ended.
        num_trials: Number of trials so far.

    Raises:
        TrialError: if there is no such trial, it is another optimizer's, or it has ended, which
            the message explains.
    """
    trial_id = trial.id if isinstance(trial, Trial) else trial
    # NumPy's integers are accepted; True is an int in Python, but no id.
    known = isinstance(trial_id, Integral) and not isinstance(trial_id, bool)
    if not known or not 1 <= trial_id <= num_trials:
        raise TrialError(
            f"Expected an open trial, one of {sorted(open_trials)}. Got unknown trial {trial_id!r}."
        )
    if isinstance(trial, Trial) and trial.skipped:
        raise TrialError(
            f"Expected an open trial. Got trial {trial_id}, skipped: it was not worth its "
            "evaluation. Attach its action to tell an outcome nevertheless."
        )
    if trial_id not in open_trials:
        raise TrialError(
            f"Expected an open trial. Got trial {trial_id}, {_how_it_ended(trial_id, trial_log)}."
        )
    own = open_trials[trial_id]
    if isinstance(trial, Trial) and not trial.asks_the_same(own):
        raise TrialError(
            f"Expected a trial of this optimizer. Got a trial {trial_id} that differs: "
            f"{trial}; here it is {own}."
        )
    return own


def _how_it_ended(trial_id: int, trial_log: TrialLog) -> str:
    lost = trial_log.find(trial_id)
    if lost is not None:
        reason = shortened(lost.reason)
        return f"which {lost.ending} ({reason}); attach its action to tell it still"
    if trial_log.num_forgotten > 0:
        return "told already, skipped, or lost too long ago to be remembered"
    return "told already or skipped"


def check_outcome(observation: Observations, unit: float) -> None:
    """Raise unless models can compute with an outcome.

    Args:
        observation: One outcome, with or without the variance of its noise.
        unit: Order of magnitude of the prior standard deviation, in outcome units.

    Raises:
        InputDataError: if ``Y`` or the root of ``Yvar`` is beyond :data:`LARGEST_OUTCOME` units.
    """
    largest, Y = LARGEST_OUTCOME * unit, observation.Y.item()
    if abs(Y) > largest:
        raise InputDataError(
            f"Expected Y between {-largest:.3g} and {largest:.3g}, the range in which predictions "
            f"can be computed. Got one of size {abs(Y):g}."
        )
    Yvar = 0.0 if observation.Yvar is None else observation.Yvar.item()
    if Yvar > largest**2:
        raise InputDataError(
            f"Expected Yvar between 0 and {largest**2:.3g}, the range in which predictions can be "
            f"computed. Got {Yvar}."
        )


def as_text(reason: str) -> str:
    """Return why a trial has no outcome as text that can be stored, cut if it is long."""
    if not isinstance(reason, str):
        words = shortened(repr(reason))
        raise TypeError(f"Expected a reason in words. Got {words} of {type(reason).__name__}.")
    if len(reason) > LONGEST_REASON:
        reason = reason[: LONGEST_REASON - 3] + "..."
    # Names of files may hold bytes that are no text.
    return reason.encode("utf-8", "backslashreplace").decode()
