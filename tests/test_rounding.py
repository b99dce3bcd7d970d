import pytest
import torch

from tvbo.rounding import TIE_TOLERANCE, argmax, tied_for_largest


def as_values(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("factor", [1.0, -1.0, 2.0**-200, 2.0**200])
def test_rounding_makes_no_difference_and_more_does(factor):
    """At any scale and either sign."""
    base = as_values(3.0, 5.0, 5.0, 4.0) * factor
    place = 1 if factor > 0 else 0
    expected = (base == base.max()).tolist()
    rounded = base * as_values(1 + 1e-12, 1 - 1e-12, 1.0, 1 + 1e-12)
    assert tied_for_largest(rounded).tolist() == expected
    assert int(argmax(rounded)) == place
    more = base.clone()
    more[2] += 10 * TIE_TOLERANCE * abs(5.0 * factor)
    assert int(argmax(more)) == (2 if factor > 0 else 0)


def test_a_largest_value_near_zero():
    """Rounding is that of the values around it, not its own."""
    values = as_values(-1.0, -1.0, -1.0, 1e-13, 0.0)
    assert tied_for_largest(values).tolist() == [False, False, False, True, True]


def test_infinite_values():
    inf = float("inf")
    assert tied_for_largest(as_values(-inf, 2.0, -inf)).tolist() == [False, True, False]
    assert tied_for_largest(as_values(inf, 2.0, inf)).tolist() == [True, False, True]
    assert tied_for_largest(as_values(-inf, -inf)).all()


def test_nan_is_refused():
    with pytest.raises(ValueError):
        argmax(as_values(1.0, float("nan"), 2.0))


def test_batches():
    values = torch.stack([as_values(1.0, 2.0, 2.0), as_values(3.0, 2.0, 3.0)])
    assert argmax(values).tolist() == [1, 0]


def test_any_of_those_tied_is_drawn_equally_often(generator):
    """3,000 draws of one of three: each count within 5 standard deviations, 129, of 1,000."""
    values = as_values(1.0, 0.0, 1.0 + 1e-14, 1.0)
    drawn = torch.tensor([argmax(values, generator) for _ in range(3000)])
    counts = drawn.bincount(minlength=4)
    assert counts[1] == 0
    assert (counts[[0, 2, 3]] - 1000).abs().max() < 129


def test_the_generator_advances_alike_with_and_without_a_tie(generator):
    other = torch.Generator().manual_seed(0)
    argmax(as_values(1.0, 1.0, 1.0), generator)
    argmax(as_values(1.0, 2.0, 3.0), other)
    assert torch.equal(generator.get_state(), other.get_state())
