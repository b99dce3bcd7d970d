"""States as plain data, and those that cannot be stored: the events are what counts."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior

from tvbo import recipes
from tvbo.kernels import SeasonalKernel, TemporalMaternKernel
from tvbo.optimizers import ConstantLiar, Hallucinate, Optimizer, RefitEvery
from tvbo.retention import EventReset, SizeLimit, SlidingWindow
from tvbo.storage import JournalReader


def test_a_state_that_cannot_be_stored_does_not_stop_the_run(run, make_random, play, caplog):
    whole, optimizer = make_random(), make_random()
    optimizer.record(run)
    optimizer.note = lambda: None
    play(whole, 12)
    play(optimizer, 12)
    optimizer.close()
    assert play(Optimizer.open(run), 9) == play(whole, 9)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def large(optimizer):
    optimizer.note = torch.zeros(200_000, dtype=torch.float64)


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


ARMS = torch.linspace(0, 1, 12, dtype=torch.float64).unsqueeze(-1)
INTERVAL = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
TASKS = torch.eye(3, dtype=torch.float64)
KNOWN = {"covar_module": RBFKernel().double(), "noise_variance": 0.01}

MORE = {
    "bpe": lambda: recipes.bpe_delay(choices=ARMS, horizon=60, **KNOWN),
    "bpe on a box": lambda: recipes.bpe_delay(bounds=INTERVAL, horizon=60, **KNOWN),
    "pending": lambda: recipes.gp_ucb(choices=ARMS, **KNOWN),
    "pending on a box": lambda: recipes.gp_ucb(bounds=INTERVAL, **KNOWN),
    "thompson": lambda: recipes.gp_ts(choices=ARMS, **KNOWN),
    "thompson on a box": lambda: recipes.gp_ts(bounds=INTERVAL, **KNOWN),
    "filling in": lambda: recipes.gp_ucb(choices=ARMS, pending=ConstantLiar(-2.0), **KNOWN),
    "restarts": lambda: recipes.r_gp_ucb(choices=ARMS, every=5, **KNOWN),
    "events": lambda: recipes.gp_ucb(
        choices=ARMS, retention=EventReset() & SlidingWindow(10) & SizeLimit(8), **KNOWN
    ),
    "learned drift": lambda: recipes.tv_gp_ucb(choices=ARMS, refit=RefitEvery(4)),
    "learned, pending": lambda: recipes.tv_gp_ucb(
        choices=ARMS, refit=RefitEvery(4), pending=Hallucinate()
    ),
    "learned contexts": lambda: recipes.cgp_ucb(
        bounds=INTERVAL, contexts=TASKS, structure="both", refit=RefitEvery(4)
    ),
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
            SeasonalKernel(period=5.0, period_prior=GammaPrior(2.0, 1.0)).double(),
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
        "tv_cgp_ucb": {"contexts": TASKS},
        "cgp_ucb": {"contexts": TASKS},
    }.items()
}
"""All that learn hyperparameters, with nothing but a space."""

QUICK = {"bpe", "pending", "thompson", "events", "learned drift", "linear", "tv_gp_ucb"}
"""What `make test` tries."""


def fill(optimizer):
    """Tell enough for a fit."""
    for number in range(13):
        context = None if optimizer.contexts is None else TASKS[number % 3]
        trial = optimizer.attach([number * 0.37 % 1], number / 13, context)
        optimizer.tell(trial, (number * 0.37 % 1 - 0.3) ** 2)


@pytest.mark.slow_cases(*(MORE | FITTED).keys() - QUICK)
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
        # The package of a class or function that is missing belongs into tvbo.storage.serialize.
        [opened] = caplog.records
        assert opened.args[0] == 0
        assert play(again, 6) == play(whole, 6)
        assert torch.equal(again.generator.get_state(), whole.generator.get_state())


@pytest.mark.slow
def test_a_fresh_process_finds_the_classes(run, play):
    """What an ask needs is of the packages that a stored state may name."""
    paths = [run.with_name(name) for name in ("bpe on a box", "learned contexts", "thompson")]
    for path in paths:
        optimizer = MORE[path.name]()
        optimizer.record(path)
        play(optimizer, 8)
        optimizer.close()
    script = (
        "import sys, tvbo.storage.load as load\n"
        "from tvbo.storage import JournalReader\n"
        "for path in sys.argv[1:]:\n"
        "    with JournalReader(path) as journal:\n"
        "        load.from_bytes(journal.start, {})\n"
        "        load.from_bytes(journal.snapshot()[2], {})\n"
    )
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
