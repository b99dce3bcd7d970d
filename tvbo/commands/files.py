"""Files that commands write: checked before the work begins, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from matplotlib import rcParams
from matplotlib.backend_bases import FigureCanvasBase

from tvbo.commands.report import saved


class OutputError(ValueError):
    """A file that cannot be written, or must not be."""


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path] = (), makes_folders: bool = False
) -> None:
    """Raise unless every output can be written and is none of the inputs.

    Args:
        outputs: Files to write, by the option that names each; None where it was not given.
        inputs: Files that the command reads. Under another name, a link say, they are still the
            same.
        makes_folders: Whether the command makes the folders that are missing.

    Raises:
        OutputError: if an output is an input, another output or a folder, or its folder is missing
            or cannot be written in.
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
    """Raise unless the name of a picture ends in a format that Matplotlib writes here.

    Raises:
        OutputError: if it does not.
    """
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
    """Give a path to write to; once it is written, it takes the place of ``path``.

    A file that stood there stays until then, and for good if the writing is interrupted.
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
    """Where to write at first, and where it belongs: devices and pipes are written directly."""
    if path.exists() and not path.is_file():
        return path, path
    # Through links: the file that they lead to is replaced, and not the link. The same ending,
    # which may say in what format, and whether compressed, the file is written.
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
            f"Expected a file in a folder that is there for {option}. Got {path}, but {folder} is "
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
    """Whether two paths are one file, also if it is not there yet."""
    if os.path.realpath(first) == os.path.realpath(second):
        return True
    return first.exists() and second.exists() and first.samefile(second)
