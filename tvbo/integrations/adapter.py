"""An optimizer from the trials of another system, which keeps them: what every door shares."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tvbo import recipes
from tvbo.optimizers import GPOptimizer, Trial

MAX_TRIALS = 200
"""Number of the newest trials that are read, each time; a recipe keeps at most as many."""

SEEDS_APART = 1_000_003
"""Distance of the seeds of two runs of a host."""

_is_replaying = ContextVar("is_replaying", default=False)
for name in ("tvbo.optimizers", "tvbo.fit.fitted_forms"):
    logging.getLogger(name).addFilter(lambda record: not _is_replaying.get())


@dataclass(frozen=True)
class HostTrial:
    """A trial as the other system has it.

    Args:
        parameters: Values of the action by name.
        t: Its time: when its outcome was measured, or if it has none when it was begun.
        context: Its context, where there is one.
        Y: Its outcome, or several by name; None where there is none.
        Yvar: Variance of the noise, as ``Y`` is given, where known.
        lost: Why no outcome will come; empty for a trial that is running.
    """

    parameters: Mapping[str, Any]
    t: float
    context: Any = None
    Y: float | Mapping[str, float] | None = None
    Yvar: float | Mapping[str, float] | None = None
    lost: str = ""


def optimizer_of(trials: Sequence[HostTrial], generator: int = 0, **options: Any) -> GPOptimizer:
    """Return an optimizer that knows the newest trials, with the defaults of ``tv_gp_ucb``.

    It depends on them and on the options alone, so that all processes of a host choose alike.
    The first actions are space-filling, as those of a loop.
    A trial whose outcome is no finite number has failed.

    Args:
        trials: The trials, oldest first.
        generator: Seed of the host's run. As random choices depend on it and on the number of the
            trial, it changes once older trials are left out.
        **options: Options of :func:`tvbo.recipes.tv_cgp_ucb` where ``context_bounds`` or
            ``contexts`` are given, else of :func:`tvbo.recipes.tv_gp_ucb`.
    """
    seed = SEEDS_APART * generator + max(0, len(trials) - MAX_TRIALS)
    has_contexts = not options.keys().isdisjoint(("context_bounds", "contexts"))
    optimizer = (recipes.tv_cgp_ucb if has_contexts else recipes.tv_gp_ucb)(
        generator=seed, **options
    )
    with _replaying():
        for trial in trials[-MAX_TRIALS:]:
            opened = optimizer.attach(trial.parameters, trial.t, trial.context)
            outcomes = trial.Y.values() if isinstance(trial.Y, Mapping) else [trial.Y or 0.0]
            if trial.lost or not all(map(math.isfinite, outcomes)):
                optimizer.fail(opened, trial.lost or f"its outcome is {trial.Y}")
            elif trial.Y is not None:
                optimizer.tell(opened, trial.Y, trial.Yvar)
    return optimizer


def ask(optimizer: GPOptimizer, t: float, context: Any = None, q: int = 1) -> tuple[Trial, ...]:
    """Return the next ``q`` trials of an optimizer, as of :func:`optimizer_of`.

    Args:
        optimizer: The optimizer.
        t: The present time; an outcome that is newer already moves it on.
        context: The present context, where contexts are declared.
        q: Number of trials.
    """
    now = max([t, *optimizer.observations.X[:, -1].tolist()])
    with _replaying():
        return optimizer.ask(now, context, q=q)


def observed_range(rows: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the range of each column of contexts whose bounds nobody knows."""
    ranges = ((min(column), max(column)) for column in zip(*rows, strict=True))
    return [(low, high if high > low else low + 1.0) for low, high in ranges]


@contextmanager
def _replaying() -> Iterator[None]:
    """Log none of the calls of a while, which repeat what the host has logged."""
    token = _is_replaying.set(True)
    try:
        yield
    finally:
        _is_replaying.reset(token)
