"""Saved fits: dataclasses, arrays and kernels as data, in files of JSON with a version."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from tvbo.serialize import SerializationError, from_data, to_data
from tvbo.terminal import html_table
from tvbo.values import shortened

SAVED_VERSION = 8
"""Version of the form of the files."""


class SavedFit:
    """A dataclass that can be saved: its fields are numbers, text, arrays, kernels or dataclasses.

    A class of its own says in ``__post_init__`` which values do not go together.
    """

    messages: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, in types of JSON."""
        raise NotImplementedError

    def summary(self) -> dict[str, str]:
        """Return the numbers by name, as text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.summary().items()]
        return "\n".join([type(self).__name__, *lines, *self.messages])

    def _repr_html_(self) -> str:
        return html_table(self.summary())

    def to_json(self, path: str | Path) -> None:
        """Write :meth:`to_dict` as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n")

    def save(self, path: str | Path) -> None:
        """Write all of the fit to a file of JSON, for :meth:`load`.

        Raises:
            SerializationError: if a kernel has a part of a class that tvbo does not know.
        """
        header = {"format": f"tvbo.{type(self).__name__}", "version": SAVED_VERSION}
        content = {**header, "tvbo": version("botorch-tvbo"), "fit": to_data(self)}
        text = json.dumps(content, indent=1, allow_nan=False)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the fit that :meth:`save` wrote; the file is data, and no code of it is run.

        Raises:
            SerializationError: if the file is no saved fit, or one of a later version.
            OSError: if it cannot be read.
        """
        raw, kind = Path(path).read_bytes(), f"tvbo.{cls.__name__}"
        try:
            content = json.loads(raw, parse_constant=_no_number)
            found, number = content["format"], content["version"]
            if found != kind or number != SAVED_VERSION:
                raise SerializationError(
                    f"Expected a {kind} of version {SAVED_VERSION}. Got {shortened(found)} of "
                    f"version {shortened(number)} in {path}, of tvbo {content.get('tvbo')!r:.20}."
                )
            return from_data(cls, content["fit"])
        except SerializationError:
            raise
        except Exception as error:
            raise SerializationError(
                f"Expected a saved {kind}. Got {path}, which is none, or damaged: "
                f"{type(error).__name__}: {shortened(error, 200)}"
            ) from error


def _no_number(text: str) -> None:
    raise ValueError(f"Expected numbers. Got {text}.")
