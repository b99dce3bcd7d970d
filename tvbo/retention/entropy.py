"""Keep only what informs (Bedi et al., compressed GP bandits)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tvbo.retention.base import Admission
from tvbo.retention.prediction import Prediction, Rejection
from tvbo.theory.arguments import check_count
from tvbo.theory.compression import compression_budget

Mode = Literal["skip", "discard"]


@dataclass(frozen=True)
class EntropyThreshold(Admission):
    r"""Refuse an outcome whose conditional entropy says that it would inform too little.

    An outcome :math:`y` at :math:`x` enters the model only if it is expected to bring more than
    the budget :math:`\epsilon` (Bedi et al., Algorithm 1 and (2.12)):

    .. math:: \tfrac{1}{2} \log\big(2 \pi e (\sigma^2 + \sigma_D^2(x))\big)
        > \log \sqrt{2 \pi e \sigma^2} + \epsilon
        \iff \tfrac{1}{2} \log\big(1 + \sigma_D^2(x) / \sigma^2\big) > \epsilon
        \iff \sigma_D^2(x) > \sigma^2 (e^{2 \epsilon} - 1).

    The test does not need the outcome, so in mode ``"skip"`` the action need not even be tried:
    ``trial.skipped`` is True, the trial is not open and the model stays as it is. Where an action
    must be taken in any case, ``"discard"`` opens the trial as ever, lets other policies learn from
    its outcome, and leaves it out of the model.

    Under drift, variance returns: what was refused becomes worth sampling again without any rule to
    say so. Without drift, skipping ends a loop in effect: as long as the model does not change,
    only a growing β changes the action. One action may be sampled about :math:`1/(2\epsilon)`
    times before the test refuses it, since ``n`` repeats leave :math:`\sigma_D^2 = \sigma^2 / n` at
    most; with the paper's :math:`\epsilon = 10^{-4}` that is 5,000 times.

    Trials that the caller attaches are not judged. Where open trials count, as by default, each
    trial is judged as if the outcomes of those open before it had come. With
    ``pending=IgnorePending()`` it is judged by what was told before it: several open at once may
    bring less together. Where hyperparameters are learned, recipes refuse nothing until there is
    enough for the first fit; a larger ``floor`` lets more fits see all outcomes.

    Args:
        budget: ε in nats, at least 0; 0 refuses nothing.
        mode: ``"skip"`` or ``"discard"``.
        floor: While fewer observations than this are held, nothing is refused.

    Raises:
        ValueError: if ``budget`` is negative or not finite, ``mode`` is unknown, or ``floor`` is no
            whole number from 0.

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
        if not 0 <= self.budget < float("inf"):
            raise ValueError(f"Expected budget >= 0, finite, in nats. Got {self.budget}.")
        if self.mode not in get_args(Mode):
            raise ValueError(f"Expected mode 'skip' or 'discard'. Got {self.mode!r}.")
        if not isinstance(self.floor, int) or self.floor < 0:
            raise ValueError(f"Expected floor to be 0, 1, ... observations. Got {self.floor}.")

    @classmethod
    def for_horizon(
        cls,
        horizon: int,
        *,
        dim: int,
        alpha: float | None = None,
        mode: Mode = "skip",
        floor: int = 0,
    ) -> EntropyThreshold:
        r"""With the budget :math:`\epsilon = \tfrac{1}{2} \log(1 + T^{-\alpha})` of the theorems.

        The regret that compression adds is then :math:`O(T^{1 - \alpha / 2})` up to logarithms
        (Theorem 3.2). The paper has the model order as :math:`O(T^{\alpha p})` (Theorem 3.1), which
        leaves out repeats: see :func:`tvbo.theory.information_model_order_bound`.

        Args:
            horizon: T, in rounds.
            dim: Dimension ``p`` of the actions.
            alpha: In ``(0, 1/p)``; None takes ``1 / (2 p)``, with which both grow slower than T.
            mode: As in the class.
            floor: See there.

        Raises:
            ValueError: if an argument is out of range.
        """
        check_count(horizon=horizon, dim=dim)
        if alpha is None:
            alpha = 1 / (2 * dim)
        return cls(compression_budget(horizon=horizon, alpha=alpha, dim=dim), mode, floor)

    def admit(self, prediction: Prediction, num_held: int) -> Rejection | None:
        """Reject an outcome whose expected information gain is at most the budget."""
        if self.budget == 0 or num_held < self.floor:
            return None
        gain = prediction.information_gain
        if gain > self.budget:
            return None
        return Rejection(
            f"predicted gain of {gain:.3g} nats is within the budget of {self.budget:.3g}",
            skip=self.mode == "skip",
        )
