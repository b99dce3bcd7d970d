"""Figures 2 and 3 of Krause, Ong (2011): a reward that depends on a context."""
