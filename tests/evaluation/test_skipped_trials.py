"""`run` where the optimizer skips trials, or discards their outcomes."""

import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel

from tvbo import recipes, run
from tvbo.test_functions import PanelProblem


class Counted(PanelProblem):
    """Notes the rows that are evaluated, and those that are only scored."""

    def __init__(self, values):
        super().__init__(values, noise_variance=0.05)
        self.evaluated = []

    def __call__(self, X):
        self.evaluated.append(X.squeeze(0).tolist())
        return super().__call__(X)


def compressed(problem, mode, horizon=25, **options):
    """Two constant arms, each worth a few looks."""
    optimizer = recipes.compressed_gp(
        choices=problem.choices,
        covar_module=RBFKernel().double(),
        noise_variance=0.05,
        budget=0.15,
        mode=mode,
    )
    return optimizer, run(problem, optimizer, horizon=horizon, progress=False, **options)


@pytest.fixture
def two_arms():
    return Counted(torch.tensor([[0.3, 1.0]]).expand(25, 2))


def test_skipped_trials_are_scored_but_not_evaluated(two_arms):
    optimizer, history = compressed(two_arms, "skip")
    evaluated = history.evaluated
    assert 0 < evaluated.sum() < 25
    assert evaluated.tolist() == [not r.trial.skipped for r in history.rounds]
    asked = torch.cat([history.X, history.t.unsqueeze(-1)], dim=-1)
    assert two_arms.evaluated == asked[evaluated].tolist()
    assert torch.equal(history.reward.isnan(), ~evaluated)
    # One of the two arms is 0.7 worse, whether it was tried or not.
    expected = torch.where(history.X[:, 0] == two_arms.choices[1, 0], 0.0, 0.7)
    torch.testing.assert_close(history.regret, expected.double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        history.average_regret[-1], history.regret.mean(), rtol=0, atol=1e-12
    )
    assert optimizer.open_trials == ()
    assert optimizer.model_size == evaluated.sum() == len(history.observations())
    assert optimizer.rejection_log.num_skipped == (~evaluated).sum()


def test_no_noise_is_drawn_for_what_is_skipped(two_arms):
    """A world that is left alone does not change: so runs with and without skips compare."""
    _, history = compressed(two_arms, "skip")
    fresh = Counted(torch.tensor([[0.3, 1.0]]).expand(25, 2))
    rows = torch.cat([history.X, history.t.unsqueeze(-1)], dim=-1)[history.evaluated]
    noisy = torch.cat([fresh(row.unsqueeze(0)) for row in rows])
    assert torch.equal(noisy, history.reward[history.evaluated])


def test_a_skipped_trial_has_no_delay(two_arms):
    delayed = []

    def delay(trial):
        delayed.append(trial.id)
        return 2.0

    _, history = compressed(two_arms, "skip", delay=delay)
    assert delayed == [r.trial.id for r in history.rounds if not r.trial.skipped]
    assert len(delayed) < 25


def test_discarded_trials_are_evaluated_and_told(two_arms):
    optimizer, history = compressed(two_arms, "discard")
    assert len(two_arms.evaluated) == 25
    assert history.evaluated.all()
    assert history.reward.isfinite().all()
    kept = [r.trial.informative for r in history.rounds]
    assert 0 < optimizer.model_size == sum(kept) < 25
    assert optimizer.rejection_log.num_discarded == 25 - sum(kept)
    assert optimizer.open_trials == ()
    frame = history.to_frame()
    assert frame["informative"].tolist() == kept
    assert frame["evaluated"].tolist() == [True] * 25
    # What was told is in the log, kept or not.
    assert len(history.observations()) == 25


def test_frame_of_skipped_trials(two_arms, tmp_path):
    _, history = compressed(two_arms, "skip")
    frame = history.to_frame()
    assert frame["evaluated"].tolist() == history.evaluated.tolist()
    assert frame["informative"].tolist() == frame["evaluated"].tolist()
    assert frame["reward"].isna().tolist() == (~frame["evaluated"]).tolist()
    assert frame["evaluation_seconds"].tolist() == history.evaluation_seconds.tolist()
    history.to_csv(tmp_path / "rounds.csv")
    written = pd.read_csv(tmp_path / "rounds.csv", dtype={"reason": str}).fillna({"reason": ""})
    pd.testing.assert_frame_equal(written, frame)


def test_what_is_skipped_takes_no_evaluation_time(two_arms):
    _, history = compressed(two_arms, "skip")
    assert (history.evaluation_seconds[history.evaluated] > 0).all()
    assert (history.evaluation_seconds[~history.evaluated] == 0).all()
