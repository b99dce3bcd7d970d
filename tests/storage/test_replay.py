"""Code that has changed since a run was recorded."""

import importlib
import sys

import pytest

from tvbo.optimizers import Optimizer
from tvbo.storage import JournalError, JournalReader, trials_of

MINE = """
from dataclasses import dataclass
from helper_of_mine import factor

@dataclass(frozen=True)
class Beta:
    start: float = 1.0

    def __call__(self, t):
        return self.start * factor(t)
"""
HELPER = "def factor(t):\n    return {}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a user's module; it is imported again, as a fresh process would."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def write_module(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        for loaded in ("code_of_mine", "helper_of_mine"):
            sys.modules.pop(loaded, None)
        importlib.invalidate_caches()

    yield write_module
    for loaded in ("code_of_mine", "helper_of_mine"):
        sys.modules.pop(loaded, None)


@pytest.fixture
def with_my_code(write, make_streaming):
    """Makes an optimizer whose β is a user's."""
    write("helper_of_mine", HELPER.format("0.5 * t"))
    write("code_of_mine", MINE)

    def make(**given):
        return make_streaming(beta=importlib.import_module("code_of_mine").Beta(**given))

    return make


@pytest.mark.parametrize("close", [True, False], ids=["snapshot", "replayed"])
def test_code_that_did_not_change(recorded, with_my_code, play, close):
    run = recorded(20, with_my_code, close=close)
    whole = with_my_code()
    play(whole, 20)
    assert play(Optimizer.open(run, like=with_my_code()), 9) == play(whole, 9)


def test_code_that_has_changed_goes_on_from_what_was_recorded(recorded, with_my_code, write):
    run = recorded(20, with_my_code)
    with JournalReader(run) as journal:
        before = trials_of(journal)
    write("helper_of_mine", HELPER.format("900.0 if t > 3 else 0.5 * t"))
    with Optimizer.open(run) as optimizer:
        observed = optimizer.observations.X[:, 0].tolist()
        assert sorted(observed) == sorted(before.action_0[before.state == "told"])
        assert optimizer.ask().id == len(before) + 1


def test_code_that_now_raises(recorded, with_my_code, write):
    run = recorded(20, with_my_code)
    write("helper_of_mine", HELPER.format("t.bogus"))
    with pytest.raises(JournalError, match="AttributeError"):
        Optimizer.open(run)


@pytest.mark.parametrize("text", ["", None], ids=["class", "module"])
def test_code_that_is_gone(recorded, with_my_code, write, tmp_path, text):
    run = recorded(6, with_my_code)
    write("code_of_mine", text or "")
    if text is None:
        (tmp_path / "code_of_mine.py").unlink()
    with pytest.raises(JournalError):
        Optimizer.open(run)
