"""Files with other names, folders that cannot be written, disks that are full, wrong clocks."""

import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from run_cases import made, play

from tvbo.optimizers import Optimizer
from tvbo.storage import StorageError, read_run

NOBODY = 65_534


def in_a_process(work) -> str:
    """What is said of some work in a forked process, which ends with it."""
    hears, says = os.pipe()
    if (child := os.fork()) == 0:
        try:
            torch.set_num_threads(1)
            work()
            words = "done"
        except StorageError as error:
            words = str(error)
        except BaseException as error:
            words = f"{type(error)}: {error}\n"
        os.write(says, words.encode())
        os._exit(0)
    os.close(says)
    with os.fdopen(hears) as pipe:
        words = pipe.read()
    os.waitpid(child, 0)
    assert "\n" not in words
    return words


@pytest.mark.parametrize("name", ["run", "a b?c#d%20.db", "Läufe-实验.db", "-.db"])
def test_names_of_files(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    optimizer = made("random")
    optimizer.record(name)
    monkeypatch.chdir("/")
    optimizer.ask()
    assert Optimizer.open(tmp_path / name).num_trials == 1
    assert (
        Optimizer.open(f"sqlite:///{tmp_path / 'run'}").num_trials == 1 if name == "run" else True
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_symbolic_link_is_the_same_run(run, tmp_path):
    optimizer = made("streaming")
    optimizer.record(run)
    (tmp_path / "folder").mkdir()
    link, folder = tmp_path / "folder" / "link.db", tmp_path / "other"
    link.symlink_to(run)
    folder.symlink_to(tmp_path, target_is_directory=True)
    others = [Optimizer.open(link), Optimizer.open(folder / "run.db")]
    for number, each in enumerate([optimizer, *others, optimizer], start=1):
        assert each.ask().id == number
    assert list((tmp_path / "folder").iterdir()) == [link]
    with pytest.raises(StorageError):
        made("random").record(link)


def test_a_second_name_of_the_file_is_refused(run, tmp_path):
    """SQLite would keep a journal beside each."""
    optimizer = made("random")
    optimizer.record(run)
    (tmp_path / "second.db").hardlink_to(run)
    for call in (
        optimizer.ask,
        lambda: Optimizer.open(run),
        lambda: read_run(tmp_path / "second.db"),
    ):
        with pytest.raises(StorageError, match="one name"):
            call()
    (tmp_path / "second.db").unlink()
    assert optimizer.ask().id == 1


@pytest.mark.parametrize(
    "kind", ["empty", "folder", "dangling link", "journal", "log", "text", "run"]
)
def test_a_run_takes_no_place_of_other_files(run, tmp_path, kind):
    match kind:
        case "empty":
            run.touch()
        case "folder":
            run.mkdir()
        case "dangling link":
            run.symlink_to(tmp_path / "missing" / "file")
        case "journal":
            run.with_name("run.db-journal").write_bytes(b"of another file")
        case "log":
            run.with_name("run.db-wal").write_bytes(b"of another file")
        case "text":
            run.write_text("trial,t\n")
        case "run":
            made("random").record(run)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError):
        made("random").record(run)
    assert sorted(tmp_path.iterdir()) == before
    if kind != "run":
        with pytest.raises(StorageError):
            Optimizer.open(run)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "url", ["", ":memory:", "sqlite://", "sqlite:///:memory:", "nothing://host/name", "://", "\0"]
)
def test_what_is_no_place_of_a_run_is_refused(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for call in (made("random").record, Optimizer.open, read_run):
        with pytest.raises(StorageError):
            call(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_folder_that_cannot_be_written_can_be_read():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        optimizer = made("streaming")
        optimizer.record(folder / "run.db")
        play(optimizer, 4)
        # What is imported at first use is imported by root.
        Optimizer.open(folder / "run.db", read_only=True)
        os.chmod(folder, 0o755)
        os.chmod(folder / "run.db", 0o644)

        def read():
            os.setuid(NOBODY)
            assert Optimizer.open(folder / "run.db", read_only=True).ask().id == 5
            assert len(read_run(folder / "run.db").trials) == 4

        def write():
            os.setuid(NOBODY)
            Optimizer.open(folder / "run.db").ask()

        def begin():
            os.setuid(NOBODY)
            made("streaming").record(folder / "other.db")

        assert in_a_process(read) == "done"
        assert "readonly" in in_a_process(write)
        assert "other.db" in in_a_process(begin)
        assert optimizer.ask().id == 5


def test_a_disk_that_is_full_loses_nothing(run):
    """Of what was acknowledged; the run goes on when there is space again."""
    made("streaming").record(run)
    acknowledged = run.with_name("acknowledged")

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (run.stat().st_size + 8192,) * 2)
        optimizer = Optimizer.open(run)
        for number in range(1, 1000):
            optimizer.tell(optimizer.ask(), 0.5)
            os.ftruncate(words, number)

    def begin():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        made("streaming").record(run.with_name("other.db"))

    words = os.open(acknowledged, os.O_RDWR | os.O_CREAT)
    assert str(run) in in_a_process(fill)
    os.close(words)
    optimizer, told = Optimizer.open(run), acknowledged.stat().st_size
    assert told > 0
    assert read_run(run).counts["told"] == optimizer.trial_log.num_told == told
    assert "other.db" in in_a_process(begin)
    assert sorted(path.name for path in run.parent.iterdir()) == ["acknowledged", "run.db"]
    play(optimizer, 3)


@pytest.mark.skipif(shutil.which("mount") is None, reason="nothing can be mounted")
def test_a_small_disk_that_is_full(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a disk in memory cannot be mounted here")
    try:
        optimizer = made("streaming")
        optimizer.record(folder / "run.db")
        told = 0
        try:
            while told < 1000:
                optimizer.tell(optimizer.ask(), 0.5)
                told += 1
        except StorageError as error:
            said = str(error)
        assert str(folder / "run.db") in said
        assert 0 < told == read_run(folder / "run.db").counts["told"]
        shutil.copy(folder / "run.db", tmp_path)
        assert Optimizer.open(tmp_path / "run.db").trial_log.num_told == told
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_clock_that_is_wrong(run, monkeypatch):
    """When trials were recorded is told to people, and decides nothing."""
    optimizer = made("streaming")
    optimizer.record(run)
    for seconds in (4e9, 0.0, 5.0, 1e9):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        optimizer.tell(optimizer.ask(), seconds / 1e10)
        other = Optimizer.open(run)
        other.tell(other.ask(), 0.1)
    twin = made("streaming")
    for seconds in (4e9, 0.0, 5.0, 1e9):
        twin.tell(twin.ask(), seconds / 1e10)
        twin.tell(twin.ask(), 0.1)
    assert torch.equal(optimizer.ask().X, twin.ask().X)
