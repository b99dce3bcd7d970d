"""Figures 2 to 5 of Vakili et al. in a short form; the full ones are `make validate`."""

import math
import pickle

import numpy as np
import pytest
import torch

from experiments.registry import EXPERIMENTS
from experiments.vakili import figures as vakili_figures
from experiments.vakili.figures import (
    line_fit,
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
from tvbo import run

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


def test_players_of_one_seed_meet_the_same_noise_and_delays(monkeypatch):
    met = {}

    def watched(problem, optimizer, *, delay, horizon, progress):
        noise = torch.randn(5, generator=problem.generator).tolist()
        history = run(problem, optimizer, horizon=12, delay=delay, progress=progress)
        met.setdefault("noise", []).append(noise)
        met.setdefault("delays", []).append([delay(r.trial) for r in history.rounds])
        return history

    monkeypatch.setattr("experiments.vakili.setting.run", watched)
    for player, seed in ((BPE, 3), (GP_BUCB[0], 3), (BPE, 4)):
        play(Job(SMALL, "f1", RATE, player, seed))
    for what in ("noise", "delays"):
        assert met[what][0] == met[what][1] != met[what][2]


def test_a_job_does_the_same_elsewhere():
    work = pickle.loads(pickle.dumps((play, Job(SMALL, "f1", RATE, BPE_DELAY, 5))))
    assert torch.equal(work[0](work[1]), play(Job(SMALL, "f1", RATE, BPE_DELAY, 5)))


def test_runs_stand_where_their_names_say():
    short = Setting(points=5, horizon=20, num_centers=10)
    curves = regret(short, [BPE, BPE_DELAY], [0, RATE], 2, 7, "", False, None)
    assert len(curves) == 8
    for name, rate, player in (("f1", 0, BPE_DELAY), ("f2", RATE, BPE)):
        expected = [play(Job(short, name, rate, player, seed)) for seed in (7, 8)]
        assert torch.equal(curves[row(name, rate, player)], torch.stack(expected))


def test_line_fit_is_polyfit(generator):
    measured = torch.randn(3, 6, dtype=torch.float64, generator=generator)
    slopes, residual = line_fit((0, 25, 50), measured)
    expected = np.polyfit([0, 25, 50], measured.numpy(), 1)
    assert slopes.tolist() == pytest.approx(expected[0].tolist(), abs=1e-12)
    mean = measured.mean(dim=1).numpy()
    line = np.polyval(np.polyfit([0, 25, 50], mean, 1), [0, 25, 50])
    assert residual == pytest.approx(np.abs(mean - line).max(), abs=1e-12)


def claims_of(figure, totals, monkeypatch):
    """The claims of a figure where R_T is what is said here, plus 0, 0.1, ..., in each run."""

    def made_up(setting, players, rates, trials, *_):
        return {
            row(f, rate, player): torch.tensor(
                [
                    [(totals(f, rate, player) + 0.1 * i * (player == BPE_DELAY)) / setting.horizon]
                    * setting.horizon
                    for i in range(trials)
                ],
                dtype=torch.float64,
            )
            for f in LENGTHSCALES
            for rate in rates
            for player in players
        }

    monkeypatch.setattr(vakili_figures, "regret", made_up)
    return figure(trials=4, progress=False, setting=SMALL).claims


def test_claims_of_figure_2(monkeypatch):
    totals = {
        BPE_DELAY: 10.0,
        THEOREM: 11.0,
        GP_UCB_SDF[0]: 12.0,
        GP_UCB_SDF[1]: 9.0,
        GP_BUCB[1]: 3.0,
    }
    claims = claims_of(vakili_fig2, lambda f, rate, player: totals.get(player, 20.0), monkeypatch)
    assert [claim.held for claim in claims] == [True, False] * 4 + [False] * 2
    # Runs of BPE-Delay are 10, 10.1, 10.2, 10.3: standard error 0.1 sqrt(5/3) / 2.
    expected = [1.85, -1.15] * 2 + [1, -2] * 2 + [-7.15] * 2
    assert [claim.figure for claim in claims] == pytest.approx(expected)
    assert [f"minus {THEOREM}," in claim.claim for claim in claims] == (
        [False] * 4 + [True] * 4 + [False] * 2
    )
    assert claims[0].standard_error == pytest.approx(0.1 * math.sqrt(5 / 3) / 2)
    assert "Best here: GP-BUCB, β = 0.8 log 4t" in claims[-1].claim


def test_best_claim_where_bpe_delay_is_best(monkeypatch):
    totals = {BPE_DELAY: 1.0}
    claims = claims_of(vakili_fig2, lambda f, rate, player: totals.get(player, 20.0), monkeypatch)
    assert "Best here: BPE-Delay." in claims[-1].claim
    assert claims[-1].held


@pytest.mark.parametrize(
    ("totals", "slope", "residual", "held"),
    [
        ((10.0, 20.0, 30.0), 0.4, 0.0, [True, True]),
        # The line through 10, 10, 30 has 20/3, 50/3, 80/3; the largest residual is 20/3.
        ((10.0, 10.0, 30.0), 0.4, 20 / 3, [True, False]),
        ((30.0, 20.0, 10.0), -0.4, 0.0, [False, False]),
    ],
)
def test_claims_of_figure_3(totals, slope, residual, held, monkeypatch):
    by_rate = dict(zip((0, 25, 50), totals, strict=True))
    claims = claims_of(vakili_fig3, lambda f, rate, player: by_rate[rate], monkeypatch)
    assert [claim.figure for claim in claims] == pytest.approx([slope, residual] * 2, abs=1e-12)
    assert [claim.held for claim in claims] == held * 2


def test_claims_of_figure_4(monkeypatch):
    def totals(f, rate, player):
        if player == BPE_DELAY:
            return 10.0 + rate
        return {0: 0.0, 25: 60.0, 50: 80.0 if player == GP_UCB_SDF[0] else 140.0}[rate]

    claims = claims_of(vakili_fig4, totals, monkeypatch)
    # 60 - 25; 60 - 20 and 60 - 80.
    assert [claim.figure for claim in claims] == pytest.approx([35, 40, 35, -20] * 2)
    assert [claim.held for claim in claims] == [True, True, True, False] * 2


def test_claims_of_figure_5(monkeypatch):
    totals = {("f1", BPE): 12.0, ("f2", BPE): 9.0}
    claims = claims_of(
        vakili_fig5, lambda f, rate, player: totals.get((f, player), 10.0), monkeypatch
    )
    assert [claim.figure for claim in claims] == pytest.approx([1.85, -1.15])
    assert [claim.held for claim in claims] == [True, False]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "vakili-fig4" else ())
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
    names = [text.get_text() for text in figure.axes[0].texts]
    assert len(figure.axes[0].lines) == len(result.results) / 2 == len(set(names))
    colors = {
        (name.split(",")[0], text.get_color())
        for name, text in zip(names, figure.axes[0].texts, strict=True)
    }
    assert len(colors) == len({name for name, _ in colors})
    ends = [line.get_ydata()[-1] for line in figure.axes[1].lines]
    assert ends == pytest.approx(
        [measured["R_T"] for which, measured in result.results.items() if which.startswith("f2")]
    )


def test_no_trials():
    with pytest.raises(ValueError, match="Expected trials >= 1. Got 0"):
        vakili_fig2(trials=0, progress=False, setting=SMALL)


def test_last_tenth_of_fewer_than_ten_rounds_is_the_last_one():
    rows = torch.tensor([[4.0, 3.0, 2.0, 1.0]], dtype=torch.float64)
    assert vakili_figures._result(rows)["mean_regret_of_last_tenth"] == 1.0
