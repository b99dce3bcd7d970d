"""The loop with an entropy threshold: none is no change; what is refused; what comes back."""

import math
import pickle

import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes
from tvbo.acquisition import EI
from tvbo.optimizers import RefitNever
from tvbo.optimizers.pending import IgnorePending
from tvbo.retention import EntropyThreshold, EventReset, Reset, SlidingWindow

NOISE = 0.05
ARMS = torch.rand(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CONTEXTS = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)


def rbf(lengthscale=0.3):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def loop(retention, space="choices", **options):
    """All hyperparameters are given; the space is a finite set, a box, or has contexts as well."""
    given = {"covar_module": rbf(), "noise_variance": NOISE, "retention": retention}
    given |= {"choices": ARMS} if space != "box" else {"bounds": [(0.0, 1.0)] * 2}
    if space == "contexts":
        given |= {"contexts": CONTEXTS}
        return recipes.tv_cgp_ucb(**given | {"forgetting_rate": 0.03} | options)
    return recipes.tv_gp_ucb(**given | {"forgetting_rate": 0.03} | options)


def outcome(trial):
    x, y = trial.X[0].tolist()
    z = 0.0 if trial.context is None else trial.context.item()
    return math.sin(5 * x + z) * math.cos(3 * y) + 0.2 * math.sin(7.0 * trial.id)


def played(optimizer, rounds):
    """The trials, each told at once unless it is skipped, in contexts that move."""
    trials = []
    for _ in range(rounds):
        of_round = None if optimizer.contexts is None else CONTEXTS[optimizer.num_trials * 5 % 3]
        trials.append(optimizer.ask(context=of_round))
        if not trials[-1].skipped:
            optimizer.tell(trials[-1], outcome(trials[-1]))
    return trials


def actions(trials):
    return torch.cat([trial.X for trial in trials])


@pytest.mark.parametrize("mode", ["skip", "discard"])
@pytest.mark.parametrize(
    ("space", "options"),
    [
        ("choices", {"forgetting_rate": 0.0}),
        ("choices", {"acquisition": EI()}),
        ("box", {}),
        ("contexts", {}),
    ],
)
def test_a_budget_of_0_changes_nothing(space, options, mode):
    """Bit for bit."""
    rounds = 4 if space == "box" else 8
    plain = loop(None, space, **options)
    expected = actions(played(plain, rounds))
    optimizer = loop(EntropyThreshold(0.0, mode), space, **options)
    trials = played(optimizer, rounds)
    assert torch.equal(actions(trials), expected)
    assert all(trial.informative and trial.information_gain > 0 for trial in trials)
    assert torch.equal(optimizer.observations.X, plain.observations.X)


def single_arm(budget, rate, mode="skip", **options):
    arm = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    return recipes.compressed_gp(
        choices=arm,
        covar_module=rbf(),
        noise_variance=NOISE,
        forgetting_rate=rate,
        budget=budget,
        mode=mode,
        **options,
    )


@pytest.mark.parametrize(("mode", "rate"), [("skip", 0.02), ("discard", 0.02), ("skip", 0.005)])
def test_what_was_refused_informs_again_in_time(mode, rate):
    """One look at lag a leaves 1 - (1 - rate)^a / (1 + noise): solved for a."""
    budget = 0.9
    optimizer = single_arm(budget, rate, mode)
    optimizer.tell(optimizer.ask(1.0), 0.3)
    threshold = NOISE * (math.exp(2 * budget) - 1)
    lag = math.log((1 - threshold) * (1 + NOISE)) / math.log(1 - rate)
    assert 3 < lag < 200
    wakes = 1 + math.floor(lag) + 1
    for t in range(2, wakes + 1):
        trial = optimizer.ask(float(t))
        assert trial.informative == (t == wakes), f"round {t} of {wakes}"
        if not trial.skipped:
            optimizer.tell(trial, 0.3)
    assert optimizer.model_size == 2
    # In real time, at any moment: the sum of both looks is as good as a filter.
    assert not optimizer.ask(wakes + 0.5).informative


def test_a_single_arm_over_many_rounds_against_a_scalar_filter():
    """Variance p: grows to 1 - (1 - rate)(1 - p) in a round, falls to p s2 / (p + s2) by a look."""
    rate, budget = 0.01, 0.35
    optimizer = single_arm(budget, rate)
    p, looks = 1.0, 0
    for t in range(1, 80):
        p = 1 - (1 - rate) * (1 - p)
        trial = optimizer.ask()
        gain = 0.5 * math.log(1 + p / NOISE)
        assert trial.information_gain == pytest.approx(gain, abs=1e-9)
        assert trial.skipped == (gain <= budget)
        if gain > budget:
            optimizer.tell(trial, math.sin(t))
            p = p * NOISE / (p + NOISE)
            looks += 1
    assert 15 < looks < 65


