"""Progress bars of long computations."""

import time

import pytest
from rich.console import Console

import tvbo.terminal
from tvbo.terminal import patient_steps, progress_lines


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal for Rich."""
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(stderr=True, force_terminal=1))


def test_a_long_step_is_shown_and_removed(terminal, monkeypatch, capsys):
    monkeypatch.setattr(tvbo.terminal, "PATIENCE", 0.02)
    with patient_steps(["first", "second"], "fit\x1b", True) as on_step:
        on_step("second")
        time.sleep(0.3)
    shown = capsys.readouterr().err
    assert r"fit\x1b: second" in shown
    assert "step 2 of 2" in shown
    # The last thing that is written erases the line.
    assert shown.rstrip("\r").endswith("\x1b[2K")


def test_short_steps_are_not_shown(terminal, capsys):
    with patient_steps(["first"], "fit", True) as on_step:
        on_step("first")
    assert capsys.readouterr().err == ""


def test_nothing_is_shown_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(tvbo.terminal, "PATIENCE", 0.0)
    with patient_steps(["first"], "fit", True) as on_step:
        on_step("first")
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_lines_say_what_is_done(capsys):
    with progress_lines("fit\x1b", True, period=0.01) as on_step:
        on_step("second")
        time.sleep(0.3)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(r"fit\x1b: second, ")
    with progress_lines("fit", False, period=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
