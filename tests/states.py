"""Posterior states outside of an optimizer."""

from tvbo.optimizers.pending import IgnorePending


def updated(state, observations, num_told, generator):
    """The posterior of a state after an update, without pending trials."""
    state.update(observations, num_told, generator)
    return state.condition(observations, observations.X[:0], IgnorePending())
