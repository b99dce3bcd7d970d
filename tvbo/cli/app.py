"""What commands share: exit codes and errors, consoles, and files, written atomically.

Nothing is imported here for models or databases, so that help and errors come at once.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvbo.terminal import progress_lines, visible

CODE_ERROR, BAD_INPUT, BUSY, INTERRUPTED = 1, 2, 75, 130

LONGEST_MESSAGE = 2_000
"""Characters of an error, which may quote what was given."""

PICTURES = (".eps", ".jpeg", ".jpg", ".pdf", ".png", ".ps", ".svg", ".tif", ".tiff", ".webp")
"""Ends of the names of pictures."""

Run = Annotated[str, typer.Argument(help="A run: a file such as run.db, or the URL of a database.")]


def run_app(app: typer.Typer, name: str, arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit; errors go to stderr, with control characters escaped.

    Exit codes: 2 and one line for bad input, 75 (``EX_TEMPFAIL``) and one line where another
    process is changing the run or its database is away, 130 and one line after Ctrl-C, 1 and a
    traceback for an error in the code.

    Args:
        app: The commands.
        name: Name of the program, with which its messages begin.
        arguments: Arguments of the command line; default those of this process.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        # The matrices are small, so that more threads would mostly wait for one another.
        os.environ["OMP_NUM_THREADS"] = "1"
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)
    try:
        code = app(sys.argv[1:] if arguments is None else arguments, standalone_mode=False)
    except typer.TyperException as error:
        _fail(name, error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        _fail(name, "interrupted", code=INTERRUPTED)
    except Exception as error:
        if (bad := _code_of(error)) != CODE_ERROR:
            _fail(name, str(error), bad)
        for line in traceback.format_exc().rstrip("\n").split("\n"):
            print(visible(line), file=sys.stderr)  # noqa: T201
        sys.exit(CODE_ERROR)
    if code == INTERRUPTED:
        # Typer turns Ctrl-C into an exit code.
        _fail(name, "interrupted", code=INTERRUPTED)
    sys.exit(code or 0)


def _code_of(error: Exception) -> int:
    """Return the exit code of an error, by modules that its cause has imported."""
    from tvbo.storage import RunBusyError, StorageUnavailableError

    if isinstance(error, RunBusyError | StorageUnavailableError):
        return BUSY
    of_botorch = any(kind.__module__ == "botorch.exceptions.errors" for kind in type(error).mro())
    return BAD_INPUT if of_botorch or isinstance(error, ValueError | OSError) else CODE_ERROR


def _fail(name: str, message: str, code: int = BAD_INPUT) -> NoReturn:
    line = visible(" ".join(message.split()))
    if len(line) > LONGEST_MESSAGE:
        line = line[: LONGEST_MESSAGE - 3] + "..."
    print(f"{name}: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


class SafeConsole(Console):
    """A Rich console that prints strings without markup or emoji codes, as :func:`visible` text.

    Rich turns every string into text by :meth:`render_str`, including cells and titles of tables.
    Styled text is passed as :class:`rich.text.Text`, which is trusted.
    """

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text, with unprintable characters escaped."""
        return super().render_str(visible(text), **options)


console = SafeConsole()
progress_console = SafeConsole(stderr=True)


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner, or lines, on stderr, and yield a function that reports the current step."""
    with (
        progress_console.status(what) as status,
        progress_lines(what, shown=not progress_console.is_terminal) as say,
    ):

        def on_step(step: str) -> None:
            status.update(f"{what}: {step}")
            say(step)

        yield on_step


@contextmanager
def announced() -> Iterator[None]:
    """Print on stderr what a fit logs before its work: rows, and the time it may take."""
    logger, handler = logging.getLogger("tvbo.logs"), logging.StreamHandler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def note(*remarks: str) -> None:
    """Print remarks below a result."""
    for remark in remarks:
        text = Text.assemble(("note:", "yellow"), " ", visible(remark))
        say(text)


def say(text: str | Text) -> None:
    """Print a line, which the terminal wraps if it is long."""
    console.print(text, highlight=False, soft_wrap=True)


def short(value: object) -> str:
    """Return a value as text, a float to six digits."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={short(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " to ".join(map(short, value))
    if value is None or value != value:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_values(title: str, values: Mapping[str, object]) -> None:
    """Print a table of names and values."""
    table = Table(title=title, show_header=False)
    for name, value in values.items():
        table.add_row(name, short(value))
    console.print(table)


