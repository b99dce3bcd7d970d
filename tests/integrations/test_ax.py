"""What `tv_gp_ucb` does by default, inside Ax's Client (``pip install botorch-tvbo[ax]``)."""

import math

import pytest

from tvbo import recipes

pytest.importorskip("ax")

from ax.adapter.cross_validation import cross_validate
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.exceptions.core import UnsupportedError, UserInputError
from botorch.acquisition import qLogNoisyExpectedImprovement

from tvbo.integrations.ax import best_at, drifting_strategy

pytestmark = [
    pytest.mark.draws_globally,  # Ax does
    pytest.mark.filterwarnings("ignore::UserWarning:ax"),
]
FLOATS = {"x": (0.0, 1.0), "y": (-2.0, 3.0)}


def loss(x, y, t, **others):
    """A bowl whose bottom goes round, with a wave that stands for noise."""
    wave = 0.05 * math.sin(40 * x + 9 * y + t)
    return (x - 0.5 - 0.3 * math.sin(t / 9)) ** 2 + ((y - 0.5) / 4) ** 2 + wave


def range_of(name, bounds, parameter_type="float", **options):
    return RangeParameterConfig(name=name, bounds=bounds, parameter_type=parameter_type, **options)


def make_client(objective="-loss", constraints=(), others=(), time="t", last=1e6, **options):
    client = Client(random_seed=0)
    floats = [range_of(*each) for each in FLOATS.items()]
    client.configure_experiment([*floats, *others, range_of(time, (0.0, last))])
    client.configure_optimization(objective, list(constraints))
    client.set_generation_strategy(drifting_strategy("t", **options))
    return client


def play(client, times, sign=1.0, others=lambda parameters: {}, held=lambda t: {}):
    """Ask and tell, one trial at each time; return the parameters of the last."""
    for t in times:
        for number, values in client.get_next_trials(1, {"t": float(t), **held(t)}).items():
            client.complete_trial(number, {"loss": sign * loss(**values), **others(values)})
    return values


def told_of(client):
    """The parameters with the time, and the losses, of the completed trials."""
    told = client.summarize().dropna(subset=["loss"])
    return list(zip(told[["x", "y", "t"]].to_dict("records"), told["loss"], strict=True))


def as_ours(client, minimize=True):
    """The optimizer that has the completed trials, built by hand."""
    optimizer = recipes.tv_gp_ucb(bounds=FLOATS, minimize=minimize)
    for values, outcome in told_of(client):
        t = values.pop("t")
        optimizer.tell(optimizer.attach(values, t), outcome)
    return optimizer


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_chooses_and_predicts_as_the_recipe(sign):
    client = make_client("-loss" if sign > 0 else "loss")
    play(client, range(1, 15), sign)
    ours = as_ours(client, minimize=sign > 0)
    (values,) = client.get_next_trials(1, {"t": 15.0}).values()
    asked = ours.ask(15.0).parameters
    assert {name: values[name] for name in FLOATS} == pytest.approx(asked, abs=1e-4)
    (predicted,) = client.predict([{"x": 0.3, "y": 0.4, "t": 20.0}])
    expected = ours.predict({"x": [0.3], "y": [0.4]}, 20.0).iloc[0]
    assert predicted["loss"] == pytest.approx((expected["mean"], expected["standard_deviation"]))
    best, (mean, deviation) = best_at(client, 20.0)
    recommended = ours.recommend(t=20.0)
    assert best == pytest.approx({**recommended.parameters, "t": 20.0}, abs=1e-4)
    assert (mean, deviation) == pytest.approx(
        (recommended.mean, recommended.standard_deviation), rel=1e-4
    )


def test_saved_and_loaded(tmp_path):
    client = make_client()
    play(client, range(1, 12))
    client.save_to_json_file(str(tmp_path / "run.json"))
    loaded = Client.load_from_json_file(str(tmp_path / "run.json"))
    one, two = (each.get_next_trials(1, {"t": 12.0})[11] for each in (client, loaded))
    assert one == pytest.approx(two, abs=1e-6)


