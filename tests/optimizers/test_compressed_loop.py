"""The loop with an entropy threshold: none is no change; what is refused; what comes back."""

import math
import pickle

import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood

from tvbo import recipes
from tvbo.acquisition import EI, UCB, LogBeta, LogEI
from tvbo.fit.model_fitter import ModelFitter
from tvbo.optimizers import GPOptimizer, OutcomeModel, RefitEvery, RefitNever
from tvbo.optimizers.dense_state import DenseState
from tvbo.optimizers.incremental_state import IncrementalState
from tvbo.optimizers.pending import IgnorePending
from tvbo.optimizers.streaming_state import StreamingState
from tvbo.retention import Admission, EntropyThreshold, EventReset, Reset, SlidingWindow
from tvbo.spaces import Box, ContextBounds, ContextList, FiniteSpace, InputLayout
from tvbo.spaces.row_index import action_context_rows

NOISE = 0.05
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
ARMS = torch.rand(12, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CONTEXTS = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.float64)


def num_refused(optimizer):
    return optimizer.trial_log.num_skipped + optimizer.trial_log.num_discarded


def rbf(lengthscale=0.3):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    return kernel


def loop(
    kind,
    retention,
    *,
    rate=0.0,
    acquisition=None,
    box=False,
    contexts=False,
    noise_variance=NOISE,
):
    """The loop on each of the models; ``refit`` learns the noise in each round."""
    layout = InputLayout(2, int(contexts))
    fitter = ModelFitter(
        layout,
        UNIT,
        covar_module=rbf(),
        forgetting_rate=rate,
        noise_variance=None if kind == "refit" else noise_variance,
        likelihood=GaussianLikelihood() if kind == "refit" else None,
        refit=RefitEvery(1) if kind == "refit" else RefitNever(),
    )
    rows = action_context_rows(ARMS, CONTEXTS) if contexts else ARMS
    state = {
        "dense": lambda: DenseState(fitter),
        "refit": lambda: DenseState(fitter),
        "incremental": lambda: IncrementalState(fitter),
        "streaming": lambda: StreamingState(fitter, rows),
    }[kind]()
    listed = ContextList(CONTEXTS) if not box else ContextBounds(torch.tensor([[0.0], [1.0]]))
    return GPOptimizer(
        Box(UNIT, num_restarts=1, raw_samples=16) if box else FiniteSpace(ARMS),
        [OutcomeModel(state, retention)],
        UCB(LogBeta()) if acquisition is None else acquisition,
        generator=torch.Generator().manual_seed(5),
        contexts=listed if contexts else None,
    )


def outcome(trial):
    x, y = trial.X[0].tolist()
    z = 0.0 if trial.context is None else trial.context.item()
    return math.sin(5 * x + z) * math.cos(3 * y) + 0.2 * math.sin(7.0 * trial.id)


def ask(optimizer):
    """In a context that moves, where there are contexts."""
    context = None
    if optimizer.contexts is not None:
        context = CONTEXTS[(optimizer._num_trials * 5) % 3]
    return optimizer.ask(context=context)


def played(optimizer, rounds):
    """The trials, each told at once unless it is skipped."""
    trials = []
    for _ in range(rounds):
        trials.append(ask(optimizer))
        if not trials[-1].skipped:
            optimizer.tell(trials[-1], outcome(trials[-1]))
    return trials


def actions(trials):
    return torch.cat([trial.X for trial in trials])


def assert_no_change(kind, rounds, **options):
    """Threshold 0 in both modes against keep-all, bit for bit."""
    plain = loop(kind, None, **options)
    expected = actions(played(plain, rounds))
    assert len(expected.unique(dim=0)) > 1
    for mode in ("skip", "discard"):
        optimizer = loop(kind, EntropyThreshold(0.0, mode), **options)
        trials = played(optimizer, rounds)
        assert torch.equal(actions(trials), expected)
        assert all(trial.informative and not trial.skipped for trial in trials)
        assert all(trial.information_gain > 0 for trial in trials)
        assert torch.equal(optimizer.observations.X, plain.observations.X)
        assert torch.equal(optimizer.observations.Y, plain.observations.Y)
        assert num_refused(optimizer) == 0


