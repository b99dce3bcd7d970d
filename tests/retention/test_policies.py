import pytest
import torch

from tvbo.retention import KeepAll, Reset, SlidingWindow, StaleCutoff
from tvbo.spaces.observations import Observations


def at_times(*times):
    t = torch.tensor(times, dtype=torch.float64).unsqueeze(-1)
    return Observations(torch.cat([torch.zeros_like(t), t], dim=-1), torch.zeros_like(t))


def kept(policy, times, t):
    return [
        x for x, keep in zip(times, policy.keep(at_times(*times), None, t), strict=True) if keep
    ]


def test_keep_all():
    assert kept(KeepAll(), [1, 5, 9], 1e9) == [1, 5, 9]


def test_reset_is_where_t_mod_n_is_one():
    rounds = list(range(1, 16))
    assert kept(Reset(every=15), rounds[:14], 15) == rounds[:14]
    assert kept(Reset(every=15), rounds, 16) == []
    assert kept(Reset(every=15), [*rounds, 16, 17], 18) == [16, 17]


def test_reset_of_blocks_in_real_time():
    assert kept(Reset(every=2.5, start=0.0), [0.0, 2.4, 2.5, 4.9], 4.95) == [2.5, 4.9]


def test_window_keeps_what_is_no_older_than_its_length():
    assert kept(SlidingWindow(length=3), [1, 2, 3, 4], 5) == [2, 3, 4]


def test_no_observations():
    for policy in (KeepAll(), Reset(every=3), SlidingWindow(length=3), StaleCutoff(0.1)):
        assert policy.keep(at_times(), None, 1.0).shape == (0,)


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan")])
def test_bad_lengths(bad):
    with pytest.raises(ValueError):
        Reset(every=bad)
    with pytest.raises(ValueError):
        SlidingWindow(length=bad)


def test_stale_is_what_weighs_no_more_than_the_tolerance():
    """Half is lost per unit of time: 2^-3 is kept at tol 0.1, 2^-4 is not."""
    policy = StaleCutoff(0.5, tol=0.1)
    assert kept(policy, [1, 5.9, 6, 7, 9.5, 10], 10) == [7, 9.5, 10]
    assert kept(policy, [6.0, 6.6, 6.7, 7.0], 10) == [6.7, 7.0]


def test_without_forgetting_nothing_is_stale_and_with_rate_one_all_but_the_present():
    assert kept(StaleCutoff(0.0), [-1e12, 5.0], 1e12) == [-1e12, 5.0]
    assert kept(StaleCutoff(1.0), [4.0, 4.999, 5.0], 5.0) == [5.0]


def test_bad_cutoffs():
    for bad in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError):
            StaleCutoff(bad)
    for bad in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError):
            StaleCutoff(0.1, tol=bad)
