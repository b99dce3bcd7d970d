"""A generator of gest-api, alone and inside Xopt (``pip install botorch-tvbo[gest]``)."""

import json
import math
from copy import deepcopy

import pytest
from botorch.exceptions.errors import InputDataError

from tvbo import recipes

pytest.importorskip("gest_api")

from gest_api.generator import Generator
from gest_api.vocs import VOCS

from tvbo.integrations.gest import TimeVaryingGenerator

BOX = {"x": [0.0, 1.0], "y": [-2.0, 3.0]}


def loss(x, y, t):
    """A bowl whose bottom goes round, with a wave that stands for noise."""
    wave = 0.05 * math.sin(40 * x + 9 * y + t)
    return (x - 0.5 - 0.3 * math.sin(t / 9)) ** 2 + ((y - 0.5) / 4) ** 2 + wave


def make_generator(variables=BOX, objectives=None, vocs=None, **options):
    vocs = {"objectives": objectives or {"f": "MINIMIZE"}, **(vocs or {})}
    return TimeVaryingGenerator(VOCS(variables=variables, **vocs), **options)


def play(generator, rounds, others=lambda point: {}):
    """Suggest and ingest; return the last point."""
    for _ in range(rounds):
        (point,) = generator.suggest()
        t = generator.state_dict()["num_suggested"]
        generator.ingest([{**point, "f": loss(point["x"], point["y"], t), **others(point)}])
    return point


def test_it_chooses_and_recommends_as_the_recipe():
    generator = make_generator()
    assert isinstance(generator, Generator)
    play(generator, 14)
    ours = recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0), "y": (-2.0, 3.0)}, minimize=True)
    for trial in generator.state_dict()["trials"].values():
        ours.tell(ours.attach(trial["parameters"], trial["t"]), trial["Y"]["f"])
    expected, found = ours.recommend(t=20.0), generator.recommend(t=20.0)
    assert found.parameters == pytest.approx(expected.parameters, abs=1e-4)
    assert found.mean == pytest.approx(expected.mean)
    (point,) = generator.suggest(1, t=20.0)
    assert {name: point[name] for name in BOX} == pytest.approx(ours.ask(20.0).parameters, abs=1e-4)


def test_a_batch_has_ids_and_constants_and_is_pending():
    generator = make_generator(vocs={"constants": {"alpha": 0.5}})
    play(generator, 11)
    batch = generator.suggest(3) + generator.suggest()
    assert [point["_id"] for point in batch] == [12, 13, 14, 15]
    assert all(point["alpha"] == 0.5 for point in batch)
    assert len({round(point["x"], 3) for point in batch}) == 4
    generator.ingest([{**batch[2], "f": 0.1}])
    for wrong in (14, 99):
        with pytest.raises(ValueError, match=str(wrong)):
            generator.ingest([{**batch[0], "f": 0.1}, {**batch[0], "_id": wrong, "f": 0.1}])
    # Nothing of what was refused was taken in.
    generator.ingest([{**batch[0], "f": 0.1}, {"x": 0.5, "y": 0.0, "f": 0.2}])
    states = [trial["Y"] for trial in generator.state_dict()["trials"].values()]
    assert states[11:] == [{"f": 0.1}, None, {"f": 0.1}, None, {"f": 0.2}]


def test_time_by_argument_by_clock_and_as_measured():
    times = iter([3.0, 8.0])
    generator = make_generator(clock=lambda: next(times), time="when")
    one, two = generator.suggest() + generator.suggest()
    generator.suggest(t=9.0)
    generator.ingest([{**one, "f": 0.0}, {**two, "f": 0.1, "when": 8.5}])
    assert [trial["t"] for trial in generator.state_dict()["trials"].values()] == [3.0, 8.5, 9.0]


