import json
import math
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.stats import chi2

from tvbo.kernels import CovarianceMatrixKernel, empirical_covariance
from tvbo.logs import DenseLikelihood, DriftLog, fit_drift, fit_panel, panel_rows
from tvbo.logs.parameters import scaled_kernel
from tvbo.logs.reading import read_panel
from tvbo.test_functions import drifting_gp, drifting_gp_log, unit_grid

pytestmark = pytest.mark.usefixtures("double_by_default")
long = partial(pytest.param, marks=pytest.mark.slow)


def draw_log(rate, n=120, seed=0, noise=0.05):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    X[:, 1] = torch.arange(n)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return X, drifting_gp_log(X, kernel, rate, noise, generator=generator)


def known_kernel():
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = 0.3
    return kernel


@pytest.fixture(scope="module")
def fit():
    return fit_drift(*draw_log(0.05))


def test_maximum_is_stationary_and_the_best_of_a_grid():
    X, Y = draw_log(0.05)
    fit = fit_drift(X, Y, covar_module=known_kernel(), noise_variance=0.05, mean=0.0)
    likelihood = DenseLikelihood(DriftLog.from_rows(X, Y, None, -1), known_kernel(), 0.0)

    def at(rate):
        return likelihood(torch.tensor(-math.log1p(-rate)), torch.tensor(0.05))[0].item()

    assert fit.log_likelihood == pytest.approx(at(fit.forgetting_rate), abs=1e-8)
    assert all(at(rate) <= fit.log_likelihood for rate in torch.logspace(-4, -0.01, 200).tolist())
    # The ends of the interval lie on the threshold of the likelihood-ratio test.
    for end in fit.forgetting_rate_interval:
        assert 2 * (fit.log_likelihood - at(end)) == pytest.approx(chi2.ppf(0.95, 1), abs=0.01)
    assert fit.lr_statistic == pytest.approx(2 * (fit.log_likelihood - at(0.0)), abs=1e-6)
    assert fit.lr_pvalue == pytest.approx(0.5 * chi2.sf(fit.lr_statistic, 1))


def test_half_life_is_where_the_correlation_is_one_half(fit):
    assert (1 - fit.forgetting_rate) ** (fit.half_life / 2) == pytest.approx(0.5)


def test_everything_learned_is_reported(fit):
    low, high = fit.forgetting_rate_interval
    assert low < fit.forgetting_rate < high
    assert len(fit.lengthscales) == 1
    assert fit.outputscale > 0
    assert 0.005 < fit.noise_variance < 0.2
    assert fit.n_observations == 120
    assert fit.messages == []
    # The mean module carries the mean into a loop.
    torch.testing.assert_close(fit.mean_module(torch.zeros(3, 2)), torch.full((3,), fit.mean))


def test_json_holds_the_promised_keys(fit, tmp_path):
    fit.to_json(tmp_path / "fit.json")
    saved = json.loads((tmp_path / "fit.json").read_text())
    for key in (
        "forgetting_rate",
        "forgetting_rate_interval",
        "half_life",
        "noise_variance",
        "log_likelihood",
        "lr_statistic",
        "lr_pvalue",
        "n_observations",
        "time_unit",
        "lengthscales",
        "block_length",
    ):
        assert key in saved
    assert saved["forgetting_rate"] == fit.forgetting_rate


@pytest.mark.parametrize("unit", [1e-4, 1e5])
def test_rate_follows_the_unit_of_time(fit, unit):
    X, Y = draw_log(0.05)
    X[:, 1] *= unit
    other = fit_drift(X, Y)
    assert other.log_likelihood == pytest.approx(fit.log_likelihood, abs=1e-4)
    assert other.half_life == pytest.approx(unit * fit.half_life, rel=1e-3)
    # The block length is a number of rounds, whatever the unit.
    assert other.block_length == fit.block_length
    assert other.round_length == pytest.approx(unit)


