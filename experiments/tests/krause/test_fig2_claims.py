import pytest
import torch

from experiments.krause.fig2_claims import make_claims, worst_gap


def test_worst_gap_against_a_double_loop():
    regret = torch.tensor([[[3.0, 1.0, 2.0], [2.0, 2.5, 0.5]], [[1.0, 0.0, 4.0], [0.5, 0.7, 0.2]]])
    expected = [
        [max(min(task[: t + 1]) for task in trial) for t in range(3)] for trial in regret.tolist()
    ]
    assert worst_gap(regret).tolist() == expected
    assert expected == [[3.0, 2.0, 1.0], [1.0, 0.5, pytest.approx(0.2)]]


def test_claims_of_curves_made_for_them():
    """Held, where every difference is as the paper has it; none where it is the other way round."""
    jitter = torch.linspace(0, 0.01, 5, dtype=torch.float64).reshape(5, 1, 1)

    def curves(cgp, merged, separate):
        return {
            name: torch.tensor(rows, dtype=torch.float64).unsqueeze(-1).expand(5, 5, 4)
            + jitter * (place + 1)
            for place, (name, rows) in enumerate(
                {"CGP-UCB": cgp, "merged": merged, "separate": separate}.items()
            )
        }

    as_in_paper = curves([1, 1, 1, 1, 1.0], [1.02, 1.02, 1.02, 4, 4], [2, 2, 2, 2, 2.0])
    assert [claim.held for claim in make_claims(as_in_paper)] == [True] * 11
    reverse = curves([2, 2, 2, 2, 2.0], [1.5, 1.5, 1.5, 1, 1], [1.2, 1.2, 1.2, 1.2, 1.2])
    assert [claim.held for claim in make_claims(reverse)] == [False] * 11
