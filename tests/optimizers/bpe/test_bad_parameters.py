import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from gpytorch.kernels import RBFKernel

from tvbo.evaluation import RandomDelay
from tvbo.optimizers.bpe import BPEDelay
from tvbo.optimizers.bpe.confidence import FixedWidth
from tvbo.optimizers.bpe.delays import NO_DELAY
from tvbo.spaces import FiniteSpace

NOISE = 0.04


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"noise_variance": 0.0}, "noise_variance > 0"),
        ({"horizon": 0}, "horizon to be a whole number"),
        ({"delta": 1.0}, "delta in"),
    ],
)
def test_parameters_out_of_range(choices, kernel, parameters, message):
    given = {"noise_variance": NOISE, "horizon": 10} | parameters
    with pytest.raises(ValueError, match=message):
        BPEDelay(FiniteSpace(choices), kernel, **given)


def test_noise_too_small_for_rounding(choices, kernel):
    """In words at once, not at the end of the first round; the least that is taken is enough."""
    with pytest.raises(InputDataError):
        BPEDelay(FiniteSpace(choices), kernel + kernel, 1.9e-12, 10)
    one = FiniteSpace(choices[:1])
    optimizer = BPEDelay(one, kernel, 1e-12, 900, delay=NO_DELAY, width=FixedWidth(2.0))
    for _ in range(31):
        optimizer.tell(optimizer.ask(), 1.0)
    assert optimizer.rounds[0].num_arrived == 30


def test_kernel_with_a_batch(choices):
    with pytest.raises(BotorchTensorDimensionError):
        BPEDelay(FiniteSpace(choices), RBFKernel(batch_shape=torch.Size([2])), NOISE, 10)


def test_what_is_no_delay_bound(choices, kernel):
    for delay in (50.0, RandomDelay(lambda generator: 50.0)):
        with pytest.raises(TypeError):
            BPEDelay(FiniteSpace(choices), kernel, NOISE, 10, delay=delay)


def test_what_is_no_width(choices, kernel):
    with pytest.raises(TypeError):
        BPEDelay(FiniteSpace(choices), kernel, NOISE, 10, width=6.0)
