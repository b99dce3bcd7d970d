"""Figures 2 and 3 of Bogunovic et al. (2016): a reward that drifts."""
