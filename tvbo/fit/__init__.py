"""Hyperparameters of a model: their log posterior, its maximum, and what is said of both."""
