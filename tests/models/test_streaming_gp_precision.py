"""float64 throughout, under torch's own default of float32."""

import torch

from tvbo.models import StreamingGP


def test_plain_numbers_are_not_rounded_to_single_precision(small):
    X, Y = small.data(range(30))
    model = small.streaming(0.03, noise=0.01)
    model.observe(X, Y)
    assert model.noise_variance.item() == 0.01
    assert model.forgetting_rate.item() == 0.03
    small.assert_same(model, small.dense(X, Y, 0.03, noise=0.01), small.rows(31), atol=1e-11)


def test_late_times_are_not_rounded_to_single_precision(small):
    """float32 has no 2^24 + 1."""
    t = 2.0**24
    model = small.streaming(0.3)
    model.observe(small.rows(t)[:1], torch.tensor([[1.0]], dtype=torch.float64))
    now, then = (model.marginals(x)[0][0] for x in (t, t + 1))
    torch.testing.assert_close(then, now * 0.7**0.5, rtol=1e-12, atol=0)


def test_choices_and_data_in_single_precision(small):
    model = StreamingGP(small.choices.float(), small.rbf(), 0.1, 0.1)
    X, Y = small.data(range(5))
    model.observe(X.float(), Y.float())
    mean, variance = model.marginals(6)
    assert mean.dtype == variance.dtype == torch.float64
