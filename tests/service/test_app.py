"""Runs over HTTP: calls and their errors, tokens, sizes, pages, numbers for Prometheus."""

import base64
import json
import socket
import time
from contextlib import contextmanager
from threading import Thread

import pytest

for name in ("fastapi", "httpx", "prometheus_client", "uvicorn"):
    pytest.importorskip(name)

import httpx  # noqa: E402
import uvicorn  # noqa: E402

from tvbo import recipes  # noqa: E402
from tvbo.optimizers import Optimizer  # noqa: E402
from tvbo.service.app import MAX_BODY, make_app  # noqa: E402
from tvbo.service.served_run import ServedRun  # noqa: E402
from tvbo.storage import read_run  # noqa: E402

TOKEN = "a token of many characters"
BOX = {"x": (0.0, 1.0), "kind": ["a", "b"]}


@contextmanager
def served(run, token=None, wait=10.0):
    """Serve a run in a thread, and yield a client of it."""
    app = make_app({"oven": ServedRun("oven", str(run), wait=wait)}, token)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield client
        server.should_exit = True
        thread.join()


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "oven.db"
    with recipes.tv_gp_ucb(bounds=BOX, initial=3, generator=1) as optimizer:
        optimizer.record(path)
    return path


@pytest.fixture
def client(run):
    with served(run, wait=1.0) as client:
        yield client


def test_a_loop(client, run):
    for n in range(5):
        trial = client.post("/runs/oven/ask", json={"key": f"request {n}"}).json()
        assert trial["trial"] == n + 1
        assert set(trial["parameters"]) == {"x", "kind"}
        if n == 3:
            answer = client.post("/runs/oven/fail", json={"trial": 4, "reason": "no power"})
        else:
            answer = client.post("/runs/oven/tell", json={"trial": n + 1, "outcome": n / 2})
        assert answer.json() == {"trial": n + 1}
    client.post("/runs/oven/ask")
    assert client.post("/runs/oven/expire", json={"trial": 6}).json() == {"expired": [6]}
    best = client.post("/runs/oven/recommend").json()
    again = client.post("/runs/oven/predict", json={"parameters": best["parameters"]}).json()
    assert again["mean"] == pytest.approx(best["mean"])
    assert client.post("/runs/oven/drift", json={}).json()["forgetting_rate"] >= 0
    state = client.get("/runs/oven/status").json()
    assert (state["told"], state["failed"], state["expired"]) == (4, 1, 1)
    assert read_run(run).counts["told"] == 4
    assert client.get("/runs").json() == ["oven"]


@pytest.mark.parametrize("call", ["tell", "fail", "expire"])
def test_a_call_whose_answer_was_lost_may_be_repeated(client, call):
    first = client.post("/runs/oven/ask", json={"key": "k"}).json()
    assert client.post("/runs/oven/ask", json={"key": "k"}).json() == first
    values = {"tell": {"outcome": 1.5}, "fail": {"reason": "cold"}, "expire": {}}[call]
    other = {"tell": {"outcome": 1.6}, "fail": {"reason": "hot"}, "expire": {}}[call]
    answers = [client.post(f"/runs/oven/{call}", json={"trial": 1, **values}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    refused = client.post("/runs/oven/tell", json={"trial": 1, "outcome": 9.0})
    assert refused.status_code == 400
    if other != values:
        assert client.post(f"/runs/oven/{call}", json={"trial": 1, **other}).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "code", "named"),
    [
        ("oven/tell", {"trial": 7, "outcome": 1.0}, 400, "7"),
        ("oven/tell", {"trial": "1", "outcome": 1.0}, 422, '"1"'),
        ("oven/tell", {"trial": 1}, 422, "outcome"),
        ("oven/tell", {"trial": 1, "outcome": {"loss": 1.0}}, 400, "loss"),
        ("oven/ask", {"t": "\x1b[31m<b>"}, 400, "\\x1b"),
        ("oven/ask", {"when": 1}, 422, "when"),
        ("oven/ask", {"context": {"x": 1}}, 400, "x"),
        ("oven/predict", {"parameters": {"x": 2.0, "kind": "a"}}, 400, "2"),
        ("<b>/ask", {}, 404, "<b>"),
        ("oven/bake", {}, 404, "Not Found"),
    ],
)
def test_bad_input_gets_one_line(client, path, body, code, named):
    client.post("/runs/oven/ask")
    answer = client.post(f"/runs/{path}", json=body)
    assert answer.status_code == code
    assert answer.headers["content-type"] == "application/json"
    assert named in answer.json()["error"]
    assert answer.json()["error"].isprintable()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[" * 100_000, 422),
        (b'{"context": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422),
        (b'{"trial": 1, "outcome": 1' + b"0" * 10_000 + b"}", 422),
        (b"\xff\x00", 422),
        (b" " * (MAX_BODY + 1), 413),
    ],
    ids=["open", "deep", "long number", "no text", "long"],
)
def test_forged_requests(client, body, code):
    headers = {"content-type": "application/json"}
    answer = client.post("/runs/oven/tell", content=body, headers=headers)
    assert answer.status_code in (code, 400)
    assert answer.json()["error"].isprintable()
    in_parts = client.post("/runs/oven/tell", content=iter([body]), headers=headers)
    assert in_parts.status_code == 411
    assert client.post("/runs/oven/ask").status_code == 200


