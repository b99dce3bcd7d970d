"""Which code of the user's a run rests on: digests of its source, versions of what is installed."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec, NamespaceLoader
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import FunctionType, ModuleType

LIBRARIES = ("torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy")
"""Always known by their version."""

NO_SOURCE = "no source"
"""The digest of code that stands in no file, such as a notebook's. It equals nothing."""


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """Digests of the user's modules and of all that they import, versions of installed packages.

    What is imported is read from the source, within functions too, so that constants and modules
    that are imported late count; and what the modules hold now counts as well.

    Args:
        modules: Names to begin with; Python's own are left out.
    """
    found: dict[str, str] = {}
    waiting, seen = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name in seen or _is_known_otherwise(name):
            continue
        seen.add(name)
        package = name.split(".")[0]
        if (versions := _versions(package)) is not None:
            found[package] = versions
            continue
        if not _exists(name):
            found[f"source of {name}"] = "missing"
            continue
        file, parent = _place_of(name)
        if not _is_mere_folder(name):
            found[f"source of {name}"] = NO_SOURCE if file is None else digest(file)
        used = _held_by(name) | {each for each in _imported(file, parent) if _exists(each)}
        waiting += used | ({name.rpartition(".")[0]} - {""})
    return found


def digest(*files: Path) -> str:
    """A short digest of the content of files; ``NO_SOURCE`` if one cannot be read."""
    sums = hashlib.sha256()
    for file in files:
        try:
            sums.update(file.read_bytes())
        except OSError:
            return NO_SOURCE
    return sums.hexdigest()[:16]


@cache
def version_of(distribution: str) -> str:
    """Version of an installed distribution, in words where there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _held_by(name: str) -> set[str]:
    """Modules that the values of a module come from, as far as it is loaded."""
    names = set()
    for value in vars(sys.modules[name]).values() if name in sys.modules else ():
        home = value.__name__ if isinstance(value, ModuleType) else None
        if isinstance(value, type | FunctionType):
            home = value.__module__
        if isinstance(home, str):
            names.add(home)
    return names


def _imported(file: Path | None, package: str) -> Iterator[str]:
    """Modules that a source imports, and names from them that may be modules."""
    if file is None or file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _exists(name: str) -> bool:
    """Whether it is a module; what is imported from one may be any other object."""
    return name in sys.modules or _is_known_otherwise(name) or _spec(name) is not None


def _place_of(name: str) -> tuple[Path | None, str]:
    """The file of a module, and the package that its relative imports begin from."""
    if (module := sys.modules.get(name)) is not None:
        file, package = getattr(module, "__file__", None), getattr(module, "__package__", None)
    else:
        spec = _spec(name)
        file, package = spec.origin if spec.has_location else None, spec.parent
    return None if file is None else Path(file), package or ""


def _is_mere_folder(name: str) -> bool:
    """Whether it is a package without code of its own."""
    spec = _spec(name)
    return spec is not None and (spec.loader is None or isinstance(spec.loader, NamespaceLoader))


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except Exception:  # Its parent is imported for it, and does what it likes.
        return None


def _is_known_otherwise(name: str) -> bool:
    package = name.split(".")[0]
    if package == "__main__":
        return False
    # The last two are what pickles of an older protocol call Python's built-in functions.
    known = (*LIBRARIES, "tvbo", "__builtin__", "copy_reg")
    return package in sys.stdlib_module_names or package in known


@cache
def _versions(package: str) -> str | None:
    """Of a package that lies where packages are installed; None for a folder of the user's."""
    spec = _spec(package)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    folders = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    installed = any(
        place is not None and Path(place).is_relative_to(folder)
        for place in places
        for folder in folders
    )
    found = sorted(set(_distributions().get(package, ()))) if installed else []
    return ", ".join(f"{name} {version_of(name)}" for name in found) or None


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(packages_distributions())
