"""Binding affinities of peptides to HLA-A molecules of the immune system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from experiments.data.peptides import blosum62_features, hamming_distances
from experiments.data.recorded import data_folder
from tvbo.logs.reading import TableError
from tvbo.logs.reading.files import read_csv
from tvbo.logs.reading.log import numbers_of

AFFINITY_FILE = "mhc/affinity.csv.gz"
POCKET_FILE = "mhc/pseudosequences.csv"

RELATED = ("HLA-A*03:01", "HLA-A*11:01", "HLA-A*68:01")
UNRELATED = "HLA-A*02:01"
ITS_RELATIVES = ("HLA-A*02:06", "HLA-A*02:02", "HLA-A*02:03")
MOLECULES = (*RELATED, UNRELATED, *ITS_RELATIVES)
"""Seven of ten, by the Hamming distances of their pockets alone. Krause, Ong (2011) begin with
three related molecules and go on with A*02:01, which is not related to them. Here: the three of
smallest total distance outside its group (4, 6, 6 residues of 34; at least 9 from A*02:01), then
A*02:01, then the three nearest to it (1, 2, 2)."""

BINDS_BELOW = 500.0
"""IC50 in nM at which the reward is 0; a peptide with a lower IC50 is a binder."""

RANGE = (1.0, 50_000.0)
"""IC50 in nM to which measurements are clipped, the limit of the assays."""


@dataclass(frozen=True)
class BindingData:
    """Measurements of peptides on molecules; not every peptide was measured on every molecule.

    Args:
        molecules: Names of the ``m`` molecules, in the order asked for.
        pockets: The residues around each molecule's binding pocket, as one sequence.
        peptides: The ``p`` peptides measured on at least one molecule.
        molecule: Index in ``molecules`` of each of ``n`` measurements.
        peptide: Index in ``peptides`` of each measurement.
        reward: ``n``, ``log10(500) - log10(IC50 in nM)``: above 0 for binders.
    """

    molecules: list[str]
    pockets: list[str]
    peptides: list[str] = field(repr=False)
    molecule: Tensor = field(repr=False)
    peptide: Tensor = field(repr=False)
    reward: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def features(self) -> Tensor:
        """The peptides in the encoding of BLOSUM62, ``p x (20 * length)``."""
        return blosum62_features(self.peptides)

    @cached_property
    def distances(self) -> Tensor:
        """Hamming distances of the pockets, ``m x m``."""
        return hamming_distances(self.pockets)

    @property
    def molecule_feature(self) -> int:
        """Index of the column of :meth:`rows` that holds the molecule: the last."""
        return self.features.shape[-1]

    def rows(self, measurements: Tensor) -> Tensor:
        """Return some of the measurements as rows ``[features of the peptide | molecule]``."""
        molecule = self.molecule[measurements].to(self.features).unsqueeze(-1)
        return torch.cat([self.features[self.peptide[measurements]], molecule], dim=-1)


def mhc(molecules: Sequence[str] = MOLECULES, folder: str | Path | None = None) -> BindingData:
    """Read the binding affinities of peptides of nine residues to HLA-A molecules.

    Args:
        molecules: Names as in the files, such as ``HLA-A*02:01``, in the order wanted.
        folder: Data folder; default the one that the environment variable ``TVBO_DATA`` names.

    Raises:
        FileNotFoundError: if there is no such folder.
        TableError: if a file is missing or lacks a column, a molecule is unknown or named twice, a
            peptide is duplicated for a molecule, or an IC50 is not positive.
        ValueError: if a peptide or a pocket is no sequence of amino acids, or lengths differ.
    """
    folder = data_folder(folder)
    molecules = list(molecules)
    pockets = _table(folder / POCKET_FILE, ["allele", "pseudosequence"])
    affinity = _table(folder / AFFINITY_FILE, ["allele", "peptide", "ic50_nM"])
    pocket = pockets.set_index("allele")["pseudosequence"]
    known = set(pocket.index) & set(affinity["allele"])
    for name in molecules:
        if name not in known:
            raise TableError(f"Expected molecules among {', '.join(sorted(known))}. Got {name}.")
    if not molecules or len(set(molecules)) < len(molecules):
        raise TableError(f"Expected molecules, each named once. Got {', '.join(molecules)}.")
    affinity = affinity[affinity["allele"].isin(molecules)]
    _check_once(affinity, folder / AFFINITY_FILE)
    ic50 = numbers_of(affinity["ic50_nM"], folder / AFFINITY_FILE)
    if (ic50 <= 0).any():
        raise TableError(
            f"Expected IC50 > 0 nM in {folder / AFFINITY_FILE}. "
            f"Got {ic50[ic50 <= 0].iloc[0]:g} in line {(ic50 <= 0).idxmax()}."
        )
    reward = torch.tensor(ic50.to_numpy()).clamp(*RANGE).log10().neg() + math.log10(BINDS_BELOW)
    peptide, peptides = pd.factorize(affinity["peptide"], sort=True)
    place = {name: i for i, name in enumerate(molecules)}
    return BindingData(
        molecules=molecules,
        pockets=[pocket[name] for name in molecules],
        peptides=list(peptides),
        molecule=torch.tensor(affinity["allele"].map(place).to_numpy()),
        peptide=torch.tensor(peptide),
        reward=reward,
    )


def _table(path: Path, columns: list[str]) -> pd.DataFrame:
    frame = read_csv(path)
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise TableError(
            f"Expected columns {', '.join(columns)} in {path}. Got none named {missing[0]}."
        )
    return frame[columns]


def _check_once(affinity: pd.DataFrame, path: Path) -> None:
    repeated = affinity.duplicated(["allele", "peptide"])
    if repeated.any():
        allele, peptide, _ = affinity.loc[repeated.idxmax()]
        raise TableError(
            f"Expected each peptide once for a molecule in {path}. "
            f"Got {peptide} twice for {allele}, again in line {repeated.idxmax()}."
        )
