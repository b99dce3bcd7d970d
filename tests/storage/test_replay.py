"""Code that has changed since a run was recorded."""

import importlib
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.retention import EntropyThreshold, Prediction
from tvbo.storage import JournalError

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
    """Write a user's module; it is imported anew, as a fresh process would."""
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


@pytest.mark.parametrize("close", [True, False], ids=["snapshot", "replayed"])
def test_a_helper_that_the_code_uses_has_changed(recorded, with_my_code, write, close):
    run = recorded(20, with_my_code, close=close)
    write("helper_of_mine", HELPER.format("900.0 if t > 3 else 0.5 * t"))
    with pytest.raises(
        JournalError,
    ):
        Optimizer.open(run)


def test_a_change_that_makes_no_difference_is_let_pass(recorded, with_my_code, write, play):
    run = recorded(20, with_my_code, close=True)
    whole = with_my_code()
    play(whole, 20)
    write("helper_of_mine", "# A comment.\n" + HELPER.format("t / 2"))
    assert play(Optimizer.open(run), 9) == play(whole, 9)


def test_code_that_now_raises(recorded, with_my_code, write):
    run = recorded(20, with_my_code)
    write("helper_of_mine", HELPER.format("t.bogus"))
    with pytest.raises(JournalError, match="AttributeError"):
        Optimizer.open(run)


def test_a_changed_number_of_draws_is_noticed(recorded, make_random, play, monkeypatch):
    """Though the action that comes is the same."""
    run = recorded(10)
    sample = type(make_random().search_space).sample

    def draws_once_more(search_space, generator):
        X = sample(search_space, generator)
        torch.rand(1, generator=generator)
        return X

    monkeypatch.setattr(type(make_random().search_space), "sample", draws_once_more)
    with pytest.raises(JournalError):
        Optimizer.open(run)


def test_a_tell_that_no_longer_reaches_the_record(recorded, make_random, monkeypatch):
    run = recorded(10)
    monkeypatch.setattr(type(make_random()), "tell", lambda *_: None)
    with pytest.raises(JournalError):
        Optimizer.open(run)


def test_code_that_now_does_more_than_was_recorded(run, make_random, leave, monkeypatch):
    optimizer = make_random()
    optimizer.record(run)
    optimizer.tell(optimizer.ask(), 0.5)
    leave(optimizer)
    kind = type(optimizer)
    tell = kind.tell

    def tells_and_asks(optimizer, *arguments):
        tell(optimizer, *arguments)
        optimizer.ask()

    with monkeypatch.context() as patch:
        patch.setattr(kind, "tell", tells_and_asks)
        with pytest.raises(JournalError):
            Optimizer.open(run)
    assert Optimizer.open(run).trial_log.num_told == 1


@pytest.mark.parametrize("text", ["", None], ids=["class", "module"])
def test_code_that_is_gone(recorded, with_my_code, write, tmp_path, text):
    run = recorded(6, with_my_code)
    write("code_of_mine", text or "")
    if text is None:
        (tmp_path / "code_of_mine.py").unlink()
    with pytest.raises(JournalError):
        Optimizer.open(run)


@pytest.mark.slow
def test_in_a_fresh_process(recorded, with_my_code, write, tmp_path):
    run = recorded(20, with_my_code, close=True)
    write("helper_of_mine", HELPER.format("900.0 if t > 3 else 0.5 * t"))
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, torch; torch.set_num_threads(1)\n"
            "from tvbo.storage import open_journal, JournalError\n"
            "try:\n    open_journal(sys.argv[1])\nexcept JournalError as error:\n    print(error)",
            run,
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "source of helper_of_mine was" in result.stdout
    assert "as recorded: ask of trial" in result.stdout


def rounded(monkeypatch, search_space, size):
    """As on another processor: each choice differs a little from what it would be here."""
    maximize = type(search_space).maximize
    noise = torch.Generator().manual_seed(0)

    def elsewhere(search_space, *arguments):
        X = maximize(search_space, *arguments)
        lower, upper = search_space.bounds
        change = size * (2 * torch.rand(X.shape, dtype=X.dtype, generator=noise) - 1)
        return torch.minimum(torch.maximum(X + change * (upper - lower), lower), upper)

    monkeypatch.setattr(type(search_space), "maximize", elsewhere)


@pytest.fixture(params=["box", "separate", "bpe"])
def make_on_a_box(request, make_square):
    """Optimizers whose actions are any numbers, contexts and plans included."""
    kernel = make_square().posterior_state.fitter.covar_module
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    given = {"bounds": bounds, "covar_module": kernel, "noise_variance": 0.01}
    tasks = torch.eye(3, dtype=torch.float64)
    return {
        "box": make_square,
        "separate": lambda: recipes.separate(contexts=tasks, forgetting_rate=0, **given),
        "bpe": lambda: recipes.bpe(horizon=60, **given),
    }[request.param]


