"""New journals, files that are in their way, and optimizers that cannot be pickled."""

import sqlite3

import pytest
from gpytorch.kernels import PeriodicKernel, RBFKernel
from gpytorch.priors import GammaPrior

from tvbo.storage import JournalError, create


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
