"""What the choices of a run rest on besides its journal: versions, code, processor."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

import tvbo
from tvbo.journal.user_code import LIBRARIES, NO_SOURCE, code_of, digest, version_of

Environment = Mapping[str, str]
"""Names and versions or digests."""


def environment(modules: Iterable[str]) -> dict[str, str]:
    """The present one.

    Args:
        modules: Modules whose code the run rests on. Of the user's own, and of what they import in
            turn, the source is digested; installed packages are known by their version.
    """
    found = {"python": platform.python_version(), "processor": _processor()}
    found |= {name: version_of(name) for name in LIBRARIES}
    found["tvbo"] = tvbo.__version__
    found["source of tvbo"] = digest(*sorted(Path(tvbo.__file__).parent.rglob("*.py")))
    # Sums are split between threads, and so rounded differently.
    found["threads"] = str(torch.get_num_threads())
    found["default dtype"] = str(torch.get_default_dtype())
    return found | code_of(modules)


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


def _processor() -> str:
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
