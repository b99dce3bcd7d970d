"""The test of Bedi et al. in its two forms, and what it is given."""

import math
from decimal import Decimal, localcontext

import pytest
import torch

from tvbo.retention import EntropyThreshold, Prediction
from tvbo.retention.entropy import compression_budget

DIGITS = 40
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def prediction(variance, noise_variance=1.0):
    return Prediction(t=1.0, mean=0.0, variance=variance, noise_variance=noise_variance)


def admits(budget, variance, noise_variance=1.0, **options):
    return (
        EntropyThreshold(budget, **options).admit(prediction(variance, noise_variance), 9) is None
    )


def entropy_form(budget, variance, noise_variance):
    """Algorithm 1, line 4, as it is printed, with 40 digits."""
    with localcontext() as context:
        context.prec = DIGITS
        budget, variance, noise = map(Decimal, (budget, variance, noise_variance))
        two_pi_e = 2 * PI * Decimal(1).exp()
        return (two_pi_e * (noise + variance)).ln() / 2 > (two_pi_e * noise).sqrt().ln() + budget


def variance_form(budget, variance, noise_variance):
    """(2.12), with 40 digits."""
    with localcontext() as context:
        context.prec = DIGITS
        budget, variance, noise = map(Decimal, (budget, variance, noise_variance))
        return variance > noise * ((2 * budget).exp() - 1)


def cases(count, near, seed):
    """Budgets of 1e-8 to 10 nats, noise of 1e-9 to 1e3; variances of 1e-14 to 1e14 noises.

    Or ``near`` the threshold: off by a share of 1e-11 to 1e-1 of it, to either side.
    """
    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(count, 4, generator=generator, dtype=torch.float64).tolist()
    for budget, noise, away, side in draws:
        budget, noise = 10 ** (9 * budget - 8), 10 ** (12 * noise - 9)
        if not near:
            yield budget, noise * 10 ** (28 * away - 14), noise
            continue
        off = 10 ** (-11 + 10 * away) * (1 if side < 0.5 else -1)
        yield budget, noise * math.expm1(2 * budget) * (1 + off), noise


@pytest.mark.parametrize("near", [False, True])
def test_both_forms_decide_alike_on_10_000_cases(near):
    """Half of them anywhere, half near the threshold."""
    admitted = 0
    for budget, variance, noise in cases(5_000, near, seed=int(near)):
        decision = admits(budget, variance, noise)
        assert decision == entropy_form(budget, variance, noise)
        assert decision == variance_form(budget, variance, noise)
        admitted += decision
    # Neither answer is rare.
    assert 0.3 < admitted / 5_000 < 0.7


def test_the_threshold_itself_is_refused():
    """Where both sides are exact in floating point: the inequality is strict."""
    assert not admits(0.5 * math.log1p(1.0), 1.0)
    assert admits(0.5 * math.log1p(1.0), math.nextafter(1.0, 2.0) + 1e-15)


def test_budget_of_0_refuses_nothing_not_even_what_is_certain():
    assert admits(0, 0.0)
    assert admits(0.0, 0.0, noise_variance=0.0)


def test_without_noise_all_but_the_certain_informs():
    assert admits(100.0, 1e-12, noise_variance=0.0)
    assert not admits(1e-9, 0.0, noise_variance=0.0)


@pytest.mark.parametrize(("mode", "skip"), [("skip", True), ("discard", False)])
def test_refusal_says_what_and_why(mode, skip):
    rejection = EntropyThreshold(0.25, mode).admit(prediction(0.1), 0)
    assert rejection.skip is skip
    gain = 0.5 * math.log(1.1)
    assert rejection.reason == f"predicted gain of {gain:.3g} nats is within the budget of 0.25"


def test_mode_is_skip_by_default():
    assert EntropyThreshold(0.1) == EntropyThreshold(0.1, "skip", 0)


def test_floor():
    policy = EntropyThreshold(0.25, floor=3)
    answers = [policy.admit(prediction(0.1), num_held) for num_held in range(5)]
    assert [verdict is None for verdict in answers] == [True, True, True, False, False]


def test_repeats_of_one_point_pass_as_often_as_noise_over_n_says():
    """n looks at a point of prior variance v leave v s2 / (s2 + n v); 1/tau - s2/v of them pass."""
    budget, noise, prior = 0.0156, 0.01, 1.0
    passed = 0
    while admits(budget, prior * noise / (noise + passed * prior), noise):
        passed += 1
    assert passed == math.ceil(1 / math.expm1(2 * budget) - noise / prior) == 32


@pytest.mark.parametrize(("dim", "alpha"), [(1, 0.9), (2, 0.1), (3, None), (1, None)])
def test_budget_of_the_theorems(dim, alpha):
    power = 1 / (2 * dim) if alpha is None else alpha
    budget = compression_budget(horizon=1000, dim=dim, alpha=alpha)
    assert budget == pytest.approx(0.5 * math.log(1 + 1000**-power), rel=1e-13)


@pytest.mark.parametrize("bad", [-1e-9, -1.0, float("nan"), float("inf"), float("-inf")])
def test_bad_budget(bad):
    with pytest.raises(ValueError):
        EntropyThreshold(bad)


@pytest.mark.parametrize("bad", ["Skip", "drop", "", None, True])
def test_unknown_mode(bad):
    with pytest.raises(ValueError):
        EntropyThreshold(0.1, bad)


@pytest.mark.parametrize("bad", [-1, 1.5, -0.5, float("nan"), float("inf")])
def test_bad_floor(bad):
    with pytest.raises(ValueError):
        EntropyThreshold(0.1, floor=bad)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_alpha_outside_of_0_to_1_over_p(dim, share):
    with pytest.raises(ValueError):
        compression_budget(horizon=1000, dim=dim, alpha=share / dim)


@pytest.mark.parametrize("bad", [0, -5, 2.5])
def test_bad_horizon(bad):
    with pytest.raises(ValueError):
        compression_budget(horizon=bad, dim=1)


def test_no_dimensions():
    with pytest.raises(ValueError):
        compression_budget(horizon=1000, dim=0)
