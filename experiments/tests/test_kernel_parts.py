"""Parts of a contextual kernel, against dense algebra written out."""

import pytest
import torch
from botorch.exceptions.errors import (
    UnsupportedError,
)
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, ScaleKernel
from reference import rbf

from experiments.kernel_parts import explained_variance, part_posterior
from tvbo import recipes
from tvbo.kernels import ContextActionKernel
from tvbo.models import ContextualGP, EnsembleGP, StreamingGP, TimeVaryingGP

LENGTHS, SCALES, NOISE, RATE = (0.4, 0.7), (0.5, 1.3, 0.8), 0.05, 0.1
PARTS = {
    "product": ["interaction"],
    "additive": ["action", "context"],
    "both": ["action", "context", "interaction"],
}


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def kernels():
    return rbf(LENGTHS[0]), rbf(LENGTHS[1])


@pytest.fixture
def data(generator):
    """Rows [s1, s2, z, t], t from 0 to 10, and outcomes of no special kind."""
    X = torch.rand(17, 4, generator=generator, dtype=torch.float64)
    X[:, 3] *= 10
    Y = 3 + 2 * torch.randn(17, 1, generator=generator, dtype=torch.float64)
    return X, Y


def contextual(X, Y, structure="both", noise=NOISE, **options):
    """Known hyperparameters, in raw units but for the outcome transform."""
    action, context = kernels()
    model = ContextualGP(
        X,
        Y,
        torch.full_like(Y, noise),
        context_features=[2],
        time_feature=3,
        structure=structure,
        action_kernel=action,
        context_kernel=context,
        forgetting_rate=RATE,
        **options,
    )
    if structure == "both":
        model.context_action_kernel.outputscales = SCALES
    return model


def matrices(A, B, structure):
    """The parts' covariances, entry by entry from the formulas."""
    K = {name: torch.zeros(len(A), len(B), dtype=torch.float64) for name in PARTS[structure]}
    scale = dict(zip(PARTS["both"], SCALES if structure == "both" else (1, 1, 1), strict=True))
    for i, a in enumerate(A):
        for j, b in enumerate(B):
            action = torch.exp(-(a[:2] - b[:2]).square().sum() / (2 * LENGTHS[0] ** 2))
            context = torch.exp(-((a[2] - b[2]) ** 2) / (2 * LENGTHS[1] ** 2))
            decay = (1 - RATE) ** ((a[3] - b[3]).abs() / 2)
            value = {"action": action, "context": context, "interaction": action * context}
            for name, matrix in K.items():
                matrix[i, j] = scale[name] * value[name] * decay
    return K


def expected(X, Y, structure, noise, rows, mean):
    """Posterior of the parts by inverting the covariance; mean is that of the prior."""
    K, cross = matrices(X, X, structure), matrices(rows, X, structure)
    inverse = torch.linalg.inv(sum(K.values()) + noise * torch.eye(len(X), dtype=torch.float64))
    posterior = {}
    for name in K:
        prior = matrices(rows, rows, structure)[name].diagonal()
        posterior[name] = (
            cross[name] @ inverse @ (Y[:, 0] - mean),
            prior - (cross[name] @ inverse @ cross[name].T).diagonal(),
        )
    return posterior


@pytest.mark.parametrize("structure", PARTS)
@pytest.mark.parametrize("standardized", [False, True])
def test_posterior_of_a_part_is_that_of_dense_algebra(data, structure, standardized):
    X, Y = data
    model = contextual(X, Y, structure, **({} if standardized else {"outcome_transform": None}))
    # Standardize makes the kernel one of units of the outcomes' standard deviation; so is NOISE
    # then divided by its square, which the raw algebra undoes.
    mean, scale = (Y.mean(), Y.std()) if standardized else (0.0, 1.0)
    rows = torch.cat([X[:3], X[5:9] + 0.1])
    want = expected(X, Y / scale, structure, NOISE / scale**2, rows, mean / scale)
    assert list(want) == PARTS[structure]
    for name, (part_mean, part_variance) in want.items():
        got_mean, got_variance = part_posterior(model, name, rows)
        assert got_mean.shape == got_variance.shape == (7,)
        assert (got_mean - scale * part_mean).abs().max() < 1e-9
        assert (got_variance - scale**2 * part_variance).abs().max() < 1e-9


@pytest.mark.parametrize("structure", PARTS)
def test_parts_and_prior_mean_add_to_the_posterior_mean(data, structure):
    X, Y = data
    model = contextual(X, Y, structure)
    model.mean_module.constant = torch.tensor(0.3, dtype=torch.float64)
    rows = X + 0.05
    total = sum(part_posterior(model, name, rows)[0] for name in PARTS[structure])
    prior = Y.mean() + 0.3 * Y.std()
    assert (model.posterior(rows).mean[:, 0] - prior - total).abs().max() < 1e-9


