"""Every model against BoTorch's Model interface, as SingleTaskGP has it.

The checks are what BoTorch's own tests of ``SingleTaskGP``, ``GPyTorchModel``, ``ModelListGP`` and
``FantasizeMixin`` ask of a model, and what its acquisition functions and optimizers use of one. The
first model is SingleTaskGP itself, so that a check that it does not pass would fail here.
"""

import io
import pickle
from copy import deepcopy

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient, qUpperConfidenceBound
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import ModelList
from botorch.posteriors import GPyTorchPosterior
from botorch.sampling import IIDNormalSampler, ListSampler, SobolQMCNormalSampler
from botorch.sampling.get_sampler import get_sampler
from every_model import MODELS, NOISE, N, ahead, data, later
from gpytorch.likelihoods import Likelihood
from torch import Size

pytestmark = [
    pytest.mark.usefixtures("double_by_default"),
    pytest.mark.draws_globally,  # BoTorch's samplers do
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
    # Of SingleTaskGP, where outcomes have more dimensions than rows.
    pytest.mark.filterwarnings("ignore::botorch.exceptions.BotorchTensorDimensionWarning"),
]

CHECKS = {}


def check(function):
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def sobol(n):
    return SobolQMCNormalSampler(Size([n]), seed=0)


def close(one, two, atol=1e-9):
    torch.testing.assert_close(one, two, rtol=0, atol=atol)


def same(model, other, X=None, atol=1e-9):
    """Predictions of both models agree, jointly."""
    X = ahead(4) if X is None else X
    with torch.no_grad():
        one, two = model.posterior(X), other.posterior(X)
    close(one.mean, two.mean, atol)
    close(one.distribution.covariance_matrix, two.distribution.covariance_matrix, atol)


def different(model, other):
    with torch.no_grad():
        one, two = (each.posterior(ahead(9)).mean for each in (model, other))
    assert (one - two).abs().max() > 1e-3


# Posteriors


@check
def posterior_of_rows(make):
    posterior = make().posterior(ahead(4))
    assert isinstance(posterior, GPyTorchPosterior)
    assert posterior.mean.shape == posterior.variance.shape == (4, 1)
    assert posterior.distribution.covariance_matrix.shape == (4, 4)
    assert (posterior.variance > 0).all()


@check
def posterior_of_batches(make):
    model = make()
    X = ahead(2, 3, 4)
    got = model.posterior(X)
    assert got.mean.shape == got.variance.shape == (2, 3, 4, 1)
    expected = model.posterior(X[1, 2])
    close(got.mean[1, 2], expected.mean)
    covar = got.distribution.covariance_matrix[1, 2]
    close(covar, expected.distribution.covariance_matrix)


@check
def posterior_of_single_rows_as_a_batch(make):
    model, X = make(), ahead(9)
    joint, single = model.posterior(X), model.posterior(X.unsqueeze(-2))
    close(joint.mean, single.mean.squeeze(-2))
    close(joint.variance, single.variance.squeeze(-2))


@check
def posterior_of_no_rows(make):
    got = make().posterior(ahead(0))
    assert got.mean.shape == got.variance.shape == (0, 1)


@check
def observation_noise_of_the_model(make):
    model, X = make(), ahead(4)
    added = model.posterior(X, observation_noise=True).variance - model.posterior(X).variance
    noise = model.likelihood.noise.mean()
    close(added, noise.expand_as(added))


@check
def observation_noise_given(make):
    model, X = make(), ahead(2, 4)
    noise = torch.rand(2, 4, 1)
    added = model.posterior(X, observation_noise=noise).variance - model.posterior(X).variance
    close(added, noise)


@check
def posterior_transform(make):
    model, X = make(), ahead(4)
    transform = ScalarizedPosteriorTransform(torch.tensor([-2.0]), offset=1.0)
    close(model.posterior(X, posterior_transform=transform).mean, 1 - 2 * model.posterior(X).mean)


@check
def posterior_transform_sees_the_rows(make):
    class Rows(PosteriorTransform):
        scalarize = False

        def evaluate(self, Y, X=None):
            raise NotImplementedError

        def forward(self, posterior, X=None):
            return X

    X = ahead(4)
    assert torch.equal(make().posterior(X, posterior_transform=Rows()), X)


