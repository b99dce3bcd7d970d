"""Runs over HTTP: calls as JSON for programs, pages for people, numbers for Prometheus."""

# Annotations are not text here, since FastAPI reads those of functions that are made in a loop.

import base64
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import signature
from typing import Annotated, Any

from botorch.exceptions.errors import BotorchError, ModelFittingError
from fastapi import Body, FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import ConfigDict, create_model
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tvbo import __version__
from tvbo.service import calls, page
from tvbo.service.served_run import REFRESH, ServedRun
from tvbo.service.status import status
from tvbo.storage import RunBusyError, StorageError, StorageUnavailableError, read_run
from tvbo.terminal import visible
from tvbo.values import shortened

MAX_BODY = 10**6
"""Bytes of a request."""

LONGEST_MESSAGE = 2_000
"""Characters of an error, which may quote what was given."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine under which it is served without a token."""

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
"""Bounds of the histogram of the time that requests take."""

Name = Annotated[str, Path(description="Name of the run, that of its file without `.db`.")]
CHANGES = calls.ask, calls.tell, calls.fail, calls.expire
"""Calls that change a run."""

QUESTIONS = calls.recommend, calls.front, calls.predict, calls.drift
"""Calls that do not."""

STATUS: dict[type[Exception], int] = {
    RunBusyError: 409,
    StorageUnavailableError: 503,
    StorageError: 500,
    ModelFittingError: 500,
    OSError: 500,
    BotorchError: 400,
    ValueError: 400,
    TypeError: 400,
}
"""Answers to errors."""


