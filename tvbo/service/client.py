"""Ask and tell a run that another process serves, perhaps on another machine."""

from __future__ import annotations

import json
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import uuid4

Values = dict[str, Any]

AGAIN = (409, 502, 503, 504)
"""Answers of a server, or of a proxy before it, after which a call is repeated."""


class RemoteOptimizer:
    """Ask and tell a run that another process serves by ``tvbo serve``.

    What the server could not do for now, or whose answer was lost, is asked for again: nothing is
    done twice. It needs nothing but Python.

    Args:
        url: Address of the run, such as ``http://127.0.0.1:8000/runs/NAME``.
        token: The token of the server, if it has one.
        wait: Seconds for which a call is repeated while the server is away or busy.
    """

    def __init__(self, url: str, token: str | None = None, wait: float = 60.0):
        self.url, self.wait = url.rstrip("/"), wait
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def ask(
        self, t: Any = None, context: Any = None, key: str | None = None, duration: Any = None
    ) -> Values:
        """Return the next trial: ``trial``, its number, ``t``, ``parameters`` and ``skipped``."""
        given = {"t": t, "context": context, "duration": duration}
        return self.call("ask", **given, key=key or uuid4().hex)

    def tell(self, trial: Values | int, outcome: Any, variance: Any = None, t: Any = None) -> None:
        """Tell the outcome of a trial, a number, or several by name, measured at a time."""
        number = trial["trial"] if isinstance(trial, dict) else trial
        self.call("tell", trial=number, outcome=outcome, variance=variance, t=t)

    def fail(self, trial: Values | int, reason: str) -> None:
        """Say that a trial has no outcome."""
        number = trial["trial"] if isinstance(trial, dict) else trial
        self.call("fail", trial=number, reason=reason)

    def call(self, name: str, **values: Any) -> Values:
        """Make a call of :mod:`tvbo.service.calls`, such as ``call("recommend", t=3)``.

        Raises:
            ValueError: if the server refuses it, with what it says.
            RuntimeError: if it is in error, with what it says.
            ConnectionError: if it is away or busy for longer than is waited.
        """
        data = json.dumps(values, default=_plain).encode()
        request = Request(f"{self.url}/{name}", data, self._headers, method="POST")
        deadline, pause = time.monotonic() + self.wait, 0.05
        while True:
            try:
                with urlopen(request, timeout=self.wait) as answer:
                    return json.load(answer)
            except HTTPError as error:
                reason = _reason(error)
                if error.code not in AGAIN:
                    raise (ValueError if error.code < 500 else RuntimeError)(reason) from error
            except (OSError, HTTPException, ValueError) as error:
                reason = repr(error)
            if time.monotonic() + pause > deadline:
                raise ConnectionError(f"Expected an answer of {self.url}. Got {reason}.")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


def _reason(error: HTTPError) -> str:
    """Return what the server says, or whatever answers in its place."""
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{error}: {text[:200]}"


def _plain(value: Any) -> Any:
    """Return a number of NumPy or PyTorch, or a time, as JSON has it."""
    return value.item() if hasattr(value, "item") else value.isoformat()
