"""Figures 2 to 5 of Vakili et al. in a short form; the full ones are `make validate`."""

import math

import numpy as np
import pytest
import torch

from experiments.registry import EXPERIMENTS
from experiments.vakili.figures import (
    vakili_fig2,
    vakili_fig3,
    vakili_fig4,
    vakili_fig5,
)
from experiments.vakili.setting import (
    BPE,
    BPE_DELAY,
    GP_BUCB,
    GP_TS_SDF,
    GP_UCB_SDF,
    IGNORING,
    LENGTHSCALES,
    PLAYERS,
    THEOREM,
    Job,
    Setting,
    Task,
    function,
    play,
    poisson_delay,
    regret,
    row,
)

SMALL = Setting(points=9, horizon=70, num_centers=30)
RATE = 6
FIGURES = {
    "vakili-fig2": vakili_fig2,
    "vakili-fig3": vakili_fig3,
    "vakili-fig4": vakili_fig4,
    "vakili-fig5": vakili_fig5,
}


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Dense:
    """The posterior on the arms, from nothing but the formula of a Gaussian process."""

    def __init__(self, points, lengthscale):
        side = np.linspace(-5, 5, points)
        self.arms = np.array([(a, b) for a in side for b in side])
        squares = ((self.arms[:, None] - self.arms[None]) ** 2).sum(-1)
        self.gram = np.exp(-squares / (2 * lengthscale**2))

    def __call__(self, chosen, outcomes):
        inverse = np.linalg.inv(self.gram[np.ix_(chosen, chosen)] + 0.0004 * np.eye(len(chosen)))
        cross = self.gram[chosen]
        variance = 1 - np.einsum("mi,mk,ki->i", cross, inverse, cross)
        return cross.T @ inverse @ np.array(outcomes), np.sqrt(variance)


def ucb_values(dense, player, chosen, known, minimum):
    """Upper confidence bounds of round len(chosen) + 1."""
    everything = list(range(len(chosen)))
    arrived = sorted(known)
    for_mean = everything if player in GP_UCB_SDF else arrived
    for_deviation = arrived if player in IGNORING else everything
    mean, _ = dense([chosen[i] for i in for_mean], [known.get(i, minimum) for i in for_mean])
    _, deviation = dense([chosen[i] for i in for_deviation], [0.0] * len(for_deviation))
    width = 6.0 if player.endswith("6 σ") else math.sqrt(0.8 * math.log(4 * (len(chosen) + 1)))
    return mean + width * deviation


class RoundsByHand:
    """BPE and BPE-Delay, a round at a time."""

    def __init__(self, dense, wait, horizon, multiplier=6.0):
        self.dense, self.wait, self.horizon = dense, wait, horizon
        self.multiplier = multiplier
        self.alive = np.ones(len(dense.arms), dtype=bool)
        self.q, self.start, self.lengths = 1, 0, []
        self.next_round()

    def next_round(self):
        self.q = math.ceil(math.sqrt(self.horizon * self.q))
        self.lengths.append(min(math.ceil(self.q + self.wait), self.horizon - self.start))

    def values(self, chosen, known):
        if len(chosen) == self.start + self.lengths[-1]:
            arrived = [i for i in range(self.start, len(chosen)) if i in known]
            if arrived:
                mean, deviation = self.dense(
                    [chosen[i] for i in arrived], [known[i] for i in arrived]
                )
                half = self.multiplier * deviation
                lower = mean - half
                self.alive = self.alive & (mean + half >= lower[self.alive].max())
            self.start = len(chosen)
            self.next_round()
        here = chosen[self.start :]
        _, deviation = self.dense(here, [0.0] * len(here))
        return np.where(self.alive, deviation, -np.inf)


@pytest.mark.parametrize("name", ["f1", "f2"])
@pytest.mark.parametrize("player", [BPE, BPE_DELAY, THEOREM, *GP_UCB_SDF, *GP_BUCB, *IGNORING])
@pytest.mark.combinations
def test_each_algorithm_against_dense_formulas(player, name):
    """Every choice maximizes, to 1e-7, what numpy computes from the history alone."""
    problem = function(SMALL, name, seeded(1))
    optimizer = PLAYERS[player](Task(problem, RATE, SMALL.horizon, seeded(2)))
    delay = poisson_delay(RATE, seeded(3))
    dense = Dense(SMALL.points, LENGTHSCALES[name])
    # λ + min(ξ sqrt(2 L), 2 b L), with L = log(3 T / (2 δ/2)), ξ = 9, b = 1, δ = 0.01.
    log = math.log(3 * SMALL.horizon / 0.01)
    wait = {BPE_DELAY: RATE + 2 * log, THEOREM: RATE + 9 * math.sqrt(2 * log)}.get(player, 0)
    by_hand = RoundsByHand(dense, wait, SMALL.horizon)
    if player == THEOREM:  # two rounds, σ = λ
        union = math.sqrt(2 * math.log(4 * 2 * len(dense.arms) / 0.01))
        by_hand.multiplier = problem.norm + union
    chosen, known, coming = [], {}, {}
    for t in range(1, SMALL.horizon + 1):
        for trial, outcome in coming.pop(t, []):
            optimizer.tell(trial, outcome)
            known[trial.id - 1] = outcome
        trial = optimizer.ask(t)
        arm = int(np.abs(dense.arms - trial.X.numpy()).sum(axis=1).argmin())
        if player in (BPE, BPE_DELAY, THEOREM):
            values = by_hand.values(chosen, known)
        else:
            values = ucb_values(dense, player, chosen, known, problem.minimum)
        assert values[arm] == pytest.approx(values.max(), abs=1e-7), f"round {t}"
        chosen.append(arm)
        outcome = problem(problem.layout.rows(trial.X, trial.t)).item()
        coming.setdefault(t + 1 + int(delay(trial)), []).append((trial, outcome))
    if player == BPE:
        assert by_hand.lengths == [9, 26, 35]
        assert by_hand.alive.sum() < len(by_hand.alive)
    if player == THEOREM:
        assert by_hand.lengths == [56, 14]
        assert by_hand.alive.sum() < len(by_hand.alive)