def test_without_drift_what_was_refused_stays_refused():
    optimizer = single_arm(0.1, 0.0)
    # n looks leave s2 / (n + s2).
    looks = math.ceil(1 / (math.exp(0.2) - 1) - NOISE)
    trials = []
    for t in (*range(1, 20), 1e3, 1e6):
        trials.append(optimizer.ask(float(t)))
        if not trials[-1].skipped:
            optimizer.tell(trials[-1], 0.1)
    assert [trial.skipped for trial in trials] == [False] * looks + [True] * (21 - looks)


def test_floor():
    """While fewer are held nothing is refused; attached ones count, discarded ones do not."""
    optimizer = single_arm(5.0, 0.0, "discard", floor=3)
    optimizer.tell(optimizer.attach(torch.tensor([0.5, 0.5]), 0.0), 0.1)
    kept = []
    for _ in range(6):
        trial = optimizer.ask()
        kept.append(trial.informative)
        optimizer.tell(trial, 0.2)
    assert kept == [True, True, False, False, False, False]
    assert optimizer.model_size == 3


def test_floor_holds_again_after_a_reset():
    optimizer = single_arm(5.0, 0.0, floor=2, retention=SlidingWindow(3.5))
    skipped = []
    for _ in range(12):
        trial = optimizer.ask()
        skipped.append(trial.skipped)
        if not trial.skipped:
            optimizer.tell(trial, 0.2)
    # What was told in rounds 1 and 2 is out of the window in rounds 5 and 6, and so on.
    assert skipped == [False, False, True, True] * 3


def test_attached_trials_are_not_judged():
    optimizer = single_arm(5.0, 0.0)
    assert optimizer.ask().skipped
    for t in range(2, 6):
        trial = optimizer.attach(torch.tensor([0.5, 0.5]), float(t))
        assert (trial.informative, trial.information_gain) == (True, None)
        optimizer.tell(trial, 0.1)
    assert optimizer.model_size == 4
    assert optimizer.trial_log.num_skipped == 1


def test_several_trials_at_once_are_judged_one_after_another():
    """As if the outcomes of those open before had come: until the next one is not worth it."""
    optimizer = single_arm(0.2, 0.0)
    trials = [optimizer.ask(1.0) for _ in range(5)]
    gains = [0.5 * math.log(1 + 1 / (NOISE + k)) for k in range(5)]
    assert [trial.information_gain for trial in trials] == pytest.approx(gains[:3] + 2 * [gains[2]])
    assert [trial.skipped for trial in trials] == [gain <= 0.2 for gain in gains]


def test_several_trials_at_once_are_judged_by_what_is_known():
    """Ignored, open trials tell nothing yet: one gain for all, kept until they come."""
    optimizer = single_arm(1.0, 0.0, pending=IgnorePending())
    trials = [optimizer.ask(1.0) for _ in range(4)]
    gain = 0.5 * math.log(1 + 1 / NOISE)
    assert [trial.information_gain for trial in trials] == pytest.approx([gain] * 4)
    assert not any(trial.skipped for trial in trials)
    for trial in reversed(trials):
        optimizer.tell(trial, 0.1 * trial.id)
    assert optimizer.model_size == 4
    assert optimizer.ask(1.0).skipped


def test_late_outcomes_enter_with_the_time_of_their_trial():
    """The verdict stands that was given at the time of asking."""
    rate, budget = 0.05, 0.9
    optimizer = single_arm(budget, rate, pending=IgnorePending())
    first, second = optimizer.ask(1.0), optimizer.ask(2.0)
    optimizer.tell(second, 0.4)
    refused = optimizer.ask(3.0)
    variance = 1 - (1 - rate) / (1 + NOISE)
    assert refused.information_gain == pytest.approx(0.5 * math.log(1 + variance / NOISE))
    assert refused.skipped
    optimizer.tell(first, -0.4)
    assert optimizer.observations.X[:, -1].tolist() == [2.0, 1.0]
    later = optimizer.ask(4.0)
    k = torch.tensor([(1 - rate) ** 1.0, (1 - rate) ** 1.5], dtype=torch.float64)
    K = torch.tensor([[1 + NOISE, (1 - rate) ** 0.5], [(1 - rate) ** 0.5, 1 + NOISE]])
    variance = 1 - (k @ torch.linalg.inv(K.double()) @ k).item()
    assert later.information_gain == pytest.approx(0.5 * math.log(1 + variance / NOISE), rel=1e-6)


