"""The callbacks on the page of the docs, run as they stand there."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tvbo import recipes

PAGE = Path(__file__).parent.parent / "docs" / "in_service.md"
BLOCKS = re.findall(
    r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def played(block):
    """Run a block, then three trials, told in reverse, and one that fails."""
    optimizer = recipes.tv_gp_ucb(bounds={"x": (0.0, 1.0), "kind": ["a", "b"]})
    exec(block, {"optimizer": optimizer})
    for trial in reversed([optimizer.ask() for _ in range(3)]):
        optimizer.tell(trial, trial.id / 10)
    optimizer.fail(optimizer.ask(), "crashed")
    return optimizer


@pytest.mark.filterwarnings("ignore")  # MLflow warns of itself.
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    [block] = [block for block in BLOCKS if "mlflow" in block]
    with mlflow.start_run() as parent:
        played(block)
    found = mlflow.MlflowClient().search_runs([parent.info.experiment_id])
    found = [each for each in found if each.info.run_id != parent.info.run_id]
    assert {each.data.tags["mlflow.parentRunId"] for each in found} == {parent.info.run_id}
    assert [each.data.metrics for each in reversed(found)] == [
        {"outcome": 0.3},
        {"outcome": 0.2},
        {"outcome": 0.1},
        {},
    ]
    assert found[0].data.tags["reason"] == "crashed"
    assert all(set(each.data.params) == {"x", "kind", "t"} for each in found)


def test_weights_and_biases(monkeypatch):
    logged = []
    tracked = SimpleNamespace(log=logged.append, summary={})
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda project: tracked))
    [block] = [block for block in BLOCKS if "wandb" in block]
    played(block)
    assert [(each["trial"], each["outcome"]) for each in logged] == [(3, 0.3), (2, 0.2), (1, 0.1)]
    assert all({"x", "kind", "t"} <= set(each) for each in logged)
