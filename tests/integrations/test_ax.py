"""What `tv_gp_ucb` does by default, inside Ax's Client (``pip install botorch-tvbo[ax]``)."""

import math

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.exceptions.errors import UnsupportedError

from tvbo import recipes
from tvbo.acquisition.ucb import EdgeCorrectedUCB
from tvbo.models import EnsembleGP
from tvbo.retention import SizeLimit
from tvbo.spaces import AskContext, Box
from tvbo.spaces.observations import InputLayout, Observations

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import UnsupportedError as AxUnsupportedError
from ax.exceptions.core import UserInputError

from tvbo.integrations.ax import LearnedDriftGP, best_at, drifting_strategy

pytestmark = [
    pytest.mark.draws_globally,  # Ax and BoTorch's optimizers do
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:ax"),
]
BOUNDS = torch.tensor([[0.0, -2.0], [1.0, 3.0]], dtype=torch.float64)
FLOATS = {"x": (0.0, 1.0), "y": (-2.0, 3.0)}
TIME = RangeParameterConfig(name="t", bounds=(0.0, 1e6), parameter_type="float")


def loss(x, y, t, **others):
    """A bowl whose bottom goes round, with a wave that stands for noise."""
    wave = 0.05 * math.sin(40 * x + 9 * y + t)
    return (x - 0.5 - 0.3 * math.sin(t / 9)) ** 2 + ((y - 0.5) / 4) ** 2 + wave


def make_client(objective="-loss", others=(), time=TIME, parameters=None, **options):
    if parameters is None:
        parameters = [
            RangeParameterConfig(name=n, bounds=b, parameter_type="float")
            for n, b in FLOATS.items()
        ]
        parameters += [*others, time]
    client = Client(random_seed=0)
    client.configure_experiment(parameters=parameters)
    client.configure_optimization(objective)
    client.set_generation_strategy(drifting_strategy(len(parameters) - 1, seed=0, **options))
    return client


def play(client, times, sign=1.0, **others):
    """Ask and tell, one trial at each time; return the parameters of the last."""
    for t in times:
        for number, parameters in client.get_next_trials(1, {"t": float(t)}).items():
            client.complete_trial(number, {"loss": sign * loss(**parameters), **others})
    return parameters


def generator_of(client):
    return client._generation_strategy.adapter.generator


def observations_of(client):
    """Rows and losses of the completed trials."""
    told = client.summarize().dropna(subset=["loss"])
    X = torch.tensor(told[["x", "y", "t"]].to_numpy(dtype=float))
    return X, torch.tensor(told[["loss"]].to_numpy(dtype=float))


def grid(t):
    x = torch.cartesian_prod(torch.linspace(0, 1, 5), torch.linspace(-2, 3, 5)).double()
    return torch.cat([x, torch.full((25, 1), t, dtype=torch.float64)], dim=-1)


@pytest.fixture(scope="module")
def played():
    """Thirteen trials of a loss to minimize: three more than the space-filling ones."""
    client = make_client()
    play(client, range(1, 14))
    return client


def test_the_first_fit_waits_for_what_the_recipe_waits_for():
    for d in (1, 2, 5):
        optimizer = recipes.tv_gp_ucb(bounds=[(0.0, 1.0)] * d)
        needed = drifting_strategy(d)._nodes[0].transition_criteria[0].threshold
        assert needed == optimizer.initial == 2 * (d + 3)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_model_and_acquisition_are_those_of_the_recipe(sign):
    """With the same outcomes, to be minimized or maximized."""
    client = make_client("-loss" if sign > 0 else "loss")
    play(client, range(1, 13), sign)
    optimizer = recipes.tv_gp_ucb(bounds=BOUNDS, minimize=sign > 0)
    X, Y = observations_of(client)
    for row, outcome in zip(X, Y, strict=True):
        optimizer.tell(optimizer.attach(row[:2], row[2].item()), outcome.item())
    chosen = optimizer.ask(13.0).X
    (parameters,) = client.get_next_trials(1, {"t": 13.0}).values()

    model = optimizer.model
    assert isinstance(model, EnsembleGP)
    # The recipe's model sees the negatives of what is minimized.
    points = [dict(zip("xyt", row, strict=True)) for row in grid(13.0).tolist()]
    predicted = torch.tensor([each["loss"] for each in client.predict(points)]).double()
    expected = model.posterior(grid(13.0))
    rounding = {"rtol": 1e-4, "atol": 1e-5}  # of the two searches for hyperparameters
    torch.testing.assert_close(predicted[:, 0], -sign * expected.mean.flatten(), **rounding)
    torch.testing.assert_close(predicted[:, 1], expected.variance.sqrt().flatten(), **rounding)

    layout = InputLayout(2)
    observations = Observations(X, -sign * Y)
    context = AskContext(13, 13.0, None, layout, observations, Box(BOUNDS), torch.Generator())
    newest = optimizer.outcome_models[0].newest
    rule = optimizer.acquisition(newest.model, context)
    ours = generator_of(client)._acquisition.acqf
    assert isinstance(ours, EdgeCorrectedUCB)
    rows = grid(13.0).unsqueeze(-2)
    # In units of standardized outcomes.
    torch.testing.assert_close(ours(rows), rule(rows), rtol=1e-3, atol=1e-4)
    # Ax looks at more starts, and never does worse.
    mine = torch.tensor([[parameters["x"], parameters["y"], 13.0]], dtype=torch.float64)
    recipes_own = torch.cat([chosen, torch.full((1, 1), 13.0)], dim=-1).double()
    assert rule(mine) > rule(recipes_own) - 1e-3


