"""Log fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε."""

from __future__ import annotations

import math
from typing import cast

from botorch.models import SingleTaskGP

from tvbo.kernels import TemporalDecayKernel
from tvbo.models import TimeVaryingGP
from tvbo.models.at_bounds import Place, log_bounds, logger

LARGE_JUMP = 10.0
"""Factor by which ε changes from one fit to the next in a jump."""

NO_DRIFT = 0.01
"""An ε that forgets no more than this over the whole time of the data is none."""


class FitWatch:
    """Logs fits that deserve a look: a parameter at a bound, another form of drift, a jump of ε.

    Each is logged once, and again only after a fit without it. A bound at which no sound fit ends
    is logged at level WARNING; that of no drift and that of no noise, and jumps, at level INFO.
    """

    def __init__(self) -> None:
        self._at_bound: set[Place] = set()
        self._form: str | None = None
        self._rate: float | None = None

    def see(self, model: SingleTaskGP) -> None:
        """Look at a fitted model."""
        self._at_bound = log_bounds(model, self._at_bound)
        self._see_form(model)
        self._see_rate(model)

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
