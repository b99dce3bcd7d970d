"""Which open trial a caller means."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from tvbo.optimizers.closed import ClosedTrials
from tvbo.optimizers.trial import Trial


class TrialError(ValueError):
    """A trial that the optimizer does not know, or that is no longer open."""


def find_open(
    trial: Trial | int, open_trials: Mapping[int, Trial], closed: ClosedTrials, num_trials: int
) -> Trial:
    """The open trial that a trial or its id stands for.

    Args:
        trial: What the caller has.
        open_trials: Those that are open, by id.
        closed: Those that are not.
        num_trials: Number of trials so far.

    Raises:
        TrialError: if there is no such trial, it is another optimizer's, or it has ended; in words
            that say how.
    """
    trial_id = trial.id if isinstance(trial, Trial) else trial
    # NumPy's are integers too, and True is none.
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
            f"Expected an open trial. Got trial {trial_id}, {_how_it_ended(trial_id, closed)}."
        )
    mine = open_trials[trial_id]
    if isinstance(trial, Trial) and not trial.asks_the_same(mine):
        raise TrialError(
            f"Expected a trial of this optimizer. Got a trial {trial_id} that differs: "
            f"{trial}; here it is {mine}."
        )
    return mine


def _how_it_ended(trial_id: int, closed: ClosedTrials) -> str:
    lost = closed.find(trial_id)
    if lost is not None:
        return f"which {lost.ending} ({lost.reason}); attach its action to tell it still"
    if closed.num_forgotten > 0:
        return "told already, skipped, or lost too long ago to be remembered"
    return "told already or skipped"
