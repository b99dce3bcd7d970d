"""Models of this library inside other optimizers."""