def test_constraints_and_results_without_an_outcome():
    constraints = {"c": ["GREATER_THAN", 0.6], "d": ["BOUNDS", -1.0, 9.0], "e": ["LESS_THAN", 9.0]}
    generator = make_generator(vocs={"constraints": constraints, "observables": ["o"]})
    play(generator, 12, lambda point: {"c": point["x"], "d": point["y"], "e": point["y"]})
    assert generator.recommend().parameters["x"] > 0.5
    (point,) = generator.suggest()
    with pytest.raises(ValueError, match="e"):
        generator.ingest([{**point, "f": 0.0, "c": 0.0, "d": 0.0}])
    generator.ingest([{**point, "f": math.nan, "c": math.nan, "d": math.nan, "e": math.nan}])
    assert generator.recommend(t=14.0).probability_of_success < 1.0


def test_discrete_variables_and_several_objectives():
    variables = {"x": [0.0, 1.0], "size": {1, 2, 4}, "kind": {"a", "b", "c"}}
    generator = make_generator(variables, {"f": "MINIMIZE", "g": "MAXIMIZE"})
    for _ in range(4):
        (point,) = generator.suggest()
        assert point["size"] in {1, 2, 4}
        assert point["kind"] in {"a", "b", "c"}
        generator.ingest([{**point, "f": point["x"], "g": point["size"]}])
    with pytest.raises(InputDataError):
        generator.ingest([{**point, "_id": None, "size": 3, "f": 0.0, "g": 0.0}])


def test_contexts_are_those_of_the_newest_result_or_given():
    generator = make_generator({"x": [0.0, 1.0], "load": "CONTEXTUAL"})

    def result(point, load):
        return {**point, "load": load, "f": (point["x"] - load) ** 2}

    generator.ingest([result(point, 0.3) for point in generator.suggest(2)])
    for n in range(20):
        (point,) = generator.suggest(context={"load": n % 3 / 3})
        assert point.keys() == {"x", "_id"}
        generator.ingest([result(point, n % 3 / 3)])
    for load in (0.0, 0.6):
        best = generator.recommend(context={"load": load}).parameters["x"]
        assert best == pytest.approx(load, abs=0.15)
    (point,) = generator.suggest()
    assert point["x"] == pytest.approx(19 % 3 / 3, abs=0.3)
    with pytest.raises(ValueError, match="wind"):
        generator.suggest(context={"wind": 1.0})


def test_a_state_is_json_and_goes_on():
    generator = make_generator()
    play(generator, 11)
    generator.suggest(2)
    other = make_generator()
    other.load_state_dict(json.loads(json.dumps(generator.state_dict())))
    assert other.suggest(2) == generator.suggest(2)
    with pytest.raises(ValueError, match="5"):
        other.suggest(5 - 10)


@pytest.mark.parametrize(
    "vocs",
    [
        {"objectives": {}},
        {"objectives": {"f": "EXPLORE"}},
        {"variables": {"time": [0.0, 1.0]}},
        {"variables": {"x": "CONTEXTUAL"}},
        {"variables": {"x": {"only"}}},
    ],
)
def test_what_is_refused(vocs):
    with pytest.raises(ValueError, match="Got"):
        TimeVaryingGenerator(VOCS(**{"variables": BOX, "objectives": {"f": "MINIMIZE"}, **vocs}))


@pytest.mark.draws_globally
def test_inside_xopt():
    xopt = pytest.importorskip("xopt")
    times = []

    def evaluate(inputs):
        times.append(len(times) + 1.0)
        if len(times) == 5:
            raise RuntimeError("a trip of the machine")
        return {"f": loss(inputs["x"], inputs["y"], times[-1]), "time": times[-1]}

    generator = make_generator(vocs={"observables": ["time"]})
    evaluator = xopt.Evaluator(function=evaluate)
    run = xopt.Xopt(generator=deepcopy(generator), evaluator=evaluator, strict=False)
    run.random_evaluate(3, seed=0)
    for _ in range(13):
        run.step()
    trials = run.generator.state_dict()["trials"].values()
    assert [trial["t"] for trial in trials][5:] == times[5:]
    assert sum(math.isnan(trial["Y"]["f"]) for trial in trials) == 1
    again = xopt.Xopt(generator=generator, evaluator=evaluator, data=run.data.dropna(subset="f"))
    assert len(again.generator.state_dict()["trials"]) == 15
    again.step()
    assert len(again.data) == 16
