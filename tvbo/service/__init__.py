"""Runs for people and programs that are not Python: pages, and calls over HTTP."""
