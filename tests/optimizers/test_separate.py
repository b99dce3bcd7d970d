"""What contextual loops are compared with: a loop for each context, and one that sees none."""

import math
import pickle

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import ScaleKernel
from reference import rbf

from tvbo import recipes
from tvbo.kernels import IdentityKernel
from tvbo.optimizers import RefitEvery
from tvbo.retention import SlidingWindow

NOISE = 0.01


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


CHOICES = torch.rand(9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LISTED = tensor([0.1, 1.0], [0.35, 1.0], [0.35, 2.0])
BOX = tensor([0.0], [2.0])
CELLS = tensor([0.0, -1.0], [1.0, 3.0])


def known(**options):
    return {"choices": CHOICES, "covar_module": rbf(0.4), "noise_variance": NOISE, **options}


def seeded(seed=4):
    return torch.Generator().manual_seed(seed)


def reward(X, t, place):
    return math.sin(3 * X.sum().item() + t / 5 + 2 * place)


def places(rounds, count, seed=2):
    return torch.randint(count, (rounds,), generator=seeded(seed)).tolist()


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("declared", ["list", "bounds"])
@pytest.mark.parametrize("delay", [0, 3])
@pytest.mark.combinations
def test_separate_is_a_loop_of_its_own_for_each_context(rate, declared, delay):
    """Made by hand, on one generator; outcomes told at once, or three rounds late."""
    if declared == "list":
        contexts, options = LISTED, {"contexts": LISTED}
    else:
        # Each in a cell of its own: halves of [0, 1] and of [-1, 3].
        contexts = tensor([0.5, 0.9], [1.0, 3.0], [0.1, 1.0])
        options = {"context_bounds": CELLS, "bins": 2}
    optimizer = recipes.separate(**known(forgetting_rate=rate, generator=seeded()), **options)
    shared = seeded()
    loops = [recipes.tv_gp_ucb(**known(forgetting_rate=rate, generator=shared)) for _ in range(3)]
    waiting = []
    for t, place in enumerate(places(40, 3), start=1):
        mine = optimizer.ask(t=float(t), context=contexts[place])
        other = loops[place].ask(t=float(t))
        assert torch.equal(mine.X, other.X)
        assert torch.equal(mine.context, contexts[place])
        waiting.append((mine, loops[place], other, reward(mine.X, t, place)))
        if len(waiting) > delay:
            mine, loop, other, y = waiting.pop(0)
            optimizer.tell(mine, y)
            loop.tell(other, y)
        assert optimizer.model_size == sum(len(loop.observations) for loop in loops)
    for place, context in enumerate(contexts):
        best, other = optimizer.recommend(context), loops[place].recommend(t=40.0)
        assert torch.equal(best.X, other.X)
        # Stand-ins that were revised away leave rounding errors.
        assert best.mean == pytest.approx(other.mean, abs=1e-12)
        assert best.t == 40.0
        assert torch.equal(best.context, context)


def test_contexts_of_one_cell_share_a_loop():
    optimizer = recipes.separate(**known(), context_bounds=CELLS, bins=2)
    assert optimizer.loop(tensor(0.0, -1.0)) is optimizer.loop(tensor(0.499, 0.999))
    assert optimizer.loop(tensor(0.5, 1.0)) is optimizer.loop(CELLS[1])
    assert optimizer.loop(tensor(0.5, -1.0)) is not optimizer.loop(tensor(0.499, -1.0))
    assert len(optimizer.loops) == 3
    degenerate = recipes.separate(**known(), context_bounds=tensor([2.0], [2.0]), bins=3)
    assert degenerate.ask(context=tensor(2.0)).id == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_bounds": CELLS}, "bins with context_bounds.*ContextBounds and bins=None"),
        ({"contexts": LISTED, "bins": 2}, "without them for a list.*ContextList and bins=2"),
        ({"context_bounds": CELLS, "bins": 0}, "bins >= 1. Got 0"),
    ],
)
def test_bins_with_bounds_and_with_them_only(options, message):
    with pytest.raises(ValueError, match=message):
        recipes.separate(**known(), **options)


