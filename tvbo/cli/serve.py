"""``tvbo serve``: runs over HTTP, for people and programs."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from tvbo.cli.app import say
from tvbo.cli.options import Wait
from tvbo.terminal import visible

if TYPE_CHECKING:
    from tvbo.optimizers import Optimizer

TOKEN = "TVBO_TOKEN"
"""Variable of the environment with the token."""

SWITCH_INTERVAL = 0.0005
"""Seconds after which Python lets another thread run: an answer should not wait for a model."""


def serve(
    runs: Annotated[
        list[str], typer.Argument(help="Runs: files such as run.db, or URLs of databases.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 is a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help=f"A file with the token, else that in {TOKEN}.")
    ] = None,
    make: Annotated[
        str | None,
        typer.Option(
            help="PACKAGE.MODULE:FUNCTION, which returns an optimizer like those of the runs, "
            "where their settings hold objects of your own."
        ),
    ] = None,
    wait: Wait = 10.0,
) -> None:
    """Serve runs over HTTP: pages for people, calls as JSON for programs.

    To any address but this machine's own it is served only with a token, which requests bring as
    ``Authorization: Bearer TOKEN``, and browsers as the password.
    """
    try:
        import uvicorn

        from tvbo.service.app import make_app
    except ImportError as error:
        raise ValueError(f"Expected pip install 'botorch-tvbo[service]'. Got {error}.") from error
    from tvbo.service.served_run import ServedRun

    token = _token(token_file)
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"Expected a token, by --token-file or in {TOKEN}, to serve any but this machine. Got "
            f"none for {host!r}."
        )
    like = _function(make) if make is not None else lambda: None
    served = {
        name: ServedRun(name, url, like(), wait)
        for name, url in zip(_names(runs), runs, strict=True)
    }
    handler = logging.StreamHandler()
    handler.setFormatter(_SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    sys.setswitchinterval(SWITCH_INTERVAL)
    is_v6 = ":" in host
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        address = f"http://{f'[{host}]' if is_v6 else host}:{listening.getsockname()[1]}"
        for name in served:
            say(f"serving {address}/runs/{quote(name)}")
        config = uvicorn.Config(
            make_app(served, token), log_config=None, access_log=False, timeout_graceful_shutdown=10
        )
        uvicorn.Server(config).run(sockets=[listening])


def _names(runs: Sequence[str]) -> list[str]:
    """Return a name for each run: that of its file without its ending, or of its database."""
    names = [Path(urlsplit(run).path if "://" in run else run).stem for run in runs]
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(f"Expected runs with names of their own. Got {name!r} twice or empty.")
    return names


def _token(file: Path | None) -> str | None:
    """Return the token that is given, if one is."""
    token = os.environ.get(TOKEN) if file is None else file.read_text().strip()
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise ValueError(
            "Expected a token of at least 16 printable ASCII characters, such as `python -c "
            f"'import secrets; print(secrets.token_urlsafe())'` makes. Got {len(token)}."
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _function(place: str) -> Callable[[], Optimizer]:
    """Return the function that is named as ``package.module:function``."""
    module, _, name = place.partition(":")
    try:
        sys.path.insert(0, os.getcwd())  # As with python -m, the folder at work counts.
        function: Callable[[], Optimizer] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"Expected PACKAGE.MODULE:FUNCTION. Got {place!r}: {error}.") from error
    return function


class _SafeFormatter(logging.Formatter):
    """Format a record as lines that a terminal can show."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines; those after the first are indented."""
        return "\n    ".join(map(visible, super().format(record).split("\n")))
