import dataclasses

import pytest

from experiments.bogunovic.fig3a import bogunovic_fig3a
from experiments.claims import BEST_OF_TRAINING
from experiments.data.intel_lab import intel_lab


@pytest.fixture(scope="module")
def data():
    import os

    if not os.environ.get("TVBO_DATA"):
        pytest.skip("TVBO_DATA names no folder of recorded data")
    return intel_lab()


@pytest.fixture(scope="module")
def short(data):
    """Two trials of the whole experiment; the full one is `make validate`."""
    return bogunovic_fig3a(data, trials=2, seed=0, progress=False)


@pytest.mark.slow
def test_order_of_the_algorithms(short):
    mean = {name: row["mean_regret"] for name, row in short.results.items()}
    assert mean["TV-GP-UCB"] < mean["R-GP-UCB"] < mean["random"]
    assert mean["TV-GP-UCB"] == pytest.approx(1.0, abs=0.3)


@pytest.mark.slow
def test_the_best_arm_of_training_stands_beside_them(data, short):
    arm = max(range(len(data.arms)), key=lambda i: data.train[:, i].mean().item())
    expected = (data.test.amax(dim=1) - data.test[:, arm]).mean().item()
    row = short.results[BEST_OF_TRAINING]
    assert row["mean_regret"] == pytest.approx(expected, rel=1e-12)
    assert expected == pytest.approx(1.293, abs=5e-4)
    tv = short.results["TV-GP-UCB"]
    against = short.claims[8]
    assert against.claim.startswith(f"{BEST_OF_TRAINING} minus TV-GP-UCB")
    assert against.figure == pytest.approx(expected - tv["mean_regret"], rel=1e-9)
    assert against.standard_error == pytest.approx(tv["standard_error"], rel=1e-6)
    assert {claim.paper for claim in short.claims[8:]} == {"no claim"}


@pytest.mark.slow
def test_settings_are_the_papers(short):
    settings = short.settings
    assert 0.02 <= settings["forgetting_rate"] <= 0.04
    assert (settings["noise_variance"], settings["c1"], settings["c2"]) == (0.5, 0.8, 0.4)
    assert (settings["reset_every"], settings["train_steps"], settings["test_steps"]) == (
        15,
        432,
        288,
    )


@pytest.mark.slow
def test_every_claim_has_its_figure(short):
    assert len(short.claims) == 11
    for claim in short.to_dict()["claims"]:
        assert set(claim) >= {"claim", "held", "figure", "standard_error"}


@pytest.mark.slow
def test_repeats_with_its_seed(data):
    cut = dataclasses.replace(data, test=data.test[:30])
    one, other = (bogunovic_fig3a(cut, trials=2, seed=5, progress=False) for _ in range(2))
    assert one.results == other.results
