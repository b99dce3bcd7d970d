"""Figures 2 to 5 of Vakili et al. (2023): delayed outcomes."""
