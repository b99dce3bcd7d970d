"""Open trials in every recipe, against a dense GP in numpy that has all chosen rows."""

import copy
import math
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.means import ConstantMean, LinearMean
from reference import rbf

from tvbo import recipes
from tvbo.acquisition import LogEI
from tvbo.models import StreamingGP
from tvbo.models.scale import outcome_scale
from tvbo.optimizers import RefitEvery, RefitNever
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending
from tvbo.retention import (
    EventReset,
    KeepAll,
    Reset,
    SizeLimit,
    SlidingWindow,
)
from tvbo.spaces import Box, InputLayout

NOISE = 0.02
LENGTHSCALE = 0.3
BETA = 2.0
LOWEST = -1.5
POLICIES = [IgnorePending(), Hallucinate(), ConstantLiar(LOWEST)]
CHOICES = torch.rand(11, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LISTED = torch.tensor([[0.0], [0.4], [1.0]], dtype=torch.float64)
RATES = [0.0, 0.03, 0.5, 1.0]


def name(policy):
    return type(policy).__name__


@dataclass
class Dense:
    """A GP by its formulas; rows are [action | context | time], all but time in one RBF."""

    rate: float = 0.0
    noise: float = NOISE
    lengthscale: float = LENGTHSCALE
    scale: float = 1.0
    mean: object = staticmethod(lambda rows: np.zeros(len(rows)))

    def covariance(self, A, B):
        square = ((A[:, None, :-1] - B[None, :, :-1]) ** 2).sum(-1)
        lag = np.abs(A[:, None, -1] - B[None, :, -1])
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.where(lag == 0, 1.0, np.power(1.0 - self.rate, lag / 2))
        return self.scale * np.exp(-square / (2 * self.lengthscale**2)) * kept

    def given(self, rows, y, noise, at):
        """Mean and variance at rows."""
        if len(rows) == 0:
            return self.mean(at), np.full(len(at), self.scale)
        K = self.covariance(rows, rows) + np.diag(noise)
        k = self.covariance(rows, at)
        weights = np.linalg.solve(K, k)
        mean = self.mean(at) + weights.T @ (y - self.mean(rows))
        return mean, self.scale - (k * weights).sum(0)

    def with_open(self, policy, told, waiting, at, open_noise=None, lost=None):
        """The same with stand-ins: told is (rows, y, noise), waiting and lost rows."""
        rows, y, noise = told
        lost = waiting[:0] if lost is None else lost
        if isinstance(policy, IgnorePending) or len(waiting) + len(lost) == 0:
            return self.given(rows, y, noise, at)
        more = np.concatenate([waiting, lost])
        open_noise = self.noise if open_noise is None else open_noise
        noises = np.concatenate([noise, np.full(len(more), open_noise)])
        if isinstance(policy, ConstantLiar):
            stand_in = np.full(len(more), policy.value)
        else:
            stand_in, _ = self.given(rows, y, noise, more)
        # What failed is as bad as the worst outcome, and so is the same question still waiting.
        failed = np.array([(row == lost).all(-1).any() for row in more])
        stand_in[failed] = stand_in[failed].clip(max=y.min(initial=np.inf))
        return self.given(np.concatenate([rows, more]), np.concatenate([y, stand_in]), noises, at)


@dataclass
class Story:
    """Asks, and tells, fails, expires, attaches at random; keeps its own books."""

    optimizer: object
    policy: object
    dense: Dense
    seed: int = 0
    layout: InputLayout = field(default_factory=lambda: InputLayout(2))
    contexts: torch.Tensor | None = None
    told_noise: bool = False
    keeps: object = staticmethod(lambda row, t: True)
    atol: float = 1e-8
    backlog: int = 6
    choices: torch.Tensor = field(default_factory=lambda: CHOICES)

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        self.open = {}
        # Of those that failed or expired: row, number of outcomes before, whether by chance.
        self.lost = []
        self.told = []
        self.t = 0.0
        self.checked = 0

    def row(self, trial):
        context = trial.context if self.layout.num_contexts else None
        return self.layout.rows(trial.X, trial.t, context).numpy()[0]

    def context(self):
        if self.contexts is None:
            return None
        return self.contexts[self.random.integers(len(self.contexts))]

    def expected(self, context, at):
        width = self.layout.num_columns
        kept = [each for each in self.told if self.keeps(each[0], self.t)]
        told = (
            np.array([each[0] for each in kept]).reshape(-1, width),
            np.array([each[1] for each in kept]),
            np.array([each[2] for each in kept]),
        )
        rows = [self.row(trial) for trial in self.open.values()]
        # What will not enter, or lies in the future, does not count.
        rows = [
            row
            for row, trial in zip(rows, self.open.values(), strict=True)
            if trial.informative and trial.t <= self.t
        ]
        lost = [each for each in self.lost if each[0][-1] <= self.t and self.keeps(each[0], self.t)]
        rows += [row for row, _, by_chance in lost if by_chance]
        waiting = np.array(rows).reshape(-1, width)
        rows = [row for row, _, by_chance in lost if not by_chance]
        lost = np.array(rows).reshape(-1, width)
        return self.dense.with_open(self.policy, told, waiting, at, lost=lost)

    def ask(self, context=None):
        self.t += self.random.choice([0.0, 0.5, 1.0, 1.0, 2.0])
        context = self.context() if context is None else context
        at = self.layout.rows(self.choices, self.t, context if self.layout.num_contexts else None)
        expected = self.expected(context, at.numpy())
        trial = self.optimizer.ask(self.t, context)
        with torch.no_grad():
            posterior = self.optimizer.model.posterior(at.unsqueeze(-2))
        np.testing.assert_allclose(
            posterior.mean.flatten().numpy(), expected[0], rtol=0, atol=self.atol
        )
        np.testing.assert_allclose(
            posterior.variance.flatten().numpy(),
            np.maximum(expected[1], 1e-10),
            rtol=0,
            atol=self.atol,
        )
        self.checked += 1
        if not trial.skipped:
            self.open[trial.id] = trial
        return trial, expected

    def tell(self, trial):
        y = math.sin(5 * trial.X.sum().item() + trial.t / 7) + 0.3 * self.random.standard_normal()
        noise = 0.01 + 0.1 * self.random.random() if self.told_noise else None
        self.optimizer.tell(trial if trial.id % 2 else trial.id, y, noise)
        self.count(trial, y, self.dense.noise if noise is None else noise)

    def count(self, trial, y, noise=NOISE):
        """Note an outcome: after 20, or one of the same action, a failure counts no more."""
        del self.open[trial.id]
        if trial.informative:
            row = self.row(trial)
            self.told.append((row, y, noise))
            self.lost = [
                (each, before, by_chance)
                for each, before, by_chance in self.lost
                if len(self.told) - before < 20 and (each[:-1] != row[:-1]).any()
            ]

    def lose(self, trial):
        del self.open[trial.id]
        if trial.informative:
            row = self.row(trial)
            held = [each for each, *_ in self.told if self.keeps(each, self.t)]
            by_chance = self.near(row, held) and not self.near(
                row, [each for each, *_ in self.lost]
            )
            self.lost.append((row, len(self.told), by_chance))

    def near(self, row, rows):
        width = self.choices.amax(0) - self.choices.amin(0)
        if self.layout.num_contexts:
            width = torch.cat([width, self.contexts.amax(0) - self.contexts.amin(0)])
        return any((abs(each - row)[:-1] <= 0.05 * width.numpy()).all() for each in rows)

    def any_open(self):
        ids = list(self.open)
        return self.open[ids[self.random.integers(len(ids))]]

    def between(self):
        """What happens between two asks."""
        while self.open and (len(self.open) > self.backlog or self.random.random() < 0.55):
            trial = self.any_open()
            kind = self.random.random()
            if kind < 0.8:
                self.tell(trial)
            elif kind < 0.9:
                self.optimizer.fail(trial, "the worker died")
                self.lose(trial)
            else:
                self.optimizer.expire(trial)
                self.lose(trial)
        kind = self.random.random()
        if kind < 0.1:
            X = self.choices[self.random.integers(len(self.choices))]
            self.attach(X, self.t - self.random.choice([0.0, 0.25, 3.0, 11.0]), self.context())
        elif kind < 0.25 and self.open:
            # The same question once more, at the same time.
            twin = self.any_open()
            self.attach(twin.X, twin.t, twin.context)

    def attach(self, X, t, context):
        trial = self.optimizer.attach(X, t, context)
        self.open[trial.id] = trial

    def rounds(self, n):
        for _ in range(n):
            trial, (mean, variance) = self.ask()
            value = mean + math.sqrt(BETA) * np.sqrt(np.maximum(variance, 0))
            here = (self.choices == trial.X).all(-1).nonzero().item()
            # What the formulas prefer, up to rounding, was chosen.
            assert value[here] >= value.max() - 1e-6
            self.between()
        assert self.checked >= n
        assert {trial.id for trial in self.optimizer.open_trials} == set(self.open)
        return self


def finite(rate=0.0, policy=None, recipe=recipes.tv_gp_ucb, **options):
    options = {
        "choices": CHOICES,
        "covar_module": rbf(LENGTHSCALE),
        "noise_variance": NOISE,
        "beta": BETA,
        "pending": policy,
        **options,
    }
    if recipe is not recipes.gp_ucb and "every" not in options:
        options["forgetting_rate"] = rate
    return recipe(**options)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("policy", POLICIES, ids=name)
@pytest.mark.combinations
def test_finite_set(rate, policy):
    optimizer = finite(rate, policy, retention=KeepAll())
    Story(optimizer, policy, Dense(rate), seed=3).rounds(22)
    assert isinstance(optimizer.model, StreamingGP)


@pytest.mark.parametrize("rate", [0.0, 0.03])
@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
def test_noise_told_with_the_outcomes(rate, policy):
    """An open trial has the noise that was given, an outcome its own."""
    optimizer = finite(rate, policy, retention=KeepAll())
    Story(optimizer, policy, Dense(rate), seed=5, told_noise=True).rounds(12)


@pytest.mark.parametrize("rate", [0.0, 0.03, 1.0])
@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
@pytest.mark.parametrize("contexts", ["list", "bounds"])
@pytest.mark.combinations
def test_contexts(rate, policy, contexts):
    given = (
        {"contexts": LISTED}
        if contexts == "list"
        else {"context_bounds": torch.tensor([[0.0], [1.0]])}
    )
    optimizer = recipes.tv_cgp_ucb(
        choices=CHOICES,
        covar_module=rbf(LENGTHSCALE),
        forgetting_rate=rate,
        noise_variance=NOISE,
        beta=BETA,
        pending=policy,
        retention=KeepAll(),
        **given,
    )
    Story(optimizer, policy, Dense(rate), 6, InputLayout(2, 1), LISTED).rounds(12)


def test_linear_ucb():
    optimizer = recipes.linear_ucb(
        choices=CHOICES[:3], context_bounds=torch.tensor([[1.0], [2.0]]), pending=Hallucinate()
    )
    context = torch.tensor([1.5])
    chosen = torch.cat([optimizer.ask(context=context).X for _ in range(3)])
    assert len(torch.unique(chosen, dim=0)) == 3


@pytest.mark.parametrize("mode", ["skip", "discard"])
@pytest.mark.parametrize("policy", POLICIES, ids=name)
@pytest.mark.combinations
def test_compressed(mode, policy):
    """What will not enter does not count while it is open, either."""
    optimizer = finite(0.02, policy, recipes.compressed_gp, mode=mode, budget=0.7)
    story = Story(optimizer, policy, Dense(0.02), seed=9)
    for _ in range(40):
        story.ask()
        story.between()
    assert optimizer.trial_log.to_frame().shape[0] > 1


@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
@pytest.mark.parametrize("kind", ["window", "reset"])
def test_what_retention_drops(policy, kind):
    """Open trials are expired before they are too old to enter."""
    if kind == "window":
        optimizer = finite(0.03, policy, retention=SlidingWindow(6.0))
        dense = Dense(0.03)

        def keeps(row, t):
            return t - row[-1] <= 6.0
    else:
        optimizer = finite(policy=policy, recipe=recipes.r_gp_ucb, every=8.0)
        dense = Dense(0.0)

        def keeps(row, t):
            return math.floor((t - 1) / 8) == math.floor((row[-1] - 1) / 8)

    story = Story(optimizer, policy, dense, seed=10, keeps=keeps)
    dropped = 0
    for _ in range(50):
        story.ask()
        story.between()
        soon = story.t + 2.0
        for trial in list(story.open.values()):
            if not keeps(story.row(trial), soon):
                optimizer.expire(trial)
                story.lose(trial)
                dropped += 1
    assert dropped > 2


@pytest.mark.parametrize("retention", [SlidingWindow(5.0), Reset(5.0)], ids=name)
def test_an_open_trial_whose_outcome_would_be_dropped_does_not_count(retention):
    """Told at t=20, its outcome would be gone by the next ask: nothing stands in for nothing."""
    optimizer = finite(0.0, ConstantLiar(LOWEST), retention=retention)
    optimizer.ask(1.0)
    optimizer.ask(20.0)
    mean = optimizer.model.posterior(InputLayout(2).rows(CHOICES, 20.0)).mean
    assert mean.abs().max() < 1e-12


@pytest.mark.parametrize("policy", POLICIES, ids=name)
@pytest.mark.parametrize("rate", [0.0, 0.05])
def test_box(policy, rate):
    """Posterior at a grid; and without an answer, no two actions alike but if open trials do not
    count."""
    optimizer = recipes.tv_gp_ucb(
        bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        covar_module=rbf(LENGTHSCALE),
        forgetting_rate=rate,
        noise_variance=NOISE,
        beta=BETA,
        pending=policy,
    )
    story = Story(optimizer, policy, Dense(rate), seed=12)
    for _ in range(4):
        story.ask()
        story.between()


@pytest.mark.parametrize("policy", POLICIES, ids=name)
def test_a_constant_prior_mean(policy):
    mean = ConstantMean().double()
    mean.constant.data.fill_(0.7)
    optimizer = finite(0.03, policy, mean_module=mean)
    Story(optimizer, policy, Dense(0.03, mean=lambda rows: np.full(len(rows), 0.7))).rounds(20)


@pytest.mark.draws_globally  # LinearMean does
@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
@pytest.mark.parametrize(
    "rate",
    [
        0.0,
        0.03,
    ],
)
def test_a_prior_mean_that_depends_on_time(policy, rate):
    mean = LinearMean(3).double()
    mean.weights.data = torch.tensor([[0.3], [-0.2], [0.05]], dtype=torch.float64)
    mean.bias.data.fill_(0.1)

    def line(rows):
        return rows @ np.array([0.3, -0.2, 0.05]) + 0.1

    optimizer = finite(rate, policy, mean_module=mean)
    Story(optimizer, policy, Dense(rate, mean=line), seed=13).rounds(15)


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
@pytest.mark.combinations
def test_learned_hyperparameters(every, policy):
    """Refit in each round, or at every seventh outcome; read off the fit and put in by hand."""
    optimizer = finite(
        None,
        policy,
        covar_module=ScaleKernel(rbf(LENGTHSCALE)),
        noise_variance=None,
        refit=RefitEvery(every),
    )
    story = Story(optimizer, policy, Dense(), seed=14, atol=1e-6)
    random = story.random
    fits = set()
    for t in range(1, 15):
        trial = optimizer.ask(float(t))
        fitted = optimizer.posterior_state.fitter.last_model
        kernel = fitted.covar_module.kernels[0].base_kernel
        shift, stdv = outcome_scale(fitted)
        assert (shift, stdv) == (0.0, 1.0)
        constant = fitted.mean_module.constant.item()
        story.dense = Dense(
            rate=fitted.forgetting_rate.item(),
            noise=fitted.likelihood.noise.item(),
            lengthscale=kernel.base_kernel.lengthscale.item(),
            scale=kernel.outputscale.item(),
            mean=lambda rows, constant=constant: np.full(len(rows), constant),
        )
        fits.add(story.dense.scale)
        story.told = [(row, y, story.dense.noise) for row, y, _ in story.told]
        story.t = float(t)
        at = InputLayout(2).rows(CHOICES, float(t))
        mean, variance = story.expected(None, at.numpy())
        posterior = optimizer.model.posterior(at.unsqueeze(-2))
        np.testing.assert_allclose(
            posterior.mean.detach().flatten().numpy(), mean, rtol=0, atol=1e-6
        )
        np.testing.assert_allclose(
            posterior.variance.detach().flatten().numpy(), variance, rtol=0, atol=1e-6
        )
        story.open[trial.id] = trial
        while len(story.open) > 3:
            story.tell(story.open[list(story.open)[random.integers(4)]])
    assert len(fits) > 1


@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
def test_standardized_outcomes(policy):
    """BoTorch's default kernel, whose outcomes are standardized, in raw units again."""
    optimizer = recipes.gp_ucb(
        choices=10 * CHOICES, pending=policy, refit=RefitEvery(30), noise_variance=0.3
    )
    story = Story(optimizer, policy, Dense(), seed=15, choices=10 * CHOICES)
    for t in range(1, 10):
        trial = optimizer.ask(float(t))
        story.t = float(t)
        fitted = optimizer.posterior_state.fitter.last_model
        shift, stdv = outcome_scale(fitted)
        lower, upper = optimizer.search_space.bounds.numpy()
        lengthscale = fitted.covar_module.kernels[0].base_kernel.lengthscale.detach().numpy()[0]
        constant = shift + stdv * fitted.mean_module.constant.item()

        def scaled(rows, lower=lower, upper=upper, lengthscale=lengthscale):
            rows = rows.copy()
            rows[:, :-1] = (rows[:, :-1] - lower) / (upper - lower) / lengthscale
            return rows

        dense = Dense(
            noise=0.3,
            lengthscale=1.0,
            scale=stdv**2,
            mean=lambda rows, constant=constant: np.full(len(rows), constant),
        )
        at = InputLayout(2).rows(10 * CHOICES, float(t))
        told = (
            scaled(np.array([row for row, _, _ in story.told]).reshape(-1, 3)),
            np.array([y for _, y, _ in story.told]),
            np.full(len(story.told), 0.3),
        )
        waiting = np.array([story.row(each) for each in story.open.values()]).reshape(-1, 3)
        mean, variance = dense.with_open(policy, told, scaled(waiting), scaled(at.numpy()))
        posterior = optimizer.model.posterior(at.unsqueeze(-2))
        np.testing.assert_allclose(
            posterior.mean.detach().flatten().numpy(), mean, rtol=0, atol=1e-8
        )
        np.testing.assert_allclose(
            posterior.variance.detach().flatten().numpy(), variance, rtol=0, atol=1e-8
        )
        story.open[trial.id] = trial
        if t > 3:
            story.tell(story.any_open())


@pytest.mark.parametrize("policy", POLICIES, ids=name)
@pytest.mark.parametrize("limit", [{}, {"retention": SizeLimit(5)}], ids=["all", "limit"])
@pytest.mark.combinations
def test_expected_improvement_and_a_size_limit(policy, limit):
    """Other acquisitions and retention see the conditioned model, too."""
    options = {"acquisition": LogEI(), "beta": None, "budget": 0.0, **limit}
    optimizer = finite(0.02, policy, recipes.compressed_gp, **options)
    random = np.random.default_rng(0)
    for t in range(1, 30):
        optimizer.ask(float(t))
        waiting = optimizer.open_trials
        if len(waiting) > 4:
            optimizer.tell(waiting[random.integers(5)], random.standard_normal())
    assert optimizer.model_size == (6 if limit else 25)


@pytest.mark.parametrize(
    "policy",
    [
        IgnorePending(),
        *POLICIES[1:],
    ],
    ids=name,
)
def test_event_reset_is_told_what_the_outcomes_foretold(policy):
    """Whether the world has changed is not for stand-ins to say: the band is that of what came."""
    seen = []

    class Note(EventReset):
        def observe_outcome(self, prediction, Y):
            seen.append(prediction)
            super().observe_outcome(prediction, Y)

    optimizer = finite(0.0, policy, retention=Note())
    first = optimizer.ask(1.0)
    optimizer.tell(first, 0.5)
    waiting = optimizer.ask(2.0)
    # Next to the open one, so that its stand-in matters.
    trial = optimizer.ask(3.0)
    optimizer.tell(trial, 0.4)
    dense = Dense()
    rows = [np.append(each.X.numpy()[0], each.t) for each in (first, trial)]
    mean, variance = dense.given(rows[0][None], np.array([0.5]), np.array([NOISE]), rows[1][None])
    assert seen[-1].mean == pytest.approx(mean[0], abs=1e-8)
    assert seen[-1].variance == pytest.approx(variance[0], abs=1e-8)
    assert waiting.id in {each.id for each in optimizer.open_trials}


def test_noise_unknown_as_long_as_nothing_was_told():
    """Outcomes bring it: before the first, open trials have next to none; then the mean so far."""
    optimizer = finite(0.0, ConstantLiar(LOWEST), noise_variance=None, refit=RefitNever())
    first = optimizer.ask(1.0)
    optimizer.ask(2.0)
    at_first = optimizer.model.posterior(InputLayout(2).rows(first.X, 2.0))
    assert at_first.mean.item() == pytest.approx(LOWEST, rel=1e-4)
    assert at_first.variance.item() < 1e-4
    optimizer.tell(first, 0.3, Yvar=0.05)
    optimizer.ask(3.0)
    rows = np.array([np.append(each.X.numpy()[0], each.t) for each in (first,)])
    waiting = np.array([np.append(each.X.numpy()[0], each.t) for each in optimizer.open_trials[:1]])
    at = InputLayout(2).rows(CHOICES, 3.0)
    mean, variance = Dense().with_open(
        ConstantLiar(LOWEST), (rows, np.array([0.3]), np.array([0.05])), waiting, at.numpy(), 0.05
    )
    posterior = optimizer.model.posterior(at.unsqueeze(-2))
    np.testing.assert_allclose(posterior.mean.flatten().numpy(), mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(posterior.variance.flatten().numpy(), variance, rtol=0, atol=1e-8)


def pickled(optimizer):
    return pickle.loads(pickle.dumps(optimizer))


@pytest.mark.slow_cases("refit-deepcopy", "box-deepcopy")
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("finite", copy.deepcopy),
        ("refit", copy.deepcopy),
        *((kind, pickled) for kind in ("drift", "context", "noise", "box", "refit")),
    ],
)
def test_a_copy_in_the_middle_of_delays_goes_on_alike(kind, how):
    options = {"policy": Hallucinate()}
    context = None
    if kind == "drift":
        options["rate"] = 0.05
    elif kind == "refit":
        options |= {"noise_variance": None, "refit": RefitEvery(3)}
    elif kind == "context":
        options |= {"recipe": recipes.tv_cgp_ucb, "contexts": LISTED}
        context = LISTED[1]
    elif kind == "box":
        options |= {"choices": None, "bounds": torch.tensor([[0.0], [1.0]])}
    if kind == "refit":
        options["covar_module"] = rbf(LENGTHSCALE)
    optimizer = finite(**options)
    random = np.random.default_rng(1)

    def go_on(each, first, last, random):
        chosen = []
        for t in range(first, last):
            chosen.append(each.ask(float(t), context).X)
            waiting = each.open_trials
            if len(waiting) > 3:
                noise = 0.05 if kind == "noise" else None
                each.tell(waiting[random.integers(4)], random.standard_normal(), noise)
        return torch.cat(chosen)

    half = 4 if kind == "box" else 9
    go_on(optimizer, 1, half, random)
    twin = how(optimizer)
    one = go_on(optimizer, half, 2 * half, np.random.default_rng(2))
    two = go_on(twin, half, 2 * half, np.random.default_rng(2))
    assert torch.equal(one, two)
    assert [trial.id for trial in optimizer.open_trials] == [t.id for t in twin.open_trials]


