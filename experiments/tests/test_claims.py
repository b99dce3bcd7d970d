import json
from dataclasses import replace

import pytest
import torch

from experiments.claims import (
    Claim,
    Reproduction,
    claim_below,
    claim_rate,
    jackknife,
    mean_and_error,
)
from tvbo.logs import fit_drift
from tvbo.logs.dataset import panel_rows


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


def test_claim_below_beyond_standard_errors():
    lower = torch.zeros(4, dtype=torch.float64)
    higher = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    claim = claim_below("b minus a", lower, higher)
    ratio = claim.figure / claim.standard_error
    assert claim_below("b minus a", lower, higher, standard_errors=ratio - 0.01).held
    beyond = claim_below("b minus a", lower, higher, standard_errors=ratio + 0.01)
    assert not beyond.held
    assert (beyond.figure, beyond.standard_error) == (claim.figure, claim.standard_error)
    assert not claim_below("a minus b", higher, lower, standard_errors=1).held


@pytest.mark.parametrize(("low", "held"), [(0.02, True), (0.06, False)])
def test_claim_rate(low, held):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20, 3, generator=generator, dtype=torch.float64).cumsum(dim=0)
    fit = fit_drift(*panel_rows(values, torch.arange(20.0)), noise_variance=0.1)
    fit = replace(fit, forgetting_rate=0.05, forgetting_rate_interval=(0.03, 0.08))
    claim = claim_rate("c", fit, low=low, high=0.08, paper="0.04")
    assert (claim.held, claim.figure, claim.paper) == (held, 0.05, "0.04")
    assert claim.standard_error == pytest.approx(0.05 / 3.92)


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


def test_jackknife_of_a_mean_is_its_standard_error(generator):
    samples = torch.randn(40, generator=generator, dtype=torch.float64)
    value, error = jackknife(lambda x: x.mean().item(), samples)
    assert (value, error) == pytest.approx(mean_and_error(samples), rel=1e-9)


def test_jackknife_leaves_out_a_whole_trial(generator):
    pairs = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    _, error = jackknife(lambda x: (x[1].mean() - x[0].mean()).item(), pairs)
    assert error == pytest.approx(mean_and_error(pairs[1] - pairs[0])[1], rel=1e-9)
    assert jackknife(lambda x: x.mean().item(), pairs[:, :2])[1] is None
