"""Outcomes of any size are refused, or never stand in the way of a later ask."""

import itertools
import math
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel

from tvbo import recipes, run_async
from tvbo.acquisition import EI, LogEI, LogPI
from tvbo.optimizers import GPOptimizer, Hallucinate, RefitEvery
from tvbo.retention import EventReset

CHOICES = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
CONTEXTS = torch.tensor([[0.1], [0.5], [0.8]], dtype=torch.float64)
MAGNITUDES = [*(float(f"1e{k}") for k in range(-320, 309, 17)), 0.0, 5e-324, 1.7e308]


def kernel(scale=1.0):
    scaled = ScaleKernel(
        MaternKernel(nu=2.5), outputscale_constraint=GreaterThan(0.0, transform=None)
    ).to(torch.float64)
    scaled.outputscale = scale**2
    return scaled.requires_grad_(False)


GIVEN = {"covar_module": kernel(), "noise_variance": 0.01}
NARROW = {"covar_module": kernel(1e-40), "noise_variance": 1e-82}

OPTIMIZERS = {
    "streaming": lambda: recipes.tv_gp_ucb(choices=CHOICES, forgetting_rate=0.03, **GIVEN),
    "late": lambda: recipes.gp_ucb(choices=CHOICES, pending=Hallucinate(), **GIVEN),
    "box": lambda: recipes.gp_ucb(bounds=BOUNDS, **GIVEN),
    "small unit": lambda: recipes.gp_ucb(bounds=BOUNDS, **NARROW),
    "EI": lambda: recipes.compressed_gp(choices=CHOICES, acquisition=EI(), **GIVEN),
    "LogEI": lambda: recipes.compressed_gp(bounds=BOUNDS, acquisition=LogEI(), **GIVEN),
    "LogPI": lambda: recipes.compressed_gp(bounds=BOUNDS, acquisition=LogPI(), **GIVEN),
    "gp_ts": lambda: recipes.gp_ts(choices=CHOICES, **GIVEN),
    "EventReset": lambda: recipes.gp_ucb(choices=CHOICES, retention=EventReset(), **GIVEN),
    "bkb": lambda: recipes.bkb(choices=CHOICES, qbar=5.0, **GIVEN),
    "bpe": lambda: recipes.bpe(choices=CHOICES, horizon=100, **GIVEN),
    "bpe on a box": lambda: recipes.bpe(bounds=BOUNDS, horizon=100, **GIVEN),
    "rexp3": lambda: recipes.rexp3(choices=CHOICES, block=20, reward_bounds=(-1e60, 1e60)),
    "sw_ucb": lambda: recipes.sw_ucb(choices=CHOICES, window=20, reward_bounds=(-1, 1)),
    "d_ucb": lambda: recipes.d_ucb(choices=CHOICES, discount=0.9, reward_bounds=(-1, 1)),
    "last_best": lambda: recipes.last_best(choices=CHOICES),
    "random": lambda: recipes.random_search(choices=CHOICES),
    "linear_ucb": lambda: recipes.linear_ucb(choices=CHOICES, contexts=CONTEXTS),
    "separate": lambda: recipes.separate(choices=CHOICES, contexts=CONTEXTS, **GIVEN),
    "learned": lambda: recipes.tv_gp_ucb(choices=CHOICES, refit=RefitEvery(10)),
    "learned, known noise": lambda: recipes.gp_ucb(
        choices=CHOICES, noise_variance=0.01, refit=RefitEvery(10)
    ),
}


def context_of(optimizer, i):
    return None if optimizer.contexts is None else CONTEXTS[i % 3]


@pytest.mark.combinations
@pytest.mark.filterwarnings(
    "ignore:Very small noise", "ignore:.*scipy_minimize", "ignore:Optimization failed"
)
@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_asks_go_on_after_outcomes_of_any_size(name, falling, generator):
    optimizer = OPTIMIZERS[name]()
    refused = []
    for i, size in enumerate(sorted(MAGNITUDES, reverse=falling)):
        context = context_of(optimizer, i)
        if i % 4 > 0 and isinstance(optimizer, GPOptimizer):
            # Cheaper than to ask each time.
            trial = optimizer.attach(optimizer.search_space.sample(generator), float(i), context)
        else:
            trial = optimizer.ask(t=float(i), context=context)
        try:
            optimizer.tell(trial, -size if i % 3 == 1 else size)
        except InputDataError as error:
            refused.append((size, str(error)))
            # It stays open.
            optimizer.tell(trial, 1e-45)
    assert min(refused)[0] > (1e9 if name == "small unit" else 1e49)
    assert all("Expected Y" in message for _, message in refused)
    for i in range(3):
        optimizer.ask(t=1000.0 + i, context=context_of(optimizer, i))


