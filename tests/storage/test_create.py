"""New journals, files that are in their way, and optimizers that cannot be pickled."""

import sqlite3

import pytest
import torch
from gpytorch.kernels import PeriodicKernel, RBFKernel
from gpytorch.priors import GammaPrior

from tvbo.storage import JournalError, create, load


def test_a_file_that_exists_is_refused(run, make_random):
    run.write_text("mine")
    with pytest.raises(JournalError, match=".*run.db"):
        make_random().record(run)
    assert run.read_text() == "mine"


def test_a_folder_that_does_not_exist_is_refused(tmp_path, make_random):
    with pytest.raises(JournalError):
        make_random().record(tmp_path / "nowhere" / "run.db")


@pytest.mark.parametrize("error", [KeyboardInterrupt, sqlite3.OperationalError])
def test_a_journal_appears_whole_or_not_at_all(run, make_random, monkeypatch, error, play):
    def breaks(*_):
        raise error

    optimizer = make_random()
    with monkeypatch.context() as patch:
        patch.setattr(create, "write_session", breaks)
        with pytest.raises((KeyboardInterrupt, JournalError)):
            optimizer.record(run)
    assert list(run.parent.iterdir()) == []
    optimizer.record(run)
    play(optimizer, 4)
    assert sorted(path.name for path in run.parent.glob("*.new*")) == []


def test_a_file_that_appears_meanwhile_is_left_alone(run, make_random, monkeypatch):
    def somebody_else_writes(*_):
        run.write_text("mine")

    monkeypatch.setattr(create, "write_session", somebody_else_writes)
    with pytest.raises(JournalError):
        make_random().record(run)
    assert run.read_text() == "mine"
    assert [path.name for path in run.parent.iterdir()] == ["run.db"]


def test_what_a_journal_that_is_gone_left_is_refused(run, make_random):
    """SQLite would merge it into the new one."""
    run.with_name("run.db-wal").write_bytes(b"left")
    with pytest.raises(JournalError):
        make_random().record(run)
    assert not run.exists()


def with_registered_prior():
    kernel = RBFKernel().double()
    kernel.register_prior("mine", GammaPrior(2.0, 1.0), "lengthscale")
    return kernel


@pytest.mark.parametrize(
    "make",
    [
        lambda: PeriodicKernel(period_length_prior=GammaPrior(2.0, 1.0)).double(),
        with_registered_prior,
    ],
    ids=["periodic", "registered"],
)
def test_a_prior_that_cannot_be_stored_is_named(make, make_streaming, run):
    with pytest.raises(JournalError):
        make_streaming(covar_module=make()).record(run)
    assert not run.exists()


def test_a_prior_that_can_be_stored(make_streaming):
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)).double()
    create.to_pickle(make_streaming(covar_module=kernel))


def test_dumping_leaves_the_journal_with_the_live_optimizer(run, make_random, monkeypatch):
    optimizer = make_random()
    optimizer.record(run)
    recorder = optimizer._event_sink
    seen = []
    save = create.torch.save

    def looks(*arguments, **given):
        seen.append(optimizer._event_sink)
        save(*arguments, **given)

    monkeypatch.setattr(create.torch, "save", looks)
    create.to_pickle(optimizer)
    assert seen == [recorder]


def test_a_dump_is_without_the_journal(run, make_streaming, play):
    optimizer = make_streaming()
    optimizer.record(run)
    play(optimizer, 5)
    copy = load.from_pickle(create.to_pickle(optimizer))
    assert copy._event_sink is None
    assert play(copy, 5) == play(optimizer, 5)


def test_tensors_go_on_sharing_memory(make_random):
    optimizer = make_random()
    optimizer.table = torch.zeros(1000)
    optimizer.part = optimizer.table[:10]
    copy = load.from_pickle(create.to_pickle(optimizer))
    copy.table[3] = 1.0
    assert copy.part[3] == 1.0
