import math

import pytest
import torch

from experiments.data.mhc import BindingData, mhc
from experiments.krause.fig2 import (
    ONCE,
    draw_tasks,
    krause_fig2,
    play,
)
from experiments.krause.fig2_claims import worst_gap
from experiments.krause.fig2_model import METHODS, TaskPosterior, fit_examples

T = 6
SMALL = {"num_examples": 40, "num_candidates": 25, "trials_per_molecule": T, "progress": False}


@pytest.fixture(scope="module")
def short(drawn):
    return krause_fig2(drawn, trials=2, seed=1, **SMALL)


def test_shapes_and_results(short):
    methods = ["CGP-UCB", "merged", "separate"]
    assert list(short.results) == methods + [f"{name}, each peptide once" for name in methods]
    for name, row in short.results.items():
        regret = short.regret[name]
        assert regret.shape == (2, 4, T)
        assert (regret >= 0).all()
        assert row["mean_regret"] == pytest.approx(regret.mean().item(), abs=1e-12)
        assert row["related_molecules"] == pytest.approx(regret[:, :3].mean().item(), abs=1e-12)
        assert row["fourth_molecule"] == pytest.approx(regret[:, 3].mean().item(), abs=1e-12)
        assert row["later_molecules"] is None
        assert 0 <= row["share_of_repeats"] < 1
        assert row["share_of_repeats"] == 0 or not name.endswith(ONCE)


def test_methods_start_alike(short):
    """The first trial is a tie, broken alike for all; another one for each seed."""
    firsts = torch.stack([rows[:, 0, 0] for rows in short.regret.values()])
    assert (firsts == firsts[0]).all()
    assert len(firsts[0].unique()) > 1


def test_repeats_with_its_seed(short, drawn):
    again = krause_fig2(drawn, trials=1, seed=2, **SMALL)
    for name, rows in again.regret.items():
        assert torch.equal(rows[0], short.regret[name][1])


def test_examples_are_no_candidates(drawn, generator):
    numbered = BindingData(
        drawn.molecules,
        drawn.pockets,
        drawn.peptides,
        drawn.molecule,
        drawn.peptide,
        torch.arange(len(drawn)).double(),
    )
    examples, tasks = draw_tasks(numbered, 40, None, generator)
    offered = torch.cat([task.reward for task in tasks]).long()
    assert len(examples) == 40
    everything = torch.cat([examples, offered]).sort().values
    assert torch.equal(everything, torch.arange(len(drawn)))
    for place, task in enumerate(tasks):
        measured = task.reward.long()
        assert (drawn.molecule[measured] == place).all()
        assert torch.equal(task.rows, drawn.rows(measured))
    _, fewer = draw_tasks(numbered, 40, 7, torch.Generator().manual_seed(0))
    _, all_of_them = draw_tasks(numbered, 40, None, torch.Generator().manual_seed(0))
    for few, every in zip(fewer, all_of_them, strict=True):
        assert torch.equal(few.reward, every.reward[:7])


@pytest.mark.parametrize("once", [False, True])
def test_trials_follow_a_plain_loop(drawn, generator, once):
    """Algorithm of Krause, Ong (2011), Section 3, with the posterior in plain algebra."""
    examples, tasks = draw_tasks(drawn, 40, 12, generator)
    covars = {
        "CGP-UCB": lambda z, scale: torch.exp(-drawn.distances[z][:, z] / scale),
        "merged": lambda z, _: torch.ones(len(z), len(z)),
        "separate": lambda z, _: (z.unsqueeze(-1) == z).double(),
    }
    for name, method in METHODS.items():
        model = fit_examples(drawn, examples, method, generator)
        kernel = model.context_action_kernel
        action = kernel.action_kernel.base_kernel
        scale = getattr(kernel.context_kernel.base_kernel, "lengthscale", None)
        signal, length = action.outputscale.item(), action.base_kernel.lengthscale.item()
        noise, mean = model.likelihood.noise.item(), model.mean_module.constant.item()
        X, y = torch.empty(0, drawn.molecule_feature + 1, dtype=torch.float64), []
        expected = []
        for j, task in enumerate(tasks):
            places = []
            for i in range(T):
                rows = torch.cat([X, task.rows])
                squared = torch.cdist(rows[:, :-1], rows[:, :-1]).square()
                context = covars[name](rows[:, -1].long(), None if scale is None else scale.item())
                K = signal * torch.exp(-squared / (2 * length**2)) * context
                n = len(X)
                K_n = K[:n, :n] + noise * torch.eye(n, dtype=torch.float64)
                residual = torch.tensor(y, dtype=torch.float64) - mean
                mu = mean + K[n:, :n] @ torch.linalg.solve(K_n, residual)
                variance = signal - (K[n:, :n] * torch.linalg.solve(K_n, K[:n, n:]).mT).sum(dim=1)
                t = i + 1 if name == "separate" else j * T + i + 1
                beta = 0.8 * torch.tensor(4.0 * t, dtype=torch.float64).log()
                upper = mu + (beta * variance.clamp_min(0)).sqrt()
                # Where nothing is known all tie: the first of them, which is a random one.
                alike = upper.max() - upper.min() < 1e-10
                upper[places if once else []] = -torch.inf
                places.append(0 if alike else int(upper.argmax()))
                X = torch.cat([X, task.rows[places[-1:]]])
                y.append(task.reward[places[-1]].item())
            expected.append(places)
        posterior = TaskPosterior(model)
        chosen = play(posterior, tasks, T, method, lambda t: 0.8 * math.log(4 * t), once)
        assert chosen.tolist() == expected, name


def test_claims(short):
    """Each against a difference written out here."""
    assert len(short.claims) == 22
    for end, claims in (("", short.claims[:11]), (ONCE, short.claims[11:])):
        curves = [short.regret[name + end] for name in METHODS]
        assert [claim.figure for claim in claims] == pytest.approx(differences(*curves), abs=1e-12)
        assert all(("added later" in claim.claim) == (end == ONCE) for claim in claims)
        for claim in claims[1:]:
            assert claim.held == (claim.figure > 2 * claim.standard_error)
        assert claims[0].held == (abs(claims[0].figure) <= 0.1)


def differences(*curves):
    cgp, merged, separate = (
        {
            "first": rows[:, :3].mean().item(),
            "fourth": rows[:, 3].mean().item(),
            "all": rows.mean().item(),
            "gap": worst_gap(rows).mean().item(),
            "end": worst_gap(rows)[:, -1].mean().item(),
        }
        for rows in curves
    )
    return [
        merged["first"] / cgp["first"] - 1,
        separate["first"] - cgp["first"],
        separate["first"] - merged["first"],
        merged["fourth"] - cgp["fourth"],
        merged["fourth"] - separate["fourth"],
        merged["all"] - cgp["all"],
        separate["all"] - cgp["all"],
        merged["gap"] - cgp["gap"],
        separate["gap"] - cgp["gap"],
        merged["end"] - cgp["end"],
        separate["end"] - cgp["end"],
    ]


@pytest.mark.slow
def test_short_on_the_recorded_data(data_folder):
    short = krause_fig2(
        mhc(folder=data_folder),
        trials=1,
        num_examples=150,
        num_candidates=100,
        trials_per_molecule=4,
        progress=False,
    )
    assert short.settings["measurements"] == [4675, 3985, 1874, 8566, 3031, 2278, 3499]
    assert short.regret["CGP-UCB"].shape == (1, 7, 4)
    assert short.claims[1].standard_error is None
    assert not short.claims[1].held
    assert short.results["merged, each peptide once"]["share_of_repeats"] == 0