@pytest.mark.slow
def test_rounding_of_another_processor_is_no_difference(recorded, make_on_a_box, monkeypatch, play):
    """The recorded actions are those that were tried: later choices follow from them."""
    run = recorded(9, make_on_a_box)
    whole = make_on_a_box()
    play(whole, 9)
    with monkeypatch.context() as patch:
        rounded_in(patch, whole, 1e-9)
        again = Optimizer.open(run, like=make_on_a_box())
    for one, two in zip(again.open_trials, whole.open_trials, strict=True):
        assert torch.equal(one.X, two.X)
    if hasattr(whole, "observations"):
        assert torch.equal(again.observations.X, whole.observations.X)
    for loop, theirs in zip(loops(again), loops(whole), strict=True):
        assert torch.equal(loop.observations.X, theirs.observations.X)
    one, two = (torch.tensor([X for _, _, [X], _ in play(each, 4)]) for each in (again, whole))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def loops(optimizer):
    return getattr(optimizer, "loops", {}).values()


def rounded_in(patch, optimizer, size):
    """Where an optimizer makes its choice."""
    if not hasattr(optimizer, "survivors"):
        rounded(patch, optimizer.search_space, size)
        return
    choose = type(optimizer._region).choose

    def elsewhere(region, generator):
        return (choose(region, generator) + size).clamp(0, 1)

    patch.setattr(type(optimizer._region), "choose", elsewhere)


def test_a_choice_that_differs_by_more_than_rounding(recorded, make_square, monkeypatch):
    run = recorded(10, make_square)
    rounded(monkeypatch, make_square().search_space, 1e-4)
    with pytest.raises(JournalError, match="ask"):
        Optimizer.open(run, like=make_square())


def test_an_action_of_a_finite_set_is_that_one_or_another(run, leave):
    """Though the two be nearer to one another than rounding on a box would be."""

    def made():
        return recipes.random_search(choices=[[0.5], [0.5 + 1e-9], [1.0]])

    optimizer = made()
    optimizer.record(run)
    for _ in range(9):
        optimizer.ask()
    leave(optimizer)
    like = made()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(like.search_space),
            "sample",
            lambda search_space, generator: search_space.choices[:1].clone(),
        )
        with pytest.raises(JournalError):
            Optimizer.open(run, like=like)


@pytest.mark.parametrize(("change", "same"), [(1e-9, True), (1e-3, False)])
def test_what_was_learned_may_differ_by_rounding(
    recorded, make_learning, monkeypatch, change, same
):
    run = recorded(16, make_learning)
    surrogate = type(make_learning())
    refits = surrogate._refits

    def elsewhere(optimizer):
        return [
            replace(event, fit={k: [x * (1 + change) for x in v] for k, v in event.fit.items()})
            for event in refits(optimizer)
        ]

    monkeypatch.setattr(surrogate, "_refits", elsewhere)
    if same:
        assert (
            Optimizer.open(run, like=make_learning()).posterior_state.fitter.newest_fit is not None
        )
    else:
        with pytest.raises(JournalError):
            Optimizer.open(run, like=make_learning())


def test_a_gain_of_information_may_differ_by_rounding(recorded, monkeypatch, make_streaming):
    def made():
        return make_streaming(retention=EntropyThreshold(1e-4))

    run = recorded(12, made)
    gain = Prediction.information_gain.fget
    for change, same in ((1e-9, True), (1e-3, False)):
        monkeypatch.setattr(
            Prediction, "information_gain", property(lambda p, c=change: gain(p) * (1 + c))
        )
        if same:
            Optimizer.open(run, like=made(), read_only=True)
        else:
            with pytest.raises(JournalError):
                Optimizer.open(run, like=made(), read_only=True)


@pytest.mark.parametrize("shown", [True, False])
def test_a_long_replay_shows_its_progress(recorded, make_random, monkeypatch, capsys, shown):
    run = recorded(30)
    monkeypatch.setattr("tvbo.terminal.PATIENCE", 0.0)
    Optimizer.open(run, like=make_random(), progress=shown)
    assert ("Replaying" in capsys.readouterr().err) == shown


@pytest.mark.slow
def test_a_replay_of_seconds_shows_its_progress_unasked(recorded, make_random, monkeypatch, capsys):
    """One choice takes as long as thousands would."""
    run, like = recorded(30), make_random()
    sample = type(like.search_space).sample
    waits = iter([2.1])

    def slow(search_space, generator):
        time.sleep(next(waits, 0.0))
        return sample(search_space, generator)

    monkeypatch.setattr(type(like.search_space), "sample", slow)
    assert Optimizer.open(run, like=like).open_trials
    assert next(waits, None) is None
    assert "Replaying" in capsys.readouterr().err


def test_a_short_replay_shows_nothing(recorded, make_random, capsys):
    Optimizer.open(recorded(30), like=make_random())
    assert capsys.readouterr().err == ""
