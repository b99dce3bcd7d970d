"""Algorithms that figures and benchmarks compare with those of the package."""
