"""A run in a database of a server, which processes on several machines share."""

import getpass
import threading

import pytest
from killed_runs import KIND, check, share
from postgresql import find_programs, server
from run_cases import made, outcome, play
from sqlalchemy import create_engine

from tvbo.optimizers import Optimizer
from tvbo.storage import RunBusyError, StorageError, StorageUnavailableError, read_run


@pytest.fixture(scope="module")
def postgresql():
    pytest.importorskip("psycopg")
    if (programs := find_programs()) is None:
        pytest.skip("PostgreSQL is not installed")
    with server(programs) as started:
        yield started


@pytest.fixture
def url(postgresql):
    return postgresql.new_database()


@pytest.mark.parametrize("kind", ["learned", "hours", "constraints"])
def test_a_run_of_a_server_is_one_of_a_file(url, run, kind):
    for place in (url, run):
        optimizer = made(kind)
        optimizer.record(place)
        play(optimizer, 8)
        play(Optimizer.open(place), 2, first=8)
    of_server, of_file = read_run(url), read_run(run)
    assert of_server.to_frame().equals(of_file.to_frame())
    for one, other in zip(of_server.trials, of_file.trials, strict=True):
        assert (one.X, one.Y, one.Yvar) == (other.X, other.Y, other.Yvar)
    assert of_server.predictions.keys() == of_file.predictions.keys()


def test_an_empty_database_is_needed(url):
    with pytest.raises(StorageError, match="no table"):
        Optimizer.open(url)
    made("random").record(url)
    with pytest.raises(StorageError, match="empty"):
        made("random").record(url)


@pytest.mark.slow
def test_processes_share_a_run_while_they_are_killed_and_the_server_restarts(postgresql, url):
    optimizer = made(KIND)
    optimizer.record(url)
    said = share(url, 250, kills=20, events=[postgresql.restart] * 2)
    check(url, said, 22)
    assert len({number for call, number, _ in said if call == "tell"}) == 1000
    assert optimizer.ask().id == len(read_run(url).trials)


def test_a_server_that_is_away_is_waited_for(postgresql, url):
    optimizer = made(KIND)
    optimizer.record(url)
    trial = optimizer.ask()
    waits_not = Optimizer.open(url, wait=0)
    postgresql.control("stop", "-m", "immediate")
    with pytest.raises(StorageUnavailableError, match="run_") as error:
        waits_not.ask()
    assert "\n" not in str(error.value)
    starts = threading.Timer(1, postgresql.control, ["start"])
    starts.start()
    optimizer.tell(trial, outcome(optimizer, trial))
    starts.join()
    assert read_run(url).counts["told"] == 1


def test_who_changes_a_run_of_a_server_is_waited_for(url):
    """Of two asks at once, the second has the next number, unless it does not wait."""
    one = made(KIND)
    one.record(url)
    two, waits_not = Optimizer.open(url), Optimizer.open(url, wait=0)
    numbers = []

    def ask(optimizer):
        numbers.append(optimizer.ask().id)

    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT * FROM run FOR UPDATE")
        threads = [threading.Thread(target=ask, args=(each,)) for each in (one, two)]
        for thread in threads:
            thread.start()
        with pytest.raises(RunBusyError, match=getpass.getuser()):
            waits_not.ask()
        assert read_run(url).trials == []
    for thread in threads:
        thread.join()
    engine.dispose()
    assert sorted(numbers) == [1, 2]
