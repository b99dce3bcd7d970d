"""Diagnosis of runs: predictions against plain formulas, and sentences of constructed runs."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import binomtest, chi2

from tvbo import History, recipes, run
from tvbo.evaluation import Diagnosis, DiagnosisError, diagnose
from tvbo.models.at_bounds import AtBound
from tvbo.optimizers import Optimizer
from tvbo.plotting import plot_diagnosis, save_figure
from tvbo.retention import EntropyThreshold, EventReset, SlidingWindow
from tvbo.storage import StorageError, read_run
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

NOISE = 0.01
STATES = ("told", "open", "failed", "expired", "skipped", "discarded", "attached")


def kernel(lengthscale=0.3):
    made = RBFKernel().double()
    made.lengthscale = lengthscale
    return made


def made(rate=0.05, **options):
    given = {"bounds": [(0.0, 1.0)], "covar_module": kernel(), "noise_variance": NOISE} | options
    return recipes.tv_gp_ucb(forgetting_rate=rate, **given)


def outcome(trial):
    noise = 0.1 * math.sin(17.0 * trial.id)
    return math.sin(5 * trial.X[0, 0].item() + 0.1 * trial.t) + noise


def one_step_ahead(X, t, Y, known, rate=0.05):
    """Predictions of each outcome from the outcomes named, by the formulas of a posterior."""
    # GPyTorch takes the number by way of single precision.
    lengthscale = kernel().lengthscale.item()
    means, variances = [], []
    for i, before in enumerate(known):

        def covariance(a, b):
            space = np.exp(-0.5 * (X[a][:, None] - X[b][None]) ** 2 / lengthscale**2)
            return space * (1 - rate) ** (np.abs(t[a][:, None] - t[b][None]) / 2)

        here = np.array([i])
        K = covariance(before, before) + NOISE * np.eye(len(before))
        k = covariance(here, before)
        means.append((k @ np.linalg.solve(K, Y[before]))[0] if len(before) else 0.0)
        drop = (k @ np.linalg.solve(K, k.T))[0, 0] if len(before) else 0.0
        variances.append(1.0 - drop + NOISE)
    return np.array(means), np.sqrt(variances)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retention": SlidingWindow(5.0)},
        {"bounds": None, "choices": torch.linspace(0, 1, 21, dtype=torch.float64).unsqueeze(-1)},
    ],
    ids=["box", "window", "finite"],
)
@pytest.mark.parametrize("delay", [0.0, pytest.param(2.0, marks=pytest.mark.slow)])
def test_predictions_are_those_of_the_formulas(options, delay, tmp_path):
    optimizer = made(**options)
    optimizer.record(tmp_path / "run.db")
    delayed = delay
    history = run(outcome, optimizer, horizon=12, delay=delayed, progress=False)
    X, t, Y = history.X[:, 0].numpy(), history.t.numpy(), history.reward.numpy()
    # An outcome that is late by a whole number of rounds is missing in as many asks.
    window = 5.0 if "retention" in options else math.inf
    known = [
        np.array([j for j in range(i) if j < i - delay and t[i] - t[j] <= window], dtype=int)
        for i in range(12)
    ]
    mean, deviation = one_step_ahead(X, t, Y, known)
    for source in (optimizer, tmp_path / "run.db", read_run(tmp_path / "run.db")):
        diagnosis = diagnose(source)
        trials = diagnosis.trials
        assert trials.trial.tolist() == list(range(1, 13))
        np.testing.assert_allclose(trials["mean"], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(trials.deviation, deviation, rtol=1e-8)
        np.testing.assert_allclose(trials.z, (Y - mean) / deviation, atol=1e-7)
        assert trials.forgetting_rate.tolist() == pytest.approx([0.05] * 12)
        assert trials.noise_deviation.tolist() == pytest.approx([0.1] * 12)
        assert trials.lengthscale_action_0.tolist() == pytest.approx([0.3] * 12)
        assert trials.half_life.tolist() == pytest.approx([2 * math.log(2) / -math.log(0.95)] * 12)
        assert trials.model_size.tolist() == history.to_frame().model_size.tolist()
        # Those that came in time, and every third of those that came late.
        assert diagnosis.calibration.num_independent == (12 if delay == 0 else 4)
    assert (trials.ask_seconds > 0).all()
    assert (trials.ask_seconds <= history.to_frame().ask_seconds.to_numpy()).all()


def test_learned_hyperparameters_are_those_of_each_ask(tmp_path):
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 2.0)])
    optimizer.record(tmp_path / "run.db")
    seen = []
    for t in range(1, 21):
        trial = optimizer.ask(float(t))
        row = optimizer.layout.rows(trial.X, trial.t)
        (model,) = optimizer.outcome_models
        fitter = model.fitter
        mean, variance = model.predict(row)
        scale = fitter.last_model.covar_module.kernels[0].base_kernel.lengthscale.item()
        noise = model.outcome_noise()
        seen.append((mean, variance + noise, scale))
        optimizer.tell(trial, outcome(trial))
    diagnosis = diagnose(optimizer)
    trials = diagnosis.trials
    mean, variance, lengthscale = np.array(seen).T
    np.testing.assert_allclose(trials["mean"], mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(trials.deviation, np.sqrt(variance), rtol=1e-6)
    fitted = trials.fitted.to_numpy()
    assert 5 < fitted.sum() < 20
    np.testing.assert_allclose(trials.lengthscale_action_0[fitted], lengthscale[fitted], rtol=1e-6)
    assert diagnosis.hyperparameters[~fitted].isna().all(axis=None)
    assert not trials.judged[~fitted].any()
    assert set(trials.form) <= {"exponential decay", "Matérn-5/2"}
    assert f"{sum(~fitted)} trials were asked before the first fit" in str(diagnosis)


@pytest.mark.slow
def test_lost_and_refused_trials_are_counted(tmp_path):
    optimizer = made(retention=EntropyThreshold(1.5) & EventReset())
    optimizer.record(tmp_path / "run.db")
    optimizer.tell(optimizer.attach(torch.tensor([0.5]), 0.0), 0.2)
    for t in range(1, 31):
        trial = optimizer.ask(float(t))
        if trial.skipped:
            continue
        if t % 3 == 0:
            optimizer.fail(trial, "crash")
        elif t % 7 == 0:
            optimizer.expire(trial)
        else:
            optimizer.tell(trial, 0.0)
    log = optimizer.trial_log
    diagnosis = diagnose(optimizer)
    skipped = optimizer.trial_log.num_skipped
    assert skipped > 0
    assert diagnosis.counts == {
        "told": log.num_told,
        "failed": log.num_failed,
        "expired": log.num_expired,
        "skipped": skipped,
        "discarded": 0,
        "attached": 1,
        "open": 0,
    }
    lost = log.num_failed + log.num_expired
    assert any(f"{lost} of {lost + log.num_told} trials" in line for line in diagnosis.findings)
    assert any("skipped by retention" in line for line in diagnosis.sentences())
    assert "1 trial was attached" in str(diagnosis)
    assert diagnosis.calibration.num_outcomes == log.num_told - 1


def test_contexts_together(tmp_path):
    contexts = torch.eye(2, dtype=torch.float64).repeat(12, 1)
    given = {
        "choices": torch.linspace(0, 1, 11, dtype=torch.float64).unsqueeze(-1),
        "contexts": torch.eye(2, dtype=torch.float64),
        "noise_variance": NOISE,
    }
    together = recipes.tv_cgp_ucb(
        forgetting_rate=0.05,
        action_kernel=kernel(),
        context_kernel=kernel(0.7),
        **given,
    )
    together.record(tmp_path / "run.db")
    run(outcome, together, horizon=24, contexts=contexts, progress=False)
    parameters = diagnose(together).hyperparameters
    assert parameters["lengthscale_action_0"].tolist() == pytest.approx([0.3] * 24)
    assert parameters["lengthscale"].tolist() == pytest.approx([0.7] * 24)


def drifting_run(path, rate_of_world, rate_of_model, seed=0, horizon=100):
    generator = torch.Generator().manual_seed(seed)
    problem = drifting_gp(
        unit_grid(5), kernel(), rate_of_world, horizon, noise_variance=NOISE, generator=generator
    )
    optimizer = recipes.tv_gp_ucb(
        choices=problem.choices,
        covar_module=kernel(),
        forgetting_rate=rate_of_model,
        noise_variance=NOISE,
    )
    optimizer.record(path)
    run(problem, optimizer, horizon=horizon, progress=False)
    return diagnose(path)


@pytest.mark.slow
def test_drift_that_is_faster_slower_or_as_the_model_believes(tmp_path):
    fast = drifting_run(tmp_path / "fast.db", 0.1, 0.002)
    assert fast.calibration.coverage_interval[1] < 0.9
    assert fast.sentences()[0].startswith("The 95 % band covers")
    assert "ε = 0.002 a round" in str(fast)
    right = drifting_run(tmp_path / "right.db", 0.05, 0.05)
    low, high = right.calibration.coverage_interval
    assert low < 0.95 < high
    assert right.findings == []
    slow = drifting_run(tmp_path / "slow.db", 0.05, 0.2)
    assert any("less sure than it need be" in line for line in slow.findings)


# What the figures say, of constructed runs.


def diagnosed(z, lost=(0, 0), half_lives=(34.0,), at_bounds=()):
    """The diagnosis of a run with these errors, told one after another."""
    numbers = list(range(1, len(z) + 1))
    trials = pd.DataFrame(
        {
            "trial": numbers,
            "round": numbers,
            "t": [float(number) for number in numbers],
            "opened": [2 * number - 1 for number in numbers],
            "ended": [2 * number for number in numbers],
            "z": z,
            "judged": True,
            "fitted": True,
            "form": "exponential decay",
            "half_life": [half_lives[number % len(half_lives)] for number in numbers],
            "at_bounds": [at_bounds] * len(z),
            "ask_seconds": 0.01,
            "forgetting_rate": 0.04,
        }
    )
    failed, expired = lost
    counts = dict.fromkeys(STATES, 0) | {"told": len(z), "failed": failed, "expired": expired}
    return Diagnosis("GPOptimizer", trials, counts)


def normal(n=200):
    """Errors with the quantiles of the normal distribution, in an order without pattern."""
    order = np.random.default_rng(1).permutation(n)
    quantiles = (torch.arange(1, n + 1, dtype=torch.float64) - 0.5) / n
    return torch.special.ndtri(quantiles)[order]


def test_errors_of_a_right_model_are_no_finding():
    right = diagnosed(normal().tolist())
    assert right.findings == []
    told = str(right)
    assert "Nothing stands out in 200 outcomes." in told
    assert "ε = 0.04 a round" in told
    assert "after 34 rounds" in told
    few = str(diagnosed([0.1, -0.2, 0.3]))
    assert few.startswith("3 independent outcomes")
    assert "Nothing stands out" not in few


def with_outliers():
    z = normal()
    z[[36, 99]] = torch.tensor([7.5, -6.0], dtype=torch.float64)
    return z


def missed_by_outliers_alone():
    z = normal().clamp(-1.9, 1.9)
    z[::8] = 20.0
    return z


AT_BOUND = AtBound("covar_module.raw_lengthscale", 1, "lower", 0.025)


@pytest.mark.parametrize(
    ("z", "given", "words"),
    [
        (with_outliers(), {}, "37 (+7.5), 100 (-6.0)"),
        (missed_by_outliers_alone(), {}, "100 % without outliers"),
        (4 * normal(), {}, "the model is too sure"),
        (0.6 * normal(40), {}, "less sure than it need be"),
        (normal().sort().values, {}, "lag behind"),
        (normal().abs() * torch.tensor([1.0, -1.0]).repeat(100), {}, "overshoot"),
        (normal() + 0.3, {}, "above their predictions by 0.30"),
        (normal(40), {"at_bounds": (AT_BOUND,)}, "lower bound of its constraint in 40 of 40"),
        (normal(40), {"lost": (15, 5)}, "20 of 60 trials that ended"),
        (normal(60), {"half_lives": (3.0, 50.0)}, "between 3 and 50"),
    ],
)
def test_what_casts_doubt_on_the_model_is_found(z, given, words):
    found = diagnosed(z.tolist(), **given)
    assert any(words in line for line in found.findings)
    assert "Nothing stands out" not in str(found)


def test_what_is_expected_is_no_finding():
    noise = AtBound("likelihood.raw_noise", 0, "lower", 1e-4)
    found = diagnosed(normal(40).tolist(), at_bounds=(noise,), lost=(19, 0))
    assert found.findings == []
    assert "show no noise" in str(found)


@pytest.mark.parametrize(("covered", "n"), [(0, 7), (7, 7), (57, 60), (12, 40)])
def test_intervals_are_those_of_clopper_and_pearson_and_of_chi_squared(covered, n):
    calibration = diagnosed([0.1] * covered + [9.0] * (n - covered)).calibration
    exact = binomtest(covered, n).proportion_ci(method="exact")
    assert calibration.coverage_interval == pytest.approx((exact.low, exact.high), rel=1e-9)
    limits = [math.sqrt(chi2.ppf(tail, n) / n) for tail in (0.005, 0.995)]
    assert calibration.deviation_limits == pytest.approx(limits, rel=1e-9)


@pytest.mark.slow
def test_json_and_picture(tmp_path):
    optimizer = made()
    optimizer.record(tmp_path / "run.db")
    run(outcome, optimizer, horizon=12, progress=False)
    diagnosis = diagnose(optimizer)
    diagnosis.to_json(tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["sentences"] == diagnosis.sentences()
    assert found["calibration"]["coverage"] == diagnosis.calibration.coverage
    assert [row["z"] for row in found["trials"]] == diagnosis.trials.z.tolist()
    figure = plot_diagnosis(diagnosis, "$\\frac")
    save_figure(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    (points,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 12]
    assert points.get_ydata().tolist() == diagnosis.trials.z.tolist()


def test_a_picture_of_nothing_judged(tmp_path):
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
    optimizer.record(tmp_path / "run.db")
    optimizer.ask()
    diagnosis = diagnose(optimizer)
    assert diagnosis.calibration.num_outcomes == 0
    plot_diagnosis(diagnosis)
    assert (
        json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))["calibration"]["mean"] is None
    )


def test_a_noise_that_comes_with_the_outcome(tmp_path):
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
    optimizer.record(tmp_path / "run.db")
    noise = [0.01, 0.02, 0.03]
    for variance in noise:
        optimizer.tell(optimizer.ask(), 0.5, variance)
    predicted = [each.predicted["variance"] for each in read_run(tmp_path / "run.db").trials]
    deviation = diagnose(optimizer).trials.deviation
    assert (deviation**2).tolist() == pytest.approx(np.add(predicted, noise), rel=1e-9)


def test_sources_that_cannot_be_diagnosed(tmp_path):
    with pytest.raises(DiagnosisError):
        diagnose(History())
    random = recipes.random_search(bounds=[(0.0, 1.0)])
    with pytest.raises(DiagnosisError, match="not recorded"):
        diagnose(random)
    random.record(tmp_path / "random.db")
    with pytest.raises(DiagnosisError, match="asked"):
        diagnose(random)
    random.ask()
    with pytest.raises(DiagnosisError, match="RandomSearch"):
        diagnose(random)
    with pytest.raises(StorageError, match="none.db"):
        diagnose(tmp_path / "none.db")


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", "high"), ("variance", -2.0), ("at_bounds", [1]), ("seconds", None), ("form", ...)],
)
def test_damaged_predictions_are_named(tmp_path, name, value):
    optimizer = made()
    optimizer.record(tmp_path / "run.db")
    run(outcome, optimizer, horizon=2, progress=False)
    rows = read_run(optimizer.recorded_at)
    ask = {**rows.trials[1].predicted, name: value}
    if value is ...:
        del ask[name]
    with pytest.raises(StorageError, match="trial 2"):
        diagnose(replace(rows, trials=[rows.trials[0], rows.trials[1]._replace(predicted=ask)]))


def test_code_of_the_caller_is_not_needed(tmp_path):
    optimizer = made(acquisition=lambda model, ask_context: made().acquisition(model, ask_context))
    optimizer.record(tmp_path / "run.db")
    run(outcome, optimizer, horizon=4, progress=False)
    with pytest.raises(StorageError):
        Optimizer.open(tmp_path / "run.db")
    assert len(diagnose(tmp_path / "run.db").trials) == 4
