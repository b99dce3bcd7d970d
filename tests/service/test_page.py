"""Pages of runs: what they say, and that nothing on them is code of others."""

from html.parser import HTMLParser

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from tvbo import recipes
from tvbo.optimizers import Optimizer
from tvbo.service.page import overview, run_page
from tvbo.storage import read_run

EVIL = "<script>alert(1)</script>\x1b[31m$\\frac$\u202e"
VOID = {"meta", "br"}
KNOWN = {"forgetting_rate": 0.02, "noise_variance": 0.01}


def kernel():
    return ScaleKernel(RBFKernel()).double()


def recorded(path, told=8, fails=(3, 4), outcome=None, **options):
    """Record a run of random actions, then asks; the newest one is open."""
    has_contexts = "context_bounds" in options
    recipe = recipes.tv_cgp_ucb if has_contexts else recipes.tv_gp_ucb
    name = "action_kernel" if has_contexts else "covar_module"
    with recipe(**{name: kernel(), **KNOWN, **options}) as optimizer:
        optimizer.record(path)
        generator = torch.Generator().manual_seed(1)
        for number in range(1, told + 1):
            context = None
            if has_contexts:
                context = optimizer.contexts.sample(generator)[0]
            X, t = optimizer.search_space.sample(generator), float(number)
            trial = (
                optimizer.ask(t, context) if number % 4 == 1 else optimizer.attach(X, t, context)
            )
            value = float(trial.X[0, 0])
            names = optimizer.labels.outcomes
            if number in fails:
                optimizer.fail(trial, f"crashed {EVIL}")
            else:
                optimizer.tell(trial, {each: value for each in names} if names else value)
        if told:
            optimizer.ask(told + 1.0, context, key=EVIL)
    return path


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.attributes, self.open, self.text = set(), [], [], ""
        self.pictures = page.count("<svg")
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.add(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.add(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def read(page):
    """Check that a page is whole, needs no other host and runs nothing; return it."""
    found = Page(page)
    assert found.open == []
    assert page.replace("\n", "").isprintable()
    assert not {"script", "iframe", "object", "embed", "link", "form", "base"} & found.elements
    for name, value in found.attributes:
        assert not name.startswith("on")
        if name.endswith(("href", "src")):
            assert value.startswith(("#", "data:image/", "runs/", "../"))
    assert "@import" not in page
    assert page.count("url(") == page.count("url(#")
    return found


RUNS = {
    "names": {
        "bounds": {f"{EVIL}x": (0.0, 1.0), "rate": (1, 100), "kind": ["a", EVIL, "<b>c</b>"]},
        "constraints": {f"{EVIL}cost": (None, 0.8)},
    },
    "contexts": {
        "bounds": [(0.0, 1.0), (0.0, 1.0)],
        "context_bounds": [(0.0, 1.0)],
        "context_kernel": RBFKernel().double(),
    },
    "objectives": {
        "choices": torch.rand(9, 2, generator=torch.Generator().manual_seed(0)).double(),
        "objectives": ["speed", EVIL],
    },
}


@pytest.mark.parametrize("case", RUNS)
def test_a_page_says_what_the_optimizer_says(tmp_path, case):
    path = recorded(tmp_path / "run.db", **RUNS[case])
    optimizer, rows = Optimizer.open(path, read_only=True), read_run(path)
    page = read(run_page(f"{EVIL}.db", rows, optimizer))
    assert "script>alert(1)" in page.text
    assert "\\x1b[31m" in page.text
    assert "6 told, 1 open, 2 failed" in " ".join(page.text.split())
    assert f"Half-life {optimizer.drift().half_life:.4g}" in page.text
    for name, share in optimizer.importance().items():
        assert f"{100 * share:.0f} %" in page.text.split("What matters")[1]
        assert name.split("\x1b")[0] in page.text
    if case != "objectives":
        context = None if case == "names" else torch.tensor(rows.trials[-1].context)
        best = optimizer.recommend(context)
        assert f"{best.mean:.4g}, with 95 % between" in page.text
    for heading in ("Over time", "The model now", "Calibration", "Newest failures"):
        assert heading in page.text
    # Over time; of each parameter, and over two that have many values; the calibration.
    assert page.pictures == {"names": 6, "contexts": 5, "objectives": 4}[case]
    assert page.text.count(f"crashed {EVIL[:8]}") == 2


@pytest.mark.parametrize("told", [0, 2])
def test_a_run_that_has_just_begun(tmp_path, told):
    path = recorded(tmp_path / "run.db", told, fails=(1, 2), bounds=[(0.0, 1.0)])
    page = read(run_page("run", read_run(path), Optimizer.open(path, read_only=True), refresh=7))
    assert "Nothing was observed yet" in page.text
    assert ("http-equiv", "refresh") in page.attributes


def test_a_rule_without_a_model(tmp_path):
    with recipes.random_search(bounds=[(0.0, 1.0)]) as optimizer:
        optimizer.record(tmp_path / "run.db")
        optimizer.tell(optimizer.ask(), 1.0)
    rows = read_run(tmp_path / "run.db")
    page = read(run_page("run", rows, Optimizer.open(tmp_path / "run.db", read_only=True)))
    assert "has no model" in page.text


def test_times_in_a_zone_with_summer_time(tmp_path):
    options = {"bounds": {"x": (0.0, 1.0)}, "time_unit": "15min", "time_zone": "Europe/Berlin"}
    with recipes.tv_gp_ucb(covar_module=kernel(), **KNOWN, **options) as optimizer:
        optimizer.record(tmp_path / "run.db")
        for day in (28, 29, 30):  # In 2026, summer time begins on March 29.
            optimizer.tell(optimizer.ask(f"2026-03-{day}T12:00:00+00:00"), 1.0)
    rows = read_run(tmp_path / "run.db")
    assert [stamp.hour for stamp in rows.to_frame().t] == [13, 14, 14]
    page = read(run_page("run", rows, Optimizer.open(tmp_path / "run.db", read_only=True)))
    assert "2026-03-30 14:00:00+02:00" in page.text
    assert "x 15min" in page.text


def test_an_overview(tmp_path):
    path = recorded(tmp_path / "run.db", bounds=[(0.0, 1.0)])
    runs = {
        EVIL: read_run(path),
        "empty": read_run(recorded(tmp_path / "empty.db", 0, bounds=[(0.0, 1.0)])),
    }
    page = read(overview(runs, 5))
    links = [value for name, value in page.attributes if name == "href"]
    assert len(links) == 2
    assert all(link.startswith("runs/") for link in links)
    assert "script>alert(1)" in page.text