@pytest.mark.parametrize("size", [1e-320, 1e-100, 1e50, 1e90])
def test_asks_go_on_after_noise_variances_of_any_size(size):
    for optimizer in (
        recipes.gp_ucb(choices=CHOICES, covar_module=kernel(), noise_variance=0.01),
        recipes.gp_ucb(bounds=BOUNDS, covar_module=kernel(), noise_variance=0.01),
        recipes.bkb(choices=CHOICES, qbar=5.0, **GIVEN),
    ):
        for Yvar in (size, 0.1, size, 0.0):
            optimizer.tell(optimizer.ask(), 0.5, Yvar=Yvar)
        for _ in range(3):
            optimizer.ask()


@pytest.mark.parametrize("unit", [1.0, 2.0**-40, 2.0**40])
def test_the_range_is_stated_in_units_of_the_prior(unit):
    optimizer = recipes.gp_ucb(
        choices=CHOICES, covar_module=kernel(unit), noise_variance=0.01 * unit**2
    )
    trial = optimizer.ask()
    stated = re.escape(f"between -{1e50 * unit:.3g} and {1e50 * unit:.3g}")
    with pytest.raises(InputDataError, match=stated):
        optimizer.tell(trial, -1.001e50 * unit)
    with pytest.raises(InputDataError, match="Expected Yvar between 0 and"):
        optimizer.tell(trial, 0.3, Yvar=1.01e100 * unit**2)
    assert optimizer.open_trials == (trial,)
    assert (optimizer.model_size, optimizer.trial_log.num_told) == (0, 0)
    optimizer.tell(trial, 1e50 * unit, Yvar=unit**2)
    assert optimizer.model_size == 1


def test_run_async_says_why_such_a_trial_failed():
    optimizer = recipes.gp_ucb(choices=CHOICES, **GIVEN)
    with ThreadPoolExecutor(1) as executor:
        history = run_async(
            lambda trial: 1e308, optimizer, executor, num_trials=2, max_pending=1, progress=False
        )
    assert optimizer.trial_log.num_failed == 2
    assert "Expected Y between" in optimizer.trial_log.lost[0].reason
    assert history.to_frame()["status"].tolist() == ["failed", "failed"]


TIMES = [-1e300, -1e150, -1.0, 0.0, 5e-324, 1.0, 1e17, 1e299, 1e300]


@pytest.mark.parametrize(
    "make",
    [
        lambda: recipes.tv_gp_ucb(choices=CHOICES, forgetting_rate=0.03, **GIVEN),
        lambda: recipes.tv_gp_ucb(bounds=BOUNDS, forgetting_rate=0.03, **GIVEN),
        lambda: recipes.r_gp_ucb(choices=CHOICES, every=4.0, **GIVEN),
        lambda: recipes.tv_gp_ucb(choices=CHOICES, refit=RefitEvery(8)),
    ],
)
def test_asks_go_on_at_times_of_any_size(make):
    optimizer = make()
    for i, t in enumerate(TIMES):
        optimizer.tell(optimizer.ask(t=t), math.sin(i))
    for _ in range(3):
        optimizer.ask(t=1e300)
    with pytest.raises(InputDataError, match=r"between -1e\+300 and 1e\+300. Got t=1.5e\+300"):
        optimizer.ask(t=1.5e300)


def test_asks_go_on_in_contexts_of_any_size_that_can_be_declared():
    def make(largest):
        return recipes.cgp_ucb(
            choices=CHOICES,
            context_bounds=torch.tensor([[-largest], [largest]], dtype=torch.float64),
            action_kernel=kernel(),
            context_kernel=LinearKernel() + MaternKernel(),
            noise_variance=0.01,
        )

    optimizer = make(1e100)
    for i, z in enumerate(itertools.islice(itertools.cycle([-1e100, 0.0, 1e-300, 1e100]), 12)):
        optimizer.tell(optimizer.ask(context=torch.tensor([z], dtype=torch.float64)), math.sin(i))
    with pytest.raises(InputDataError, match=r"context_bounds between -1e\+100 and 1e\+100"):
        make(1e101)
    for bounds in ({"bounds": 1e101 * BOUNDS}, {"choices": 1e101 * CHOICES}):
        with pytest.raises(InputDataError, match=r"between -1e\+100 and 1e\+100"):
            recipes.gp_ucb(**bounds)
