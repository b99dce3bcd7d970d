"""Who does the trials of `tvbo reproduce`, and what is said where nobody can."""

import re
import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from tvbo.cli import main
from tvbo.commands import reproduce
from tvbo.commands.experiments import EXPERIMENTS, Experiment
from tvbo.reproduce import Claim, Reproduction


@pytest.fixture
def tvbo(capsys):
    """Run a command; give exit code and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def given(monkeypatch):
    """The executors that a made-up experiment was given."""
    executors = []

    def run(trials, seed, executor):
        executors.append(executor)
        return Reproduction(
            name="made-up",
            title="A made-up figure",
            settings={},
            results={"a": {"mean_regret": 1.5}},
            claims=[Claim("it is made up", True, 1.0, None)],
            regret={"a": torch.ones(3, 4)},
        )

    made_up = Experiment("Nothing.", run, lambda result: None, trials=2)
    monkeypatch.setitem(EXPERIMENTS, "made-up", made_up)
    return executors


def check_one_line(code, err, message):
    assert code == 2
    assert err.startswith("tvbo: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err


@pytest.mark.parametrize("arguments", [(), ("--workers", "1")])
def test_by_default_they_are_done_here(tvbo, given, arguments):
    assert tvbo("reproduce", "made-up", *arguments)[0] == 0
    assert given == [None]


def test_workers_are_processes(tvbo, given):
    assert tvbo("reproduce", "made-up", "--workers", "3")[0] == 0
    [executor] = given
    assert isinstance(executor, ProcessPoolExecutor)
    assert executor._max_workers == 3


def test_dask_is_what_its_address_gives(tvbo, given, monkeypatch):
    asked = []

    @contextmanager
    def connect(address):
        asked.append(address)
        with ThreadPoolExecutor(1) as executor:
            yield executor

    monkeypatch.setattr(reproduce, "dask_executor", connect)
    assert tvbo("reproduce", "made-up", "--dask", "tcp://h:1")[0] == 0
    assert asked == ["tcp://h:1"]
    assert isinstance(given[0], ThreadPoolExecutor)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers", "0"), "'--workers'.* greater than or equal to 1"),
        (("--workers", "many"), "'--workers'.* valid integer"),
        (("--workers", "2", "--dask", "tcp://h:1"), "--workers or --dask, not both. Got 2 and tcp"),
    ],
)
def test_bad_input(tvbo, given, arguments, message):
    code, err = tvbo("reproduce", "made-up", *arguments)
    check_one_line(code, err, message)
    assert given == []


def test_a_bad_address(tvbo, given):
    pytest.importorskip("distributed")
    code, err = tvbo("reproduce", "made-up", "--dask", "nowhere")
    check_one_line(code, err, "address of a running Dask scheduler.* Got 'nowhere'")


def test_without_the_extra(tvbo, given, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, err = tvbo("reproduce", "made-up", "--dask", "tcp://h:1")
    check_one_line(code, err, r"pip install 'botorch-tvbo\[dask\]'")


def test_workers_that_died(tvbo, given, monkeypatch):
    def run(trials, seed, executor):
        raise BrokenExecutor("one was terminated.")

    dying = Experiment("Nothing.", run, lambda result: None, trials=2)
    monkeypatch.setitem(EXPERIMENTS, "made-up", dying)
    code, err = tvbo("reproduce", "made-up", "--workers", "2")
    check_one_line(code, err, "Got: one was terminated. Is there enough memory")
