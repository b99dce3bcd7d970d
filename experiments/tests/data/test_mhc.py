import math

import pandas as pd
import pytest
import torch

from experiments.data.mhc import ITS_RELATIVES, MOLECULES, RELATED, UNRELATED, mhc
from experiments.data.peptides import blosum62_features
from tvbo.logs.reading import TableError

POCKETS = {"a": "YFAM", "b": "YFAW", "c": "WWWW"}
AFFINITY = [
    ("b", "ACD", 500.0),
    ("a", "ACD", 50.0),
    ("a", "WYV", 0.001),
    ("b", "KKK", 1e9),
    ("c", "KKK", 1.0),
]


def write(folder, affinity=AFFINITY, pockets=POCKETS, affinity_columns=None):
    (folder / "mhc").mkdir()
    columns = affinity_columns or ["allele", "peptide", "ic50_nM"]
    pd.DataFrame(affinity, columns=columns).to_csv(folder / "mhc/affinity.csv.gz", index=False)
    table = pd.DataFrame(pockets.items(), columns=["allele", "pseudosequence"])
    table.to_csv(folder / "mhc/pseudosequences.csv", index=False)
    return folder


def test_measurements_in_the_order_of_the_molecules(tmp_path):
    data = mhc(["b", "a"], write(tmp_path))
    assert data.molecules == ["b", "a"]
    assert data.pockets == ["YFAW", "YFAM"]
    assert data.distances.tolist() == [[0, 1], [1, 0]]
    found = {
        (data.molecules[m], data.peptides[p]): r
        for m, p, r in zip(
            data.molecule.tolist(), data.peptide.tolist(), data.reward.tolist(), strict=True
        )
    }
    assert len(data) == len(found) == 4
    assert found[("b", "ACD")] == pytest.approx(0, abs=1e-15)
    assert found[("a", "ACD")] == pytest.approx(1, abs=1e-15)
    # Clipped to 1 and 50,000 nM.
    assert found[("a", "WYV")] == pytest.approx(math.log10(500), abs=1e-15)
    assert found[("b", "KKK")] == pytest.approx(-2, abs=1e-15)


def test_rows(tmp_path):
    data = mhc(["b", "a"], write(tmp_path))
    rows = data.rows(torch.tensor([3, 0]))
    assert data.molecule_feature == 60
    names = [data.peptides[p] for p in data.peptide[[3, 0]]]
    assert torch.equal(rows[:, :60], blosum62_features(names))
    assert torch.equal(rows[:, 60], data.molecule[[3, 0]].double())


def test_recorded_data(data_folder):
    data = mhc(folder=data_folder)
    assert data.molecules == list(MOLECULES)
    assert len(data) == 27_908
    assert data.features.shape == (11_685, 180)
    assert data.reward.aminmax() == (-2.0, math.log10(500))
    assert data.reward.isfinite().all()


def test_molecules_are_chosen_by_their_distances(data_folder):
    """The rule in words in the module, by trying all sets of three."""
    names = pd.read_csv(data_folder / "mhc/pseudosequences.csv")["allele"].tolist()
    data = mhc(names, data_folder)
    place = {name: i for i, name in enumerate(names)}

    def distance(a, b):
        return data.distances[place[a], place[b]].item()

    outside = [name for name in names if not name.startswith(UNRELATED[:8])]
    triples = [
        (distance(a, b) + distance(a, c) + distance(b, c), {a, b, c})
        for a in outside
        for b in outside
        for c in outside
        if a < b < c
    ]
    best = min(total for total, _ in triples)
    assert [triple for total, triple in triples if total == best] == [set(RELATED)]
    assert sorted(distance(a, b) for a in RELATED for b in RELATED if a < b) == [4, 6, 6]
    assert min(distance(UNRELATED, name) for name in RELATED) == 9
    others = [name for name in names if name not in (*RELATED, UNRELATED)]
    nearest = sorted(others, key=lambda name: (distance(UNRELATED, name), name))[:3]
    assert tuple(nearest) == ITS_RELATIVES


@pytest.mark.parametrize(
    ("affinity", "value"),
    [
        ([*AFFINITY, ("a", "ACD", 60.0)], "ACD"),
        ([*AFFINITY, ("a", "KKK", 0.0)], "0"),
        ([("a", "KKK", "weak")], "weak"),
    ],
    ids=["twice", "not positive", "no number"],
)
def test_a_bad_affinity_is_refused(tmp_path, affinity, value):
    with pytest.raises(TableError) as error:
        mhc(["a"], write(tmp_path, affinity))
    assert value in str(error.value)
