import json
import math
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from scipy.stats import chi2

from tvbo.kernels import CovarianceMatrixKernel
from tvbo.logs import empirical_covariance, fit_drift, fit_panel
from tvbo.logs.dataset import DriftLog, panel_rows
from tvbo.logs.likelihood import LogLikelihood
from tvbo.logs.parameters import scaled_kernel
from tvbo.logs.reading import read_panel
from tvbo.test_functions import drifting_gp
from tvbo.test_functions.drifting_gp import drifting_gp_log, unit_grid

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
    likelihood = LogLikelihood(DriftLog.from_rows(X, Y, None, -1), known_kernel(), 0.0)

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


@pytest.mark.slow
def test_a_long_static_panel_is_sure_of_it():
    """So sure that the whole interval lies below the rates that a single series could tell."""
    problem = drifting_gp(unit_grid(5), known_kernel(), 0.0, horizon=400, noise_variance=0.01)
    observed = problem.values + 0.1 * torch.randn(
        problem.values.shape, generator=torch.Generator().manual_seed(1)
    )
    X, Y = panel_rows(observed, problem.times)
    kernel = CovarianceMatrixKernel(known_kernel()(problem.choices).to_dense())
    fit = fit_drift(X, Y, covar_module=kernel, noise_variance=0.01, outliers=False)
    low, high = fit.forgetting_rate_interval
    assert low == 0.0
    assert fit.forgetting_rate < 1e-4
    assert 0 < high < 1e-4


def test_fixed_noise_is_said_with_the_rate_at_half_and_twice():
    X, Y = draw_log(0.05)
    options = {"covar_module": known_kernel(), "num_starts": 1, "outliers": False}
    fit = fit_drift(X, Y, noise_variance=0.05, **options)
    half, twice = (
        fit_drift(X, Y, noise_variance=0.05 * factor, **options).forgetting_rate
        for factor in (0.5, 2)
    )
    (message,) = fit.messages
    assert f"{half:.3g} with 0.025" in message
    assert f"{twice:.3g} with 0.1" in message


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


def test_block_length_follows_the_kernel():
    X, Y = draw_log(0.05, n=40)
    rbf = fit_drift(X, Y)
    matern = fit_drift(X, Y, covar_module=scaled_kernel(MaternKernel, X[:, :1], Y))
    assert rbf.block_length == math.ceil(min(40, 12 * rbf.forgetting_rate**-0.25))
    c = 2 / (2 * 2.5 + 2)
    assert matern.block_length == math.ceil(min(40, 24 * matern.forgetting_rate ** (-1 / (4 - c))))


@pytest.mark.slow
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
        outliers=False,
    )
    assert 0.02 <= fit.forgetting_rate <= 0.04
    assert fit.n_observations == 19872
    low, high = fit.forgetting_rate_interval
    assert 0.02 < low < fit.forgetting_rate < high < 0.04
    # ε by maximum likelihood over the grid of the paper's study.
    assert fit.forgetting_rate == pytest.approx(0.0274, abs=5e-4)


@pytest.mark.parametrize("clicks", [1, 9])
def test_a_few_exceptions_tell_nothing(clicks):
    X, Y = draw_log(0.05, n=200)
    Y = torch.zeros_like(Y)
    Y[::20][:clicks] = 1.0
    with pytest.raises(InputDataError):
        fit_drift(X, Y)
    with pytest.raises(InputDataError):
        fit_panel(Y.reshape(100, 2), torch.arange(100.0))


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
        LogLikelihood(DriftLog.from_rows(*part, None, -1), known_kernel(), 0.0)(
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


def test_a_fit_shows_itself(fit):
    lines = repr(fit).splitlines()
    assert lines[:2] == ["DriftFit", f"forgetting rate ε: {fit.forgetting_rate:.4g} per 1"]
    assert "observations: 120" in lines
    assert f"<td>{fit.half_life:.4g} × 1</td>" in fit._repr_html_()


def changed(tensor, place, value):
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InputDataError, lambda X, Y: ((X, changed(Y, 4, math.nan)), {})),
        (InputDataError, lambda X, Y: ((changed(X, (4, 1), math.inf), Y), {})),
        (InputDataError, lambda X, Y: ((X[:1], Y[:1]), {})),
        (InputDataError, lambda X, Y: ((X, torch.full_like(Y, 2.0)), {})),
        (InputDataError, lambda X, Y: ((changed(X, (slice(None), 1), 3.0), Y), {})),
        (BotorchTensorDimensionError, lambda X, Y: ((X, Y[:9]), {})),
        (BotorchTensorDimensionError, lambda X, Y: ((X, torch.cat([Y, Y], dim=-1)), {})),
        (BotorchTensorDimensionError, lambda X, Y: ((X[:, 1:], Y), {})),
        (ValueError, lambda X, Y: ((X, Y), {"noise_variance": -1.0})),
        (ValueError, lambda X, Y: ((X, Y, torch.ones_like(Y)), {"noise_variance": 1.0})),
        (InputDataError, lambda X, Y: ((X, Y, -torch.ones_like(Y)), {})),
        (ValueError, lambda X, Y: ((X, Y), {"level": 1.0})),
        (ValueError, lambda X, Y: ((X, Y), {"num_starts": 0})),
    ],
)
def test_what_is_refused(error, change):
    arguments, options = change(*draw_log(0.05, n=10))
    with pytest.raises(error):
        fit_drift(*arguments, **options)