@pytest.mark.parametrize("structure", PARTS)
def test_shares_are_those_of_dense_algebra(data, structure):
    X, Y = data
    parts = explained_variance(contextual(X, Y, structure, outcome_transform=None))
    K = matrices(X, X, structure)
    weights = torch.linalg.solve(sum(K.values()) + NOISE * torch.eye(17, dtype=torch.float64), Y)
    vectors = {name: (matrix @ weights)[:, 0] for name, matrix in K.items()}
    vectors["residual"] = NOISE * weights[:, 0]
    assert (sum(vectors.values()) - Y[:, 0]).abs().max() < 1e-9
    joint = torch.cov(torch.stack(list(vectors.values())), correction=0)
    shares = (joint.diagonal() / Y.var(correction=0)).tolist()
    assert [*parts.shares.values(), parts.residual] == pytest.approx(shares, abs=1e-10)
    off_diagonal = (joint.sum() - joint.diagonal().sum()) / Y.var(correction=0)
    assert parts.covariance == pytest.approx(off_diagonal.item(), abs=1e-10)
    assert parts.variance == pytest.approx(Y.var(correction=0).item())
    assert parts.num_observations == 17
    frame = parts.to_frame()
    assert list(frame["part"]) == [*PARTS[structure], "residual", "covariance"]
    assert frame["share"].sum() == pytest.approx(1.0)
    assert frame["variance"].sum() == pytest.approx(parts.variance)


def test_other_models_with_the_same_kernel_say_the_same(data):
    X, Y = data
    reference = contextual(X, Y, outcome_transform=None)
    kernel = ContextActionKernel(
        *kernels(), "both", action_features=[0, 1], context_features=[2]
    ).double()
    kernel.outputscales = [s / 2 for s in SCALES]
    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = 2.0
    drifting = TimeVaryingGP(
        X,
        Y,
        torch.full_like(Y, NOISE),
        forgetting_rate=RATE,
        covar_module=scaled,
        outcome_transform=None,
    )
    incremental = EnsembleGP.from_model(reference, NOISE)
    incremental = incremental.condition_on_observations(X[:9], Y[:9])
    incremental = incremental.condition_on_observations(X[9:], Y[9:])
    in_raw_units = contextual(X, Y)
    standardized = EnsembleGP.from_model(in_raw_units, NOISE)
    standardized = standardized.condition_on_observations(X, Y)
    rows = X + 0.1
    for model, same in (
        (drifting, reference),
        (incremental, reference),
        (standardized, in_raw_units),
    ):
        got, want = explained_variance(model), explained_variance(same)
        assert got.shares == pytest.approx(want.shares, abs=1e-9)
        assert got.variance == pytest.approx(want.variance)
        for name in PARTS["both"]:
            for a, b in zip(
                part_posterior(model, name, rows), part_posterior(same, name, rows), strict=True
            ):
                assert (a - b).abs().max() < 1e-8


@pytest.mark.parametrize("part", PARTS["both"])
def test_centered_is_less_the_average_of_the_rows(data, part):
    """The variance of f(x_i) - mean f, by the contrast's own row of I - 11'/n."""
    X, Y = data
    model = contextual(X, Y, outcome_transform=None)
    rows = X[:6] + 0.1
    cross, prior = matrices(rows, X, "both")[part], matrices(rows, rows, "both")[part]
    K = sum(matrices(X, X, "both").values()) + NOISE * torch.eye(17, dtype=torch.float64)
    covar = prior - cross @ torch.linalg.solve(K, cross.T)
    contrast = torch.eye(6, dtype=torch.float64) - 1 / 6
    mean, variance = part_posterior(model, part, rows, centered=True)
    want = contrast @ cross @ torch.linalg.solve(K, Y)[:, 0]
    assert (mean - want).abs().max() < 1e-9
    assert (variance - (contrast @ covar @ contrast.T).diagonal()).abs().max() < 1e-9


def test_the_action_part_says_the_same_in_every_context(data):
    model = contextual(*data)
    rows = data[0][:5].clone()
    elsewhere = rows.clone()
    elsewhere[:, 2] = 50.0
    for a, b in zip(
        part_posterior(model, "action", rows),
        part_posterior(model, "action", elsewhere),
        strict=True,
    ):
        assert torch.equal(a, b)


def test_the_model_of_an_optimizer(generator):
    optimizer = recipes.tv_cgp_ucb(
        bounds=tensor([0.0], [1.0]),
        context_bounds=tensor([0.0], [1.0]),
        covar_module=ContextActionKernel(
            *kernels(), "additive", action_features=[0], context_features=[1]
        ),
        forgetting_rate=0.01,
        noise_variance=NOISE,
        generator=generator,
    )
    for t in range(1, 6):
        trial = optimizer.ask(t, context=tensor(t / 6))
        optimizer.tell(trial, float(trial.X) + t)
    optimizer.recommend(tensor(0.5))
    assert isinstance(optimizer.model, EnsembleGP)
    parts = explained_variance(optimizer.model)
    assert parts.num_observations == 5
    assert list(parts.shares) == ["action", "context"]


def test_models_without_such_parts_are_refused(data):
    X, Y = data
    action, context = kernels()
    twice = ContextActionKernel(action, context, action_features=[0], context_features=[1])
    for kernel, name in (
        (MaternKernel(), "MaternKernel"),
        (twice * MaternKernel() + MaternKernel(), "AdditiveKernel"),
        (twice * twice, "ProductKernel"),
    ):
        model = SingleTaskGP(X, Y, covar_module=kernel.double())
        with pytest.raises(UnsupportedError, match=str(name)):
            explained_variance(model)
    with pytest.raises(UnsupportedError, match="StreamingGP"):
        explained_variance(StreamingGP(X[:, :2], rbf(0.3), 0.1, NOISE))


def test_a_part_that_the_kernel_has_not(data):
    X, Y = data
    with pytest.raises(ValueError, match="interaction"):
        part_posterior(contextual(X, Y, "additive"), "interaction", X)
