"""The command line: ``tvbo fit``, ``tvbo backtest``, ``tvbo demo``, ``tvbo runs``."""

from tvbo.cli import backtest, demo, fit, moved, runs
from tvbo.cli.app import app, main

app.command()(fit.fit)
app.command(name="backtest")(backtest.run_backtest)
app.command()(demo.demo)
app.add_typer(runs.app, name="runs")
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.reproduce)
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.data)

__all__ = ["main"]
