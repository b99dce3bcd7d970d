"""Admission by expected information gain (Bedi et al., compressed GP bandits)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from tvbo.retention.base import Admission, Prediction, Rejection
from tvbo.values import check_count, check_not_negative

Mode = Literal["skip", "discard"]


@dataclass(frozen=True)
class EntropyThreshold(Admission):
    r"""Reject outcomes whose expected information gain is at most a budget.

    An outcome :math:`y` at :math:`x` enters the model only if its expected information gain exceeds
    the budget :math:`\epsilon` (Bedi et al., Algorithm 1 and (2.12)):

    .. math:: \tfrac{1}{2} \log\big(2 \pi e (\sigma^2 + \sigma_D^2(x))\big)
        > \log \sqrt{2 \pi e \sigma^2} + \epsilon
        \iff \tfrac{1}{2} \log\big(1 + \sigma_D^2(x) / \sigma^2\big) > \epsilon
        \iff \sigma_D^2(x) > \sigma^2 (e^{2 \epsilon} - 1).

    The test does not need the outcome, so in mode ``"skip"`` the action need not be evaluated:
    ``trial.skipped`` is True, the trial is not open and the model does not change. Where an action
    is taken in any case, mode ``"discard"`` opens the trial, passes its outcome to the other
    policies, and leaves it out of the model.

    Under drift the posterior variance grows with time, so a rejected action becomes informative
    again. Without drift, skipping practically ends a loop: as long as the model does not change,
    only a growing β changes the action. One action may be sampled about :math:`1/(2\epsilon)`
    times before the test rejects it, since ``n`` repeats leave :math:`\sigma_D^2 = \sigma^2 / n` at
    most; with the paper's :math:`\epsilon = 10^{-4}` that is 5,000 times.

    Attached trials are not tested. By default the model is conditioned on pending trials, so each
    trial is tested as if their outcomes had arrived. With ``pending=IgnorePending()`` the test uses
    the observations alone, and several trials open at once may be less informative together. Where
    hyperparameters are learned, recipes reject nothing until there are enough outcomes for the
    first fit; with a larger ``floor`` more fits see all outcomes.

    Args:
        budget: ε in nats, at least 0; 0 rejects nothing.
        mode: ``"skip"`` or ``"discard"``.
        floor: While fewer observations than this are held, nothing is rejected.

    Raises:
        ValueError: if ``budget`` is negative or not finite, ``mode`` is unknown, or ``floor`` is
            not a whole number from 0.

    Example:
        >>> optimizer = recipes.gp_ucb(..., retention=EntropyThreshold(0.02))
        >>> trial = optimizer.ask()
        >>> if not trial.skipped:
        ...     optimizer.tell(trial, evaluate(trial.X))
    """

    budget: float
    mode: Mode = "skip"
    floor: int = 0

    def __post_init__(self) -> None:
        check_not_negative(budget=self.budget)
        if self.mode not in get_args(Mode):
            raise ValueError(f"Expected mode 'skip' or 'discard'. Got {self.mode!r}.")
        if not isinstance(self.floor, int) or self.floor < 0:
            raise ValueError(f"Expected floor to be 0, 1, ... observations. Got {self.floor}.")

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Reject an outcome whose expected information gain is at most the budget."""
        gain = prediction.information_gain
        if self.budget == 0 or num_held < self.floor or gain > self.budget:
            return None
        return Rejection(
            f"predicted gain of {gain:.3g} nats is within the budget of {self.budget:.3g}",
            skip=self.mode == "skip",
        )


def compression_budget(*, horizon: int, dim: int, alpha: float | None = None) -> float:
    r"""Return :math:`\varepsilon = \tfrac12 \log(1 + T^{-\alpha})`, :math:`\alpha \in (0, 1/p)`.

    With this budget the regret that compression adds is :math:`O(T^{1 - \alpha / 2})` up to
    logarithms (Theorem 3.2). The model order of the paper, :math:`O(T^{\alpha p})` (Theorem 3.1),
    omits repeats; ``information_model_order_bound`` includes them.

    Args:
        horizon: T, in rounds.
        dim: Dimension ``p`` of the actions.
        alpha: α. The larger, the smaller are budget and regret, and the larger is the model. None
            is ``1 / (2 p)``, with which both grow more slowly than T.

    Returns:
        ε in nats.

    Raises:
        ValueError: if ``alpha`` lies outside (0, 1/p), or another argument is out of range.
    """
    check_count(horizon=horizon, dim=dim)
    alpha = 1 / (2 * dim) if alpha is None else alpha
    if not 0 < alpha < 1 / dim:
        raise ValueError(f"Expected alpha in (0, 1/p) = (0, {1 / dim:g}). Got {alpha}.")
    return 0.5 * math.log1p(horizon**-alpha)
