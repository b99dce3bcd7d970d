"""A served run under stress: eight clients, and a server that is killed (SIGKILL) again and again.

Each client asks, tells, fails trials and asks what is recommended, by ``RemoteOptimizer``, which
repeats what was not answered. At the end every trial stands once in the run, with the outcome that
its client told. Then one client asks and tells by itself, and the time of each request is measured.
"""

from __future__ import annotations

import argparse
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from tvbo import recipes
from tvbo.service.client import RemoteOptimizer
from tvbo.storage import read_run

BOX = {"rate": (1e-4, 1.0), "layers": (1, 8), "rule": ["adam", "sgd", "rms"]}
WAIT = 300.0
"""Seconds within which a request has to be answered, restarts of the server included."""


class Server:
    """``tvbo serve`` of a run, which may be killed and started again.

    Args:
        run: The run.
    """

    def __init__(self, run: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.line = [sys.executable, "-m", "tvbo", "serve", str(run), "--port", str(self.port)]
        self.url = f"http://127.0.0.1:{self.port}/runs/{run.stem}"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(self.line, stdout=subprocess.DEVNULL)
        while True:
            try:
                urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()


def work(url: str, seed: int, count: int, told: dict[int, float], failed: list[int]) -> None:
    """Make some requests: two in five ask, two tell or fail, one asks for a recommendation."""
    draws, remote = random.Random(seed), RemoteOptimizer(url, wait=WAIT)
    for n in range(count // 5):
        for _ in range(2):
            number = remote.ask()["trial"]
            if draws.random() < 0.1:
                remote.fail(number, "no power")
                failed.append(number)
            else:
                outcome = draws.random()
                remote.tell(number, outcome)
                told[number] = outcome
        remote.call("recommend" if n % 2 else "drift")


def stress(run: Path, clients: int, count: int, kills: int) -> bool:
    """Have clients work while the server is killed; return whether all is as they were told."""
    server, told, failed = Server(run), {}, []
    given = [(server.url, seed, count // clients, told, failed) for seed in range(clients)]
    threads = [threading.Thread(target=work, args=each, daemon=True) for each in given]
    began, draws, num_kills = time.perf_counter(), random.Random(0), 0
    for thread in threads:
        thread.start()
    expected = 2 * (count // clients // 5) * clients
    while any(thread.is_alive() for thread in threads):
        # At random, and yet all kills before the end.
        if num_kills < kills and len(told) + len(failed) >= num_kills * expected / kills:
            time.sleep(draws.uniform(0.0, 1.0))
            server.kill()
            num_kills += 1
            server.start()
        time.sleep(0.01)
    server.kill()
    rows = read_run(run)
    states = {trial.id: trial.state for trial in rows.trials}
    found = {trial.id: trial.Y for trial in rows.trials if trial.Y}
    lost = [n for n, outcome in told.items() if found.get(n) != [outcome]]
    lost += [n for n in failed if states.get(n) != "failed"]
    print(
        f"{count} requests of {clients} clients, {num_kills} kills, "
        f"{time.perf_counter() - began:.0f} s: {rows.counts}\n"
        f"lost or changed: {len(lost)}; twice or never asked for: {len(states) - expected}; "
        f"without an answer: {expected - len(told) - len(failed)}"
    )
    return not lost and len(states) == expected == len(told) + len(failed)


def measure(run: Path, count: int, pause: float) -> None:
    """Print how long an ask and a tell take, from the hundredth outcome on."""
    server = Server(run)
    remote = RemoteOptimizer(server.url, wait=WAIT)
    seconds: dict[str, list[float]] = {"ask": [], "tell": []}

    def timed(name: str, call: Callable[[], object]) -> object:
        began = time.perf_counter()
        found = call()
        seconds[name].append(time.perf_counter() - began)
        return found

    for n in range(100 + count):
        if n >= 100:
            time.sleep(pause)
        trial = timed("ask", remote.ask)
        timed("tell", lambda trial=trial, n=n: remote.tell(trial, n % 7 / 7))  # type: ignore[misc]
    server.kill()
    for name, values in seconds.items():
        twentieths = statistics.quantiles(values[100:], n=20)
        print(f"{name}: p50 {1e3 * twentieths[9]:.1f} ms, p95 {1e3 * twentieths[18]:.1f} ms")


def main() -> None:
    """Print what was lost, and how long requests take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--measured", type=int, default=100, help="asks whose time is measured")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each of these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / name for name in ("stress.db", "quiet.db")]
        for run in runs:
            with recipes.tv_gp_ucb(bounds=BOX) as optimizer:
                optimizer.record(run)
        is_whole = stress(runs[0], options.clients, options.requests, options.kills)
        if options.measured:
            measure(runs[1], options.measured, options.pause)
    sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