def test_saved_and_loaded(played, tmp_path):
    path = str(tmp_path / "run.json")
    played.save_to_json_file(path)
    loaded = Client.load_from_json_file(path)
    points = [dict(zip("xyt", row, strict=True)) for row in grid(14.0).tolist()]
    for client in (played, loaded):
        client.mark_trial_abandoned(next(iter(client.get_next_trials(1, {"t": 14.0}))))
    before, after = (
        torch.tensor([each["loss"] for each in client.predict(points)]).double()
        for client in (played, loaded)
    )
    # Up to rounding, in which two searches for hyperparameters differ.
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6 * before.abs().max().item())
    assert isinstance(generator_of(loaded)._acquisition.acqf, EdgeCorrectedUCB)


@pytest.mark.slow
def test_a_batch_and_trials_pending_from_before():
    client = make_client()
    play(client, range(1, 13))
    (alone,) = client.get_next_trials(1, {"t": 13.0}).values()
    batch = list(client.get_next_trials(3, {"t": 14.0}).values())
    actions = torch.tensor([[each["x"], each["y"]] for each in (alone, *batch)])
    # The first of the batch is not the trial of the time before: its outcome is expected.
    assert torch.pdist(actions).min() > 0.01
    fitted = generator_of(client)._acquisition.acqf.model
    assert len(fitted.train_targets) == 12 + 3  # the last of the batch knows of the others
    held = generator_of(client).surrogate.model.fitted
    rows = torch.cat([actions[:3].double(), torch.tensor([[13.0], [14.0], [14.0]])], dim=-1)
    stand_ins = held.posterior(rows.double().unsqueeze(-2)).mean.flatten()
    stand_ins = held.outcome_transform(stand_ins.unsqueeze(-1))[0].flatten()
    torch.testing.assert_close(fitted.train_targets[12:], stand_ins, rtol=1e-6, atol=1e-9)


def test_pending_where_another_metric_is_tracked():
    client = make_client()
    client.configure_tracking_metrics(["cost"])
    play(client, range(1, 12), cost=3.0)
    client.get_next_trials(2, {"t": 12.0})
    assert len(generator_of(client)._acquisition.acqf.model.train_targets) == 11 + 1


@pytest.mark.slow
def test_a_horizon_that_moves():
    """The range of time has no influence, and may grow."""
    short = RangeParameterConfig(name="t", bounds=(0.0, 11.0), parameter_type="float")
    client, wide = make_client(time=short), make_client()
    for each in (client, wide):
        play(each, range(1, 12))
    points = [dict(zip("xyt", row, strict=True)) for row in grid(11.0).tolist()]
    first, second = (
        torch.tensor([each["loss"] for each in c.predict(points)]).double() for c in (client, wide)
    )
    torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-9)
    client._experiment.search_space.parameters["t"].update_range(upper=1e6)
    assert play(client, [12.0, 500.0])["t"] == 500.0


