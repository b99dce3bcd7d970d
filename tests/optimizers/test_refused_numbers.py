"""What is no real number is refused by one error, wherever a caller may pass it."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from tvbo import recipes
from tvbo.evaluation import run
from tvbo.logs import fit_drift, fit_panel
from tvbo.test_functions import PanelProblem

NO_NUMBERS = {
    "1j": 1j,
    "True": True,
    "True_": np.bool_(True),
    "largest": 10**400,
    "masked": np.ma.masked,
    "complex64": torch.tensor(1j),
    "torch.bool": torch.tensor(True),
    "sparse": torch.ones(1).to_sparse(),
    "meta": torch.ones(1, device="meta"),
}
ROWS = torch.rand(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LIST = ROWS[:, 0].tolist()


def make(**options):
    given = {"bounds": {"x": (0.0, 1.0)}, "contexts": [[0.0], [1.0]], "forgetting_rate": 0.1}
    return recipes.tv_cgp_ucb(**given | options)


def table(**cells):
    row = {"x": 0.5, "context_0": 0.0, "t": 2.0, "outcome": 1.0, "noise": 0.1, "trial": 1}
    return pd.DataFrame({name: [cell] for name, cell in (row | cells).items()}, dtype=object)


CALLS = {
    "Y": lambda optimizer, bad: optimizer.tell(1, bad),
    "Yvar": lambda optimizer, bad: optimizer.tell(1, 1.0, bad),
    "outcome": lambda optimizer, bad: optimizer.tell(1, {"outcome": bad}),
    "t": lambda optimizer, bad: optimizer.ask(bad, [0.0]),
    "context": lambda optimizer, bad: optimizer.ask(2.0, [bad]),
    "choices": lambda optimizer, bad: optimizer.ask(2.0, [0.0], choices=[[bad]]),
    "action": lambda optimizer, bad: optimizer.attach([bad], 2.0, [0.0]),
    "x": lambda optimizer, bad: optimizer.attach({"x": bad}, 2.0, [0.0]),
    "contexts": lambda optimizer, bad: optimizer.policy([[bad]]),
    "a span of time": lambda optimizer, bad: optimizer.expire_overdue(2.0, bad),
}
TABLES = {
    "outcome": lambda optimizer, bad: optimizer.tell_frame(table(outcome=bad)),
    "Yvar": lambda optimizer, bad: optimizer.tell_frame(table(noise=bad), variance="noise"),
    "x": lambda optimizer, bad: optimizer.attach_frame(table(x=bad)),
    "t": lambda optimizer, bad: optimizer.attach_frame(table(t=bad)),
    "context": lambda optimizer, bad: optimizer.attach_frame(table(context_0=bad)),
}
SETTINGS = {
    "noise_variance": lambda bad: make(noise_variance=bad),
    "x": lambda bad: make(bounds={"x": (0, bad)}),
    "bounds": lambda bad: make(bounds=[(0.0, bad)]),
    "choices": lambda bad: make(bounds=None, choices=[[0.0], [bad]]),
    "contexts": lambda bad: make(contexts=[[0.0], [bad]]),
    "train_Y": lambda bad: fit_drift(ROWS, [[bad]] * 9),
    "train_X": lambda bad: fit_drift([[0.0, bad]] * 9, ROWS[:, :1]),
    "train_Yvar": lambda bad: fit_drift(ROWS, ROWS[:, :1], [[bad]] * 9),
    "values": lambda bad: fit_panel([[0.0, bad]] * 9, LIST),
    "times": lambda bad: PanelProblem(ROWS, times=[*LIST[1:], bad]),
}


def check_refused(name, call, words):
    """Check that each value is refused, with its name, by the same message."""
    begun = set()
    for word in words:
        with pytest.raises(InputDataError) as refusal:
            call(NO_NUMBERS[word])
        before, _, after = str(refusal.value).partition(f" {name}")
        assert word in after
        begun.add(before)
    assert len(begun) == 1


@pytest.mark.parametrize(("name", "call"), [*CALLS.items(), *TABLES.items()])
def test_no_number_changes_nothing(name, call):
    optimizer = make()
    optimizer.ask(1.0, [0.0])
    words = ["1j", "True", "largest"] if call in TABLES.values() else NO_NUMBERS
    check_refused(name, lambda bad: call(optimizer, bad), words)
    assert (optimizer.num_trials, len(optimizer.open_trials)) == (1, 1)


@pytest.mark.parametrize(("name", "call"), SETTINGS.items())
def test_no_number_is_a_setting_or_a_log(name, call):
    check_refused(name, call, NO_NUMBERS)


@pytest.mark.parametrize("name", ["Y", "outcome", "Yvar"])
def test_no_number_is_an_outcome_of_a_run(name):
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)])

    def evaluated_as(bad):
        outcome = {"Y": bad, "outcome": {"outcome": bad}, "Yvar": (1.0, bad)}[name]
        run(lambda trial: outcome, optimizer, horizon=1, progress=False)

    check_refused(name, evaluated_as, NO_NUMBERS)
    assert len(optimizer.open_trials) == len(NO_NUMBERS)


def test_numbers_come_in_many_forms():
    optimizer = recipes.random_search(bounds=[(0.0, 1.0)])
    for one in (1, Decimal(1), np.float32(1), np.ones(1), torch.ones(1, 1), [1], [[np.int8(1)]]):
        optimizer.tell(optimizer.attach(one, one), one, one)
    assert optimizer.trial_log.num_told == 7
