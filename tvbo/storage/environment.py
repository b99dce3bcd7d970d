"""What the choices of a run depend on besides its journal: versions, source code, processor."""

from __future__ import annotations

import ast
import hashlib
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec, NamespaceLoader
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec, resolve_name
from pathlib import Path
from types import FunctionType, ModuleType

import torch

Environment = Mapping[str, str]
"""Versions and digests of source code by name."""

LIBRARIES = ("torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy")
"""Packages whose version is always part of the environment."""

NO_SOURCE = "no source"
"""Digest of code without a file, such as a notebook's. It equals no other digest, nor itself."""


def current_environment(modules: Iterable[str]) -> dict[str, str]:
    """Return versions, digests of source code, and what decides how sums are rounded.

    Args:
        modules: Names of modules whose code the run uses. The source of the caller's own ones, and
            of what these import, is digested; installed packages are known by their version.
    """
    processor = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    found = {"python": platform.python_version(), "processor": processor}
    found |= {name: _version_of(name) for name in LIBRARIES}
    found["tvbo"] = version("botorch-tvbo")
    found["source of tvbo"] = _digest(*sorted(Path(__file__).parents[1].rglob("*.py")))
    # Sums are split between threads, and so rounded differently.
    found["threads"] = str(torch.get_num_threads())
    found["default dtype"] = str(torch.get_default_dtype())
    return found | _code_of(modules)


def is_same(one: Environment, two: Environment) -> bool:
    """Return whether two environments are equal and hold no code that cannot be compared."""
    return one == two and NO_SOURCE not in one.values()


def changes(then: Environment, now: Environment) -> str:
    """Return what differs between two environments, in words."""
    words = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name, "not used"), now.get(name, "not used")
        if NO_SOURCE in (old, new):
            words.append(f"{name} cannot be compared, it stands in no file")
        elif old != new:
            words.append(f"{name} was {old}, is {new}")
    return "; ".join(words) if words else "nothing that is kept track of"


def _code_of(modules: Iterable[str]) -> dict[str, str]:
    """Return digests of modules and of all that they import, and versions of installed packages.

    Imports are read from the source, within functions too, so that constants and late imports
    count; and from the values that the modules hold now.
    """
    found: dict[str, str] = {}
    waiting, seen = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name in seen or _is_known_otherwise(name):
            continue
        seen.add(name)
        package = name.split(".")[0]
        if (versions := _installed_versions(package)) is not None:
            found[package] = versions
            continue
        if not _exists(name):
            found[f"source of {name}"] = "missing"
            continue
        file, parent = _file_and_package(name)
        spec = _spec(name)
        if spec is None or not isinstance(spec.loader, NamespaceLoader | None):
            # Any but a folder without code of its own.
            found[f"source of {name}"] = NO_SOURCE if file is None else _digest(file)
        used = _homes_of_values(name) | {each for each in _imports(file, parent) if _exists(each)}
        waiting += used | ({name.rpartition(".")[0]} - {""})
    return found


def _digest(*files: Path) -> str:
    """Return a short digest of the content of files; ``NO_SOURCE`` if one cannot be read."""
    sums = hashlib.sha256()
    for file in files:
        try:
            sums.update(file.read_bytes())
        except OSError:
            return NO_SOURCE
    return sums.hexdigest()[:16]


@cache
def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _homes_of_values(name: str) -> set[str]:
    """Return the modules that define the values of a module, if that is loaded."""
    values = vars(sys.modules[name]).values() if name in sys.modules else ()
    homes = {each.__name__ for each in values if isinstance(each, ModuleType)}
    homes |= {each.__module__ for each in values if isinstance(each, type | FunctionType)}
    return {home for home in homes if isinstance(home, str)}


def _imports(file: Path | None, package: str) -> Iterator[str]:
    """Iterate over modules that a source imports, and names from them that may be modules."""
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
    """Return whether a name is a module's; what is imported from one may be any object."""
    return name in sys.modules or _is_known_otherwise(name) or _spec(name) is not None


def _file_and_package(name: str) -> tuple[Path | None, str]:
    """Return the file of a module, and the package that its relative imports begin from."""
    if (module := sys.modules.get(name)) is not None:
        file, package = getattr(module, "__file__", None), getattr(module, "__package__", None)
    else:
        spec = find_spec(name)
        assert spec is not None
        file, package = spec.origin if spec.has_location else None, spec.parent
    return None if file is None else Path(file), package or ""


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except Exception:  # Any error: the package of the module is imported for it.
        return None


def _is_known_otherwise(name: str) -> bool:
    """Return whether a module is Python's own or of a library whose version is known."""
    package = name.split(".")[0]
    if package == "__main__":
        return False
    return package in sys.stdlib_module_names or package in (*LIBRARIES, "tvbo")


@cache
def _installed_versions(package: str) -> str | None:
    """Return the versions of an installed package; None for a folder of the caller's."""
    spec = _spec(package)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    folders = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    is_installed = any(
        place is not None and Path(place).is_relative_to(folder)
        for place in places
        for folder in folders
    )
    found = sorted(set(_distributions().get(package, ()))) if is_installed else []
    return ", ".join(f"{name} {_version_of(name)}" for name in found) or None


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()