@pytest.mark.parametrize("policy", POLICIES[1:], ids=name)
def test_a_recommendation_between_asks_changes_none(policy):
    one, two = (finite(0.05, policy) for _ in range(2))
    for t in range(1, 25):
        a, b = one.ask(float(t)), two.ask(float(t))
        assert torch.equal(a.X, b.X)
        two.recommend()
        for each in (one, two):
            if len(each.open_trials) > 3:
                each.tell(each.open_trials[t % 4], math.sin(t))
        two.recommend(t=t + 0.5)


@pytest.mark.parametrize("bad", ["hallucinate", Hallucinate, 0.0])
def test_a_pending_policy_of_the_wrong_kind(bad):
    with pytest.raises(TypeError):
        finite(pending=bad)


def test_a_trial_in_the_future_does_not_count_yet():
    optimizer = finite(0.1, ConstantLiar(LOWEST))
    optimizer.attach(CHOICES[2], t=9.0)
    optimizer.ask(1.0)
    assert optimizer.model.posterior(InputLayout(2).rows(CHOICES, 1.0)).mean.abs().max() == 0
    optimizer.ask(9.0)
    mean = optimizer.model.posterior(InputLayout(2).rows(CHOICES[2:3], 9.0)).mean.item()
    assert mean < LOWEST / 2


def test_box_actions_are_spread_where_open_trials_count():
    optimizer = recipes.gp_ucb(
        bounds=torch.tensor([[0.0], [1.0]]), covar_module=rbf(LENGTHSCALE), noise_variance=NOISE
    )
    assert isinstance(optimizer.search_space, Box)
    X = torch.cat([optimizer.ask().X for _ in range(4)]).flatten()
    assert torch.pdist(X[:, None]).min() > 0.05
