"""Open trials in every recipe, against a dense GP in numpy that has all chosen rows."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from gpytorch.means import LinearMean
from reference import rbf

from tvbo import recipes
from tvbo.models import StreamingGP
from tvbo.optimizers.pending import ConstantLiar, Hallucinate, IgnorePending
from tvbo.retention import (
    KeepAll,
    Reset,
    SlidingWindow,
)
from tvbo.spaces import InputLayout

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

    def with_open(self, policy, told, waiting, at, open_noise=None):
        """The same with stand-ins: told is (rows, y, noise), waiting rows."""
        rows, y, noise = told
        if isinstance(policy, IgnorePending) or len(waiting) == 0:
            return self.given(rows, y, noise, at)
        open_noise = self.noise if open_noise is None else open_noise
        noises = np.concatenate([noise, np.full(len(waiting), open_noise)])
        if isinstance(policy, ConstantLiar):
            stand_in = np.full(len(waiting), policy.value)
        else:
            stand_in, _ = self.given(rows, y, noise, waiting)
        rows = np.concatenate([rows, waiting])
        return self.given(rows, np.concatenate([y, stand_in]), noises, at)


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
        waiting = np.array(rows).reshape(-1, width)
        return self.dense.with_open(self.policy, told, waiting, at)

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
        """Note an outcome."""
        del self.open[trial.id]
        if trial.informative:
            self.told.append((self.row(trial), y, noise))

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
                del self.open[trial.id]
            else:
                self.optimizer.expire(trial)
                del self.open[trial.id]
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
        "failures": "ignore",
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
        failures="ignore",
        retention=KeepAll(),
        **given,
    )
    Story(optimizer, policy, Dense(rate), 6, InputLayout(2, 1), LISTED).rounds(12)


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
                del story.open[trial.id]
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
