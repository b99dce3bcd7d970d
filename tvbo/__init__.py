"""Bayesian optimization for problems that do not hold still, on GPyTorch and BoTorch."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvbo import recipes
    from tvbo.evaluation import History, backtest
    from tvbo.evaluation.run import run, run_async
    from tvbo.logs import DriftFit, fit_drift, fit_panel
    from tvbo.optimizers import Optimizer, Trial

__version__ = version("botorch-tvbo")
try:
    _other = version("tvbo")
except PackageNotFoundError:
    pass
else:
    # Both write their files into one folder, so that neither is whole.
    raise ImportError(
        f"Expected botorch-tvbo alone. Got tvbo {_other}, The Virtual Brain Ontology, beside it: "
        "both are imported as tvbo. Uninstall both, then install one in an environment of its own."
    )

__all__ = [
    "DriftFit",
    "History",
    "Optimizer",
    "Trial",
    "backtest",
    "fit_drift",
    "fit_panel",
    "recipes",
    "run",
    "run_async",
]

# Imported at first use, as in BoTorch, whose models and optimizers take most of the time.
_NAMES = {
    "tvbo.evaluation": ("History", "backtest", "run", "run_async"),
    "tvbo.logs": ("DriftFit", "fit_drift", "fit_panel"),
    "tvbo.optimizers": ("Optimizer", "Trial"),
}


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return import_module("tvbo.recipes")
    for module, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
