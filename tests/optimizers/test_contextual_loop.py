"""The contextual loop against (7)-(8) of Bogunovic et al. (2016), written out in plain torch."""

import math
import pickle

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel

from tvbo import recipes
from tvbo.acquisition import LogBeta
from tvbo.kernels import ContextActionKernel
from tvbo.optimizers import RefitNever
from tvbo.optimizers.pending import IgnorePending
from tvbo.retention import Reset, SlidingWindow, StaleCutoff
from tvbo.spaces import InputLayout

NOISE = 0.01
SCALES = (0.7, 0.4, 1.3)
TOL = 1e-8


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


CHOICES = torch.rand(13, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LISTED = tensor([0.0], [0.35], [0.5], [1.0])
CONTEXTS = {"list": {"contexts": LISTED}, "bounds": {"context_bounds": tensor([0.0], [1.0])}}
ACTIONS = {"choices": {"choices": CHOICES}, "box": {"bounds": tensor([0.0], [2.0])}}


def action_kernel():
    kernel = RBFKernel().double()
    kernel.lengthscale = tensor(0.4)
    return kernel


def context_kernel():
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = tensor(0.6)
    return kernel


def make(actions="choices", contexts="list", structure="product", rate=0.0, **options):
    """The loop with everything known; 'both' has its scales only as a kernel of its own."""
    kernels = {"action_kernel": action_kernel(), "context_kernel": context_kernel()}
    if structure == "both":
        d = 2 if actions == "choices" else 1
        joint = ContextActionKernel(
            *kernels.values(), "both", action_features=range(d), context_features=[d]
        ).double()
        joint.outputscales = SCALES
        kernels = {"covar_module": joint}
    else:
        kernels["structure"] = structure
    options = {"noise_variance": NOISE, **kernels, **options}
    recipe = recipes.cgp_ucb
    if rate > 0:
        recipe, options["forgetting_rate"] = recipes.tv_cgp_ucb, rate
    return recipe(**ACTIONS[actions], **CONTEXTS[contexts], **options)


def covariance(structure, rate, one, two):
    """Of rows [action | context | time], the context one column; its own arithmetic."""
    distance = (one[:, None] - two).abs()
    S = torch.exp(-distance[..., :-2].square().sum(-1) / (2 * 0.4**2))
    r = 5**0.5 * distance[..., -2] / 0.6
    Z = (1 + r + r**2 / 3) * torch.exp(-r)
    a, b, c = {"product": (0, 0, 1), "additive": (1, 1, 0), "both": SCALES}[structure]
    return (a * S + b * Z + c * S * Z) * (1 - rate) ** (distance[..., -1] / 2)


def dense(record, rows, structure="product", rate=0.0):
    """Mean and standard deviation of (7)-(8) at rows, from a record of (row, y, noise)."""
    prior = covariance(structure, rate, rows, rows).diagonal()
    if not record:
        return torch.zeros_like(prior), prior.sqrt()
    X = torch.stack([row for row, _, _ in record])
    K = covariance(structure, rate, X, X) + torch.diag(tensor(*[n for _, _, n in record]))
    k = covariance(structure, rate, rows, X)
    mean = k @ torch.linalg.solve(K, tensor(*[y for _, y, _ in record]))
    variance = prior - (k * torch.linalg.solve(K, k.mT).mT).sum(-1)
    return mean, variance.clamp_min(0).sqrt()


def row_of(trial):
    return torch.cat([trial.X[0], trial.context, tensor(trial.t)])


def at(actions, t, context):
    return torch.cat([actions, tensor([context, t]).expand(len(actions), 2)], dim=-1)


def reward(trial):
    """A drifting function of action and context, with scatter that repeats."""
    x, z = trial.X.sum().item(), trial.context.item()
    return math.sin(3 * x + 2.5 * z + trial.t / 7) + 0.2 * math.sin(7.0 * trial.id)


def situations(contexts, rounds, asks=1, seed=5):
    """(t, context) of each round: a new context at each time, ``asks`` rounds in it."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(rounds):
        if i % asks == 0:
            z = torch.rand(1, generator=generator, dtype=torch.float64)
            if contexts == "list":
                z = LISTED[int(len(LISTED) * z)]
        yield float(i // asks + 1), z


def assert_posterior(optimizer, record, t, **model):
    """The model behind the newest ask, at every choice in every listed context."""
    rows = torch.cat([at(CHOICES, t, z) for z in LISTED.flatten().tolist()])
    posterior = optimizer.model.posterior(rows.unsqueeze(-2))
    mean, sd = dense(record, rows, **model)
    torch.testing.assert_close(posterior.mean.flatten(), mean, rtol=0, atol=TOL)
    torch.testing.assert_close(posterior.variance.flatten(), sd.square(), rtol=0, atol=TOL)


def bound(record, candidates, round_number, trial, model):
    mean, sd = dense(record, at(candidates, trial.t, trial.context.item()), **model)
    return mean + LogBeta()(round_number) ** 0.5 * sd


MODELS = [
    {"structure": structure, "rate": rate}
    for structure in ("product", "additive", "both")
    for rate in (0.0, 0.03)
]


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize(("model", "asks"), zip(MODELS, [1, 5, 5, 1, 1, 5], strict=True), ids=str)
@pytest.mark.combinations
def test_on_choices_every_action_is_the_replays(contexts, model, asks):
    """With five asks at a time, each sees the outcomes of those before it."""
    optimizer, record, ties = make(contexts=contexts, **model), [], 0
    for i, (t, context) in enumerate(situations(contexts, 40, asks), start=1):
        trial = optimizer.ask(t=t, context=context)
        values = bound(record, CHOICES, i, trial, model)
        chosen = (CHOICES == trial.X).all(-1).nonzero().item()
        assert values[chosen] >= values.max() - TOL
        ties += int((values >= values.max() - TOL).sum() > 1)
        assert optimizer.model_size == i - 1
        y = reward(trial)
        record.append((row_of(trial), y, NOISE))
        optimizer.tell(trial, y)
    # Before the first outcome all are alike; not much later.
    assert ties <= 1


@pytest.mark.parametrize(
    ("model", "contexts"),
    [(MODELS[1], "list"), (MODELS[5], "bounds")],
    ids=str,
)
def test_on_a_box_every_action_is_the_replays(contexts, model):
    """Against a grid: no point of it may be better by more than 1e-4."""
    optimizer, record = make("box", contexts, **model), []
    # The model is at stake here, not the search: a peak at the edge is narrower than 2 / 64.
    optimizer.search_space.raw_samples, optimizer.search_space.num_restarts = 512, 20
    grid = torch.linspace(0, 2, 801, dtype=torch.float64).unsqueeze(-1)
    for i, (t, context) in enumerate(situations(contexts, 40), start=1):
        if i <= 35:
            # Started from a log, which is quick.
            trial = optimizer.attach(grid[(i * 331) % 801], t, context)
        else:
            trial = optimizer.ask(t=t, context=context)
            values = bound(record, torch.cat([trial.X, grid]), i, trial, model)
            assert values[0] >= values[1:].max() - 1e-4
        y = reward(trial)
        record.append((row_of(trial), y, NOISE))
        optimizer.tell(trial, y)


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize("actions", ["choices", "box"])
def test_five_asks_before_any_tell_and_outcomes_told_late(contexts, actions):
    """What is told enters at the next ask, with its own time and context, in any order."""
    optimizer = make(actions, contexts, rate=0.1, pending=IgnorePending())
    record, waiting = [], []
    steps = situations(contexts, 40 if actions == "choices" else 10, asks=5)
    for i, (t, context) in enumerate(steps, start=1):
        waiting.append(optimizer.ask(t=t, context=context))
        if actions == "choices":
            assert_posterior(optimizer, record, t, rate=0.1)
        if i % 5 == 0 and t % 2 == 0:
            for late in reversed(waiting[1:]):
                y = reward(late)
                optimizer.tell(late.id, y)
                record.append((row_of(late), y, NOISE))
            waiting = waiting[:1]
    assert [trial.id for trial in optimizer.open_trials] == [trial.id for trial in waiting]
    assert torch.equal(optimizer.observations.X, torch.stack([row for row, _, _ in record]))


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize(
    ("retention", "keeps"),
    [
        (Reset(every=5), lambda then, now: (then - 1) // 5 == (now - 1) // 5),
        (SlidingWindow(length=4), lambda then, now: now - then <= 4),
        (StaleCutoff(0.2, tol=0.2), lambda then, now: 0.8 ** (now - then) > 0.2),
    ],
)
@pytest.mark.combinations
def test_what_retention_drops_is_gone_in_every_context(contexts, retention, keeps):
    """Three asks at each time, so that several go at once."""
    optimizer, record = make(contexts=contexts, rate=0.2, retention=retention), []
    sizes = []
    for t, context in situations(contexts, 42, asks=3):
        trial = optimizer.ask(t=t, context=context)
        record = [entry for entry in record if keeps(entry[0][-1].item(), t)]
        assert len(optimizer.observations) == len(record)
        if trial.id % 2:
            assert_posterior(optimizer, record, t, rate=0.2)
        y = reward(trial)
        optimizer.tell(trial, y)
        record.append((row_of(trial), y, NOISE))
        sizes.append(len(record))
    assert max(sizes) < 42


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize("known", [NOISE, None])
def test_each_outcome_with_its_own_noise(contexts, known):
    """Also where no noise variance was given and nothing is learned."""
    refit = RefitNever() if known is None else None
    optimizer = make(contexts=contexts, rate=0.03, noise_variance=known, refit=refit)
    record = []
    for i, (t, context) in enumerate(situations(contexts, 20)):
        trial = optimizer.ask(t=t, context=context)
        assert_posterior(optimizer, record, t, rate=0.03)
        y, noise = reward(trial), 0.02 + i % 3
        optimizer.tell(trial, y, Yvar=noise)
        record.append((row_of(trial), y, noise))


@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.parametrize("actions", ["choices", "box"])
@pytest.mark.combinations
def test_a_loop_saved_in_mid_run_goes_on_as_the_other(contexts, actions):
    optimizer = make(actions, contexts, structure="both", rate=0.03)
    rest, rounds = (10, 16) if actions == "choices" else (5, 7)
    steps = list(situations(contexts, rounds, asks=3))
    for t, context in steps[:rest]:
        trial = optimizer.ask(t=t, context=context)
        if trial.id != 4:
            optimizer.tell(trial, reward(trial))
    again = pickle.loads(pickle.dumps(optimizer))
    for loop in (optimizer, again):
        loop.tell(4, 0.3)
    for t, context in steps[rest:]:
        mine, other = (loop.ask(t=t, context=context) for loop in (optimizer, again))
        assert torch.equal(mine.X, other.X)
        assert (mine.id, mine.t) == (other.id, other.t)
        assert torch.equal(mine.context, other.context)
        for loop, trial in ((optimizer, mine), (again, other)):
            loop.tell(trial, reward(mine))


def test_the_rows_are_action_context_time():
    optimizer = make(rate=0.03)
    assert optimizer.layout == InputLayout(2, 1)
    trial = optimizer.ask(t=2.5, context=LISTED[1])
    optimizer.tell(trial, 1.0)
    assert optimizer.observations.X.tolist() == [[*trial.X[0].tolist(), 0.35, 2.5]]


def test_random_search_takes_contexts_where_they_were_declared():
    optimizer = recipes.random_search(
        bounds=torch.tensor([[0.0], [1.0]]), context_bounds=torch.tensor([[0.0], [2.0]])
    )
    trial = optimizer.ask(context=torch.tensor([1.5]))
    assert trial.context.tolist() == [1.5]
    optimizer.tell(trial, 1.0)
    with pytest.raises(InputDataError):
        optimizer.ask(context=torch.tensor([2.5]))
