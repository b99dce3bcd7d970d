"""States as plain data, and those that cannot be stored: the events are what counts."""

import io
import subprocess
import sys
import threading
from collections import OrderedDict, deque
from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior, UniformPrior

from tvbo import recipes
from tvbo.acquisition import UCB, LogBeta
from tvbo.kernels import DampedOscillationKernel, TemporalMaternKernel
from tvbo.optimizers import Hallucinate, Optimizer, RefitEvery, SeparateContexts
from tvbo.retention import EventReset, SizeLimit, SlidingWindow
from tvbo.storage import JournalError, JournalReader
from tvbo.storage.compatibility import differences, settings_of
from tvbo.storage.state import State, StateError


class Sulky:
    """Cannot be pickled, by an error of its own, once it is told so."""

    refuses = False

    def __getstate__(self):
        if Sulky.refuses:
            raise ValueError("pointers cannot be pickled")
        return {}


def test_any_error_of_a_state_is_no_error_of_the_run(run, make_random, play, monkeypatch):
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 8)
    monkeypatch.setattr(Sulky, "refuses", True)
    optimizer = make_random()
    optimizer.note = Sulky()
    with pytest.raises(JournalError):
        optimizer.record(run)
    del optimizer.note
    optimizer.record(run)
    optimizer.note = Sulky()
    play(optimizer, 20)
    with JournalReader(run) as journal:
        assert journal.num_good == 20


def test_a_state_that_cannot_be_stored_does_not_stop_the_run(run, make_random, play, caplog):
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    optimizer.note = lambda: None
    play(whole, 12)
    play(optimizer, 12)
    optimizer.close()
    assert play(Optimizer.open(run), 9) == play(whole, 9)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def deep(optimizer):
    for _ in range(5_000):
        optimizer.note = [getattr(optimizer, "note", None)]


def large(optimizer):
    optimizer.note = torch.zeros(200_000, dtype=torch.float64)


@pytest.mark.parametrize("change", [deep, large])
def test_a_state_that_is_too_deep_or_too_large_is_not_stored(
    run, make_random, play, monkeypatch, change
):
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 4)
    monkeypatch.setattr("tvbo.storage.writer.LARGEST", 1_000_000)
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    change(optimizer)
    assert play(optimizer, 12) == play(whole, 12)
    optimizer.close()
    with JournalReader(run) as journal:
        assert (journal.num_good, journal.damage, journal.snapshot()) == (12, None, None)
    assert play(Optimizer.open(run), 9) == play(whole, 9)


def test_a_disk_with_room_for_the_events_only(run, make_random, play):
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    large(optimizer)
    play(whole, 12)
    play(optimizer, 12)
    connection = optimizer._event_sink._connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 9}")
    optimizer.close()
    with JournalReader(run) as journal:
        assert (journal.num_good, journal.damage, journal.snapshot()) == (12, None, None)
    assert play(Optimizer.open(run), 9) == play(whole, 9)