@pytest.mark.parametrize("mode", ["skip", "discard"])
def test_contexts_are_judged_each_for_itself(mode):
    """Known well in one context, an action informs in another."""
    optimizer = recipes.cgp_ucb(
        choices=ARMS[:1],
        contexts=CONTEXTS,
        action_kernel=rbf(),
        context_kernel=rbf(0.1),
        noise_variance=NOISE,
        retention=EntropyThreshold(1.0, mode),
    )
    first = optimizer.ask(context=CONTEXTS[0])
    optimizer.tell(first, 0.2)
    assert not optimizer.ask(context=CONTEXTS[0]).informative
    other = optimizer.ask(context=CONTEXTS[2])
    assert other.informative
    between = math.exp(-((0.9 - 0.1) ** 2) / (2 * 0.1**2))
    variance = 1 - between**2 / (1 + NOISE)
    assert other.information_gain == pytest.approx(0.5 * math.log(1 + variance / NOISE), rel=1e-6)


def test_noise_told_with_each_outcome():
    """It decides how much is known; the test itself asks for the noise of the model."""
    optimizer = loop(EntropyThreshold(0.3), forgetting_rate=0.0)
    for _ in range(2):
        optimizer.tell(optimizer.attach(ARMS[0], 0.0), 0.1, Yvar=NOISE)
    trial = optimizer.ask()
    k = math.exp(-(trial.X - ARMS[:1]).square().sum().item() / (2 * 0.3**2))
    variance = 1 - k**2 / (1 + NOISE / 2)
    assert trial.information_gain == pytest.approx(0.5 * math.log(1 + variance / NOISE), rel=1e-9)


def test_as_long_as_nothing_is_known_of_the_noise_nothing_is_refused():
    optimizer = loop(EntropyThreshold(5.0), noise_variance=None, refit=RefitNever())
    trial = optimizer.ask()
    assert (trial.informative, trial.information_gain) == (True, None)
    optimizer.tell(trial, 0.1, Yvar=0.5)
    trial = optimizer.ask()
    assert trial.skipped
    assert 0 < trial.information_gain <= 5.0


@pytest.mark.parametrize("mode", ["skip", "discard"])
def test_saved_in_mid_run_it_goes_on_as_the_other(mode):
    optimizer = loop(EventReset(0.05) & EntropyThreshold(0.9, mode))
    played(optimizer, 8)
    pending = optimizer.ask()
    while pending.skipped:
        pending = optimizer.ask()
    ends = []
    for each in (optimizer, pickle.loads(pickle.dumps(optimizer))):
        trials = played(each, 4)
        each.tell(pending, 5.0)
        ends.append((trials + played(each, 4), each.trial_log.to_frame()))
    (one, first), (two, second) = ends
    assert torch.equal(actions(one), actions(two))
    assert [trial.information_gain for trial in one] == [trial.information_gain for trial in two]
    assert first.equals(second)
    assert len(first) > 0


def test_recommendations_change_nothing():
    def chosen(look):
        policy = SlidingWindow(6.5) & EventReset(0.05) & EntropyThreshold(1.4, "discard")
        optimizer = loop(policy, "contexts")
        trials = []
        for _ in range(4):
            trials += played(optimizer, 3)
            if look:
                optimizer.recommend(CONTEXTS[1], t=trials[-1].t + 4)
                optimizer.policy(CONTEXTS)
        return trials

    one, two = chosen(False), chosen(True)
    assert torch.equal(actions(one), actions(two))
    assert [t.information_gain for t in one] == pytest.approx([t.information_gain for t in two])
    assert {t.informative for t in two} == {True, False}


def test_policies_join_whatever_the_model_forgets():
    """A reset brings back what was refused; the threshold judges by what is left."""
    optimizer = single_arm(1.0, 0.0, retention=Reset(4))
    skipped = []
    for _ in range(12):
        trial = optimizer.ask()
        skipped.append(trial.skipped)
        if not trial.skipped:
            optimizer.tell(trial, 0.1)
    assert skipped == [False, True, True, True] * 3


def test_an_outcome_is_judged_by_its_own_noise():
    """An outcome two of its own standard deviations off is inside a band of three; by σ², not."""
    alarms = {}
    for Yvar in (None, 100 * NOISE):
        optimizer = loop(EventReset(band=0.9973), forgetting_rate=0.0)
        for t in range(1, 7):
            sign = 1 if t % 2 else -1
            optimizer.tell(optimizer.ask(t), 20 * sign * NOISE**0.5, Yvar)
        alarms[Yvar] = len(optimizer.retention.alarms)
    assert alarms[None] > 0
    assert alarms[100 * NOISE] == 0
