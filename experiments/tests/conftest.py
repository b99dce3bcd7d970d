import pytest
import torch

from experiments.data.mhc import BindingData
from experiments.data.peptides import AMINO_ACIDS


@pytest.fixture(scope="session")
def drawn():
    """Four molecules, 60 peptides of three residues, each measured on three of the molecules.

    What counts on the first three is the first residue; on the fourth it is the last.
    """
    generator = torch.Generator().manual_seed(3)
    letters = torch.randint(20, (80, 3), generator=generator).tolist()
    peptides = sorted({"".join(AMINO_ACIDS[i] for i in row) for row in letters})[:60]
    worth = torch.randn(20, dtype=torch.float64, generator=generator)
    molecule, peptide, reward = [], [], []
    for p, name in enumerate(peptides):
        for m in range(4):
            if p % 4 == m:
                continue
            noise = 0.1 * torch.randn((), dtype=torch.float64, generator=generator)
            molecule.append(m)
            peptide.append(p)
            reward.append(worth[AMINO_ACIDS.index(name[2 if m == 3 else 0])] + noise)
    return BindingData(
        molecules=["m0", "m1", "m2", "m3"],
        pockets=["AAAAAA", "AAAAAC", "AAAACC", "WWWWWW"],
        peptides=peptides,
        molecule=torch.tensor(molecule),
        peptide=torch.tensor(peptide),
        reward=torch.stack(reward),
    )