@check
def output_indices(make):
    model, X = make(), ahead(4)
    close(model.posterior(X, output_indices=[0]).mean, model.posterior(X).mean)


@check
def draws(make):
    posterior = make().posterior(ahead(2, 4))
    assert posterior.rsample(Size([3])).shape == (3, 2, 4, 1)
    assert posterior.sample().shape == (1, 2, 4, 1)
    base = torch.zeros(3, *posterior.base_sample_shape)
    sample = posterior.rsample_from_base_samples(Size([3]), base)
    close(sample, posterior.mean.expand(3, 2, 4, 1))


@check
def sampler_by_posterior(make):
    posterior = make().posterior(ahead(2, 4))
    sampler = get_sampler(posterior, Size([5]), seed=0)
    assert isinstance(sampler, SobolQMCNormalSampler)
    samples = sampler(posterior)
    assert samples.shape == (5, 2, 4, 1)
    assert torch.equal(samples, sampler(posterior))


@check
def base_samples_of_independent_draws(make):
    sampler = IIDNormalSampler(Size([5]), seed=0)
    assert sampler(make().posterior(ahead(4))).shape == (5, 4, 1)


# Properties


@check
def number_of_outputs(make):
    assert make().num_outputs == 1


@check
def batch_shape(make):
    assert make().batch_shape == Size()


@check
def subset_output(make):
    model = make()
    same(model.subset_output([0]), model)


@check
def training_inputs(make):
    model = make()
    (X,) = model.train_inputs
    expected = data()[0]
    if model.train_targets.shape == (N + 3,):
        expected = torch.cat([expected, later(3)[0]])
    assert torch.equal(X, expected)


@check
def training_targets(make):
    model = make()
    expected = data()[1]
    if len(model.train_inputs[0]) == N + 3:
        expected = torch.cat([expected, later(3)[1]])
    close(model.train_targets, expected.squeeze(-1))


@check
def likelihood(make):
    model, X = make(), ahead(4)
    assert isinstance(model.likelihood, Likelihood)
    noisy = model.likelihood(model.posterior(X).distribution)
    close(noisy.variance, model.posterior(X, observation_noise=True).variance.squeeze(-1))


@check
def transform_of_inputs(make):
    assert torch.equal(make().transform_inputs(ahead(4)), ahead(4))


@check
def training_mode(make):
    model = make()
    before = model.posterior(ahead(4)).mean
    assert model.train() is model
    assert model.training
    assert model.eval() is model
    assert not model.training
    close(model.posterior(ahead(4)).mean, before)


@check
def frozen_parameters(make):
    model = make()
    assert model.requires_grad_(False) is model
    assert not model.posterior(ahead(4)).mean.requires_grad


# Conditioning and fantasies


@check
def conditioning(make):
    model = make()
    model.posterior(ahead(4))  # GPyTorch conditions a model only after it has predicted
    X, Y = ahead(2, seed=5), torch.tensor([[3.0], [4.0]])
    new = model.condition_on_observations(X, Y)
    different(new, model)
    (old_X,), (new_X,) = model.train_inputs, new.train_inputs
    assert torch.equal(new_X, torch.cat([old_X, X]))
    close(new.train_targets, torch.cat([model.train_targets, Y.squeeze(-1)]))


@check
def conditioning_on_batches(make):
    model = make()
    model.posterior(ahead(4))
    X, Y = ahead(3, 2, seed=5), torch.randn(4, 3, 2, 1)
    new = model.condition_on_observations(X, Y)
    assert new.batch_shape == (4, 3)
    posterior = new.posterior(ahead(5))
    assert posterior.mean.shape == posterior.variance.shape == (4, 3, 5, 1)
    one = model.condition_on_observations(X[2], Y[1, 2]).posterior(ahead(5))
    close(posterior.mean[1, 2], one.mean)
    close(posterior.variance[1, 2], one.variance)


@check
def conditioning_with_noise(make):
    model = make()
    model.posterior(ahead(4))
    X, Y = ahead(2, seed=5), torch.tensor([[3.0], [4.0]])
    model.condition_on_observations(X, Y, noise=torch.full_like(Y, NOISE)).posterior(ahead(4))


