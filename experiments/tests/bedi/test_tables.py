import math
from dataclasses import replace

import pytest
import torch

from experiments.bedi.claims import bounds
from experiments.bedi.setting import (
    COMPRESSED,
    DENSE,
    GROWING,
    NOISE_VARIANCE,
    PAPERS,
    REFACTORED,
    Setting,
    excess,
    growth,
    play,
)
from experiments.bedi.tables import bedi_table2, bedi_table3, bedi_table4
from experiments.data.digits import ClassificationData, digits
from experiments.problems.static_functions import ExampleFunction
from experiments.registry import EXPERIMENTS
from tvbo.acquisition import ConstantBeta

# Dense, compressed and BKB clock times of the paper's Tables 2, 3 and 4: first over second.
PAPER_RATIOS = {
    "bedi-table2": {"UCB": 6.756 / 5.335, "EI": 7.594 / 4.133, "MPI": 5.199 / 3.864},
    "bedi-table3": {"UCB": 2.412 / 1.905, "EI": 2.604 / 2.246, "MPI": 2.533 / 2.186},
    "bedi-table4": {"UCB": 0.994 / 0.282, "EI": 0.992 / 0.266, "MPI": 0.993 / 0.227},
}


def make_setting(horizon=50, n=40):
    choices = 10 * torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1)
    return Setting(
        problem=lambda generator: ExampleFunction(
            choices, noise_variance=NOISE_VARIANCE, generator=generator
        ),
        choices=choices,
        horizon=horizon,
        paper_seconds={},
        unit="s",
    )


@pytest.fixture(scope="module")
def short():
    return bedi_table2(trials=2, horizon=16, progress=False)


@pytest.fixture(scope="module")
def curves():
    trials = {DENSE: 2, COMPRESSED: 2, PAPERS: 1, "BKB": 1, REFACTORED: 1}
    return play(make_setting(), trials, seed=0, progress=False, label="")