def test_order_of_rows_and_place_of_time_do_not_matter(fit):
    X, Y = draw_log(0.05)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(5))
    other = fit_drift(X[order][:, [1, 0]], Y[order], time_feature=0)
    assert other.forgetting_rate == pytest.approx(fit.forgetting_rate, rel=1e-3)


def test_panel_and_dense_give_the_same_fit():
    choices = torch.tensor([[0.1], [0.2], [0.5], [0.9]])
    problem = drifting_gp(choices, known_kernel(), 0.1, horizon=40)
    X, Y = panel_rows(problem.values, problem.times)
    kernel = CovarianceMatrixKernel(known_kernel()(problem.choices).to_dense())
    panel = fit_drift(X, Y, covar_module=kernel, noise_variance=0.1)
    noise = torch.full_like(Y, 0.1)  # known noise is no panel: the dense likelihood
    dense = fit_drift(X, Y, noise, covar_module=kernel)
    assert panel.forgetting_rate == pytest.approx(dense.forgetting_rate, rel=1e-3)
    assert panel.log_likelihood == pytest.approx(dense.log_likelihood, abs=1e-6)
    assert dense.noise_variance is None


def test_given_kernel_is_not_changed():
    kernel = ScaleKernel(RBFKernel()).double()
    before = kernel.outputscale.item()
    fit = fit_drift(*draw_log(0.05), covar_module=kernel)
    assert kernel.outputscale.item() == before
    assert fit.covar_module.outputscale.item() != before


@pytest.mark.slow
@pytest.mark.parametrize("rate", [long(0.01), 0.05, long(0.2)])
def test_interval_covers_the_truth(rate):
    """Short: the long measurement, 200 draws with everything learned, is `make validate`."""
    draws = 12
    fits = [
        fit_drift(
            *draw_log(rate, n=150, seed=seed),
            covar_module=known_kernel(),
            noise_variance=0.05,
            mean=0.0,
        )
        for seed in range(draws)
    ]
    covered = sum(
        fit.forgetting_rate_interval[0] <= rate <= fit.forgetting_rate_interval[1] for fit in fits
    )
    # With a coverage of 95 %, fewer than 9 of 12 has probability 0.0002.
    assert covered >= 9


@pytest.mark.slow
def test_a_static_function_is_said_to_show_no_drift():
    fits = [fit_drift(*draw_log(0.0, seed=seed), covar_module=known_kernel()) for seed in range(4)]
    assert all(fit.forgetting_rate_interval[0] == 0 for fit in fits)
    at_bound = [fit for fit in fits if fit.forgetting_rate == 0]
    assert at_bound
    for fit in at_bound:
        assert fit.messages == ["ε is at its lower bound: the log shows no drift."]
        assert fit.half_life == math.inf
        assert fit.lr_pvalue == 1.0
        assert fit.to_dict()["half_life"] is None


def test_a_long_static_panel_is_sure_of_it():
    """So sure that the whole interval lies below the rates that a single series could tell."""
    problem = drifting_gp(unit_grid(5), known_kernel(), 0.0, horizon=400, noise_variance=0.01)
    observed = problem.values + 0.1 * torch.randn(
        problem.values.shape, generator=torch.Generator().manual_seed(1)
    )
    X, Y = panel_rows(observed, problem.times)
    kernel = CovarianceMatrixKernel(known_kernel()(problem.choices).to_dense())
    fit = fit_drift(X, Y, covar_module=kernel, noise_variance=0.01)
    low, high = fit.forgetting_rate_interval
    assert low == 0.0
    assert fit.forgetting_rate < 1e-4
    assert 0 < high < 1e-4


def test_a_function_without_memory_is_said_to_have_none():
    generator = torch.Generator().manual_seed(2)
    X = torch.rand(150, 2, generator=generator)
    X[:, 1] = torch.arange(150) // 5
    Y = drifting_gp_log(X, known_kernel(), 1.0, 0.01, generator=generator)
    fit = fit_drift(X, Y, covar_module=known_kernel())
    assert fit.forgetting_rate_interval[1] == 1.0
    assert fit.forgetting_rate > 0.8


