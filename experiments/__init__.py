"""Reproductions of the papers' figures and tables, run from a checkout, not part of the package.

``python -m experiments NAME`` runs one, ``python -m experiments --list`` names them.
"""
