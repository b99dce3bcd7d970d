"""The maximum of an acquisition function, and actions that fill a space."""
