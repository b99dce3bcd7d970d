"""Output files of commands: checked before the work begins, and written atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tvbo.cli.report import saved


class OutputError(ValueError):
    """An output file that cannot be written, or that would overwrite an input."""


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path] = (), makes_folders: bool = False
) -> None:
    """Raise unless every output can be written and is not one of the inputs.

    Args:
        outputs: Files to write, by option; None for an option that was not given.
        inputs: Files that the command reads; links to them are recognized.
        makes_folders: Whether the command creates missing folders.

    Raises:
        OutputError: if an output is an input, another output or a folder, or its folder is missing
            or not writable.
    """
    given = {option: path for option, path in outputs.items() if path is not None}
    inputs = list(inputs)
    for number, (option, path) in enumerate(given.items()):
        for source in inputs:
            if _same(path, source):
                also = "" if path == source else f", which is {source}"
                raise OutputError(
                    f"Expected another file for {option} than those that are read. Got "
                    f"{path}{also}."
                )
        for other, second in list(given.items())[:number]:
            if _same(path, second):
                raise OutputError(
                    f"Expected different files for {other} and {option}. Got {second} and {path}."
                )
        _check_writable(option, path, makes_folders)


def check_picture(option: str, path: Path | None) -> None:
    """Raise unless the name of a picture ends in a format that Matplotlib can write.

    Raises:
        OutputError: if it does not.
    """
    from matplotlib import rcParams
    from matplotlib.backend_bases import FigureCanvasBase

    formats = set(FigureCanvasBase.get_supported_filetypes())
    if shutil.which(rcParams["pgf.texsystem"]) is None:
        formats.discard("pgf")
    if path is not None and path.suffix[1:].lower() not in formats:
        raise OutputError(
            f"Expected a picture for {option} whose name ends in one of "
            f"{', '.join('.' + name for name in sorted(formats))}. Got {path}."
        )


@contextmanager
def saving(path: Path) -> Iterator[Path]:
    """Yield a path to write to, and rename it to ``path`` when it is written.

    An existing file is replaced only then, and kept if the writing is interrupted.
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
    saved(path)


def _partial(path: Path) -> tuple[Path, Path]:
    """Return the temporary path and the final one; devices and pipes are written directly."""
    if path.exists() and not path.is_file():
        return path, path
    # Links are followed, so that the file is replaced and not the link. The ending is kept, since
    # it may determine the format and the compression.
    target = Path(os.path.realpath(path))
    return target.with_name(f".{os.getpid()}-{target.name}"), target


def _check_writable(option: str, path: Path, makes_folders: bool) -> None:
    if path.is_dir():
        raise OutputError(f"Expected a file for {option}. Got {path}, which is a folder.")
    partial, target = _partial(path)
    if partial == target:
        return
    folder = target.parent
    if makes_folders:
        folder = next(known for known in (folder, *folder.parents) if known.exists())
    if not folder.is_dir():
        raise OutputError(
            f"Expected a file in an existing folder for {option}. Got {path}, but {folder} is "
            "no folder."
        )
    probe = folder / partial.name
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"Expected a file for {option} that can be written. Got {path}: {error.strerror}."
        ) from error


def _same(first: Path, second: Path) -> bool:
    """Return whether two paths are the same file, which need not exist yet."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    return first.exists() and second.exists() and first.samefile(second)
