"""What can be stored, and what is said of the rest."""

import pytest
from gpytorch.kernels import PeriodicKernel, RBFKernel
from gpytorch.priors import GammaPrior

from tvbo.journal import JournalError, create


def with_registered_prior():
    kernel = RBFKernel().double()
    kernel.register_prior("mine", GammaPrior(2.0, 1.0), "lengthscale")
    return kernel


@pytest.mark.parametrize(
    "make",
    [
        lambda: PeriodicKernel(period_length_prior=GammaPrior(2.0, 1.0)).double(),
        with_registered_prior,
    ],
    ids=["periodic", "registered"],
)
def test_a_prior_that_cannot_be_stored_is_named(make, make_streaming, run):
    with pytest.raises(JournalError, match="GPyTorch keeps such a function for each prior"):
        make_streaming(covar_module=make()).record(run)
    assert not run.exists()


def test_a_prior_that_can_be_stored(make_streaming):
    kernel = RBFKernel(lengthscale_prior=GammaPrior(2.0, 1.0)).double()
    create.to_pickle(make_streaming(covar_module=kernel))


def test_dumping_leaves_the_journal_with_the_live_optimizer(run, make_random, monkeypatch):
    optimizer = make_random()
    optimizer.record(run)
    recorder = optimizer._event_sink
    seen = []
    save = create.torch.save

    def looks(*arguments, **given):
        seen.append(optimizer._event_sink)
        save(*arguments, **given)

    monkeypatch.setattr(create.torch, "save", looks)
    create.to_pickle(optimizer)
    assert seen == [recorder]