@pytest.mark.parametrize(
    ("rate", "contexts", "acquisition"),
    [(0.0, False, None), (0.05, True, None), (0.0, True, EI()), (0.05, False, EI())],
    ids=["static-UCB", "drift-context-UCB", "static-context-EI", "drift-EI"],
)
@pytest.mark.parametrize("kind", ["streaming", "incremental", "dense"])
@pytest.mark.combinations
def test_budget_0_changes_nothing_on_a_finite_set(kind, rate, contexts, acquisition):
    assert_no_change(kind, 8, rate=rate, contexts=contexts, acquisition=acquisition)


@pytest.mark.parametrize(
    ("kind", "rate", "contexts", "acquisition"),
    [
        ("incremental", 0.0, False, LogEI()),
        ("incremental", 0.05, True, None),
        ("dense", 0.0, False, None),
        ("dense", 0.05, True, LogEI()),
    ],
)
def test_budget_0_changes_nothing_in_a_box(kind, rate, contexts, acquisition):
    assert_no_change(kind, 3, rate=rate, contexts=contexts, acquisition=acquisition, box=True)


@pytest.mark.slow
@pytest.mark.parametrize("box", [False, True])
def test_budget_0_changes_nothing_where_all_is_learned_anew(box):
    assert_no_change("refit", 5 if box else 7, rate=0.05, box=box, acquisition=LogEI())


@pytest.mark.parametrize(("mode", "rate"), [("skip", 0.05), ("discard", 0.0)])
def test_all_models_refuse_alike(mode, rate):
    """The same actions, gains and refusals, whichever form the posterior takes."""
    records = []
    for kind in ("streaming", "incremental", "dense"):
        # The first is told outside the loop: a dense model has no noise before.
        optimizer = loop(kind, EntropyThreshold(0.5, mode), rate=rate)
        optimizer.tell(optimizer.attach(ARMS[2], 0.0), 0.3)
        records.append(played(optimizer, 16))
    first = records[0]
    for other in records[1:]:
        assert torch.equal(actions(other), actions(first))
        for one, two in zip(first, other, strict=True):
            assert (one.informative, one.skipped) == (two.informative, two.skipped)
            assert one.information_gain == pytest.approx(two.information_gain, rel=1e-8)
    assert {trial.informative for trial in first} == {True, False}


def test_a_dense_model_knows_its_noise_before_the_first_outcome():
    gain = loop("dense", EntropyThreshold(0.1)).ask().information_gain
    assert gain == pytest.approx(0.5 * math.log(1 + 1 / NOISE))


def test_all_models_refuse_alike_where_the_noise_is_below_the_least():
    gains = {}
    for kind in ("streaming", "incremental"):
        optimizer = loop(kind, EntropyThreshold(0.1), noise_variance=1e-9)
        optimizer.tell(optimizer.attach(ARMS[2], 0.0), 0.3)
        gains[kind] = [trial.information_gain for trial in played(optimizer, 5)]
    assert gains["incremental"] == pytest.approx(gains["streaming"], rel=1e-3)


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
    assert num_refused(optimizer) == 1


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


@pytest.mark.parametrize("kind", ["streaming", "incremental", "dense"])
def test_noise_told_with_each_outcome(kind):
    """It decides how much is known; the test itself asks for the noise of the model."""
    optimizer = loop(kind, EntropyThreshold(0.3))
    trial = optimizer.attach(ARMS[0], 0.0)
    optimizer.tell(trial, 0.1, Yvar=NOISE)
    trial = optimizer.attach(ARMS[0], 0.0)
    optimizer.tell(trial, 0.1, Yvar=NOISE)
    trial = optimizer.ask()
    distance = (trial.X - ARMS[:1]).square().sum().item()
    k = math.exp(-distance / (2 * 0.3**2))
    variance = 1 - k**2 / (1 + NOISE / 2)
    assert trial.information_gain == pytest.approx(0.5 * math.log(1 + variance / NOISE), rel=1e-9)


