"""Which code an optimizer rests on."""

import torch

import tvbo
from tvbo.journal import create, environment, load
from tvbo.journal.state import State


def test_versions_and_threads_are_kept_track_of():
    now = environment.current_environment([])
    assert now["torch"] == torch.__version__.split("+")[0] or now["torch"] == torch.__version__
    assert now["tvbo"] == tvbo.__version__
    assert now["threads"] == str(torch.get_num_threads())
    assert environment.is_same(now, environment.current_environment([]))


def test_modules_of_a_state(make_streaming):
    found = State.of(make_streaming()).modules
    assert {
        "tvbo.optimizers.gp_optimizer",
        "tvbo.acquisition.beta",
        "gpytorch.kernels.rbf_kernel",
    } <= found


def test_a_dump_is_without_the_journal(run, make_streaming, play):
    optimizer = make_streaming()
    optimizer.record(run)
    play(optimizer, 5)
    copy = load.from_pickle(create.to_pickle(optimizer))
    assert copy._event_sink is None
    assert play(copy, 5) == play(optimizer, 5)


def test_tensors_go_on_sharing_memory(make_random):
    optimizer = make_random()
    optimizer.table = torch.zeros(1000)
    optimizer.part = optimizer.table[:10]
    copy = load.from_pickle(create.to_pickle(optimizer))
    copy.table[3] = 1.0
    assert copy.part[3] == 1.0