@pytest.mark.slow
@pytest.mark.parametrize("acquisition", ["UCB", "EI", "MPI"])
def test_both_forms_of_the_dense_model_choose_alike(curves, acquisition):
    grown, refactored = (curves[f"{acquisition}, {method}"] for method in (DENSE, REFACTORED))
    # The first rounds: later, choices whose values differ by rounding are chosen by it.
    torch.testing.assert_close(refactored.regret[0, :25], grown.regret[0, :25], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("acquisition", ["UCB", "EI", "MPI"])
def test_the_compressed_model_starts_as_the_dense_one(curves, acquisition):
    dense, compressed = (curves[f"{acquisition}, {method}"] for method in (DENSE, COMPRESSED))
    for trial in range(2):
        refused = (compressed.evaluated[trial] == 0).nonzero()
        assert len(refused) > 0
        first = int(refused[0])
        torch.testing.assert_close(
            compressed.regret[trial, :first], dense.regret[trial, :first], rtol=0, atol=0
        )


@pytest.mark.slow
def test_who_grows(curves):
    initial = 2
    for acquisition in ("UCB", "EI", "MPI"):
        dense = curves[f"{acquisition}, {DENSE}"]
        assert dense.model_order[0].tolist() == [initial + i for i in range(50)]
        assert (dense.evaluated == 1).all()
        compressed = curves[f"{acquisition}, {COMPRESSED}"]
        # What the model holds is what was evaluated, and what it began with.
        before = compressed.evaluated.cumsum(dim=1) - compressed.evaluated
        torch.testing.assert_close(compressed.model_order, before + initial)
        assert curves[f"{acquisition}, BKB"].model_order[0, -1] < 40


@pytest.mark.slow
def test_the_papers_budget_refuses_nothing_in_so_few_rounds(curves):
    for acquisition in ("UCB", "EI", "MPI"):
        papers = curves[f"{acquisition}, {PAPERS}"]
        assert (papers.evaluated == 1).all()
        torch.testing.assert_close(papers.regret, curves[f"{acquisition}, {DENSE}"].regret[:1])


def test_the_width_is_that_of_the_last_round():
    setting = make_setting(horizon=1000, n=50)
    beta = setting.acquisitions()["UCB"].beta
    assert isinstance(beta, ConstantBeta)
    assert beta(1) == pytest.approx(2 * math.log(50 * 1000**2 * math.pi**2 / (6 * 0.9)), rel=1e-12)
    growing = setting.acquisitions()[GROWING].beta
    # After the first dictionary, whose trials count as well.
    first = setting.num_first
    assert growing(first + 1) < growing(first + 999) < beta(1)
    assert growing(first + 1000) == pytest.approx(beta(1), rel=1e-12)


@pytest.mark.parametrize(("dim", "expected"), [(1, 0.75), (2, 0.375), (4, 0.1875)])
def test_budget(dim, expected):
    setting = replace(make_setting(horizon=1000), choices=torch.zeros(3, dim))
    assert setting.budget == pytest.approx(0.5 * math.log(1 + 1000**-expected), rel=1e-12)


@pytest.mark.slow
def test_the_bounds_are_above(curves):
    found = bounds(make_setting())
    for acquisition in ("UCB", "EI", "MPI", GROWING):
        order = curves[f"{acquisition}, {COMPRESSED}"].model_order.max()
        assert order < min(found["cell_bound"], found["information_bound"])


def test_growth_by_hand():
    order = torch.tensor([[1.0, 2, 3, 4, 4, 6], [1, 2, 3, 3, 3, 3]])
    assert growth(order).tolist() == [3, 0]


def test_excess_by_hand():
    dense = torch.tensor([[1.0, 3], [2, 4], [6, 2]], dtype=torch.float64)
    compressed = torch.tensor([[1.0, 2], [3, 4], [5, 3]], dtype=torch.float64)
    more, error = excess(compressed, dense)
    ratio = (1.5 + 3.5 + 4) / (2 + 3 + 4)
    assert more == pytest.approx(ratio - 1, rel=1e-12)
    residual = [1.5 - ratio * 2, 3.5 - ratio * 3, 4 - ratio * 4]
    expected = math.sqrt(sum(r**2 for r in residual) / 2) / 3 / math.sqrt(3)
    assert error == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow
def test_claims_and_the_papers_figures(short):
    assert len(short.claims) == 3 * 8 + 1
    for acquisition, ratio in PAPER_RATIOS["bedi-table2"].items():
        (clock,) = [
            claim
            for claim in short.claims
            if claim.claim.startswith(f"{acquisition}: clock time, dense over compressed")
        ]
        assert float(clock.paper.split()[0]) == pytest.approx(ratio, rel=5e-3)
        seconds = [
            short.curves["seconds"][f"{acquisition}, {method}"].sum(dim=1)
            for method in (DENSE, COMPRESSED)
        ]
        assert clock.figure == pytest.approx((seconds[0] / seconds[1]).mean().item(), rel=1e-12)
        assert clock.held == (clock.figure > ratio)
        for method, budget in ((COMPRESSED, ""), (PAPERS, ": with ε = 0.0001")):
            named = f"{acquisition}{budget}: points at the end"
            (order,) = [claim for claim in short.claims if claim.claim.startswith(named)]
            points = [
                short.results[f"{acquisition}, {name}"]["model_order"] for name in (DENSE, method)
            ]
            assert order.figure == pytest.approx(points[0] / points[1], rel=1e-12)
            assert order.held == (order.figure >= 10)
    assert short.to_dict()["settings"]["budget"] == pytest.approx(0.5 * math.log(1 + 16**-0.75))


@pytest.mark.slow
def test_repeats_with_its_seed():
    once = {DENSE: 1, COMPRESSED: 1, PAPERS: 0, "BKB": 1}
    setting = make_setting(horizon=10, n=30)
    one, again, other = (play(setting, once, seed, False, "") for seed in (0, 0, 7))
    for name, each in one.items():
        torch.testing.assert_close(again[name].regret, each.regret, rtol=0, atol=0)
    assert not torch.equal(other["UCB, dense"].regret, one["UCB, dense"].regret)


@pytest.mark.slow
def test_picture(short):
    figure = EXPERIMENTS["bedi-table2"].plot(short)
    assert len(figure.axes) == 9
    assert [ax.get_title() for ax in figure.axes[:3]] == ["UCB", "EI", "MPI"]
    assert [len(ax.get_lines()) for ax in figure.axes] == [3] * 6 + [4] * 3
    assert figure.axes[3].get_ylabel() == "clock time (s)"


@pytest.mark.slow
def test_table3_short():
    result = bedi_table3(trials=1, horizon=12, progress=False)
    assert result.settings["num_choices"] == 900
    assert result.settings["num_initial"] == 4
    for claim in result.claims:
        acquisition = claim.claim.split(":")[0]
        if "clock time, dense over compressed" in claim.claim:
            ratio = PAPER_RATIOS["bedi-table3"][acquisition]
            assert float(claim.paper.split()[0]) == pytest.approx(ratio, rel=5e-3)


@pytest.mark.slow
def test_table4_short():
    data = digits()
    few = ClassificationData(
        data.train_X[:100], data.train_Y[:100], data.test_X[:50], data.test_Y[:50], 10
    )
    result = bedi_table4(few, trials=1, horizon=25, epochs=1, points=2, progress=False)
    assert result.settings["num_choices"] == 16
    assert result.settings["training_examples"] == 100
    assert 0.1 < result.settings["best_mean_accuracy"] <= 1
    assert result.results["UCB, dense"]["evaluated"] == 1
    # Sixteen choices are known after fewer looks than twenty-five.
    assert result.results["MPI, compressed"]["evaluated"] < 1
    assert len(EXPERIMENTS["bedi-table4"].plot(result).axes) == 9
