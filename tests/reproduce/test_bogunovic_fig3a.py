import dataclasses

import pytest

from tvbo.commands.experiments import EXPERIMENTS
from tvbo.problems.intel_lab import intel_lab
from tvbo.reproduce import bogunovic_fig3a


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


def test_order_of_the_algorithms(short):
    mean = {name: row["mean_regret"] for name, row in short.results.items()}
    assert mean["TV-GP-UCB"] < mean["R-GP-UCB"] < mean["GP-UCB"] < mean["random"]
    assert mean["TV-GP-UCB"] == pytest.approx(1.0, abs=0.15)
    assert "RExp3" in mean


def test_settings_are_the_papers(short):
    settings = short.settings
    assert 0.02 <= settings["forgetting_rate"] <= 0.04
    assert (settings["noise_variance"], settings["c1"], settings["c2"]) == (0.5, 0.8, 0.4)
    assert (settings["reset_every"], settings["train_steps"], settings["test_steps"]) == (
        15,
        432,
        288,
    )


def test_every_claim_has_its_figure(short):
    assert len(short.claims) == 8
    for claim in short.to_dict()["claims"]:
        assert set(claim) >= {"claim", "held", "figure", "standard_error"}


def test_picture(short):
    (ax,) = EXPERIMENTS["bogunovic-fig3a"].plot(short).axes
    assert len(ax.get_lines()) == 5
    assert ax.get_ylabel() == "average regret (°C)"


def test_repeats_with_its_seed(data):
    cut = dataclasses.replace(data, test=data.test[:30])
    one, other = (bogunovic_fig3a(cut, trials=2, seed=5, progress=False) for _ in range(2))
    assert one.results == other.results


def test_trials_must_be_positive(data):
    with pytest.raises(ValueError, match="trials >= 1. Got 0"):
        bogunovic_fig3a(data, trials=0)