@check
def conditioning_twice(make):
    model = make()
    model.posterior(ahead(4))
    X, Y = ahead(4, seed=5), torch.randn(4, 1)
    once = model.condition_on_observations(X, Y)
    twice = model.condition_on_observations(X[:2], Y[:2])
    twice.posterior(ahead(4))
    same(twice.condition_on_observations(X[2:], Y[2:]), once, atol=1e-7)


@check
def fantasies(make):
    model = make()
    model.posterior(ahead(4))
    X = ahead(3, 2, seed=5)
    new = model.fantasize(X, sobol(4))
    assert new.batch_shape == (4, 3)
    assert new.posterior(ahead(5)).mean.shape == (4, 3, 5, 1)
    assert new.posterior(ahead(3, 5)).mean.shape == (4, 3, 5, 1)
    assert new.posterior(ahead(3, 5)).mean.std(dim=0).max() > 0


@check
def fantasies_without_rows(make):
    model = make()
    before = model.posterior(ahead(4))
    new = model.fantasize(torch.empty(0, 3), sobol(4))
    got = new.posterior(ahead(4))
    close(got.mean, before.mean.expand(4, 4, 1))
    close(got.variance, before.variance.expand(4, 4, 1))


@check
def fantasies_without_rows_in_a_batch(make):
    model = make()
    model.posterior(ahead(4))
    new = model.fantasize(torch.empty(2, 0, 3), sobol(4))
    assert new.posterior(ahead(2, 4)).mean.shape == (4, 2, 4, 1)


@check
def fantasies_with_one_noise_for_all_rows(make):
    model = make()
    model.posterior(ahead(4))
    noise = torch.full((3, 1, 1), NOISE)
    new = model.fantasize(ahead(3, 2, seed=5), sobol(4), observation_noise=noise)
    assert new.posterior(ahead(5)).mean.shape == (4, 3, 5, 1)


@check
def fantasies_of_fantasies(make):
    model = make()
    model.posterior(ahead(4))
    once = model.fantasize(ahead(2, seed=5), sobol(4))
    once.posterior(ahead(4))
    twice = once.fantasize(ahead(4, 2, seed=6), sobol(3))
    assert twice.posterior(ahead(5)).mean.shape == (3, 4, 5, 1)


@check
def pending_rows(make):
    acquisition = qUpperConfidenceBound(make(), 2.0, sampler=sobol(8), X_pending=ahead(2, seed=5))
    assert acquisition(ahead(3, 2)).shape == (3,)


@check
def knowledge_gradient(make):
    acquisition = qKnowledgeGradient(make(), num_fantasies=4, sampler=sobol(4))
    with torch.no_grad():
        values = acquisition(ahead(3, 5))
    assert values.shape == (3,)
    assert torch.isfinite(values).all()


# Precision and devices


@check
def single_precision(make):
    """Kept, or refused in words."""
    model = make()
    try:
        model = model.to(torch.float32)
    except UnsupportedError as error:
        assert "float64" in str(error)  # noqa: PT017
        return
    assert model.posterior(ahead(4).float()).mean.dtype == torch.float32


@check
def same_precision_and_device(make):
    model = make()
    before = model.posterior(ahead(4)).mean
    assert model.to(ahead(4)) is model
    assert model.to(device="cpu", dtype=torch.float64) is model
    assert model.double() is model
    close(model.posterior(ahead(4)).mean, before)


@check
def moves_to_another_device(make):
    """All tensors move; the meta device is there on every machine."""
    model = make()
    model.to("meta")
    tensors = [*model.parameters(), *model.buffers(), *model.train_inputs]
    assert {each.device.type for each in tensors} == {"meta"}


# Copies


@check
def state_with_the_data(make):
    """A state loaded into a model of other data, if it is to have them; else of the same."""
    model = make()
    holds_data = not isinstance(model, SingleTaskGP)
    other = make(seed=int(holds_data))
    other.load_state_dict(through_file(model.state_dict()))
    same(other, model, ahead(9))
    close(other.posterior(ahead(9, 1)).mean, model.posterior(ahead(9, 1)).mean)


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@check
def deep_copies(make):
    model = make()
    new = deepcopy(model)
    same(new, model)
    if hasattr(new, "observe"):
        new.observe(*later(1))
        different(new, model)


