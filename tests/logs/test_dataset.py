"""A log in order: its gaps, its span, its blocks, its thinned likeness."""

import pytest
import torch

from tvbo.logs import DriftLog, outcome_unit
from tvbo.logs.dataset import RUN

pytestmark = pytest.mark.usefixtures("double_by_default")


def make_log(times, labels=None):
    times = torch.as_tensor(times, dtype=torch.float64)
    X = torch.stack([torch.zeros(len(times)), times], dim=-1)
    Y = torch.arange(float(len(times))).unsqueeze(-1)
    return DriftLog.from_rows(X, Y, None, -1, labels)


def test_gaps_and_span_of_one_segment():
    log = make_log([3.0, 1.0, 1.0, 7.0])
    assert log.gaps.tolist() == [2.0, 4.0]
    assert log.span == 6.0


def test_gaps_and_span_of_segments():
    log = make_log([0, 1, 4, 100, 101, 103.0], torch.tensor([5, 5, 5, 2, 2, 2]))
    assert sorted(log.gaps.tolist()) == [1.0, 1.0, 2.0, 3.0]
    assert log.span == 4.0


def test_order_is_by_segment_and_time_and_keeps_ties():
    log = make_log([2, 1, 1, 0, 5.0], torch.tensor([1, 1, 1, 0, 0]))
    assert log.order.tolist() == [3, 4, 1, 2, 0]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_blocks_cover_the_log_once_and_cross_no_segment(size):
    labels = torch.tensor([0] * 10 + [1] * 3 + [2] * 4)
    log = make_log(torch.arange(17.0), labels)
    blocks = log.blocks(size)
    assert [i for rows, _ in blocks for i in range(rows.start, rows.stop)] == list(range(17))
    assert all(0 < rows.stop - rows.start <= size for rows, _ in blocks)
    assert all(len(labels[rows].unique()) == 1 for rows, _ in blocks)
    assert [rows.start for rows, is_first in blocks if is_first] == [0, 10, 13]


def test_a_thinned_log_holds_runs_from_end_to_end():
    log = make_log(torch.arange(5000.0).flip(0))
    thin = log.subsample(10 * RUN)
    assert len(thin) == 10 * RUN
    assert (thin.times[0], thin.times[-1]) == (0.0, 4999.0)
    assert int((thin.times.diff() == 1).sum()) == 10 * (RUN - 1)
    # The same observations, not others: outcomes run against the times here.
    assert torch.equal(thin.Y, 4999 - thin.times)


@pytest.mark.parametrize("power", [-480, -30, 1, 30, 480])
def test_the_unit_of_outcomes_follows_them_by_powers_of_two(power):
    Y = 3 + torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = outcome_unit(Y)
    assert 0.7 < (Y.std(correction=0) / unit).item() < 1.5
    other = Y * 2.0**power
    assert outcome_unit(other) == unit * 2.0**power
    assert torch.equal(other / outcome_unit(other), Y / unit)
    assert outcome_unit(torch.full((3,), 1e200, dtype=torch.float64)) == 1.0
