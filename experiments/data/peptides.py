"""Sequences of amino acids as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"

BLOSUM62 = torch.tensor(
    [
        [4, -1, -2, -2, 0, -1, -1, 0, -2, -1, -1, -1, -1, -2, -1, 1, 0, -3, -2, 0],
        [-1, 5, 0, -2, -3, 1, 0, -2, 0, -3, -2, 2, -1, -3, -2, -1, -1, -3, -2, -3],
        [-2, 0, 6, 1, -3, 0, 0, 0, 1, -3, -3, 0, -2, -3, -2, 1, 0, -4, -2, -3],
        [-2, -2, 1, 6, -3, 0, 2, -1, -1, -3, -4, -1, -3, -3, -1, 0, -1, -4, -3, -3],
        [0, -3, -3, -3, 9, -3, -4, -3, -3, -1, -1, -3, -1, -2, -3, -1, -1, -2, -2, -1],
        [-1, 1, 0, 0, -3, 5, 2, -2, 0, -3, -2, 1, 0, -3, -1, 0, -1, -2, -1, -2],
        [-1, 0, 0, 2, -4, 2, 5, -2, 0, -3, -3, 1, -2, -3, -1, 0, -1, -3, -2, -2],
        [0, -2, 0, -1, -3, -2, -2, 6, -2, -4, -4, -2, -3, -3, -2, 0, -2, -2, -3, -3],
        [-2, 0, 1, -1, -3, 0, 0, -2, 8, -3, -3, -1, -2, -1, -2, -1, -2, -2, 2, -3],
        [-1, -3, -3, -3, -1, -3, -3, -4, -3, 4, 2, -3, 1, 0, -3, -2, -1, -3, -1, 3],
        [-1, -2, -3, -4, -1, -2, -3, -4, -3, 2, 4, -2, 2, 0, -3, -2, -1, -2, -1, 1],
        [-1, 2, 0, -1, -3, 1, 1, -2, -1, -3, -2, 5, -1, -3, -1, 0, -1, -3, -2, -2],
        [-1, -1, -2, -3, -1, 0, -2, -3, -2, 1, 2, -1, 5, 0, -2, -1, -1, -1, -1, 1],
        [-2, -3, -3, -3, -2, -3, -3, -3, -1, 0, 0, -3, 0, 6, -4, -2, -2, 1, 3, -1],
        [-1, -2, -2, -1, -3, -1, -1, -2, -2, -3, -3, -1, -2, -4, 7, -1, -1, -4, -3, -2],
        [1, -1, 1, 0, -1, 0, 0, 0, -1, -2, -2, 0, -1, -2, -1, 4, 1, -3, -2, -2],
        [0, -1, 0, -1, -1, -1, -1, -2, -2, -1, -1, -1, -1, -2, -1, 1, 5, -2, -2, 0],
        [-3, -3, -4, -4, -2, -2, -3, -2, -2, -3, -2, -3, -1, 1, -4, -3, -2, 11, 2, -3],
        [-2, -2, -2, -3, -2, -1, -2, -3, 2, -1, -1, -2, -1, 3, -3, -2, -2, 2, 7, -1],
        [0, -3, -3, -3, -1, -2, -2, -3, -3, 3, 1, -2, 1, -1, -2, -2, 0, -3, -1, 4],
    ],
    dtype=torch.float64,
)
"""Scores of substitution in half bits, in the order of ``AMINO_ACIDS`` (Henikoff, Henikoff, 1992,
"Amino acid substitution matrices from protein blocks", PNAS 89; the table that NCBI's BLAST
uses)."""


def residues(sequences: Sequence[str]) -> Tensor:
    """Return the index in ``AMINO_ACIDS`` of each letter.

    Args:
        sequences: ``n`` sequences of the same length ``l``.

    Returns:
        ``n x l``, integers.

    Raises:
        ValueError: if there is none, the lengths differ, or a letter is no amino acid.
    """
    if len(sequences) == 0 or len(sequences[0]) == 0:
        raise ValueError("Expected at least one sequence of amino acids. Got none.")
    place = {letter: i for i, letter in enumerate(AMINO_ACIDS)}
    length = len(sequences[0])
    for sequence in sequences:
        if len(sequence) != length:
            raise ValueError(
                f"Expected sequences of one length, {length} as the first. Got {sequence!r} of "
                f"length {len(sequence)}."
            )
        if not place.keys() >= set(sequence):
            raise ValueError(f"Expected letters among {AMINO_ACIDS}. Got {sequence!r}.")
    return torch.tensor([[place[letter] for letter in sequence] for sequence in sequences])


def blosum62_features(sequences: Sequence[str]) -> Tensor:
    """Return each amino acid as its row of BLOSUM62, in which frequent substitutes are close.

    Args:
        sequences: ``n`` sequences of the same length ``l``.

    Returns:
        ``n x 20 l``, in half bits.

    Raises:
        ValueError: if there is none, the lengths differ, or a letter is no amino acid.
    """
    return BLOSUM62[residues(sequences)].flatten(-2)


def hamming_distances(sequences: Sequence[str]) -> Tensor:
    """Return the number of positions at which two sequences differ, for every pair.

    Args:
        sequences: ``n`` sequences of the same length.

    Returns:
        ``n x n``, float64.

    Raises:
        ValueError: if there is none, the lengths differ, or a letter is no amino acid.
    """
    places = residues(sequences)
    return (places.unsqueeze(1) != places).sum(dim=-1).double()
