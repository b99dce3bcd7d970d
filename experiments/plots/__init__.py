"""Plots of the figures, one module for each paper."""