def make_app(runs: Mapping[str, ServedRun], token: str | None = None) -> FastAPI:
    """Return the application that serves some runs; it opens and closes them with itself.

    Args:
        runs: The runs by name.
        token: What a request has to bring as ``Authorization: Bearer TOKEN``, or as the password of
            ``Basic``, by which browsers ask for it; None lets in whoever is on this machine.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for run in runs.values():
            run.start()
        yield
        for run in runs.values():
            run.stop()

    def find(run: str) -> ServedRun:
        if run not in runs:
            raise HTTPException(404, f"Expected one of {', '.join(runs)}. Got {run!r:.100}.")
        return runs[run]

    # A form of another page, which a browser sends without asking, is no JSON.
    app = FastAPI(
        title="tvbo",
        version=__version__,
        lifespan=lifespan,
        redoc_url=None,
        strict_content_type=True,
    )
    registry = CollectorRegistry()
    trials = Gauge("tvbo_trials", "Trials of a run.", ["run", "state"], registry=registry)
    labels = ["run", "call", "status"]
    requests = Counter("tvbo_requests", "Requests answered.", labels, registry=registry)
    seconds = Histogram(
        "tvbo_request_seconds", "Their time.", ["call"], registry=registry, buckets=SECONDS
    )

    def gate(inside: ASGIApp) -> ASGIApp:
        """Let requests in, and note what they took."""

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await inside(scope, receive, send)
                return
            began, code = time.perf_counter(), 500

            async def watch(message: Message) -> None:
                nonlocal code
                code = message.get("status", code)
                await send(message)

            try:
                await (_refusal(Request(scope), token) or inside)(scope, receive, watch)
            finally:
                run = scope.get("path_params", {}).get("run", "")
                name = scope["route"].name if "route" in scope else ""
                requests.labels(run if run in runs else "", name, code).inc()
                seconds.labels(name).observe(time.perf_counter() - began)

        return handle

    app.add_middleware(gate)
    for kind in (*STATUS, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer)

    for function in (*CHANGES, *QUESTIONS):
        _add_call(app, find, function, function in CHANGES)

    @app.get("/runs/{run}/status", summary="Return how many trials there are, and what came of it.")
    def look(run: Name) -> calls.Values:
        served = find(run)
        return status(read_run(served.url, served.wait))

    @app.get("/runs", summary="Return the names of the runs.")
    def names() -> list[str]:
        return [*runs]

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def overview() -> HTMLResponse:
        rows = {name: read_run(run.url, run.wait) for name, run in runs.items()}
        return _html(page.overview(rows, REFRESH))

    @app.get("/runs/{run}", response_class=HTMLResponse, include_in_schema=False)
    def run_page(run: Name) -> HTMLResponse:
        return _html(find(run).page())

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        for name, run in runs.items():
            for state, count in run.counts().items():
                trials.labels(name, state).set(count)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health", summary="Return that the server answers; it needs no token.")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


def _add_call(
    app: FastAPI,
    find: Callable[[str], ServedRun],
    function: Callable[..., calls.Values],
    changes: bool,
) -> None:
    """Have a function of a run be called by a request, whose body has its arguments."""
    name, text = function.__name__, (function.__doc__ or "").partition("\n")[0]
    _, *arguments = signature(function, eval_str=True).parameters.values()
    fields: dict[str, Any] = {
        each.name: (each.annotation, ... if each.default is each.empty else each.default)
        for each in arguments
    }
    config = ConfigDict(extra="forbid", strict=True)
    values: Any = create_model(name.capitalize(), __config__=config, **fields)
    is_needed = any(each.default is each.empty for each in arguments)
    default = Body(... if is_needed else values())

    @app.post(f"/runs/{{run}}/{name}", name=name, summary=text)
    def call(run: Name, body: values = default) -> calls.Values:
        return find(run).call(function, changes, **body.model_dump())


def _refusal(request: Request, token: str | None) -> JSONResponse | None:
    """Return the answer to one who must not come in, or asks for too much; None for others."""
    headers = request.headers
    if request.url.path == "/health":
        return None
    if token is None:
        # A page of another host may have a browser on this machine ask under that host's name.
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if name not in LOOPBACK:
            return _error(
                403,
                f"Expected a request to localhost, or a server with a token. Got {name!r:.100}.",
            )
    else:
        kind, _, text = headers.get("authorization", "").partition(" ")
        given = text.encode("latin-1")
        if kind.lower() == "basic":
            with suppress(ValueError):
                given = base64.b64decode(given).partition(b":")[2]
        is_known = kind.lower() in ("basic", "bearer")
        if not (is_known and hmac.compare_digest(given, token.encode())):
            answer = _error(401, "Expected Authorization: Bearer TOKEN. Got none, or another.")
            answer.headers["WWW-Authenticate"] = 'Basic realm="tvbo", charset="UTF-8"'
            return answer
    size = headers.get("content-length", "0")
    if "transfer-encoding" in headers:
        return _error(411, "Expected a request with its Content-Length. Got one in parts.")
    if not size.isdigit() or len(size) > 20 or int(size) > MAX_BODY:
        return _error(413, f"Expected a request of at most {MAX_BODY} bytes. Got {size:.20}.")
    return None


def _error(code: int, message: str) -> JSONResponse:
    """Return an error as a line."""
    line = visible(shortened(" ".join(message.split()), LONGEST_MESSAGE))
    return JSONResponse({"error": line}, code)


def _answer(_: Request, error: Exception) -> JSONResponse:
    """Return an error as a line; what is none of a caller's, the log of the server has."""
    headers = None
    match error:
        case RequestValidationError():
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            given = shortened(json.dumps(first.get("input"), default=str), 100)
            code, line = 422, f"Expected {place} as /docs has it: {first['msg']}. Got {given}."
        case HTTPException():
            code, line, headers = error.status_code, str(error.detail), error.headers
        case _:
            code = next((STATUS[kind] for kind in type(error).mro() if kind in STATUS), 0)
            line = str(error) if code else "An error of the server, which its log has."
    answer = _error(code or 500, line)
    answer.headers.update({"Retry-After": "1"} if code in (409, 503) else headers or {})
    return answer


def _html(text: str) -> HTMLResponse:
    headers = {"Content-Security-Policy": page.POLICY, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(text, headers=headers)
