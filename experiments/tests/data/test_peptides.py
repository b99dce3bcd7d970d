import pytest
import torch

from experiments.data.peptides import (
    AMINO_ACIDS,
    BLOSUM62,
    blosum62_features,
    hamming_distances,
    residues,
)


def score(a, b):
    return BLOSUM62[AMINO_ACIDS.index(a), AMINO_ACIDS.index(b)].item()


def test_blosum62():
    assert BLOSUM62.shape == (20, 20)
    assert torch.equal(BLOSUM62, BLOSUM62.mT)
    assert "".join(sorted(AMINO_ACIDS)) == "ACDEFGHIKLMNPQRSTVWY"
    # The diagonal and the pairs with positive scores, as the table is known.
    diagonal = dict(zip(AMINO_ACIDS, BLOSUM62.diagonal().tolist(), strict=True))
    assert [a for a in AMINO_ACIDS if diagonal[a] == 4] == list("AILSV")
    assert [a for a in AMINO_ACIDS if diagonal[a] == 5] == list("RQEKMT")
    assert [a for a in AMINO_ACIDS if diagonal[a] == 6] == list("NDGF")
    assert [diagonal[a] for a in "PYHCW"] == [7, 7, 8, 9, 11]
    pairs = {
        a + b: score(a, b)
        for i, a in enumerate(AMINO_ACIDS)
        for b in AMINO_ACIDS[i + 1 :]
        if score(a, b) > 0
    }
    assert {pair for pair, value in pairs.items() if value >= 2} == {
        "RK", "DE", "QE", "HY", "IL", "IV", "LM", "FY", "WY",
    }  # fmt: skip
    assert {pair for pair, value in pairs.items() if value == 1} == {
        "AS", "RQ", "ND", "NH", "NS", "QK", "EK", "IM", "LV", "MV", "FW", "ST",
    }  # fmt: skip
    assert BLOSUM62.min() == -4


def test_features_against_a_double_loop():
    peptides = ["ACD", "WYV", "ACV"]
    features = blosum62_features(peptides)
    assert features.shape == (3, 60)
    assert features.dtype == torch.float64
    for i, peptide in enumerate(peptides):
        expected = [score(a, b) for a in peptide for b in AMINO_ACIDS]
        assert features[i].tolist() == expected


def test_hamming_distances_against_a_double_loop():
    sequences = ["ACDW", "ACDW", "WCDA", "YYYY"]
    expected = [[sum(a != b for a, b in zip(x, y, strict=True)) for y in sequences]
                for x in sequences]  # fmt: skip
    assert hamming_distances(sequences).tolist() == expected


def test_sequences_that_are_none():
    with pytest.raises(ValueError):
        residues([])
    with pytest.raises(ValueError):
        residues([""])
    with pytest.raises(ValueError):
        residues(["ACD", "AC"])
    with pytest.raises(ValueError):
        residues(["ACD", "ACX"])