@check
def pickled(make):
    model = make()
    same(pickle.loads(pickle.dumps(model)), model)


@check
def pickled_after_a_prediction(make):
    model = make()
    with torch.no_grad():
        model.posterior(ahead(4))
    same(pickle.loads(pickle.dumps(model)), model)


# Lists of models


@check
def in_a_model_list(make):
    model = ModelList(make(), make(seed=1))
    X = ahead(3, 4)
    posterior = model.posterior(X)
    assert posterior.mean.shape == posterior.variance.shape == (3, 4, 2)
    sampler = get_sampler(posterior, Size([5]), seed=0)
    assert isinstance(sampler, ListSampler)
    assert sampler(posterior).shape == (5, 3, 4, 2)
    same(model.subset_output([1]), make(seed=1))
    fantasies = model.fantasize(ahead(2, seed=5), sampler)
    assert fantasies.posterior(X[0]).mean.shape == (5, 4, 2)


@check
def in_a_list_of_gaussian_processes(make):
    model = ModelListGP(make(), make(seed=1))
    X = ahead(3, 4)
    posterior = model.posterior(X)
    assert posterior.mean.shape == posterior.variance.shape == (3, 4, 2)
    close(posterior.mean[..., 1:], make(seed=1).posterior(X).mean)
    noisy = model.posterior(X, observation_noise=True)
    assert (noisy.variance > posterior.variance).all()
    assert get_sampler(posterior, Size([5]), seed=0)(posterior).shape == (5, 3, 4, 2)
    assert model.batch_shape == Size()
    assert model.num_outputs == 2
    assert [len(X) for (X,) in model.train_inputs] == [len(y) for y in model.train_targets]
    fantasies = model.fantasize(ahead(2, seed=5), sobol(5))
    assert fantasies.posterior(X[0]).mean.shape == (5, 4, 2)
    same(model.subset_output([1]), make(seed=1))
    X, Y = ahead(2, seed=5), torch.tensor([[3.0, 1.0], [4.0, 2.0]])
    noise = torch.full_like(Y, NOISE)
    for options in ({}, {"noise": noise}):
        new = model.condition_on_observations([X, X], Y, **options)
        options = {name: value[:, 1:] for name, value in options.items()}
        same(new.models[1], model.models[1].condition_on_observations(X, Y[:, 1:], **options))


@check
def called(make):
    model, X = make(), ahead(3, 4)
    close(model(X).mean, model.posterior(X).mean.squeeze(-1))


# Gradients


@check
def gradients_by_rows(make):
    model, X = make(), ahead(4)[:, None].requires_grad_()
    posterior = model.posterior(X)
    for value in (posterior.mean, posterior.variance):
        (gradient,) = torch.autograd.grad(value.sum(), X, retain_graph=True)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0


@check
def gradients_of_joint_draws(make):
    model, X = make(), ahead(2, 3).requires_grad_()
    (gradient,) = torch.autograd.grad(sobol(4)(model.posterior(X)).sum(), X)
    assert torch.isfinite(gradient).all()


@check
def gradients_through_fantasies(make):
    model, X = make(), ahead(3, 5).requires_grad_()
    acquisition = qKnowledgeGradient(model, num_fantasies=4, sampler=sobol(4))
    (gradient,) = torch.autograd.grad(acquisition(X).sum(), X)
    assert torch.isfinite(gradient).all()


@check
def second_derivatives(make):
    model, X = make(), ahead(1)
    hessian = torch.autograd.functional.hessian(lambda x: model.posterior(x).mean.sum(), X)
    assert torch.isfinite(hessian).all()


# A finite set has no gradients.
REFUSED = {
    ("StreamingGP", name): "finite set"
    for name in (
        "gradients by rows",
        "gradients of joint draws",
        "gradients through fantasies",
        "second derivatives",
    )
}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize(
    "model", [pytest.param("SingleTaskGP", marks=pytest.mark.slow), *list(MODELS)[1:]]
)
def test_interface(model, name):
    if (model, name) in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[model, name]):
            CHECKS[name](MODELS[model])
    else:
        CHECKS[name](MODELS[model])
