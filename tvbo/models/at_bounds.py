"""Learned parameters that a fit left at a bound of their constraint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from botorch.models import SingleTaskGP
from gpytorch.module import Module

logger = logging.getLogger("tvbo.fit.fitted_forms")

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
        """What that says."""
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


def log_bounds(at_bounds: Iterable[AtBound], num: int) -> None:
    """Log which learned parameters are at a bound.

    A bound at which no sound fit ends is logged at level WARNING; that of no drift and that of no
    noise at level INFO.

    Args:
        at_bounds: Parameters at a bound.
        num: Number of observations that were fitted.
    """
    for reached in at_bounds:
        logger.log(
            logging.INFO if (reached.name, reached.side) in EXPECTED else logging.WARNING,
            "Fit of %d observations: %s (%s, entry %d) = %.4g is at the %s bound of its "
            "constraint: %s.",
            num,
            reached.name,
            reached.path,
            reached.entry,
            reached.value,
            reached.side,
            reached.meaning,
        )