def test_interval_without_memory_is_open_where_nothing_else_tells():
    # White noise, whose likelihood ratio against ε = 1 exceeds the quantile of χ² with one degree
    # of freedom, since length-scales and variances fit it, too.
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.arange(40)
    Y = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    fit = fit_drift(X, Y, num_starts=2)
    (_, at_infinity) = fit.profile[-1]
    assert chi2.ppf(0.95, 1) < 2 * (fit.log_likelihood - at_infinity) < chi2.ppf(0.95, 4)
    assert fit.forgetting_rate_interval[1] == 1
    # Twice the actions at half of the times are told apart at each time.
    X[:, 2] = torch.arange(40) // 2
    log = DriftLog.from_rows(X, Y, None, -1)
    assert not log.is_mostly_alone


def test_fixed_noise_is_said_with_the_rate_at_half_and_twice():
    X, Y = draw_log(0.05)
    options = {"covar_module": known_kernel(), "num_starts": 1, "outliers": False}
    fit = fit_drift(X, Y, noise_variance=0.05, **options)
    half, twice = (
        fit_drift(X, Y, noise_variance=0.05 * factor, **options).forgetting_rate
        for factor in (0.5, 2)
    )
    assert fit.messages == [
        "The noise variance 0.05 was given, not learned. ε rests on it: "
        f"{half:.3g} with half of it, {twice:.3g} with twice as much."
    ]


