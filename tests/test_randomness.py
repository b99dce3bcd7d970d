"""Draws of PyTorch's global generator within a block."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
import torch
from torch import Generator

from tvbo.randomness import copy_of, draw_seed, seeded


def test_draws_are_those_of_a_seed_from_the_generator():
    generator = Generator().manual_seed(5)
    seed = draw_seed(copy_of(generator))
    with seeded(generator):
        drawn = torch.rand(3)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        assert torch.equal(torch.rand(3), drawn)


def test_the_state_is_restored_after_an_exception():
    def draw_and_fail():
        torch.rand(3)
        raise KeyboardInterrupt

    before = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt), seeded(Generator()):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_draw_as_if_each_was_alone():
    def draw(seed):
        with seeded(Generator().manual_seed(seed)):
            sleep(0.01)
            return torch.rand(3)

    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        drawn = [*threads.map(draw, range(8))]
    assert torch.equal(torch.stack(drawn), torch.stack([draw(seed) for seed in range(8)]))
    assert torch.equal(torch.get_rng_state(), before)
