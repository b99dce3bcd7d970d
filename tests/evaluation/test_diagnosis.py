"""Diagnosis of runs: predictions against plain formulas, and sentences of constructed runs."""

import json
import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import binomtest, chi2

from tvbo import History, recipes, run
from tvbo.evaluation import Diagnosis, DiagnosisError, diagnose
from tvbo.evaluation.diagnosis.calibration import PredictedTrial
from tvbo.models.at_bounds import AtBound
from tvbo.plotting import plot_diagnosis, save_figure
from tvbo.retention import EntropyThreshold, EventReset, Prediction, SlidingWindow
from tvbo.storage import JournalError
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import unit_grid

NOISE = 0.01
COUNTS = dict.fromkeys(("told", "failed", "expired", "skipped", "discarded", "open"), 0)


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
    optimizer.close()
    for diagnosis in (
        diagnose(tmp_path / "run.db"),
        diagnose(tmp_path / "run.db", made(**options)),
        diagnose(history, optimizer),
        diagnose(history, made(**options)),
    ):
        frame = diagnosis.to_frame()
        assert frame.trial.tolist() == list(range(1, 13))
        np.testing.assert_allclose(frame["mean"], mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(frame.deviation, deviation, rtol=1e-8)
        np.testing.assert_allclose(frame.z, (Y - mean) / deviation, atol=1e-7)
        assert frame.forgetting_rate.tolist() == pytest.approx([0.05] * 12)
        assert frame.noise_deviation.tolist() == pytest.approx([0.1] * 12)
        assert frame.lengthscale_action_0.tolist() == pytest.approx([0.3] * 12)
        assert frame.half_life.tolist() == pytest.approx([2 * math.log(2) / -math.log(0.95)] * 12)
        assert frame.model_size.tolist() == history.model_size.tolist()
        # Those that came in time, and every third of those that came late.
        assert diagnosis.calibration.num_independent == (12 if delay == 0 else 4)
    assert diagnosis.ask_seconds.tolist() == history.ask_seconds.tolist()


def test_learned_hyperparameters_are_those_of_each_ask(tmp_path):
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 2.0)])
    optimizer.record(tmp_path / "run.db")
    seen = []
    for t in range(1, 21):
        trial = optimizer.ask(float(t))
        row = optimizer.layout.rows(trial.X, trial.t)
        fitter = optimizer.posterior_state.fitter
        mean, variance = optimizer.posterior_state.predict(row)
        scale = fitter.last_model.covar_module.kernels[0].base_kernel.lengthscale.item()
        noise = optimizer.posterior_state.outcome_noise(optimizer.observations)
        seen.append((mean, variance + noise, scale))
        optimizer.tell(trial, outcome(trial))
    frame = diagnose(optimizer).to_frame()
    mean, variance, lengthscale = np.array(seen).T
    np.testing.assert_allclose(frame["mean"], mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(frame.deviation, np.sqrt(variance), rtol=1e-6)
    fitted = frame.fitted.to_numpy()
    assert 5 < fitted.sum() < 20
    np.testing.assert_allclose(frame.lengthscale_action_0[fitted], lengthscale[fitted], rtol=1e-6)
    assert frame.lengthscale_action_0[~fitted].isna().all()
    assert not frame.judged[~fitted].any()
    assert set(frame.form) <= {"exponential decay", "Matérn-5/2"}


def test_nothing_is_modified(tmp_path):
    optimizer = made()
    optimizer.record(tmp_path / "run.db")
    run(outcome, optimizer, horizon=5, progress=False)
    before = optimizer.generator.get_state()
    diagnose(optimizer)
    assert torch.equal(optimizer.generator.get_state(), before)
    assert len(optimizer.observations) == 5
    optimizer.tell(optimizer.ask(), 0.3)


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
        "open": 0,
    }
    lost = log.num_failed + log.num_expired
    assert any(f"{lost} of {lost + log.num_told} trials" in line for line in diagnosis.findings)
    assert any("skipped by retention" in line for line in diagnosis.sentences())
    assert "1 trials were attached" in str(diagnosis)
    # A history and an optimizer alone see the same outcomes, as far as they have them.
    assert np.isfinite(diagnosis.to_frame().z).sum() == log.num_told - 1


def test_an_optimizer_alone():
    optimizer = made()
    history = run(outcome, optimizer, horizon=10, progress=False)
    alone, whole = diagnose(optimizer), diagnose(history, optimizer)
    torch.testing.assert_close(alone.calibration.z, whole.calibration.z, rtol=1e-12, atol=0)
    assert "a history or a journal would say" in alone.messages[0]
    assert "How long asks took was not recorded." in alone.messages