@pytest.mark.parametrize("kind", ["streaming", "incremental"])
def test_noise_told_by_outcomes_alone(kind):
    """Where σ² is told by the outcomes only, it is theirs: as the dense model has it."""
    gains = []
    for each in (kind, "dense"):
        optimizer = loop(each, EntropyThreshold(0.0), noise_variance=None)
        optimizer.ask()
        optimizer.tell(optimizer.attach(ARMS[0], 0.0), 0.1, Yvar=0.5)
        gains.append(optimizer.ask().information_gain)
    assert gains[0] == pytest.approx(gains[1], rel=1e-6)


@pytest.mark.parametrize("kind", ["refit", "streaming"])
def test_learned_noise(kind):
    """The gain is that of the hyperparameters which the choice rested on."""
    fitter = ModelFitter(
        InputLayout(2),
        UNIT,
        covar_module=rbf(),
        forgetting_rate=0.0,
        likelihood=GaussianLikelihood(),
        refit=RefitEvery(1 if kind == "refit" else 3),
    )
    state = DenseState(fitter) if kind == "refit" else StreamingState(fitter, ARMS)
    optimizer = GPOptimizer(
        FiniteSpace(ARMS),
        [OutcomeModel(state, EntropyThreshold(0.4, "discard", floor=6))],
        UCB(LogBeta()),
    )
    noises, informative = set(), []
    for _ in range(10):
        trial = optimizer.ask()
        model = optimizer.model
        noise = model.likelihood.noise if kind == "refit" else model.noise_variance
        with torch.no_grad():
            variance = model.posterior(InputLayout(2).rows(trial.X, trial.t, None)).variance
        expected = 0.5 * math.log(1 + variance.item() / noise.item())
        assert trial.information_gain == pytest.approx(expected, rel=1e-9)
        noises.add(noise.item())
        informative.append(trial.informative)
        optimizer.tell(trial, outcome(trial))
    assert len(noises) > 2
    assert {*informative} == {True, False}


def test_discarded_outcomes_make_no_fit_due():
    """A fit is due after so many outcomes that entered: it learns from no others."""

    class Counted(RefitEvery):
        asked = []  # noqa: RUF012

        def due(self, num_new):
            self.asked.append(num_new)
            return super().due(num_new)

    fitter = ModelFitter(
        InputLayout(2),
        UNIT,
        covar_module=rbf(),
        forgetting_rate=0.0,
        likelihood=GaussianLikelihood(),
        refit=Counted(1000),
    )
    optimizer = GPOptimizer(
        FiniteSpace(ARMS),
        [OutcomeModel(DenseState(fitter), EntropyThreshold(9.0, "discard", 5))],
        UCB(LogBeta()),
    )
    played(optimizer, 7)
    assert optimizer.model_size == 5
    optimizer.ask()
    assert Counted.asked[-1] == 5


class Counter(Admission):
    """Counts the outcomes that it is told."""

    def __init__(self):
        self.told = 0

    def observe_outcome(self, prediction, Y):
        self.told += 1


def test_two_loops_with_one_policy_share_nothing():
    policy = Counter() & EntropyThreshold(0.3)
    one, two = (loop("streaming", policy) for _ in range(2))
    played(one, 4)
    assert one.retention.policies[0].told == 4
    assert two.retention.policies[0].told == policy.policies[0].told == 0
    assert one.retention is not policy