def test_categories_have_a_kernel_of_their_own():
    X = torch.rand(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X[:, 1] = torch.arange(20) % 3
    kernel = scaled_kernel(RBFKernel, X, torch.linspace(-1, 1, 20), categories=[1])
    covar = kernel(X).to_dense().detach()
    scale, spread = kernel.outputscale.item(), X[:, [0, 2]].std(dim=0, correction=0)
    near = torch.exp(-0.5 * ((X[:, None, [0, 2]] - X[:, [0, 2]]) / spread).square().sum(-1))
    alike = (X[:, None, 1] == X[:, 1]).double()
    torch.testing.assert_close(covar, scale * near * (alike + (1 - alike) / math.e))
    only = scaled_kernel(RBFKernel, X[:, [1]], torch.linspace(-1, 1, 20), categories=[0])
    scale = only.outputscale.item()
    torch.testing.assert_close(
        only(X[:, [1]]).to_dense().detach(), scale * (alike + (1 - alike) / math.e)
    )


def test_a_flat_likelihood_is_said_to_be_flat():
    # Each arm is seen once, and arms are unrelated: nothing is ever compared over time.
    X = torch.stack([torch.arange(8.0), torch.arange(8.0)], dim=-1)
    Y = torch.randn(8, 1, generator=torch.Generator().manual_seed(0))
    fit = fit_drift(X, Y, covar_module=CovarianceMatrixKernel(torch.eye(8)), noise_variance=0.1)
    assert any("likelihood is flat" in message for message in fit.messages)
    assert fit.forgetting_rate_interval == (0.0, 1.0)


def test_a_trend_is_not_called_no_drift():
    """A smooth trend: drift beyond doubt, but its rate and its variance cannot be told apart."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(100, 2, generator=generator)
    X[:, 1] = torch.arange(100)
    Y = torch.sin(6 * X[:, 1:] / 100) + X[:, :1]
    Y = Y + 0.01 * torch.randn(100, 1, generator=generator)
    fit = fit_drift(X, Y)
    assert fit.forgetting_rate_interval[0] > 0
    assert fit.lr_pvalue < 1e-6
    assert not any("no drift." in message for message in fit.messages)
    assert any("cannot be told apart" in message for message in fit.messages)


@pytest.mark.parametrize("seed", [0, 1, *map(long, range(2, 6))])
def test_no_point_of_the_profile_is_above_the_maximum(seed):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(60, 2, generator=generator)
    X[:, 1] = torch.arange(60)
    Y = torch.randn(60, 1, generator=generator).cumsum(0) + X[:, :1]
    fit = fit_drift(X, Y)
    assert max(value for _, value in fit.profile) <= fit.log_likelihood + 1e-3
    low, high = fit.forgetting_rate_interval
    assert low <= fit.forgetting_rate <= high


def test_noise_at_its_bound_is_said():
    X, Y = draw_log(0.2, noise=0.0)
    fit = fit_drift(X, Y, covar_module=known_kernel())
    assert any("end of its range: noise variance" in message for message in fit.messages)


def test_a_unit_too_long_for_the_rate_is_said():
    X, Y = draw_log(0.5)
    X[:, 1] *= 1e-3
    fit = fit_drift(X, Y, covar_module=known_kernel(), time_unit="day")
    assert any("ε rounds to 1 per day" in message for message in fit.messages)


def test_block_length_follows_the_kernel():
    X, Y = draw_log(0.05, n=40)
    rbf = fit_drift(X, Y)
    matern = fit_drift(X, Y, covar_module=scaled_kernel(MaternKernel, X[:, :1], Y))
    assert rbf.block_length == math.ceil(min(40, 12 * rbf.forgetting_rate**-0.25))
    c = 2 / (2 * 2.5 + 2)
    assert matern.block_length == math.ceil(min(40, 24 * matern.forgetting_rate ** (-1 / (4 - c))))


def test_steps_are_told():
    steps = []
    fit_drift(*draw_log(0.05, n=30), num_starts=2, on_step=steps.append)
    assert steps[:3] == ["outliers", "start 1 of 2", "start 2 of 2"]
    assert "interval" in steps


def test_intel_lab_training_days(data_folder):
    panel = read_panel(data_folder / "intel_lab/temperature.csv.gz", resample="10min", rows="0:432")
    X, Y = panel_rows(panel.values, panel.axis.times)
    fit = fit_drift(
        X,
        Y,
        covar_module=CovarianceMatrixKernel(empirical_covariance(panel.values)),
        noise_variance=0.5,
        mean=panel.values.mean().item(),
        time_unit=panel.axis.unit,
    )
    assert 0.02 <= fit.forgetting_rate <= 0.04
    assert fit.n_observations == 19872
    low, high = fit.forgetting_rate_interval
    assert 0.02 < low < fit.forgetting_rate < high < 0.04
    # ε by maximum likelihood over the grid of the paper's study.
    assert fit.forgetting_rate == pytest.approx(0.0274, abs=5e-4)


def test_values_must_be_finite():
    X, Y = draw_log(0.05, n=10)
    for bad in (float("nan"), float("inf")):
        broken = Y.clone()
        broken[4] = bad
        with pytest.raises(InputDataError):
            fit_drift(X, broken)
        broken = X.clone()
        broken[4, 1] = bad
        with pytest.raises(InputDataError):
            fit_drift(broken, Y)


def test_three_observations_at_least():
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(InputDataError, match="1"):
        fit_drift(X[:1], Y[:1])
    with pytest.raises(InputDataError, match="0"):
        fit_drift(X[:0], Y[:0])


def test_reward_must_vary():
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(InputDataError):
        fit_drift(X, torch.full_like(Y, 2.0))


@pytest.mark.parametrize("clicks", [1, 9])
def test_a_few_exceptions_tell_nothing(clicks):
    X, Y = draw_log(0.05, n=200)
    Y = torch.zeros_like(Y)
    Y[::20][:clicks] = 1.0
    with pytest.raises(InputDataError):
        fit_drift(X, Y)
    with pytest.raises(InputDataError):
        fit_panel(Y.reshape(100, 2), torch.arange(100.0))


def test_time_must_vary():
    X, Y = draw_log(0.05, n=10)
    X[:, 1] = 3.0
    with pytest.raises(InputDataError):
        fit_drift(X, Y)


def test_shapes_must_agree():
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(BotorchTensorDimensionError):
        fit_drift(X, Y[:9])
    with pytest.raises(BotorchTensorDimensionError):
        fit_drift(X, torch.cat([Y, Y], dim=-1))
    with pytest.raises(BotorchTensorDimensionError):
        fit_drift(X[:, 1:], Y)


def test_noise_must_be_positive_and_given_once():
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(ValueError, match="-1"):
        fit_drift(X, Y, noise_variance=-1.0)
    with pytest.raises(ValueError, match="both"):
        fit_drift(X, Y, torch.ones_like(Y), noise_variance=1.0)
    with pytest.raises(InputDataError, match="-1"):
        fit_drift(X, Y, -torch.ones_like(Y))


def test_level_and_starts_must_make_sense():
    X, Y = draw_log(0.05, n=10)
    for wrong in ({"level": 1.0}, {"num_starts": 0}):
        with pytest.raises(ValueError):
            fit_drift(X, Y, **wrong)


def draw_arms(rate, n, arms=5, seed=0, noise=0.05):
    """A log over few arms at irregular times, in the order of time, drawn step by step."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.linspace(0, 1, arms).unsqueeze(-1)
    root = torch.linalg.cholesky(known_kernel()(choices).to_dense() + 1e-10 * torch.eye(arms))
    times = torch.sort(n * torch.rand(n, generator=generator)).values
    kept = torch.exp(-0.5 * rate * times.diff(prepend=times[:1])).tolist()
    state, values = root @ torch.randn(arms, generator=generator), []
    arm = torch.randint(arms, (n,), generator=generator)
    for step, place in zip(kept, arm.tolist(), strict=True):
        fresh = root @ torch.randn(arms, generator=generator)
        state = step * state + (1 - step**2) ** 0.5 * fresh
        values.append(state[place])
    Y = torch.stack(values) + noise**0.5 * torch.randn(n, generator=generator)
    return torch.cat([choices[arm], times.unsqueeze(-1)], dim=-1), Y.unsqueeze(-1)


@pytest.mark.slow
def test_a_long_irregular_log_recovers_the_rate():
    rate = 0.05
    X, Y = draw_arms(rate, n=4000, seed=1)
    fit = fit_drift(X, Y, covar_module=ScaleKernel(known_kernel()))
    epsilon = -math.expm1(-rate)
    low, high = fit.forgetting_rate_interval
    assert low < epsilon < high
    assert high / low < 1.7
    assert fit.n_observations == 4000
    assert fit.messages == []


@pytest.mark.slow
def test_a_thinned_log_for_the_starts_changes_nothing(monkeypatch):
    X, Y = draw_arms(0.05, n=2100)
    kernel = ScaleKernel(known_kernel())
    subsample = fit_drift(X, Y, covar_module=kernel)
    monkeypatch.setattr("tvbo.logs.drift_fit.SUBSAMPLE_SIZE", 10_000)
    whole = fit_drift(X, Y, covar_module=kernel)
    assert subsample.log_likelihood == pytest.approx(whole.log_likelihood, abs=1e-6)
    assert subsample.lr_statistic == pytest.approx(whole.lr_statistic, abs=1e-5)
    assert subsample.forgetting_rate == pytest.approx(whole.forgetting_rate, rel=1e-4)
    assert subsample.forgetting_rate_interval == pytest.approx(
        whole.forgetting_rate_interval, rel=2e-4
    )


@pytest.mark.slow
def test_a_panel_with_gaps_gives_nearly_the_same_fit():
    problem = drifting_gp(unit_grid(3), known_kernel(), 0.1, horizon=200, noise_variance=0.05)
    kernel = CovarianceMatrixKernel(known_kernel()(problem.choices).to_dense())
    generator = torch.Generator().manual_seed(3)
    values = problem.values + 0.05**0.5 * torch.randn(200, 9, generator=generator)
    gappy = values.clone()
    gappy[torch.rand(200, 9, generator=generator) < 0.05] = float("nan")
    full, rest = (
        fit_drift(*panel_rows(v, problem.times), covar_module=kernel) for v in (values, gappy)
    )
    assert rest.n_observations == int((~gappy.isnan()).sum())
    low, high = full.forgetting_rate_interval
    assert low < rest.forgetting_rate < high


def test_segments_share_the_parameters_and_nothing_else():
    days = [draw_arms(0.05, n=300, seed=seed) for seed in range(3)]
    X, Y = (torch.cat(parts) for parts in zip(*days, strict=True))
    day = torch.arange(3).repeat_interleave(300)
    fit = fit_drift(X, Y, segments=day, covar_module=known_kernel(), noise_variance=0.05, mean=0.0)
    rate = torch.tensor(-math.log1p(-fit.forgetting_rate))
    alone = sum(
        DenseLikelihood(DriftLog.from_rows(*part, None, -1), known_kernel(), 0.0)(
            rate, torch.tensor(0.05)
        )[0].item()
        for part in days
    )
    assert fit.log_likelihood == pytest.approx(alone, rel=1e-10)
    low, high = fit.forgetting_rate_interval
    assert low < -math.expm1(-0.05) < high


@pytest.mark.parametrize(
    "labels", [torch.zeros(9), torch.zeros(10, 1), torch.full((10,), math.nan)]
)
def test_segments_must_label_every_row(labels):
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(InputDataError):
        fit_drift(X, Y, segments=labels)


def test_a_segment_must_have_two_times():
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(InputDataError):
        fit_drift(X, Y, segments=torch.arange(10))


@pytest.mark.slow
def test_what_a_long_log_of_many_actions_neglects_is_said(monkeypatch):
    monkeypatch.setattr("tvbo.logs.drift_fit.MAX_DENSE", 500)
    X, Y = draw_log(0.005, n=760)
    fit = fit_drift(X, Y, covar_module=known_kernel(), noise_variance=0.05, mean=0.0, num_starts=1)
    message = fit.messages[0]
    assert "on the 500 before it" in message
    # Of four blocks of 190 the last has rows left out, the nearest of them 501 steps before it.
    assert f"at most {(1 - fit.forgetting_rate) ** 501:.2g}" in message


@pytest.mark.slow
def test_long_logs_of_many_short_segments(generator):
    """Most segments have no row among those that the starts are tried on."""
    segments = torch.arange(60).repeat_interleave(60)
    X = torch.stack(
        [
            torch.randint(5, (3600,), generator=generator),
            torch.rand(3600, generator=generator) * 50,
        ],
        -1,
    )
    X = X.double()
    Y = X[:, :1] + torch.randn(3600, 1, generator=generator, dtype=torch.float64)
    fit = fit_drift(X, Y, segments=segments, noise_variance=1.0, num_starts=1)
    assert math.isfinite(fit.log_likelihood)
    assert fit.n_observations == 3600


@pytest.mark.parametrize("power", [-30, 30, -450, 450])
def test_outcomes_times_a_power_of_two_have_the_same_drift(power):
    X, Y = draw_log(0.05, n=40)
    options = {"num_starts": 1, "mean": 0.25}
    fit = fit_drift(X, Y, **options)
    options["mean"] *= 2.0**power
    other = fit_drift(X, Y * 2.0**power, **options)
    # The same numbers are computed with; the tolerance is for a machine that rounds at random.
    same = partial(pytest.approx, rel=1e-6)
    assert other.forgetting_rate == same(fit.forgetting_rate)
    assert other.forgetting_rate_interval == same(fit.forgetting_rate_interval)
    assert other.lr_statistic == same(fit.lr_statistic)
    variances, rates = zip(*other.forgetting_rate_by_noise, strict=True)
    expected_variances, expected_rates = zip(*fit.forgetting_rate_by_noise, strict=True)
    assert rates == same(expected_rates)
    assert [v / 2.0**power / 2.0**power for v in variances] == same(expected_variances)
    assert other.outputscale / 2.0**power / 2.0**power == same(fit.outputscale)
    shift = len(X) * power * math.log(2)
    assert other.log_likelihood == same(fit.log_likelihood - shift)


@pytest.mark.parametrize("factor", [1e-140, 1e-5, 1e140])
def test_a_kernel_and_noise_in_the_unit_of_the_outcomes(factor):
    """Everything in another unit is the same fit in another unit, with known noise too."""
    X, Y = draw_log(0.05, n=40)

    def fitted(factor, **noise):
        kernel = CovarianceMatrixKernel(matrix * factor**2)
        return fit_drift(X_arms, Y * factor, covar_module=kernel, num_starts=1, **noise)

    arms = torch.arange(4, dtype=torch.float64)
    matrix = torch.exp(-((arms[:, None] - arms) ** 2))
    X_arms = torch.stack([arms.repeat(10), X[:, -1]], dim=-1)
    for name in ("noise_variance", "train_Yvar"):
        one = 0.1 if name == "noise_variance" else torch.full_like(Y, 0.1)
        fit, other = (fitted(f, **{name: one * f**2}) for f in (1.0, factor))
        assert other.forgetting_rate == pytest.approx(fit.forgetting_rate, rel=1e-6)
        assert other.forgetting_rate_interval == pytest.approx(
            fit.forgetting_rate_interval, rel=1e-6
        )


@pytest.mark.parametrize("factor", [1e200, 1e-200, 1e305])
def test_outcomes_beyond_double_precision_are_refused(factor):
    X, Y = draw_log(0.05, n=10)
    with pytest.raises(InputDataError):
        fit_drift(X, Y * factor)


def test_noise_out_of_proportion_is_refused():
    X, Y = draw_log(0.05, n=10)
    for noise in ({"noise_variance": 1e200}, {"train_Yvar": torch.full_like(Y, 1e200)}):
        with pytest.raises(ValueError):
            fit_drift(X, Y, **noise)
    with pytest.raises(ValueError):
        fit_drift(X, Y * 1e100, noise_variance=1e-200)


def test_times_beyond_double_precision_are_refused():
    X, Y = draw_log(0.05, n=10)
    close = X.clone()
    close[1, -1] = 1e-20  # And the first at 0, the last at 9.
    for times in (X * torch.tensor([1.0, 1e290]), X * torch.tensor([1.0, 1e-290]), close):
        with pytest.raises(InputDataError):
            fit_drift(times, Y)


def test_the_rate_with_other_noise_is_that_of_a_fit_with_that_noise():
    X, Y = draw_log(0.05, n=40)
    fit = fit_drift(X, Y, num_starts=1)
    variances = [variance for variance, _ in fit.forgetting_rate_by_noise]
    expected = [fit.noise_variance * share for share in (0.1, 0.5, 1.0, 2.0, 10.0)]
    assert variances == pytest.approx(expected, rel=1e-12)
    for variance, rate in fit.forgetting_rate_by_noise[::4]:
        held = fit_drift(X, Y, noise_variance=variance, num_starts=3)
        assert rate == pytest.approx(held.forgetting_rate, rel=1e-3)
    assert fit_drift(X, Y, torch.full_like(Y, 0.1)).forgetting_rate_by_noise == []


def test_a_fit_shows_itself_in_one_line(fit):
    words = repr(fit)
    assert words.startswith(f"DriftFit: ε {fit.forgetting_rate:.4g} per 1 (95% interval ")
    assert "observations 120" in words
    assert "\n" not in words
    assert f"<td>{fit.half_life:.4g} x 1</td>" in fit._repr_html_()