def test_contexts_together():
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
    history = run(outcome, together, horizon=24, contexts=contexts, progress=False)
    parameters = diagnose(history, together).to_frame()
    assert parameters["lengthscale_action_0"].tolist() == pytest.approx([0.3] * 24)
    assert parameters["lengthscale"].tolist() == pytest.approx([0.7] * 24)


def drifting_run(rate_of_world, rate_of_model, seed=0, horizon=100):
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
    return diagnose(run(problem, optimizer, horizon=horizon, progress=False), optimizer)


@pytest.mark.slow
def test_drift_that_is_faster_slower_or_as_the_model_believes():
    fast = drifting_run(0.1, 0.002)
    assert fast.calibration.coverage_interval[1] < 0.9
    assert fast.sentences()[0].startswith("The 95 % band covers")
    assert "ε = 0.002 a round" in str(fast)
    right = drifting_run(0.05, 0.05)
    low, high = right.calibration.coverage_interval
    assert low < 0.95 < high
    assert right.findings == []
    assert any("less sure than it need be" in line for line in drifting_run(0.05, 0.2).findings)


# What the figures say, of constructed runs.


def diagnosed(z, lost=(0, 0), half_lives=None, **given):
    """The diagnosis of a run with these errors, told one after another."""
    shared = {
        "is_fitted": True,
        "model_size": 0,
        "parameters": {"forgetting_rate": 0.04},
        "form": "exponential decay",
        "half_life": 34.0,
        "at_bounds": (),
    } | given
    trials = [
        PredictedTrial(
            Prediction(float(i), 0.0, 0.75, 0.25, i),
            **shared | ({} if half_lives is None else {"half_life": half_lives[i % 2]}),
            told_before=i - 1,
            told_as=i,
            outcome=error,
        )
        for i, error in enumerate(z, start=1)
    ]
    failed, expired = lost
    counts = COUNTS | {"told": len(trials), "failed": failed, "expired": expired}
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
    history = run(outcome, optimizer, horizon=12, progress=False)
    diagnosis = diagnose(history, optimizer)
    diagnosis.to_json(tmp_path / "x.json")
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["sentences"] == diagnosis.sentences()
    assert found["calibration"]["coverage"] == diagnosis.calibration.coverage
    assert [row["z"] for row in found["trials"]] == [trial.z for trial in diagnosis.trials]
    diagnosis.to_csv(tmp_path / "x.csv")
    figure = plot_diagnosis(diagnosis, "$\\frac")
    save_figure(figure, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    (points,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 12]
    assert points.get_ydata().tolist() == diagnosis.calibration.z.tolist()


def test_a_picture_of_nothing_judged():
    optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)])
    diagnosis = diagnose(run(outcome, optimizer, horizon=2, progress=False), optimizer)
    assert len(diagnosis.calibration) == 0
    plot_diagnosis(diagnosis)
    assert json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))["num_outcomes"] == 0


def test_sources_that_cannot_be_diagnosed(tmp_path):
    with pytest.raises(DiagnosisError):
        diagnose(History())
    random = recipes.random_search(bounds=[(0.0, 1.0)])
    history = run(outcome, random, horizon=3, progress=False)
    with pytest.raises(DiagnosisError, match="RandomSearch"):
        diagnose(history, random)
    random.record(tmp_path / "random.db")
    with pytest.raises(DiagnosisError, match="RandomSearch"):
        diagnose(random)
    with pytest.raises(DiagnosisError):
        diagnose(made())
    with pytest.raises(JournalError, match="none.db"):
        diagnose(tmp_path / "none.db")


class OwnAcquisition:
    """Code of the caller's, which a journal does not bring along."""

    def __call__(self, model, ask_context):
        return made().acquisition(model, ask_context)


def test_code_of_the_caller_is_not_imported(tmp_path):
    optimizer = made(acquisition=OwnAcquisition())
    optimizer.record(tmp_path / "run.db")
    run(outcome, optimizer, horizon=4, progress=False)
    optimizer.close()
    with pytest.raises(JournalError, match="OwnAcquisition"):
        diagnose(tmp_path / "run.db")
    like = made(acquisition=OwnAcquisition())
    assert len(diagnose(tmp_path / "run.db", like).trials) == 4