@pytest.mark.parametrize(
    ("kind", "mode"), [("streaming", "skip"), ("incremental", "discard"), ("dense", "skip")]
)
def test_saved_in_mid_run_it_goes_on_as_the_other(kind, mode):
    policy = EventReset(0.05) & EntropyThreshold(0.9, mode)
    optimizer = loop(kind, policy, rate=0.03)
    played(optimizer, 8)
    pending = ask(optimizer)
    while pending.skipped:
        pending = ask(optimizer)
    again = pickle.loads(pickle.dumps(optimizer))
    ends = []
    for each in (optimizer, again):
        trials = played(each, 6)
        each.tell(pending, 5.0)
        ends.append((trials + played(each, 6), each))
    (one, first), (two, second) = ends
    assert torch.equal(actions(one), actions(two))
    assert [trial.information_gain for trial in one] == [trial.information_gain for trial in two]
    assert [trial.informative for trial in one] == [trial.informative for trial in two]
    assert first.trial_log.to_frame().equals(second.trial_log.to_frame())
    assert num_refused(first) > 0
    assert vars(first.retention.policies[0]) == vars(second.retention.policies[0])


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("streaming", 0.0), ("streaming", 0.03), ("incremental", 0.0), ("dense", 0.03)],
)
def test_recommendations_change_nothing(kind, rate):
    def chosen(look):
        policy = SlidingWindow(6.5) & EventReset(0.05) & EntropyThreshold(1.2, "discard")
        optimizer = loop(kind, policy, rate=rate, contexts=True)
        trials = []
        for _ in range(4):
            trials += played(optimizer, 3)
            if look:
                seen = num_refused(optimizer), optimizer.model_size
                optimizer.recommend(CONTEXTS[1])
                optimizer.recommend(CONTEXTS[1], t=trials[-1].t + 4)
                optimizer.policy(CONTEXTS)
                assert (num_refused(optimizer), optimizer.model_size) == seen
        return trials, optimizer

    (one, first), (two, second) = chosen(False), chosen(True)
    assert torch.equal(actions(one), actions(two))
    assert [t.information_gain for t in one] == pytest.approx([t.information_gain for t in two])
    assert [t.informative for t in one] == [t.informative for t in two]
    assert vars(first.retention.policies[1]) == vars(second.retention.policies[1])
    assert num_refused(first) > 0


class Windowed:
    """Keeps, but is no policy: it cannot be asked what it thinks of an outcome."""

    def keep(self, observations, model, t):
        return torch.ones(len(observations), dtype=torch.bool)


@pytest.mark.parametrize("wrong", [Windowed(), EntropyThreshold, 0.1])
def test_what_is_no_policy_is_refused_at_once(wrong):
    with pytest.raises(TypeError):
        loop("streaming", wrong)


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


def test_after_a_reset_all_models_refuse_alike():
    """Above what any outcome can tell, 1.52 nats, nothing informs."""
    policy = Reset(4) & EntropyThreshold(2.0)
    records = []
    for kind in ("streaming", "dense"):
        records.append([trial.skipped for trial in played(loop(kind, policy), 6)])
    assert records[0] == records[1] == [True] * 6


@pytest.mark.parametrize("kind", ["streaming", "incremental", "dense"])
def test_as_long_as_nothing_is_known_of_the_noise_nothing_is_refused(kind):
    optimizer = loop(kind, EntropyThreshold(5.0), noise_variance=None)
    trial = optimizer.ask()
    assert (trial.informative, trial.information_gain) == (True, None)
    optimizer.tell(trial, 0.1, Yvar=0.5)
    trial = optimizer.ask()
    assert trial.skipped
    assert 0 < trial.information_gain <= 5.0


def test_an_outcome_is_judged_by_its_own_noise():
    """An outcome two of its own standard deviations off is inside a band of three; by σ², not."""
    alarms = {}
    for Yvar in (None, 100 * NOISE):
        optimizer = loop("streaming", EventReset(band=0.9973), noise_variance=NOISE)
        for t in range(1, 7):
            trial = optimizer.ask(t)
            sign = 1 if t % 2 else -1
            optimizer.tell(trial, 20 * sign * NOISE**0.5, Yvar)
        alarms[Yvar] = len(optimizer.retention.alarms)
    assert alarms[None] > 0
    assert alarms[100 * NOISE] == 0
