import os
from collections import defaultdict
from pathlib import Path

import pytest

# Two workers on two cores: more threads would only wait for one another. The environment also holds
# for NumPy's and SciPy's BLAS, if it is set before they are imported, and for child processes.
THREADS = os.environ["OMP_NUM_THREADS"] = os.environ.get("TVBO_TEST_THREADS", "1")
# A test that is not marked slow fails if it takes longer. Only `.ci/run` sets it: elsewhere the
# verdict would depend on the machine.
CPU_LIMIT = float(os.environ.get("TVBO_TEST_CPU_LIMIT", "inf"))
REPORTED_SECONDS = 10

import torch  # noqa: E402

torch.set_num_threads(int(THREADS))


def cpu_seconds():
    """CPU time of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def pytest_configure(config):
    # Not in pyproject.toml: pytest would import torch to resolve it, before the environment is set.
    category = "linear_operator.utils.warnings.NumericalWarning"
    config.addinivalue_line("filterwarnings", f"ignore::{category}")


def rows_of(item):
    """The rows of the test's ``parametrize`` tables that it is made of."""
    tables = [mark.args[0] for mark in item.iter_markers("parametrize")]
    names = [table.split(",") if isinstance(table, str) else table for table in tables]
    params = item.callspec.params
    return {(tuple(each), *(id(params[name.strip()]) for name in each)) for each in names}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what reads recorded data, ``slow_cases``, and what ``combinations`` leaves out; sort."""
    combined = defaultdict(dict)
    for item in items:
        if "data_folder" in item.fixturenames:
            item.add_marker("real_data")
        for mark in item.iter_markers("slow_cases"):
            if item.callspec.id in mark.args:
                item.add_marker("slow")
        if "combinations" in item.keywords:
            combined[item.parent, item.originalname][item] = rows_of(item)
    for rows in combined.values():
        missing = set().union(*rows.values())
        while missing:
            # The test with the most rows that no test has yet; of equals the first.
            missing -= rows.pop(max(rows, key=lambda item: len(rows[item] & missing)))
        for item in rows:
            item.add_marker("slow")
    # Files with slow tests first, so that no process ends long before the other.
    slow_files = {item.path for item in items if "slow" in item.keywords}
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.cpu_start = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Report CPU seconds, set-up included; fail a test that takes too many.

    Tear-down is not: there the last test of a file would have those of the file's worker processes.
    """
    report = yield
    if call.when == "call" and "slow" not in item.keywords:
        report.cpu_seconds = cpu_seconds() - item.cpu_start
        if report.passed and report.cpu_seconds > CPU_LIMIT:
            report.outcome = "failed"
            report.longrepr = f"Expected at most {CPU_LIMIT:g} CPU s. Got {report.cpu_seconds:.1f}."
    return report


def pytest_terminal_summary(terminalreporter):
    reports = [r for group in terminalreporter.stats.values() for r in group]
    for report in reports:
        if getattr(report, "cpu_seconds", 0) > REPORTED_SECONDS:
            terminalreporter.write_line(
                f"{report.nodeid} took {report.cpu_seconds:.1f} CPU s; mark it slow or shorten it"
            )


@pytest.fixture(autouse=True, scope="session")
def _no_compiler():
    """Keep BoTorch from compiling a kernel, which takes 20 s where there is a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botorch.acquisition.multi_objective.logei._load_attempted", True)
        yield


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def data_folder():
    folder = os.environ.get("TVBO_DATA")
    if not folder:
        pytest.skip("TVBO_DATA names no folder of recorded data")
    return Path(folder)


@pytest.fixture(autouse=True)
def _global_random_state_untouched(request):
    """Nothing in the library draws from torch's global generator; a test may say that it does."""
    if "draws_globally" in request.keywords:
        torch.manual_seed(0)
        yield
        return
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "torch's global generator was used"


@pytest.fixture
def double_by_default():
    """Brevity in tests of mathematics; the loop is tested under torch's own default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
