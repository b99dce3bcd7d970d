"""Log fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import NamedTuple, cast

from botorch.models import SingleTaskGP
from gpytorch.module import Module

from tvbo.kernels import TemporalDecayKernel
from tvbo.models import TimeVaryingGP

logger = logging.getLogger("tvbo.optimizers.fit")

LARGE_JUMP = 10.0
"""Factor by which ε changes from one fit to the next in a jump."""

NO_DRIFT = 0.01
"""An ε that forgets no more than this over the whole time of the data is none."""

AT_BOUND = 1e-6
"""Relative distance from a bound of its constraint up to which a parameter is at that bound."""

MEANING = {
    ("forgetting_rate", "upper"): "an observation says nothing one unit of time later; either "
    "time is in too long a unit, or there are too few observations to tell drift from noise",
    ("forgetting_rate", "lower"): "the observations show no drift; if there is a slower one, "
    "state time in a longer unit",
    ("noise", "lower"): "the observations show no noise",
    ("lengthscale", "lower"): "the function looks rougher than the constraint allows, or noise "
    "is taken for shape",
}
"""What a parameter at a bound of its constraint says, by name and bound."""

EXPECTED = {("forgetting_rate", "lower"), ("noise", "lower")}
"""Bounds at which a sound fit ends where there is no drift, or no noise."""


class AtBound(NamedTuple):
    """An entry of a learned parameter that is at a bound of its constraint."""

    path: str
    entry: int
    side: str
    value: float

    @property
    def name(self) -> str:
        """Name of the parameter in its module."""
        return self.path.rpartition(".")[-1].removeprefix("raw_")

    @property
    def meaning(self) -> str:
        """What that says, in words."""
        return MEANING.get((self.name, self.side), "the data would take it further")


def parameters_at_bounds(model: SingleTaskGP) -> Iterator[AtBound]:
    """Iterate over the learned parameters of a model that are at a bound of their constraint."""
    # GPyTorch has no types: type checkers look for its methods in torch's Module.
    for path, raw, constraint in cast(Module, model).named_parameters_and_constraints():
        if constraint is None or not raw.requires_grad:
            continue
        values = constraint.transform(raw.detach())
        for side in ("lower", "upper"):
            bound = getattr(constraint, f"{side}_bound").to(values).expand_as(values)
            reached = (values - bound).abs() <= AT_BOUND * bound.abs()
            # Zero and infinity cannot be reached, only approached.
            reached &= bound.isfinite() & (bound != 0)
            for i in reached.flatten().nonzero().flatten().tolist():
                yield AtBound(path, i, side, values.flatten()[i].item())


class FitWatch:
    """Logs fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε.

    Each is logged once, and again only after a fit without it. A bound at which no sound fit ends
    is logged at level WARNING; that of no drift and that of no noise, and jumps, at level INFO.
    """

    def __init__(self) -> None:
        self._at_bound: set[tuple[str, int, str]] = set()
        self._form: str | None = None
        self._rate: float | None = None

    def see(self, model: SingleTaskGP) -> None:
        """Look at a fitted model."""
        self._see_bounds(model)
        self._see_form(model)
        self._see_rate(model)

    def _see_bounds(self, model: SingleTaskGP) -> None:
        at_bound = set()
        for reached in parameters_at_bounds(model):
            at_bound.add(reached[:3])
            if reached[:3] in self._at_bound:
                continue
            logger.log(
                logging.INFO if (reached.name, reached.side) in EXPECTED else logging.WARNING,
                "Fit of %d observations: %s (%s, entry %d) = %.4g is at the %s bound of its "
                "constraint: %s.",
                len(model.train_targets),
                reached.name,
                reached.path,
                reached.entry,
                reached.value,
                reached.side,
                reached.meaning,
            )
        self._at_bound = at_bound

    def _see_form(self, model: SingleTaskGP) -> None:
        kernels = model.temporal_kernels if isinstance(model, TimeVaryingGP) else ()
        form = " + ".join(type(kernel).__name__ for kernel in kernels)
        before, self._form = self._form, form
        if before is not None and form != before:
            logger.info(
                "Fit of %d observations: the form of drift changed from %s to %s.",
                len(model.train_targets),
                before,
                form,
            )

    def _see_rate(self, model: SingleTaskGP) -> None:
        kernel = model.temporal_kernel if isinstance(model, TimeVaryingGP) else None
        if not isinstance(kernel, TemporalDecayKernel):
            return
        if not kernel.raw_forgetting_rate.requires_grad:
            return
        rate = kernel.forgetting_rate.detach().max().item()
        before, self._rate = self._rate, rate
        if before is None:
            return
        times = model.train_inputs[0][..., cast(int, model.time_feature)]
        # Rates too small to matter over the time of the data are alike.
        least = -math.expm1(math.log1p(-NO_DRIFT) / max((times.max() - times.min()).item(), 1e-300))
        one, two = max(before, least), max(rate, least)
        if max(one, two) >= LARGE_JUMP * min(one, two):
            logger.info(
                "Fit of %d observations: the forgetting rate ε jumped from %.4g to %.4g per unit "
                "of time: the observations are too few to tell drift from noise or shape, or the "
                "drift has changed. A known forgetting_rate or noise_variance settles it.",
                len(model.train_targets),
                before,
                rate,
            )