class Interrupted:
    """A connection on which storing a state is interrupted from the keyboard."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement, *values):
        if statement.startswith("INSERT INTO snapshot"):
            raise KeyboardInterrupt
        return self._connection.execute(statement, *values)


def test_an_interrupted_storing_loses_no_event(run, make_random, play, monkeypatch):
    """The event before it is written, and the run goes on."""
    monkeypatch.setattr("tvbo.storage.writer.EVERY", 8)
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    play(optimizer, 7)
    recorder = optimizer._event_sink
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "_connection", Interrupted(recorder._connection))
        with pytest.raises(KeyboardInterrupt):
            play(optimizer, 1)
    with JournalReader(run) as journal:
        assert (journal.num_good, journal.snapshot()) == (8, None)
    play(whole, 8)
    assert play(optimizer, 8) == play(whole, 8)
    optimizer.close()
    assert play(Optimizer.open(run), 9) == play(whole, 9)


ARMS = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
INTERVAL = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
TASKS = torch.eye(3, dtype=torch.float64)
KNOWN = {"covar_module": RBFKernel().double(), "noise_variance": 0.01}

MORE = {
    "bpe": lambda: recipes.bpe_delay(choices=ARMS, horizon=60, **KNOWN),
    "bpe on a box": lambda: recipes.bpe(bounds=INTERVAL, horizon=60, **KNOWN),
    "pending": lambda: recipes.gp_bucb(choices=ARMS, **KNOWN),
    "pending on a box": lambda: recipes.gp_bucb(bounds=INTERVAL, **KNOWN),
    "thompson": lambda: recipes.gp_ts(choices=ARMS, **KNOWN),
    "thompson on a box": lambda: recipes.gp_ts(bounds=INTERVAL, **KNOWN),
    "filling in": lambda: recipes.gp_ucb_sdf(choices=ARMS, minimum=-2.0, **KNOWN),
    "restarts": lambda: recipes.r_gp_ucb(choices=ARMS, every=5, **KNOWN),
    "events": lambda: recipes.gp_ucb(
        choices=ARMS, retention=EventReset() & SlidingWindow(10) & SizeLimit(8), **KNOWN
    ),
    "learned drift": lambda: recipes.tv_gp_ucb(choices=ARMS, refit=RefitEvery(4)),
    "learned, pending": lambda: recipes.tv_gp_ucb(
        choices=ARMS, refit=RefitEvery(4), pending=Hallucinate()
    ),
    "learned sketch": lambda: recipes.bkb(choices=ARMS, refit=RefitEvery(4)),
    "learned contexts": lambda: recipes.cgp_ucb(
        bounds=INTERVAL, contexts=TASKS, structure="both", refit=RefitEvery(4)
    ),
    "learned, separate": lambda: recipes.separate(
        choices=ARMS, contexts=TASKS, refit=RefitEvery(4)
    ),
    "merged": lambda: recipes.merged(choices=ARMS, contexts=TASKS, forgetting_rate=0, **KNOWN),
    "linear": lambda: recipes.linear_ucb(choices=ARMS, contexts=TASKS),
    "priors": lambda: recipes.gp_ucb(
        choices=ARMS,
        covar_module=ScaleKernel(
            MaternKernel(lengthscale_prior=GammaPrior(2.0, 1.0)),
            outputscale_prior=GammaPrior(2.0, 1.0),
        ).double(),
        noise_variance=0.01,
        refit=RefitEvery(4),
    ),
    "temporal kernels": lambda: recipes.tv_gp_ucb(
        choices=ARMS,
        covar_module=[MaternKernel().double(), ScaleKernel(MaternKernel()).double()],
        temporal_kernel=[
            TemporalMaternKernel(lengthscale_prior=GammaPrior(2.0, 1.0)).double(),
            DampedOscillationKernel(
                period=5.0,
                forgetting_rate_prior=UniformPrior(0.0, 1.0),
                period_prior=GammaPrior(2.0, 1.0),
            ).double(),
        ],
        noise_variance=0.01,
        refit=RefitEvery(4),
    ),
}


BOX = {"bounds": {"x": (0.0, 1.0)}}
FITTED = {
    name: partial(getattr(recipes, name), **BOX, **more)
    for name, more in {
        "tv_gp_ucb": {},
        "gp_ucb": {},
        "r_gp_ucb": {"every": 5},
        "gp_ts": {},
        "compressed_gp": {"budget": 0.02},
        "bkb": {},
        "gp_bucb": {},
        "gp_ucb_sdf": {"minimum": -2.0},
        "gp_ts_sdf": {"minimum": -2.0},
        "tv_cgp_ucb": {"contexts": TASKS},
        "cgp_ucb": {"contexts": TASKS},
        "merged": {"contexts": TASKS},
        "separate": {"contexts": TASKS},
    }.items()
}
"""All that learn hyperparameters, with nothing but a space."""


def fill(optimizer):
    """Tell enough for a fit, where contexts are separate in each."""
    count = 39 if isinstance(optimizer, SeparateContexts) else 13
    for number in range(count):
        context = None if optimizer.contexts is None else TASKS[number % 3]
        trial = optimizer.attach([number * 0.37 % 1], number / count, context)
        optimizer.tell(trial, (number * 0.37 % 1 - 0.3) ** 2)


@pytest.mark.slow_cases("tv_cgp_ucb", "cgp_ucb")
@pytest.mark.parametrize("name", MORE | FITTED)
def test_a_run_opens_by_its_stored_state(name, run, play, caplog):
    """No event is replayed, and it goes on to the bit; the other recipes are in test_load."""
    caplog.set_level("INFO", logger="tvbo.storage")
    whole, first, like = ((MORE | FITTED)[name]() for _ in range(3))
    first.record(run)
    for optimizer in (whole, first):
        if name in FITTED:
            fill(optimizer)
        play(optimizer, 4 if name in FITTED else 12)
    first.close()
    with Optimizer.open(run, like=like) as again:
        # The package of a class or function that is missing belongs into tvbo.storage.objects.
        [opened] = caplog.records
        assert opened.args[0] == 0
        assert play(again, 6) == play(whole, 6)
        assert torch.equal(again.generator.get_state(), whole.generator.get_state())


def test_a_fresh_process_finds_the_classes(tmp_path, play):
    """Without a ``like`` that holds their objects: what an ask needs is loaded with the package."""
    for name in ("bpe on a box", "learned sketch", "learned contexts", "pending on a box"):
        optimizer = MORE[name]()
        play(optimizer, 8)
        (tmp_path / name).write_bytes(State.of(optimizer).to_bytes())
    script = (
        "import sys, pathlib, tvbo.optimizers\nfrom tvbo.storage.state import State\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    print(State.from_bytes(path.read_bytes()).unreadable(()))"
    )
    command = [sys.executable, "-c", script, tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == 4 * "[]\n"


def test_modules_of_a_state(make_streaming):
    found = State.of(make_streaming()).modules
    assert {
        "tvbo.optimizers.gp_optimizer",
        "tvbo.acquisition.analytic",
        "gpytorch.kernels.rbf_kernel",
    } <= found


def a_function(x):
    return x


class Slotted:
    """One slot, written as a word, and one whose name is its own."""

    __slots__ = "value"

    def __init__(self, value):
        self.value = value


class MoreSlots(Slotted):
    __slots__ = ("__own",)

    def __init__(self, value, own):
        super().__init__(value)
        self.__own = own

    def own(self):
        return self.__own


def test_what_stands_in_slots_comes_back(make_random):
    optimizer = make_random()
    optimizer.note = MoreSlots(2.0, [3])
    state = State.from_bytes(State.of(optimizer).to_bytes())
    again = state.restore(make_random(), State.of(optimizer).classes).note
    assert (again.value, again.own()) == (2.0, [3])


def test_a_function_of_what_is_not_there_yet(make_streaming):
    """A variable around a function that has no value when the state is taken."""

    def early(t):
        return late * t

    optimizer = make_streaming(beta=early)
    before = State.of(optimizer)
    late = 7.0
    [(_, one, two)] = differences(before, State.of(optimizer))
    assert (one, two) == ("None", "7.0")


def test_every_kind_of_value_comes_back(make_random):
    table = torch.zeros(10)
    kinds = {
        "scalars": [None, True, 3, 2**80, 0.1, float("inf"), "ä\udce9"],
        "tuples": (1, (2.0, "x"), ()),
        "sets": {frozenset({1, 2}), 3},
        ("a", 1): OrderedDict(z=1, a=2),
        "deque": deque([1, 2], maxlen=2),
        "tensors": [table, table[2:4], torch.nn.Parameter(torch.ones(2), requires_grad=False)],
        "arrays": [np.arange(6).reshape(2, 3).T, np.float32(0.5), np.int16(7)],
        "torch": [torch.float32, torch.device("cpu"), torch.Size([2, 3])],
        "python": [range(1, 7, 2), slice(None, 3), ...],
        "homeless": {"x": 5}.get,
        "functions": [a_function, partial(a_function, x=2), deque, lambda x: 2 * x],
    }
    optimizer = make_random()
    optimizer.note = kinds
    kinds["itself"] = optimizer
    kinds["method"] = optimizer.ask
    state = State.from_bytes(State.of(optimizer).to_bytes())
    again = state.restore(optimizer, State.of(optimizer).classes)
    found = again.note
    assert found.keys() == kinds.keys()
    for name in ("scalars", "tuples", "sets", ("a", 1), "deque", "torch", "python"):
        assert found[name] == kinds[name], name
        assert type(found[name]) is type(kinds[name])
    assert found["deque"].maxlen == 2
    found["tensors"][0][3] = 5.0
    assert found["tensors"][1].tolist() == [0.0, 5.0]
    assert not found["tensors"][2].requires_grad
    assert [each.tolist() for each in found["arrays"]] == [[[0, 3], [1, 4], [2, 5]], 0.5, 7]
    assert [type(each) for each in found["arrays"]] == [np.ndarray, np.float32, np.int16]
    assert found["itself"] is again
    assert found["homeless"]("x") == 5
    assert found["method"].__self__ is again
    function, given, kind, anonymous = found["functions"]
    assert (function, given(), kind, anonymous(2)) == (a_function, 2, deque, 4)


def test_functions_stay_in_their_place(make_random):
    """One that the optimizer holds may not be put elsewhere by whoever wrote the file."""
    optimizer, like = make_random(), make_random()
    optimizer.mine, like.other = a_function, a_function
    state = State.of(optimizer)
    with pytest.raises(StateError):
        state.restore(like, State.of(like).classes)


def test_states_differ_by_what_functions_hold(make_random, make_streaming):
    def beta(c):
        return lambda t: c

    states = [State.of(make_streaming(beta=beta(c))) for c in (1.0, 1.0, 2.0)]
    assert list(differences(*states[:2])) == []
    [(name, one, two)] = differences(*states[1:])
    assert (name.startswith("acquisition"), one, two) == (True, "1.0", "2.0")


def test_states_differ_by_what_a_method_is_bound_to(make_streaming):
    methods = [LogBeta(c1).__call__ for c1 in (1.0, 2.0)]
    states = [State.of(make_streaming(beta=method)) for method in methods]
    [(name, one, two)] = differences(*states)
    assert (name.startswith("acquisition"), one, two) == (True, "1.0", "2.0")


def test_two_classes_of_one_name_are_compared_in_full(make_random):
    """Neither is restored, and which attributes are settings is not known."""
    optimizer = make_random()
    optimizer.note = [type("Twin", (), {"__module__": __name__})() for _ in range(2)]
    state = State.of(optimizer)
    found = state.classes[f"{__name__}.Twin"]
    assert settings_of(found, {"value": 2}) == {"value": 2}
    with pytest.raises(StateError):
        state.restore(optimizer, state.classes)


class Items(list):
    """A list, and possibly more."""


def test_what_has_no_plain_form_is_named(make_random):
    optimizer = make_random()
    optimizer.note = [threading.Lock(), io.BytesIO(), PeriodicKernel, np.array(["a"]), Items()]
    *found, items = State.of(optimizer).opaque
    assert found == ["_io.BytesIO", "_thread.lock", "numpy.ndarray"]
    assert items.endswith("Items")


class Unwilling:
    """Raises wherever it is looked at."""

    def __getstate__(self):
        raise ValueError("do not look")

    def __repr__(self):
        raise ValueError("do not look")


def test_an_object_is_not_asked_how_it_is_pickled(make_random):
    optimizer = make_random()
    optimizer.note = Unwilling()
    [name] = State.of(optimizer).opaque
    assert name.endswith("Unwilling")


def test_a_like_that_cannot_be_walked_is_an_error_in_words(make_random, recorded):
    run = recorded(4)
    like = make_random()
    like.note = []
    for _ in range(5_000):
        like.note = [like.note]
    with pytest.raises(JournalError, match="RecursionError"):
        Optimizer.open(run, like=like)


def test_a_like_that_cannot_be_copied_is_an_error_in_words(make_random, recorded):
    run = recorded(4)
    like = make_random()
    like.note = threading.Lock()
    with pytest.raises(JournalError, match="TypeErr"):
        Optimizer.open(run, like=like)


def test_a_field_younger_than_the_journal_has_its_default():
    state = {"beta": 1.0}
    assert settings_of(UCB, state) == {"beta": 1.0, "edge_correction": False}
