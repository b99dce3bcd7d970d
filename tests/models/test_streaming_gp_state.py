"""Saved, loaded, copied, pickled, reset."""

import io
import math
import pickle
from copy import deepcopy

import pytest
import torch

pytestmark = pytest.mark.usefixtures("double_by_default")

CASES = {
    "few rows": ({"rate": 0.03}, (), 20),
    "before merging": ({"rate": 0.0, "max_lateness": 5.0}, (), 40),
    "merged": ({"rate": 0.0, "max_lateness": 5.0}, (), 150),
    "none late": ({"rate": 1e-3, "max_lateness": 0.0}, (), 150),
    "dropped": ({"rate": 0.03, "max_rows": 30}, (), 100),
    "batch": ({"rate": torch.tensor([0.0, 0.1])}, (2,), 80),
    "merged batch": ({"rate": torch.tensor([0.0, 0.1]), "max_lateness": 5.0}, (2,), 150),
}


def through_file(model, make):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    new = make()
    new.load_state_dict(torch.load(file, weights_only=True))
    return new


def loaded_over_another(model, make):
    """Into a model that has learned something else, and merged it."""
    new = make()
    shape = (*new.batch_shape, 1, 1)
    for t in range(130):
        row = torch.tensor([[0.5, 0.5, float(t)]])
        new.observe(row, torch.full(shape, math.sin(t)))
    new.load_state_dict(model.state_dict())
    return new


WAYS = {
    "file": through_file,
    "over another": loaded_over_another,
    "deepcopy": lambda model, make: deepcopy(model),
    "pickle": lambda model, make: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.combinations
def test_the_same_now_and_after_more(small, case, way):
    options, batch_shape, n = CASES[case]

    def make():
        return small.streaming(**options)

    model = make()
    X, Y = small.data(range(n + 80))
    Y = Y.expand(*batch_shape, -1, -1)
    for part in torch.arange(n).split(2):
        model.observe(X[part], Y[..., part, :])
    new = WAYS[way](model, make)
    assert new.num_rows == model.num_rows
    assert torch.equal(new.now, model.now)
    assert torch.equal(new.neglected, model.neglected)
    assert new.earliest == model.earliest
    small.assert_same(new, model, small.rows(n), atol=0.0)
    before = new.marginals(n)[0]
    for part in torch.arange(n, n + 80).split(2):
        model.observe(X[part], Y[..., part, :])
    # Its own memory: the copy has not seen what the model has.
    assert torch.equal(new.marginals(n)[0], before)
    for part in torch.arange(n, n + 80).split(2):
        new.observe(X[part], Y[..., part, :])
    # With as much room as before, too, rows go at the same moments: to the last bit.
    small.assert_same(new, model, small.rows(n + 80), atol=0.0)


@pytest.mark.parametrize("case", CASES)
def test_reset_is_as_new(small, case):
    options, batch_shape, n = CASES[case]
    model, new = small.streaming(**options), small.streaming(**options)
    X, Y = small.data(range(n))
    Y = Y.expand(*batch_shape, -1, -1)
    for part in torch.arange(n).split(2):
        model.observe(X[part], Y[..., part, :])
    model.reset()
    assert (model.num_rows, model.earliest) == (0, -math.inf)
    assert (model.now == -math.inf).all()
    assert (model.neglected == 0).all()
    for each in (model, new):
        each.observe(X[:20], Y[..., :20, :])
    small.assert_same(model, new, small.rows(n), atol=0.0)
