import json

import pytest
import torch

from tvbo.reproduce import Claim, Reproduction, claim_below, mean_and_error


def test_mean_and_error():
    assert mean_and_error(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx((2.0, 1 / 3**0.5))
    assert mean_and_error(torch.tensor([5.0])) == (5.0, None)


def test_claim_below_is_paired():
    lower = torch.tensor([1.0, 5.0, 9.0], dtype=torch.float64)
    claim = claim_below("b minus a", lower, lower + torch.tensor([1.0, 1.1, 0.9]))
    assert claim.held
    assert claim.figure == pytest.approx(1.0)
    assert claim.standard_error == pytest.approx(0.1 / 3**0.5)
    assert not claim_below("a minus b", lower + 1, lower).held


def test_json_has_claims_and_results(tmp_path):
    result = Reproduction(
        "x",
        "title",
        {"seed": 0},
        {"a": {"mean_regret": 1.0}},
        [Claim("c", True, 2.0, 0.1, "p")],
        {"a": torch.zeros(1, 2)},
    )
    result.to_json(tmp_path / "x.json")
    saved = json.loads((tmp_path / "x.json").read_text())
    assert saved["claims"] == [
        {"claim": "c", "held": True, "figure": 2.0, "standard_error": 0.1, "paper": "p"}
    ]
    assert saved["results"]["a"]["mean_regret"] == 1.0
