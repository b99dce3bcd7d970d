"""Incumbents against equation (7) of Bogunovic et al. (2016), written out in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from botorch.models.transforms import Standardize
from gpytorch.means import ConstantMean
from reference import rbf

from tvbo.acquisition.improvement import BestMean, BestObserved, MaxMean
from tvbo.models import ContextualGP, EnsembleGP, StreamingGP, TimeVaryingGP
from tvbo.spaces import AskContext, Box, FiniteSpace, InputLayout
from tvbo.spaces.observations import Observations

SCALE, RATE, NOISE = 0.3, 0.05, 0.01
NOW, CONTEXT = 14.0, 0.4
GRID = torch.linspace(0, 1, 700, dtype=torch.float64).unsqueeze(-1)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


FEW = FiniteSpace(tensor([0.2], [0.4], [0.6], [0.8], [0.9]))


def means_by_formula(observations, rows):
    """Posterior means, one pair of rows at a time."""

    def covariances(one, two):
        return np.array(
            [
                [
                    np.exp(-0.5 * np.sum((a[:-1] - b[:-1]) ** 2) / SCALE**2)
                    * (1 - RATE) ** (abs(a[-1] - b[-1]) / 2)
                    for b in two
                ]
                for a in one
            ]
        )

    X, Y, rows = observations.X.numpy(), observations.Y.numpy(), rows.numpy()
    K = covariances(X, X) + NOISE * np.eye(len(X))
    return (covariances(rows, X) @ np.linalg.solve(K, Y))[:, 0]


def situation_of(num_contexts, search_space, generator, n=12):
    """Observations of grid points at times 1, ..., n, in two contexts where there are any."""
    place = torch.randint(len(GRID), (n,), generator=generator)
    times = torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    contexts = torch.where(times % 2 == 0, 0.1, CONTEXT).expand(-1, num_contexts)
    X = torch.cat([GRID[place], contexts, times], dim=-1)
    Y = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    context = tensor(CONTEXT) if num_contexts else None
    return AskContext(
        n + 1,
        NOW,
        context,
        InputLayout(1, num_contexts),
        Observations(X, Y),
        search_space,
        generator,
    )


def dense(observations):
    X, Y = observations.X, observations.Y
    return TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, NOISE),
        forgetting_rate=RATE,
        covar_module=rbf(SCALE),
        outcome_transform=None,
    ).eval()


def contextual(observations):
    X, Y = observations.X, observations.Y
    return ContextualGP(
        X,
        Y,
        torch.full_like(Y, NOISE),
        outcome_transform=None,
        context_features=[1],
        time_feature=2,
        action_kernel=rbf(SCALE),
        context_kernel=rbf(SCALE),
        forgetting_rate=RATE,
    ).eval()


def incremental(observations):
    model = EnsembleGP.from_model(dense(observations), NOISE)
    model = model.condition_on_observations(observations.X, observations.Y)
    return model


def streaming(observations):
    model = StreamingGP(GRID, rbf(SCALE), RATE, NOISE)
    model.observe(observations.X, observations.Y)
    return model


MODELS = [(dense, 0), (incremental, 0), (streaming, 0), (dense, 1), (contextual, 1)]


@pytest.mark.parametrize(("make", "num_contexts"), MODELS)
def test_incumbents_on_a_finite_set_are_the_formulas(make, num_contexts, generator):
    ask_context = situation_of(num_contexts, FiniteSpace(GRID), generator)
    model = make(ask_context.observations)
    at_observed = means_by_formula(ask_context.observations, ask_context.rows_observed())
    everywhere = means_by_formula(ask_context.observations, ask_context.rows(GRID))
    assert BestMean()(model, ask_context) == pytest.approx(at_observed.max(), abs=1e-9)
    assert MaxMean()(model, ask_context) == pytest.approx(everywhere.max(), abs=1e-9)
    assert BestObserved()(model, ask_context) == ask_context.observations.Y.max().item()
    # Three different things: a mix-up would not pass.
    assert at_observed.max() < everywhere.max() - 1e-6
    assert everywhere.max() < ask_context.observations.Y.max() - 1e-3


@pytest.mark.draws_globally
@pytest.mark.parametrize(("make", "num_contexts"), [m for m in MODELS if m[0] is not streaming])
def test_incumbents_in_a_box_are_the_formulas(make, num_contexts, generator):
    ask_context = situation_of(num_contexts, Box(tensor([0.0], [1.0])), generator)
    model = make(ask_context.observations)
    at_observed = means_by_formula(ask_context.observations, ask_context.rows_observed())
    fine = torch.linspace(0, 1, 4001, dtype=torch.float64).unsqueeze(-1)
    everywhere = means_by_formula(ask_context.observations, ask_context.rows(fine))
    assert BestMean()(model, ask_context) == pytest.approx(at_observed.max(), abs=1e-9)
    assert MaxMean()(model, ask_context) == pytest.approx(everywhere.max(), abs=1e-6)


def test_best_outcome_goes_stale_and_best_mean_does_not():
    """0.2 was worth 3 once; of late it is worth 0.5, and all else nothing."""
    actions, times = [0.2, 0.2, 0.2, 0.6, 0.9], [0.0, 99.0, 98.0, 99.0, 98.0]
    observations = Observations(
        tensor(*zip(actions, times, strict=True)), tensor([3.0], [0.5], [0.5], [0.0], [0.0])
    )
    ask_context = AskContext(6, 100.0, None, InputLayout(1), observations, FEW)
    model = dense(observations)
    assert BestObserved()(model, ask_context) == 3.0
    assert BestMean()(model, ask_context) == pytest.approx(0.5, abs=0.05)


def test_best_outcome_of_another_context_is_no_mark_here():
    observations = Observations(
        tensor([0.2, 5.0, 9.0], [0.2, 0.4, 9.0], [0.8, 0.4, 9.0]), tensor([3.0], [0.5], [0.0])
    )
    ask_context = AskContext(4, 10.0, tensor(CONTEXT), InputLayout(1, 1), observations, FEW)
    model = contextual(observations)
    assert BestObserved()(model, ask_context) == 3.0
    assert BestMean()(model, ask_context) == pytest.approx(0.5, abs=0.05)


def test_standardized_outcomes_give_incumbents_in_their_unit(generator):
    ask_context = situation_of(0, FiniteSpace(GRID), generator)
    raw = replace(ask_context.observations, Y=1000 + 50 * ask_context.observations.Y)
    center, scale = raw.Y.mean(), raw.Y.std()
    within = Observations(raw.X, (raw.Y - center) / scale)
    X, Y = raw.X, raw.Y
    model = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, NOISE * scale**2),
        forgetting_rate=RATE,
        covar_module=rbf(SCALE),
        outcome_transform=Standardize(m=1),
    ).eval()
    ask_context = replace(ask_context, observations=raw)
    for incumbent, rows in (
        (BestMean(), ask_context.rows_observed()),
        (MaxMean(), ask_context.rows(GRID)),
    ):
        expected = center + scale * means_by_formula(within, rows).max()
        assert incumbent(model, ask_context) == pytest.approx(expected.item(), abs=1e-8)
    assert BestObserved()(model, ask_context) == raw.Y.max().item()


@pytest.mark.parametrize("search_space", [FiniteSpace(GRID), Box(tensor([0.0], [1.0]))])
@pytest.mark.parametrize("incumbent", [BestObserved(), BestMean(), MaxMean()])
def test_before_the_first_observation_it_is_the_prior_mean(incumbent, search_space, generator):
    mean = ConstantMean().double()
    mean.constant = 2.5
    model = EnsembleGP(rbf(SCALE), NOISE, mean_module=mean)
    layout = InputLayout(1)
    ask_context = AskContext(
        1, 1.0, None, layout, Observations.empty(layout.num_columns), search_space, generator
    )
    assert incumbent(model, ask_context) == pytest.approx(2.5, abs=1e-12)


@pytest.mark.draws_globally
def test_to_ask_for_an_incumbent_draws_nothing(generator):
    ask_context = situation_of(0, Box(tensor([0.0], [1.0])), generator)
    model = dense(ask_context.observations)
    before = generator.get_state()
    first = MaxMean()(model, ask_context)
    assert torch.equal(generator.get_state(), before)
    assert MaxMean()(model, ask_context) == first


@pytest.mark.parametrize("incumbent", [BestObserved(), BestMean()])
def test_nothing_observed_and_no_domain(incumbent):
    layout = InputLayout(1)
    ask_context = AskContext(1, 1.0, None, layout, Observations.empty(layout.num_columns))
    with pytest.raises(ValueError):
        incumbent(EnsembleGP(rbf(SCALE), NOISE), ask_context)
