"""The recent outcomes of a run, and what the model makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

import torch

from tvbo.cli.options import plain
from tvbo.models import EnsembleGP
from tvbo.models.scale import marginals, outcome_scale
from tvbo.optimizers import GPOptimizer, OutcomeModel, Recommendation
from tvbo.storage import JournalReader
from tvbo.storage.event import Event

WEEK = timedelta(days=7)
"""Span of the trials to look at, where times have a unit."""

NEWEST = 20
"""Number of the newest outcomes to look at, where they have none."""

BAND = 1.96
"""Standard deviations on each side of a mean that hold 95 %."""


def recent_outcomes(
    optimizer: GPOptimizer,
    journal: JournalReader,
    now: Any,
    best: Recommendation | None,
    is_looked_at: bool,
) -> dict[str, Any]:
    """Return the recent outcomes, and how the model of today predicts them.

    Each outcome that the model holds is predicted from those observed before it. The
    hyperparameters are those of today, fitted to all of them, and outcomes that retention has
    discarded are not used: these are not the predictions that were made at the asks, which a replay
    of the run makes again (``tvbo diagnose``).

    Args:
        optimizer: The optimizer as the journal left it.
        journal: Its journal.
        now: The present, where times have a unit.
        best: What is recommended; None where there is no single action.
        is_looked_at: Whether its models are of the present; else they are of the newest ask.

    Returns:
        ``told``, the number of trials of the last week, or of the newest outcomes, and ``since``;
        for each outcome, under its name where it has one, the ``mean``; of those in the model
        ``predicted``, their number, ``in_band``, how many are within the 95 % band of their
        prediction, and ``mean_error``, outcome less prediction; and ``change``, by how much the
        expected outcome of the recommended action has moved since then.
    """
    told = [replace(event, Y=end.Y) for event, end in journal.trials() if event and end and end.Y]
    observed = sorted(told, key=attrgetter("t"))
    scale = optimizer.time_scale
    if scale is None:
        observed = observed[-NEWEST:]
    else:
        t = scale.to_number(now)
        since = t - scale.to_span(WEEK)
        observed = [each for each in observed if since < each.t <= t]
    if not observed:
        return {"told": 0}
    if scale is None:
        t, since = observed[-1].t, observed[0].t
    stamp = plain(optimizer.labels.stamp(since))
    found: dict[str, Any] = {"told": len(observed), "since": stamp}
    names = optimizer.labels.outcomes or ("",)
    parts = zip(names, optimizer.outcome_models, optimizer.goals.signs.tolist(), strict=True)
    for place, (name, part, sign) in enumerate(parts):
        Y = torch.tensor([each.Y[place] for each in observed], dtype=torch.float64)
        values = {"mean": Y.mean().item()}
        model = part.posterior_state.last_model
        if is_looked_at and part.newest is not None:
            model = part.newest.in_user_units()
        if isinstance(model, EnsembleGP):
            values |= _predicted(part, model, observed, sign, t if best is None else best.t)
            if best is not None:
                context = best.context if part.layout.num_contexts else None
                times = (since, best.t)
                rows = torch.stack([part.layout.rows(best.X, each, context) for each in times])
                with torch.no_grad():
                    before, later = marginals(model, rows)[0].flatten().tolist()
                values["change"] = sign * (later - before)
        found |= {name: values} if name else values
    return found


def _predicted(
    part: OutcomeModel,
    model: EnsembleGP,
    observed: Sequence[Event],
    sign: float,
    t: float,
) -> dict[str, Any]:
    """Return how the outcomes that a model holds differ from what those before them predict."""
    held = part.observations_at(t)
    if len(held) < max(1, part.posterior_state.fitter.num_initial()):
        # The hyperparameters are defaults still.
        return {}
    has_contexts = part.layout.num_contexts > 0
    rows = {(*each.X, *(each.context if has_contexts else ()), each.t) for each in observed}
    is_of_these = torch.tensor([tuple(row) in rows for row in held.X.tolist()])
    if not is_of_these.any():
        return {}
    mean, variance = model.one_step_ahead()
    shift, scale = outcome_scale(model)
    errors = (held.Y.squeeze(-1) - shift - scale * mean)[is_of_these]
    in_band = errors.abs() <= BAND * scale * variance.sqrt()[is_of_these]
    return {
        "predicted": len(errors),
        "in_band": int(in_band.sum()),
        "mean_error": sign * errors.mean().item(),
    }