def test_a_log_goes_to_the_loop_of_its_context():
    optimizer = recipes.separate(**known(forgetting_rate=0.1), contexts=LISTED)
    for i, y in ((0, 1.0), (1, -1.0)):
        optimizer.tell(optimizer.attach(CHOICES[3], t=2.0, context=LISTED[i]), y)
    # An outcome in no loop: its context was never asked about.
    assert [optimizer.recommend(context).mean > 0.5 for context in LISTED] == [True, False, False]
    assert optimizer.loop(LISTED[1]).observations.X.tolist() == [[*CHOICES[3].tolist(), 2.0]]
    assert optimizer.open_trials == ()
    with pytest.raises(InputDataError, match="Expected t >= 2.0"):
        optimizer.ask(t=1.0, context=LISTED[2])


def test_an_outcome_that_is_refused_leaves_nothing_behind():
    optimizer = recipes.separate(**known(), contexts=LISTED)
    optimizer.tell(optimizer.ask(context=LISTED[0]), 1.0)
    asked = optimizer.ask(context=LISTED[0])
    attached = optimizer.attach(CHOICES[0], 2.0, context=LISTED[0])
    loop = optimizer.loop(LISTED[0])
    for trial in (asked, attached):
        for _ in range(3):
            with pytest.raises(InputDataError, match="Yvar with every observation or with none"):
                optimizer.tell(trial, 1.0, Yvar=0.1)
    assert optimizer.open_trials == (asked, attached)
    assert len(loop.observations) == 1
    optimizer.tell(asked, 1.0)
    optimizer.tell(attached, 1.0)
    assert len(loop.observations) == 3
    assert loop.open_trials == ()


def test_an_interrupted_ask_stays_open_in_no_loop(monkeypatch):
    optimizer = recipes.separate(**known(), contexts=LISTED)
    first, other = (optimizer.ask(context=LISTED[place]) for place in (0, 1))

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(optimizer), "_judge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.ask(context=LISTED[0])
    loops = [optimizer.loop(context) for context in LISTED[:2]]
    assert optimizer.open_trials == (first, other)
    assert [len(loop.open_trials) for loop in loops] == [1, 1]
    assert loops[0].trial_log.num_expired == 0
    again = optimizer.ask(context=LISTED[0])
    for trial in (again, other, first):
        optimizer.tell(trial, 0.5)
    assert [len(loop.observations) for loop in loops] == [2, 1]
    assert [loop.open_trials for loop in loops] == [(), ()]


def test_a_policy_takes_each_context_from_its_loop():
    optimizer = recipes.separate(**known(forgetting_rate=0.1), contexts=LISTED)
    for t, place in enumerate(places(20, 2), start=1):
        trial = optimizer.ask(context=LISTED[place])
        optimizer.tell(trial, reward(trial.X, t, place))
    policy = optimizer.policy(t=25.0)
    assert (policy.t, len(policy)) == (25.0, 3)
    for place in range(2):
        alone = optimizer.loop(LISTED[place]).recommend(t=25.0)
        assert torch.equal(policy.X[place], alone.X[0])
        assert policy.mean[place].item() == alone.mean
    # Never seen: the prior.
    assert policy.mean[2].item() == pytest.approx(0.0)
    assert policy.standard_deviation[2].item() == pytest.approx(1.0)


def test_a_recommendation_is_no_ask():
    def make():
        return recipes.separate(**known(retention=SlidingWindow(length=5)), contexts=LISTED)

    asked, twin = make(), make()
    for t, place in enumerate(places(20, 3), start=1):
        trials = [optimizer.ask(context=LISTED[place]) for optimizer in (asked, twin)]
        assert torch.equal(trials[0].X, trials[1].X)
        for optimizer, trial in zip((asked, twin), trials, strict=True):
            optimizer.tell(trial, reward(trial.X, t, place))
        asked.recommend(LISTED[place])
        asked.policy(t=1000.0)
        assert asked.model_size == twin.model_size


def test_a_recommendation_before_anything_wants_a_time():
    optimizer = recipes.separate(**known(), contexts=LISTED)
    with pytest.raises(InputDataError, match="Expected t, since nothing was asked or told"):
        optimizer.recommend(LISTED[0])
    assert optimizer.recommend(LISTED[0], t=1.0).t == 1.0


