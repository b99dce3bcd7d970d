"""The papers' figures and tables, done again: not part of the package, run from a checkout.

``python -m experiments NAME`` runs one, ``python -m experiments --list`` names them.
"""