def test_batches_pending_and_lost_trials():
    client = make_client()
    play(client, range(1, 12))
    alone = client.get_next_trials(1, {"t": 12.0})
    batch = alone | client.get_next_trials(3, {"t": 13.0})
    assert len({(round(each["x"], 2), round(each["y"], 2)) for each in batch.values()}) == 4
    client.mark_trial_failed(11)
    client.mark_trial_abandoned(12)
    client.get_next_trials(1, {"t": 14.0})
    adapter = client._generation_strategy.adapter
    optimizer = adapter.optimizer(client._experiment.search_space)
    assert [each.reason for each in optimizer.trial_log.newest] == ["failed", "abandoned"]
    assert len(optimizer.open_trials) == 3


def test_what_a_call_holds_beside_the_time_is_a_context():
    client = make_client(others=[range_of("load", (0.0, 1.0))])
    last = play(client, range(1, 10), held=lambda t: {"load": t % 3 / 3})
    assert last["load"] == 0.0
    best, _ = best_at(client, 10.0, {"load": 0.5})
    assert best["load"] == 0.5


def test_constraints_several_objectives_and_an_acquisition():
    client = make_client(constraints=["cost <= 0.4", "cost >= -9"])
    play(client, range(1, 14), others=lambda values: {"cost": values["x"]})
    assert best_at(client, 14.0)[0]["x"] < 0.45
    assert play(client, [14], others=lambda values: {"cost": 0.0})["x"] < 0.6
    client = make_client("-loss, -cost", acquisition=None, initial=2)
    play(client, range(1, 5), others=lambda values: {"cost": values["x"]})
    client = make_client(acquisition=qLogNoisyExpectedImprovement, initial=2)
    play(client, range(1, 5))


def test_every_kind_of_parameter():
    others = [
        range_of("k", (1, 5), "int"),
        range_of("rate", (1e-4, 1.0), scaling="log"),
        ChoiceParameterConfig(name="size", values=[1, 2, 4], parameter_type="int", is_ordered=True),
        ChoiceParameterConfig(
            name="rule", values=["a", "b", "c"], parameter_type="str", is_ordered=False
        ),
    ]
    client = make_client(others=others, initial=3)
    last = play(client, range(1, 6))
    assert last["k"] in range(1, 6)
    assert last["size"] in (1, 2, 4)
    assert last["rule"] in ("a", "b", "c")


def test_outcomes_with_their_noise():
    client = make_client()
    for t in range(1, 4):
        for number, values in client.get_next_trials(1, {"t": float(t)}).items():
            client.complete_trial(number, {"loss": (loss(**values), 0.1)})
    client.get_next_trials(1, {"t": 4.0})
    optimizer = client._generation_strategy.adapter.optimizer(client._experiment.search_space)
    assert optimizer.observations.Yvar.flatten().tolist() == pytest.approx([0.01] * 3)


def test_a_fold_does_not_know_the_outcome_left_out():
    client = make_client()
    play(client, range(1, 12))
    folds = cross_validate(client._generation_strategy.adapter)
    assert len(folds) == 10
    known = client.predict([told_of(client)[4][0]])[0]["loss"]
    assert folds[4].predicted.covariance[0, 0] ** 0.5 > 1.1 * known[1]


def test_a_horizon_that_moves():
    """The range of time has no influence, and may grow."""
    client = make_client(last=11.0)
    play(client, range(1, 12))
    client._experiment.search_space.parameters["t"].update_range(upper=1e6)
    assert play(client, [12.0, 500.0])["t"] == 500.0


def test_what_is_refused():
    client = make_client()
    with pytest.raises(UserInputError, match="'t'"):
        client.get_next_trials(1)
    with pytest.raises(UserInputError, match="'t'"):
        client.get_next_trials(1, {"t": 1.0, "x": 0.1, "y": 0.2})
    client = make_client("loss + cost")
    with pytest.raises(UnsupportedError, match="cost"):
        client.get_next_trials(1, {"t": 1.0})
    with pytest.raises(UserInputError, match="'t'"):
        make_client(time="day").get_next_trials(1, {"day": 1.0})