def test_rounds_of_the_paper():
    """T = 1000, mean 50: u_T = 50 + 2 log 300000 = 75.22; q = 32, 179, 424."""
    problem = function(Setting(points=4, num_centers=5), "f1", seeded(0))
    optimizer = PLAYERS[BPE_DELAY](Task(problem, 50, 1000, seeded(0)))
    for t in range(1, 1001):
        optimizer.tell(optimizer.ask(t), 0.0)
    assert optimizer.to_frame()["length"].tolist() == [108, 255, 500]
    assert optimizer.plan.length == 137


@pytest.mark.slow
def test_thompson_samples_explore_and_find_a_good_arm():
    problem = function(SMALL, "f2", seeded(0))
    uniform = problem.optimal_value(0.0) - problem.values.mean().item()
    runs = torch.stack([play(Job(SMALL, "f2", 0, GP_TS_SDF, seed)) for seed in range(8)])
    # The share of a run is 0.29 ± 0.13 (40 runs): the limit is 4.5 standard errors above the mean
    # of eight, which has a probability of 3e-6.
    assert runs[:, -10:].mean() < 0.5 * uniform
    assert len({tuple(each.tolist()) for each in runs}) == 8


def test_functions_are_the_same_in_all_runs_and_the_noise_is_not():
    one, two = (function(SMALL, "f1", seeded(seed)) for seed in (1, 2))
    assert torch.equal(one.values, two.values)
    rows = one.layout.rows(one.choices, 1.0)
    noise = torch.stack([problem(rows) - problem.evaluate_true(rows) for problem in (one, two)])
    assert not torch.equal(noise[0], noise[1])
    # 162 draws: the standard deviation is known to 6 %.
    assert noise.std().item() == pytest.approx(0.02, rel=0.2)
    assert not torch.allclose(one.values, function(SMALL, "f2", seeded(1)).values, atol=0.1)


def test_runs_stand_where_their_names_say():
    short = Setting(points=5, horizon=20, num_centers=10)
    curves = regret(short, [BPE, BPE_DELAY], [0, RATE], 2, 7, "", False, None)
    assert len(curves) == 8
    for name, rate, player in (("f1", 0, BPE_DELAY), ("f2", RATE, BPE)):
        expected = [play(Job(short, name, rate, player, seed)) for seed in (7, 8)]
        assert torch.equal(curves[row(name, rate, player)], torch.stack(expected))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("vakili-fig2", "vakili-fig4") else ())
        for name in FIGURES
    ],
)
def test_figures_from_run_to_picture(name):
    tiny = Setting(points=4, horizon=12, num_centers=5)
    result = FIGURES[name](trials=2, progress=False, setting=tiny)
    assert result.name == name
    for which, measured in result.results.items():
        assert measured["R_T"] == pytest.approx(result.regret[which].sum().item() / 2)
    saved = result.to_dict()
    assert saved["settings"]["rkhs_norms"]["f1"] > 0
    assert saved["settings"]["interpolation_points"] == 5
    figure = EXPERIMENTS[name].plot(result)
    assert [ax.get_title() for ax in figure.axes] == ["f1, l = 0.8", "f2, l = 1.0"]
    written = figure.axes[0].get_legend().get_texts()
    names = [text.get_text() for text in written]
    assert len(figure.axes[0].lines) == len(result.results) / 2 == len(set(names))
    colors = {
        (name.split(",")[0], text.get_color()) for name, text in zip(names, written, strict=True)
    }
    assert len(colors) == len({name for name, _ in colors})
    ends = [line.get_ydata()[-1] for line in figure.axes[1].lines]
    assert ends == pytest.approx(
        [measured["R_T"] for which, measured in result.results.items() if which.startswith("f2")]
    )