def test_who_is_not_on_this_machine_is_not_let_in(client):
    foreign = client.post("/runs/oven/ask", headers={"host": "evil.example"})
    assert foreign.status_code == 403
    # What a form of another page can send without being asked first.
    form = client.post("/runs/oven/ask", content="{}", headers={"content-type": "text/plain"})
    assert form.status_code == 422
    assert client.get("/runs/oven/status").json()["open"] == 0


def test_a_token(run):
    with served(run, TOKEN) as client:
        basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
        for given in (None, "Bearer", f"Bearer {TOKEN}x", "Basic ?", f"Digest {TOKEN}", "Bearer é"):
            headers = {} if given is None else {"Authorization": given.encode()}
            for path in ("/", "/runs", "/runs/oven/status", "/metrics", "/docs", "/openapi.json"):
                answer = client.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Basic")
        for given in (f"Bearer {TOKEN}", f"Basic {basic}"):
            assert client.get("/runs", headers={"Authorization": given}).json() == ["oven"]
        assert client.get("/health").json() == {"status": "ok"}


def test_a_busy_run_is_409_and_a_damaged_one_500(client, run):
    others = Optimizer.open(run)
    with others._change("ask"):
        busy = client.post("/runs/oven/ask")
    assert busy.status_code == 409
    assert busy.headers["retry-after"] == "1"
    assert "process" in busy.json()["error"]
    run.write_bytes(b"no database")
    assert client.post("/runs/oven/ask").status_code == 500


def test_others_and_the_server_take_a_run_further_together(client, run):
    others = Optimizer.open(run)
    for n in range(4):
        others.tell(others.ask(), 0.1 * n)
        trial = client.post("/runs/oven/ask").json()["trial"]
        assert client.post("/runs/oven/tell", json={"trial": trial, "outcome": 0.2}).is_success
    others.tell(others.ask(), 0.5)
    assert read_run(run).counts["told"] == others.trial_log.num_told == 9
    assert 'tvbo_trials{run="oven",state="told"} 9.0' in client.get("/metrics").text


def test_the_page_the_numbers_and_the_description(client):
    client.post("/runs/oven/ask")
    for path in ("/", "/runs/oven"):
        answer = client.get(path)
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    text = client.get("/metrics").text
    assert 'tvbo_trials{run="oven",state="open"} 1.0' in text
    assert 'tvbo_requests_total{call="ask",run="oven",status="200"} 1.0' in text
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/runs/{run}/ask", "/runs/{run}/tell", "/runs/{run}/predict"} <= set(paths)
    assert client.get("/docs").is_success


def test_what_is_asked_for_was_chosen_ahead(run):
    plain = Optimizer.open(run, read_only=True)
    with served(run) as client:
        for n in range(8):
            time.sleep(0.2)
            one, two = plain.ask(), client.post("/runs/oven/ask").json()
            assert two["parameters"] == json.loads(json.dumps(one.parameters))
            plain.tell(one, 0.1 * (n % 3))
            client.post("/runs/oven/tell", json={"trial": n + 1, "outcome": 0.1 * (n % 3)})
