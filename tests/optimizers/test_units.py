"""Names, timestamps, minimization: the same choices as by numbers and by the negative."""

import math
import re
from datetime import datetime, timedelta

import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.sampling import SobolQMCNormalSampler
from ConfigSpace import Float
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Size

from tvbo import recipes, run
from tvbo.optimizers import Optimizer
from tvbo.spaces import FiniteSpace, MixedSpace
from tvbo.test_functions import MovingPeak

NAMED = {"x": (0.0, 1.0), "y": (-1.0, 1.0)}
NUMBERS = [(0.0, 1.0), (-1.0, 1.0)]
CONTEXTS = {"load": (0.0, 5.0)}


def kernel():
    made = RBFKernel().double()
    made.lengthscale = 0.5
    return made


def outcome(trial):
    x, y = trial.X[0].tolist()
    return float(-((x - 0.3 - trial.t / 100) ** 2) - (y - 0.2) ** 2)


KNOWN = {"covar_module": kernel(), "noise_variance": 0.01}
FINITE = {"choices": torch.rand(30, 2, generator=torch.Generator().manual_seed(3)).double()}

MAKERS = {
    "tv_gp_ucb": lambda **units: recipes.tv_gp_ucb(bounds=NUMBERS, **units),
    "known": lambda **units: recipes.tv_gp_ucb(
        bounds=NUMBERS, forgetting_rate=0.03, **KNOWN, **units
    ),
    "finite": lambda **units: recipes.r_gp_ucb(every=7, **FINITE, **KNOWN, **units),
    "gp_ts": lambda **units: recipes.gp_ts(**FINITE, **KNOWN, **units),
    "compressed": lambda **units: recipes.compressed_gp(
        budget=0.05, mode="discard", **FINITE, **KNOWN, **units
    ),
    "bpe": lambda **units: recipes.bpe_delay(
        **FINITE, covar_module=kernel(), noise_variance=0.01, horizon=20, **units
    ),
    "random_search": lambda **units: recipes.random_search(bounds=NUMBERS, **units),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_minimizing_chooses_as_maximizing_the_negative(make):
    up, down = make(), make(minimize=True)
    for t in range(1, 13):
        one, two = up.ask(t=float(t)), down.ask(t=float(t))
        assert torch.equal(one.X, two.X), t
        up.tell(one, outcome(one), 0.01)
        down.tell(two, -outcome(one), 0.01)
    if hasattr(up, "recommend"):
        best, least = up.recommend(), down.recommend()
        assert torch.equal(best.X, least.X)
        assert least.mean == -best.mean
        assert least.standard_deviation == best.standard_deviation
        assert least.minimize
        assert not best.minimize


def test_the_best_of_a_policy_that_minimizes_is_the_smallest():
    optimizer = recipes.cgp_ucb(
        choices=torch.eye(2).double(), contexts=[[0.0], [1.0]], minimize=True, **KNOWN
    )
    for context, Y in ((0.0, 3.0), (1.0, -2.0)):
        for arm in range(2):
            optimizer.tell(optimizer.attach(torch.eye(2)[arm], 1.0, [context]), Y)
    policy = optimizer.policy()
    assert policy.best.mean == policy.mean.min().item()
    assert policy.best.context.item() == 1.0


@pytest.mark.parametrize("recipe", [recipes.tv_gp_ucb, recipes.random_search])
def test_names_choose_as_numbers_do(recipe):
    one, two = recipe(bounds=NUMBERS), recipe(bounds=NAMED)
    for t in range(1, 13):
        trial, named = one.ask(t=float(t)), two.ask(t=float(t))
        assert torch.equal(trial.X, named.X)
        assert list(named.parameters.values()) == trial.X[0].tolist()
        one.tell(trial, outcome(trial))
        two.tell(named, outcome(trial))
    attached = two.attach({"y": 0.5, "x": 0.25}, t=13.0)
    assert attached.X.tolist() == [[0.25, 0.5]]


def test_timestamps_choose_as_numbers_do():
    begin = datetime(2026, 1, 1)
    first = (begin - datetime(1970, 1, 1)) / timedelta(hours=1)
    one = recipes.tv_gp_ucb(bounds=NUMBERS)
    two = recipes.tv_gp_ucb(bounds=NUMBERS, time_unit="1h")
    for n in range(14):
        trial, stamped = one.ask(t=first + n), two.ask(begin + timedelta(hours=n))
        assert torch.equal(trial.X, stamped.X)
        assert stamped.t == first + n
        assert stamped.time == begin + timedelta(hours=n)
        one.tell(trial, outcome(trial))
        two.tell(stamped, outcome(trial))
    later = begin + timedelta(days=2)
    assert two.recommend(t=later).to_row()["t"] == later
    late = two.ask(begin + timedelta(hours=20))
    assert two.expire_overdue(begin + timedelta(hours=30), timedelta(hours=10)) == ()
    assert two.expire_overdue(begin + timedelta(hours=31), timedelta(hours=10)) == (late,)
    with pytest.raises(InputDataError):
        two.ask(begin)
    with pytest.raises(InputDataError):
        two.ask()


def test_units_are_checked():
    for recipe in (recipes.random_search, recipes.tv_gp_ucb):
        for bad in ({"time_zone": "UTC"}, {"time_unit": "1 mile"}, {"minimize": "false"}):
            with pytest.raises(ValueError):
                recipe(bounds=NUMBERS, **bad)


def test_contexts_by_name():
    named = recipes.tv_cgp_ucb(bounds=NAMED, context_bounds=CONTEXTS)
    numbers = recipes.tv_cgp_ucb(bounds=NUMBERS, context_bounds=[(0.0, 5.0)])
    for t in range(1, 9):
        load = t % 5 + 0.5
        forms = [{"load": load}, pd.Series({"load": load}), torch.tensor([load]).double()]
        one = numbers.ask(t=float(t), context=torch.tensor([load]).double())
        two = named.ask(t=float(t), context=forms[t % 3])
        assert torch.equal(one.X, two.X)
        assert torch.equal(one.context, two.context)
        assert two.to_row().keys() == {"trial", "t", "x", "y", "load"}
        numbers.tell(one, outcome(one))
        named.tell(two, outcome(one))
    table = named.policy(pd.DataFrame({"load": [1.0, 2.0]})).to_frame()
    assert table[["load", "t"]].values.tolist() == [[1.0, 8.0], [2.0, 8.0]]
    assert named.recommend({"load": 2.0}).parameters == table[["x", "y"]].loc[1].to_dict()


def test_a_name_without_a_declaration_is_refused():
    optimizer = recipes.cgp_ucb(bounds=NUMBERS, context_bounds=[(0.0, 5.0)])
    with pytest.raises(InputDataError):
        optimizer.ask(context={"load": 3.0})
    with pytest.raises(InputDataError):
        optimizer.attach({"x": 0.5, "y": 0.5}, 1.0, [1.0])
    with pytest.raises(BotorchTensorDimensionError):
        recipes.gp_ucb(bounds=NUMBERS).ask(context={"load": 3.0})
    with pytest.raises(ValueError):
        optimizer.ask(context=[1.0]).parameters  # noqa: B018
    assert optimizer.num_trials == 1


def test_arms_of_a_table():
    arms = pd.DataFrame({"price": [9, 12, 15], "color": ["red", "red", "blue"]})
    optimizer = recipes.tv_gp_ucb(choices=arms)
    assert isinstance(optimizer.search_space, FiniteSpace)
    seen = {tuple(optimizer.ask().parameters.values()) for _ in range(3)}
    assert seen == {(9, "red"), (12, "red"), (15, "blue")}
    with pytest.raises(InputDataError):
        optimizer.attach({"price": 9, "color": "blue"}, 5.0)


@pytest.mark.slow
def test_a_mixed_space_is_learned():
    space = {"rate": Float("rate", (1e-4, 1.0), log=True), "layers": (1, 8)}
    space["rule"] = ["a", "b", "c", "d"]
    optimizer = recipes.tv_gp_ucb(bounds=space, minimize=True)
    assert isinstance(optimizer.search_space, MixedSpace)
    bonus, last = {"a": 0.5, "b": 0.0, "c": 1.0, "d": 1.0}, []
    for t in range(1, 31):
        trial = optimizer.ask(t=float(t))
        values = trial.parameters
        loss = torch.tensor(values["rate"]).log10().item() + 2
        loss = loss**2 + 0.1 * (values["layers"] - 5) ** 2 + bonus[values["rule"]]
        optimizer.tell(trial, loss)
        last.append(loss)
    # The mean loss of an action at random is 3.3.
    assert sum(last[20:]) / 10 < 0.7
    assert optimizer.recommend().parameters["rule"] == "b"


@pytest.mark.slow
def test_a_record_has_names_and_units(tmp_path):
    path = tmp_path / "run.db"

    def make(**changes):
        space = {"x": (0.0, 1.0), "n": (1, 40), "rule": ["a", "b", "c"]} | changes.pop("space", {})
        given = {"minimize": True, "time_unit": "1h", "time_zone": "UTC"} | changes
        return recipes.tv_gp_ucb(bounds=space, **given)

    now = pd.Timestamp("2026-01-01", tz="UTC")
    with make() as optimizer:
        optimizer.record(path)
        for n in range(12):
            trial = optimizer.ask(now + pd.Timedelta(hours=n))
            optimizer.tell(trial, trial.parameters["n"])
        expected = optimizer.recommend()
    for like in (None, make()):
        with Optimizer.open(path, like=like) as again:
            assert again.minimize
            assert again.labels == optimizer.labels
            assert torch.equal(again.recommend().X, expected.X)
            assert again.recommend().mean == expected.mean
    for other in (
        make(minimize=False),
        make(time_zone=None),
        make(space={"rule": ["a", "b", "d"]}),
        make(space={"n": (1, 41)}),
    ):
        with pytest.raises(ValueError):
            Optimizer.open(path, like=other)


@pytest.mark.parametrize("recorded", [False, True])
def test_listeners_hear_of_each_change(recorded, tmp_path, caplog):
    optimizer = recipes.tv_gp_ucb(bounds=NAMED, minimize=True)
    if recorded:
        optimizer.record(tmp_path / "run.db")
    heard = []
    optimizer.add_listener(
        on_ask=lambda trial: heard.append(("ask", trial.id)),
        on_tell=lambda trial, Y: heard.append(("tell", trial.id, Y)),
        on_fit=lambda fit: heard.append(("fit", len(fit) > 0)),
        on_loss=lambda trial, reason: heard.append(("loss", trial.id, reason)),
    )
    with caplog.at_level("INFO", "tvbo.optimizers"):
        for number in range(1, 14):
            optimizer.tell(optimizer.ask(), float(number))
        optimizer.fail(optimizer.ask(), "broken")
        optimizer.expire(optimizer.ask())
    before_fits = [event for event in heard if event[0] != "fit"]
    assert before_fits[:4] == [("ask", 1), ("tell", 1, 1.0), ("ask", 2), ("tell", 2, 2.0)]
    assert before_fits[-4:] == [
        ("ask", 14),
        ("loss", 14, "broken"),
        ("ask", 15),
        ("loss", 15, "past its deadline"),
    ]
    # A refit comes before the ask that it was made for.
    first = heard.index(("fit", True))
    assert heard[first + 1][0] == "ask"
    lines = [record.getMessage() for record in caplog.records if record.name == "tvbo.optimizers"]
    assert len(lines) == len(heard)
    assert any(line.startswith("tell: Trial 3 at t=3.0: x=") for line in lines)
    assert any(line.endswith("(broken)") for line in lines)
    optimizer.close()


def test_a_listener_that_raises_stops_nothing(tmp_path, caplog):
    optimizer = recipes.random_search(bounds=NAMED)
    optimizer.record(tmp_path / "run.db")
    optimizer.add_listener(on_ask=lambda trial: 1 / 0)
    optimizer.tell(optimizer.ask(), 0.5)
    assert "A listener failed. The change stands: ask: Trial 1" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    optimizer.close()
    with Optimizer.open(tmp_path / "run.db") as again:
        assert again.trial_log.num_told == 1
        again.ask()


def test_a_table_is_announced_when_all_of_it_counts():
    optimizer, heard = recipes.random_search(bounds=NAMED), []
    optimizer.add_listener(on_tell=lambda trial, Y: heard.append((Y, optimizer.num_trials)))
    table = pd.DataFrame({"x": [0.1, 0.2], "y": 0.0, "t": [1.0, 2.0], "outcome": [3.0, 4.0]})
    optimizer.attach_frame(table)
    assert heard == [(3.0, 2), (4.0, 2)]


@pytest.mark.parametrize(
    "t",
    [5.0, "01/02/2026", datetime(9999, 1, 1)],
)
def test_times_of_another_type(t):
    optimizer = recipes.random_search(bounds=NAMED, time_unit="1h")
    with pytest.raises(InputDataError):
        optimizer.ask(t)
    assert optimizer.num_trials == 0


def test_runs_with_timestamps_and_of_problems():
    optimizer = recipes.random_search(bounds=NAMED, time_unit="1h")
    times = pd.date_range("2026-01-01", periods=5, freq="2h")
    history = run(
        lambda trial: trial.parameters["x"], optimizer, horizon=5, times=times, progress=False
    )
    assert history.to_frame().t.tolist() == times.tolist()
    with pytest.raises(ValueError):
        run(lambda trial: 0.0, optimizer, horizon=3, progress=False)
    problem = MovingPeak()
    least = recipes.random_search(bounds=problem.bounds, minimize=True)
    with pytest.raises(ValueError):
        run(problem, least, horizon=3, progress=False)


@pytest.mark.parametrize("minimize", [False, True])
@pytest.mark.parametrize("outcome", [math.inf, -math.inf])
def test_an_infinite_outcome_is_named_as_it_was_told(minimize, outcome):
    optimizer = recipes.random_search(bounds=NUMBERS, minimize=minimize)
    trial = optimizer.ask()
    with pytest.raises(InputDataError) as refused:
        optimizer.tell(trial, outcome)
    assert re.findall("-?inf", str(refused.value)) == [str(outcome)]
    assert optimizer.open_trials == (trial,)


LARGE = ScaleKernel(kernel()).double()
LARGE.outputscale = 2500.0
MODELS = {
    "averaged": lambda: recipes.tv_gp_ucb(bounds=NUMBERS, initial=0),
    "contexts": lambda: recipes.tv_cgp_ucb(bounds=NUMBERS, context_bounds=[(0.0, 5.0)], initial=0),
    "finite": lambda: recipes.tv_gp_ucb(
        **FINITE, covar_module=LARGE, noise_variance=1.0, forgetting_rate=0.03
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_model_takes_and_predicts_outcomes_in_the_unit_of_the_user(make):
    optimizer = make()
    context = None if optimizer.contexts is None else [2.0]
    for t in range(1, 9):
        trial = optimizer.ask(float(t), context)
        optimizer.tell(trial, 50 * outcome(trial))
    trial = optimizer.ask(9.0, context)
    model, rows = optimizer.model, optimizer.layout.rows(trial.X, 9.0, trial.context)
    before = model.posterior(rows)
    Y = before.mean + 3 * before.variance.sqrt()
    after = model.condition_on_observations(rows, Y, torch.full_like(Y, 1e-4)).posterior(rows)
    torch.testing.assert_close(after.mean, Y, rtol=0, atol=0.1 * before.variance.sqrt().item())
    sampler = SobolQMCNormalSampler(Size([16]), seed=0)
    fantasies = model.fantasize(rows, sampler).posterior(rows).mean.mean()
    scale = 0.2 * before.variance.sqrt().item()
    assert fantasies.item() == pytest.approx(before.mean.item(), abs=scale)
