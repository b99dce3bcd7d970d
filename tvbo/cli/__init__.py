"""The command line: ``tvbo fit``, ``tvbo demo``, ``tvbo runs``."""

from tvbo.cli.app import main

__all__ = ["main"]