def print_rows(
    title: str, rows: Sequence[Mapping[str, object]], caption: str | None = None
) -> None:
    """Print a table with a head, the columns of its first row; all but the first are numbers."""
    table = Table(title=title, caption=caption)
    for number, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(short(row.get(name)) for name in rows[0]))
    console.print(table)


class OutputError(ValueError):
    """An output file that cannot be written, or that would overwrite an input."""


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path] = (), picture: str | None = None
) -> None:
    """Raise unless every output can be written and is not one of the inputs.

    Args:
        outputs: Files to write, by option; None for an option that was not given.
        inputs: Files that the command reads; links to them are recognized.
        picture: The option of a picture, the name of which must end in one of :data:`PICTURES`.

    Raises:
        OutputError: if an output is an input, another output or a folder, its folder is missing or
            not writable, or a picture's name has another ending.
    """
    known = [("those that are read", path) for path in inputs]
    for option, path in outputs.items():
        if path is None:
            continue
        for other, second in known:
            # Neither need exist yet.
            exist = path.exists() and second.exists()
            same_name = os.path.realpath(path) == os.path.realpath(second)
            if same_name or (exist and path.samefile(second)):
                raise OutputError(f"Expected another file for {option} than {other}. Got {path}.")
        known.append((f"that for {option}", path))
        if option == picture and path.suffix.lower() not in PICTURES:
            raise OutputError(
                f"Expected a picture for {picture} whose name ends in one of "
                f"{', '.join(PICTURES)}. Got {path}."
            )
        if path.is_dir():
            raise OutputError(f"Expected a file for {option}. Got {path}, which is a folder.")
        partial, target = _partial(path)
        try:
            if partial != target:
                partial.touch()
                partial.unlink()
        except OSError as error:
            raise OutputError(
                f"Expected a file in an existing folder for {option} that can be written. Got "
                f"{path}: {error.strerror}."
            ) from error


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to ``path`` when it is written.

    An existing file is replaced only then, and kept if the writing is interrupted. A line says that
    the file was saved.
    """
    partial, target = _partial(path)
    try:
        yield partial
        if partial != target:
            if target.exists():
                shutil.copymode(target, partial)
            os.replace(partial, target)
    finally:
        if partial != target:
            partial.unlink(missing_ok=True)
    say(f"saved {path}")


def save_files(*files: tuple[Path | None, Callable[[Path], object]]) -> None:
    """Write files, each by its function; None for one that is not asked for."""
    for path, write in files:
        if path is not None:
            with saving(path) as file:
                write(file)


def _partial(path: Path) -> tuple[Path, Path]:
    """Return the temporary path and the final one; devices and pipes are written directly."""
    if path.exists() and not path.is_file():
        return path, path
    # Links are followed, so that the file is replaced and not the link. The ending is kept, since
    # it may determine the format and the compression.
    target = Path(os.path.realpath(path))
    return target.with_name(f".{os.getpid()}-{target.name}"), target


def files_of(run: str) -> list[Path]:
    """Return the paths of a run and of its side files, existing or not; none of a server's."""
    return [] if "://" in run else [Path(run + end) for end in ("", "-journal", "-wal", "-shm")]


def title_of(run: str) -> str:
    """Return the last part of the name of a run: of its file, or of a database."""
    return run.rsplit("/", 1)[-1]


def without_password(run: str) -> str:
    """Return a file, or a URL as it may be shown."""
    return re.sub("(://[^:/@]*):.*@", r"\1:***@", run)
