"""Executors of the replicates of `python -m experiments`, and errors where there are none."""

import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor

import pytest
import torch

from experiments import command
from experiments.claims import Claim, Reproduction
from experiments.registry import EXPERIMENTS, Experiment


@pytest.fixture
def run(capsys):
    """Run a command line; give exit code and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            command.main(list(arguments))
        return stop.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def given(monkeypatch):
    """The executors that a made-up experiment was given."""
    executors = []

    def figure(trials, seed, executor):
        executors.append(executor)
        return Reproduction(
            name="made-up",
            title="A made-up figure",
            settings={},
            results={"a": {"mean_regret": 1.5}},
            claims=[Claim("it is made up", True, 1.0, None)],
            regret={"a": torch.ones(3, 4)},
        )

    made_up = Experiment("Nothing.", figure, lambda result: None, trials=2)
    monkeypatch.setitem(EXPERIMENTS, "made-up", made_up)
    return executors


def check_one_line(code, err):
    assert code == 2
    assert err.startswith("experiments: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("--workers", "1")])
def test_by_default_they_are_done_here(run, given, arguments):
    assert run("made-up", *arguments)[0] == 0
    assert given == [None]


def test_workers_are_processes(run, given):
    assert run("made-up", "--workers", "3")[0] == 0
    [executor] = given
    assert isinstance(executor, ProcessPoolExecutor)


@pytest.mark.parametrize(
    "arguments",
    [("--workers", "0"), ("--workers", "many"), ("--workers", "2", "--dask", "tcp://h:1")],
)
def test_bad_input(run, given, arguments):
    code, err = run("made-up", *arguments)
    check_one_line(code, err)
    assert given == []


def test_a_bad_address(run, given):
    pytest.importorskip("distributed")
    code, err = run("made-up", "--dask", "nowhere")
    check_one_line(code, err)


def test_without_the_extra(run, given, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    code, err = run("made-up", "--dask", "tcp://h:1")
    check_one_line(code, err)


def test_workers_that_died(run, given, monkeypatch):
    def figure(trials, seed, executor):
        raise BrokenExecutor("one was terminated.")

    dying = Experiment("Nothing.", figure, lambda result: None, trials=2)
    monkeypatch.setitem(EXPERIMENTS, "made-up", dying)
    code, err = run("made-up", "--workers", "2")
    check_one_line(code, err)
