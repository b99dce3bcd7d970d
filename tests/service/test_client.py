"""A client of a server that loses requests and answers, refuses, is busy, or is another program."""

import json
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pandas as pd
import pytest

from tvbo.service.client import RemoteOptimizer


class Handler(BaseHTTPRequestHandler):
    """Answer as the server's list of answers says, one a request."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers.get("Authorization"), body))
        answer = self.server.answers.pop(0)
        if answer is None:
            return  # The connection is closed.
        code, text = answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.seen, server.answers = [], []
        server.url = f"http://127.0.0.1:{server.server_port}/runs/oven"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_what_is_not_answered_is_asked_again_with_the_same_key(server):
    busy, away = (409, '{"error": "busy"}'), (503, '{"error": "away"}')
    server.answers = [None, busy, away, (200, "{}ruined"), (200, '{"trial": 5}'), (200, "{}")]
    remote = RemoteOptimizer(server.url + "/", "secret", wait=30)
    trial = remote.ask(pd.Timestamp("2026-01-01"), {"load": np.float64(2.0), "n": np.int64(3)})
    assert trial == {"trial": 5}
    paths, tokens, bodies = zip(*server.seen, strict=True)
    assert Counter(paths) == {"/runs/oven/ask": 5}
    assert set(tokens) == {"Bearer secret"}
    assert len({body["key"] for body in bodies}) == 1
    assert bodies[0]["t"] == "2026-01-01T00:00:00"
    assert bodies[0]["context"] == {"load": 2.0, "n": 3}
    remote.tell(trial, 0.5)
    assert server.seen[-1] == (
        "/runs/oven/tell",
        "Bearer secret",
        {"trial": 5, "outcome": 0.5, "variance": None, "t": None},
    )


def test_each_ask_is_a_new_one(server):
    server.answers = [(200, "{}"), (200, "{}")]
    remote = RemoteOptimizer(server.url)
    remote.ask()
    remote.ask()
    assert len({body["key"] for *_, body in server.seen}) == 2


def test_a_refusal_is_raised_with_what_the_server_says(server):
    server.answers = [(400, '{"error": "Expected less."}'), (404, "<html>nothing</html>")]
    server.answers += [(500, '{"error": "damaged"}')]
    remote = RemoteOptimizer(server.url)
    with pytest.raises(ValueError, match=r"^Expected less\.$"):
        remote.fail(3, "no power")
    with pytest.raises(ValueError, match="404"):
        remote.call("recommend")
    with pytest.raises(RuntimeError, match="damaged"):
        remote.call("drift")


@pytest.mark.parametrize("answer", [None, (503, '{"error": "away"}')])
def test_a_server_that_stays_away(server, answer):
    server.answers = [answer] * 9
    with pytest.raises(ConnectionError, match="oven"):
        RemoteOptimizer(server.url, wait=0.2).ask()
