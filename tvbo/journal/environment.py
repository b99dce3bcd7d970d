"""What the choices of a run rest on besides its journal: versions, code, processor."""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FunctionType, ModuleType

import torch

import tvbo

LIBRARIES = ("torch", "gpytorch", "botorch", "linear_operator", "numpy", "scipy")
"""Known by their version."""

NO_SOURCE = "no source"
"""The digest of code that stands in no file, such as a notebook's. It equals nothing."""

Environment = Mapping[str, str]
"""Names and versions or digests."""


def environment(modules: Iterable[str]) -> dict[str, str]:
    """The present one.

    Args:
        modules: Modules whose code the run rests on. Of those that are neither Python's own nor a
            library named above, and of what they use in turn, the source is digested.
    """
    found = {"python": platform.python_version(), "processor": _processor()}
    found |= {name: _version(name) for name in LIBRARIES}
    found["tvbo"] = tvbo.__version__
    found["source of tvbo"] = _digest(*sorted(Path(tvbo.__file__).parent.rglob("*.py")))
    # Sums are split between threads, and so rounded differently.
    found["threads"] = str(torch.get_num_threads())
    found["default dtype"] = str(torch.get_default_dtype())
    found |= {f"source of {name}": digest for name, digest in _user_code(modules).items()}
    return found


def same(one: Environment, two: Environment) -> bool:
    """Whether nothing differs, as far as can be known."""
    return one == two and NO_SOURCE not in one.values()


def changes(then: Environment, now: Environment) -> str:
    """What differs, in words."""
    words = []
    for name in sorted(then.keys() | now.keys()):
        old, new = then.get(name, "not used"), now.get(name, "not used")
        if NO_SOURCE in (old, new):
            words.append(f"{name} cannot be compared, it stands in no file")
        elif old != new:
            words.append(f"{name} was {old}, is {new}")
    return "; ".join(words) if words else "nothing that is kept track of"


def _user_code(modules: Iterable[str]) -> dict[str, str]:
    """Digests of user modules by name, following what they use."""
    digests: dict[str, str] = {}
    waiting = [name for name in modules if _is_user_code(name)]
    while waiting:
        name = waiting.pop()
        if name in digests:
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            digests[name] = "missing"
            continue
        file = getattr(module, "__file__", None)
        digests[name] = NO_SOURCE if file is None else _digest(Path(file))
        waiting += [used for used in _used_by(module) if _is_user_code(used)]
    return digests


def _used_by(module: ModuleType) -> set[str]:
    """Modules that a user's module takes something from; installed packages only take their own."""
    names = set()
    for value in vars(module).values():
        if isinstance(value, ModuleType):
            names.add(value.__name__)
        elif isinstance(value, type | FunctionType):
            names.add(value.__module__)
    if not _is_installed(module):
        return names
    return {name for name in names if name.split(".")[0] == module.__name__.split(".")[0]}


def _is_installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    folders = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    return file is not None and any(Path(file).is_relative_to(folder) for folder in folders)


def _is_user_code(module: str) -> bool:
    top = module.split(".")[0]
    known = top in sys.stdlib_module_names or top in LIBRARIES or top == "tvbo"
    # What pickles of an older protocol call Python's built-in functions.
    return top == "__main__" or not (known or top in ("__builtin__", "copy_reg"))


def _digest(*files: Path) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            digest.update(file.read_bytes())
        except OSError:
            return NO_SOURCE
    return digest.hexdigest()[:16]


def _processor() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
