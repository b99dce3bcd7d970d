"""The command line: ``tvbo fit``, ``backtest``, ``demo``, ``diagnose``, ``runs``."""

from tvbo.cli import backtest, demo, diagnose, fit, moved, runs
from tvbo.cli.app import app, main

app.command()(fit.fit)
app.command(name="backtest")(backtest.run_backtest)
app.command()(demo.demo)
app.command(name="diagnose")(diagnose.run_diagnose)
app.add_typer(runs.app, name="runs")
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.reproduce)
app.command(hidden=True, context_settings=moved.ANY_ARGUMENTS)(moved.data)

__all__ = ["main"]