@pytest.mark.slow
def test_baseline_and_incumbent_are_at_the_present():
    client = make_client(acquisition=qLogNoisyExpectedImprovement)
    play(client, range(1, 13))
    baseline = generator_of(client)._acquisition.acqf.X_baseline
    assert (baseline[:, -1] == 12.0).all()
    client = make_client(acquisition=LogExpectedImprovement)
    play(client, range(1, 13))
    acqf = generator_of(client)._acquisition.acqf
    X, _ = observations_of(client)
    rows = X[:-1].clone()  # it was made before the last outcome
    rows[:, -1] = 12.0
    expected = (-acqf.model.posterior(rows.unsqueeze(-2)).mean).max()
    torch.testing.assert_close(acqf.best_f, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_best_at_a_time(sign):
    client = make_client("-loss" if sign > 0 else "loss")
    play(client, range(1, 16), sign)
    parameters, (mean, sem) = best_at(client, 40.0)
    X, Y = observations_of(client)
    model = LearnedDriftGP(X, Y, None, BOUNDS)
    model.fit()
    rows = X.clone()
    rows[:, -1] = 40.0
    posterior = model.posterior(rows.unsqueeze(-2))
    means = sign * posterior.mean.flatten()
    i = int(means.argmin())
    assert parameters == dict(zip("xyt", rows[i].tolist(), strict=True))
    expected = (posterior.mean[i].item(), posterior.variance[i].sqrt().item())
    assert (mean, sem) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_integers_logarithms_and_ordered_values():
    others = [
        RangeParameterConfig(name="k", bounds=(1, 5), parameter_type="int"),
        RangeParameterConfig(
            name="rate", bounds=(1e-4, 1.0), parameter_type="float", scaling="log"
        ),
        ChoiceParameterConfig(name="size", values=[1, 2, 4], parameter_type="int", is_ordered=True),
    ]
    client = make_client(others=others)
    last = play(client, range(1, 18))
    assert last["k"] in range(1, 6)
    assert last["size"] in (1, 2, 4)
    bounds = generator_of(client).surrogate.model._posterior_state.fitter.bounds
    assert bounds[:, 3].tolist() == [-4.0, 0.0]


def test_outcomes_with_their_noise():
    client = make_client()
    for t in range(1, 12):
        for number, parameters in client.get_next_trials(1, {"t": float(t)}).items():
            client.complete_trial(number, {"loss": (loss(**parameters), 0.1)})
    variances = generator_of(client).surrogate.model.observations.Yvar
    torch.testing.assert_close(variances, torch.full_like(variances, 0.01))


def data(n):
    unit = torch.rand(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    X = torch.cat(
        [BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * unit[:, :2], 1.0 * torch.arange(n)[:, None]], dim=-1
    )
    Y = torch.tensor([[loss(*row)] for row in X.tolist()], dtype=torch.float64)
    return X, Y


def test_a_fold_has_the_hyperparameters_and_its_own_observations():
    X, Y = data(16)
    model = LearnedDriftGP(X, Y, None, BOUNDS)
    model.fit()
    fold = LearnedDriftGP(X[:-1], Y[:-1], None, BOUNDS)
    fold.load_state_dict(model.state_dict())
    lengthscales = model.fitted.sets.lengthscales
    torch.testing.assert_close(fold.fitted.sets.lengthscales, lengthscales, rtol=1e-12, atol=0)
    assert torch.equal(fold.fitted.train_inputs[0], X[:-1])
    # The outcome left out is not known to it.
    left_out = fold.posterior(X[-1:]).variance.item()
    assert left_out > 2 * model.posterior(X[-1:]).variance.item()


def test_the_most_informative_are_kept():
    X, Y = data(130)
    # At last in the middle alone, of a function that stays as it is.
    X[40:, :2] = 0.5 + 0.2 * (X[40:, :2] - 0.5)
    noise = torch.randn(130, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    Y = torch.sin(5 * X[:, :1]) + X[:, 1:2] ** 2 / 3 + 0.05 * noise
    model = LearnedDriftGP(X, Y, None, BOUNDS)
    model.fit()
    newest = LearnedDriftGP(X[-100:], Y[-100:], None, BOUNDS)
    newest.fit()
    keep = SizeLimit(100, slack=0.0).keep(Observations(X, Y), newest.fitted, 129.0)
    assert torch.equal(model.fitted.train_inputs[0], X[keep])
    assert keep[:-100].any()


@pytest.mark.slow
def test_what_is_refused():
    with pytest.raises(ValueError, match="initial=9"):
        drifting_strategy(2, initial=9)
    with pytest.raises(ValueError):
        drifting_strategy(2, acquisition=LogExpectedImprovement, beta=2.0)
    with pytest.raises(ValueError):
        drifting_strategy(2, beta=-1.0)
    with pytest.raises(ValueError, match=r"num_actions=1\.5"):
        drifting_strategy(1.5)
    client = make_client()
    client.set_generation_strategy(drifting_strategy(1))
    play(client, range(1, 9))
    with pytest.raises(UserInputError, match="1"):
        client.get_next_trials(1, {"t": 9.0})
    client = make_client()
    play(client, range(1, 10))
    with pytest.raises(AxUnsupportedError):
        best_at(client, 9.0)
    play(client, [10])
    with pytest.raises(UserInputError):
        client.get_next_trials(1)
    client = make_client(
        time=RangeParameterConfig(name="day", bounds=(0, 99), parameter_type="float")
    )
    for t in range(10):
        for number, values in client.get_next_trials(1, {"day": float(t)}).items():
            client.complete_trial(number, {"loss": values["x"]})
    with pytest.raises(UserInputError):
        client.get_next_trials(1, {"day": 10.0})


@pytest.mark.slow
def test_categories_constraints_and_several_objectives_are_refused():
    rule = ChoiceParameterConfig(
        name="rule", values=["a", "b", "c"], parameter_type="str", is_ordered=False
    )
    client = make_client(others=[rule])
    play(client, range(1, 13))
    with pytest.raises(UnsupportedError):
        client.get_next_trials(1, {"t": 13.0})
    for objective, constraints in (("-loss", ["cost <= 5"]), ("-loss, -cost", [])):
        client = make_client()
        client.configure_optimization(objective, constraints)
        play(client, range(1, 11), cost=3.0)
        with pytest.raises(UnsupportedError):
            client.get_next_trials(1, {"t": 11.0})