def test_a_saved_loop_goes_on_as_the_other():
    optimizer = recipes.separate(**known(forgetting_rate=0.1), contexts=LISTED)
    for t in range(1, 8):
        trial = optimizer.ask(context=LISTED[t % 2])
        optimizer.tell(trial, reward(trial.X, t, t % 2))
    again = pickle.loads(pickle.dumps(optimizer))
    for t in range(8, 15):
        trials = [loop.ask(context=LISTED[t % 3]) for loop in (optimizer, again)]
        assert torch.equal(trials[0].X, trials[1].X)
        for loop, trial in zip((optimizer, again), trials, strict=True):
            loop.tell(trial, reward(trial.X, t, t % 3))


@pytest.mark.parametrize(
    "declared", [{"contexts": LISTED}, {"context_bounds": CELLS}], ids=["list", "bounds"]
)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_identity_over_contexts_makes_a_model_for_each(declared, rate):
    """Krause, Ong (2011): k = k_S times identity. Same outcomes, same posterior everywhere."""
    joint = recipes.tv_cgp_ucb(
        choices=CHOICES,
        action_kernel=rbf(0.4),
        context_kernel=IdentityKernel(),
        forgetting_rate=rate,
        noise_variance=NOISE,
        **declared,
    )
    apart = recipes.separate(**known(forgetting_rate=rate), contexts=LISTED)
    for t, place in enumerate(places(40, 3), start=1):
        trial = apart.ask(t=float(t), context=LISTED[place])
        y = reward(trial.X, t, place)
        apart.tell(trial, y)
        joint.tell(joint.attach(trial.X, float(t), LISTED[place]), y)
    for context in LISTED:
        joint.ask(t=41.0, context=context)
        apart.ask(t=41.0, context=context)
        loop = apart.loop(context)
        got = joint.model.posterior(joint.layout.rows(CHOICES, 41.0, context).unsqueeze(-2))
        expected = loop.model.posterior(loop.layout.rows(CHOICES, 41.0).unsqueeze(-2))
        for name in ("mean", "variance"):
            torch.testing.assert_close(
                getattr(got, name), getattr(expected, name), rtol=0, atol=1e-9
            )


@pytest.mark.parametrize(
    ("declared", "rate", "actions"),
    [
        ({"contexts": LISTED}, 0.0, {}),
        ({"contexts": LISTED}, 0.1, {}),
        ({"context_bounds": CELLS}, 0.1, {}),
        ({"context_bounds": CELLS}, 0.1, {"choices": None, "bounds": BOX}),
    ],
    ids=["static", "drifting", "bounds", "box"],
)
def test_merged_chooses_as_if_there_were_no_contexts(declared, rate, actions):
    options = known(forgetting_rate=rate, **actions)
    merged = recipes.merged(**options, **declared)
    without = recipes.tv_gp_ucb(**options)
    rounds = 5 if actions else 30
    for t, place in enumerate(places(rounds, 3), start=1):
        mine, other = merged.ask(context=LISTED[place]), without.ask()
        assert torch.equal(mine.X, other.X)
        assert torch.equal(mine.context, LISTED[place])
        for loop, trial in ((merged, mine), (without, other)):
            loop.tell(trial, reward(trial.X, t, place))
    assert torch.equal(merged.observations.X, without.observations.X)
    best, other = merged.recommend(LISTED[0]), without.recommend()
    assert torch.equal(best.X, other.X)
    assert torch.equal(best.context, LISTED[0])
    assert len(merged.policy(LISTED)) == 3


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
def test_merged_learns_as_if_there_were_no_contexts():
    options = {"choices": CHOICES, "covar_module": ScaleKernel(rbf(0.4)), "refit": RefitEvery(5)}
    merged = recipes.merged(forgetting_rate=None, **options, contexts=LISTED)
    without = recipes.tv_gp_ucb(**options)
    for t in range(1, 16):
        mine, other = merged.ask(context=LISTED[t % 3]), without.ask()
        assert torch.equal(mine.X, other.X)
        for loop, trial in ((merged, mine), (without, other)):
            loop.tell(trial, reward(trial.X, t, 0))
