"""Backtests: algorithms fitted on one part of a log and played on the rest."""
