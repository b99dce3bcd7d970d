"""What the papers prove, as functions."""

from tvbo.theory.block_length import block_length

__all__ = ["block_length"]
