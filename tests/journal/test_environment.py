"""Which code an optimizer rests on."""

import sys

import torch

import tvbo
from tvbo.journal import environment, pickles


def test_versions_and_threads_are_kept_track_of():
    now = environment.environment([])
    assert now["torch"] == torch.__version__.split("+")[0] or now["torch"] == torch.__version__
    assert now["tvbo"] == tvbo.__version__
    assert now["threads"] == str(torch.get_num_threads())
    assert environment.same(now, environment.environment([]))


def test_user_modules_are_followed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "top_of_mine.py").write_text("import math, torch\nfrom below_mine import f\n")
    (tmp_path / "below_mine.py").write_text("def f():\n    pass\n")
    (tmp_path / "beside_mine.py").write_text("")
    then = environment.environment(["top_of_mine", "torch.nn", "tvbo.kernels"])
    mine = {name for name in then if name.startswith("source of") and name != "source of tvbo"}
    assert mine == {"source of top_of_mine", "source of below_mine"}
    (tmp_path / "below_mine.py").write_text("def f():\n    return 1\n")
    now = environment.environment(["top_of_mine"])
    assert not environment.same(then, now)
    old, new = then["source of below_mine"], now["source of below_mine"]
    assert environment.changes(then, now) == f"source of below_mine was {old}, is {new}"
    for name in ("top_of_mine", "below_mine"):
        del sys.modules[name]


def test_a_module_that_is_gone_is_a_difference():
    assert environment.environment(["never_there"])["source of never_there"] == "missing"


def test_modules_of_a_pickle(make_streaming):
    found = pickles.modules_of(pickles.dump(make_streaming()))
    assert {
        "tvbo.optimizers.gp_optimizer",
        "tvbo.acquisition.beta",
        "gpytorch.kernels.rbf_kernel",
    } <= found


def test_a_dump_is_without_the_journal(run, make_streaming, play):
    optimizer = make_streaming()
    optimizer.record(run)
    play(optimizer, 5)
    copy = pickles.load(pickles.dump(optimizer))
    assert copy._recorder is None
    assert play(copy, 5) == play(optimizer, 5)


def test_tensors_go_on_sharing_memory(make_random):
    optimizer = make_random()
    optimizer.table = torch.zeros(1000)
    optimizer.part = optimizer.table[:10]
    copy = pickles.load(pickles.dump(optimizer))
    copy.table[3] = 1.0
    assert copy.part[3] == 1.0
