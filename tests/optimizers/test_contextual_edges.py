"""The loop with contexts where numbers are extreme, or what was declared does not fit."""

import math
from functools import partial

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean

from tvbo import recipes
from tvbo.kernels import CovarianceMatrixKernel, TaskKernel
from tvbo.optimizers import RefitEvery
from tvbo.retention import SlidingWindow

UNIT = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


def rbf(scale=None):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(0.3, dtype=torch.float64)
    if scale is None:
        return kernel
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = scale
    return scaled


@pytest.mark.parametrize("contexts", [{"context_bounds": UNIT}, {"contexts": UNIT}])
@pytest.mark.parametrize("actions", [{"bounds": UNIT}, {"choices": UNIT}])
def test_certain_repeats_under_a_large_kernel_do_not_end_a_loop(actions, contexts):
    optimizer = recipes.cgp_ucb(
        **actions, **contexts, action_kernel=rbf(1e8), context_kernel=rbf(), noise_variance=1e-14
    )
    here = torch.tensor([1.0], dtype=torch.float64)
    for t in range(6):
        optimizer.tell(optimizer.attach(here, float(t), context=here), 3.0, Yvar=0.0)
    assert optimizer.ask(t=6.0, context=here).id == 7


@pytest.mark.parametrize(("outside", "seen"), [("clip", 1.0), ("extend", 1.5)])
def test_a_context_outside_of_its_bounds_is_clipped_or_extends_them(outside, seen):
    make = partial(recipes.tv_cgp_ucb, bounds=UNIT, context_bounds=UNIT)
    optimizer = make(contexts_outside=outside)
    for t in range(1, 13):
        trial = optimizer.ask(t=t, context=[t / 8])
        optimizer.tell(trial, math.sin(trial.X.item() + t / 8))
    assert trial.context.tolist() == [seen]
    assert optimizer.recommend(context=[1.5]).context.tolist() == [seen]
    with pytest.raises(InputDataError):
        make().ask(t=1, context=[1.5])
    with pytest.raises(ValueError, match="clipped"):
        make(contexts_outside="clipped")
    with pytest.raises(ValueError, match=outside):
        recipes.tv_cgp_ucb(bounds=UNIT, contexts=UNIT, contexts_outside=outside)


def test_task_kernels_that_cannot_take_what_is_declared_are_refused_at_once():
    known = {"noise_variance": 0.1, "action_kernel": rbf()}
    with pytest.raises(InputDataError):
        recipes.cgp_ucb(
            choices=UNIT,
            context_bounds=torch.tensor([[0.0], [3.0]]),
            context_kernel=TaskKernel(4),
            **known,
        )
    with pytest.raises(InputDataError):
        recipes.cgp_ucb(
            choices=torch.tensor([[0.0], [2.0]]),
            contexts=UNIT,
            action_kernel=CovarianceMatrixKernel(torch.eye(2)),
            context_kernel=rbf(),
            noise_variance=0.1,
        )


def test_a_recommendation_rests_on_the_fit_that_the_next_ask_makes():
    """Also where retention drops something at that time."""
    rows = torch.linspace(0, 1, 60, dtype=torch.float64)
    loops = []
    for _ in range(2):
        optimizer = recipes.cgp_ucb(
            bounds=UNIT, context_bounds=UNIT, retention=SlidingWindow(length=40.0)
        )
        for i, x in enumerate(rows[torch.randperm(60, generator=torch.Generator().manual_seed(1))]):
            trial = optimizer.attach(x, float(i), context=x)
            optimizer.tell(trial, 100 * torch.sin(8 * x))
        loops.append(optimizer)
    context = torch.tensor([0.5], dtype=torch.float64)
    before = loops[0].recommend(context, t=60.0)
    loops[1].ask(t=60.0, context=context)
    after = loops[1].recommend(context, t=60.0)
    assert before.mean == pytest.approx(after.mean, rel=0.01)
    assert before.standard_deviation == pytest.approx(after.standard_deviation, rel=0.1)


def test_plain_numbers_are_contexts_in_double_precision():
    optimizer = recipes.cgp_ucb(
        choices=UNIT,
        context_bounds=[(0.1, 0.7)],
        action_kernel=rbf(),
        context_kernel=rbf(),
        noise_variance=0.1,
    )
    assert optimizer.contexts.bounds.tolist() == [[0.1], [0.7]]
    assert optimizer.ask(context=0.3).context.tolist() == [0.3]
    assert optimizer.ask(context=[0.3]).context.tolist() == [0.3]


def test_a_refit_with_nothing_to_learn_is_refused():
    optimizer = recipes.cgp_ucb(
        choices=UNIT,
        contexts=UNIT,
        action_kernel=rbf().requires_grad_(False),
        context_kernel=rbf().requires_grad_(False),
        noise_variance=0.1,
        mean_module=ZeroMean(),
        refit=RefitEvery(3),
    )
    with pytest.raises(ValueError):
        optimizer.ask(context=torch.tensor([0.0]))
