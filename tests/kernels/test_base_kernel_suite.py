"""GPyTorch's own tests of a kernel, as they are in the installed version, on each of ours.

The page ``experiments/docs/upstream.md`` lists what differs; a test compares the two.
"""

import inspect
import re
import unittest
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from gpytorch.test import base_kernel_test_case
from kernel_cases import CASES, Case, of

import tvbo.kernels

pytestmark = pytest.mark.draws_globally  # the suite does

PAGE = Path(__file__).parents[2] / "experiments" / "docs" / "upstream.md"

BROADCAST, DOUBLE = "test_kernel_getitem_broadcast", "test_kernel_getitem_double_batch"
EXPANSION = (
    "GPyTorch's `ProductKernel` and `AdditiveKernel` do not expand their parts: "
    "`RBFKernel() * RBFKernel()` fails it as well"
)
SELECTION = (
    "GPyTorch's `ScaleKernel` takes over the columns of its base kernel, and indexes them: "
    "`ScaleKernel(RBFKernel(active_dims=[0]))` fails it as well"
)
FAILS = {
    "RBFKernel * TemporalDecayKernel": {BROADCAST: EXPANSION},
    "RBFKernel * (two temporal kernels)": {BROADCAST: EXPANSION, DOUBLE: SELECTION},
    "TemporalDecayKernel + ConstantTemporalKernel": {BROADCAST: EXPANSION},
    "two products with temporal kernels": {BROADCAST: EXPANSION},
}
"""Tests that fail; if one passes, the class below says so."""


def _product(columns, batch_shape):
    one, other = (RBFKernel(active_dims=columns, batch_shape=batch_shape) for _ in range(2))
    return one * other


def _scaled(columns, batch_shape):
    first = (columns or [0])[:1]
    inner = RBFKernel(active_dims=first, batch_shape=batch_shape)
    return ScaleKernel(inner, batch_shape=batch_shape)


PEERS = {
    "RBFKernel": (Case(of(RBFKernel), width=None), ()),
    "RBFKernel * RBFKernel": (Case(_product, width=None), (BROADCAST,)),
    "ScaleKernel(RBFKernel(active_dims=[0]))": (Case(_scaled, width=None), (BROADCAST, DOUBLE)),
}
"""GPyTorch's own kernels, and the tests that they fail."""


class Suite(base_kernel_test_case.BaseKernelTestCase):
    seed = 0

    def setUp(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        super().setUp()

    def tearDown(self):
        super().tearDown()
        torch.set_default_dtype(self.default)

    def create_kernel_no_ard(self, active_dims=None, batch_shape=()):
        return self.case.kernel(active_dims, batch_shape)

    def create_data_no_batch(self):
        return self.case.rows(50, width=10)

    def create_data_single_batch(self):
        return self.case.rows(2, 3)

    def create_data_double_batch(self):
        return self.case.rows(3, 2, 50)


class OfSomeColumns(Suite):
    """The suite for a kernel that sees a given number of columns, of which it is given as many."""

    def check_active_dims(self, columns):
        x = self.create_data_no_batch()
        actual = self.create_kernel_no_ard()(x[:, columns]).evaluate_kernel().to_dense()
        covar = self.create_kernel_no_ard(active_dims=columns)(x).evaluate_kernel().to_dense()
        self.assertAllClose(covar, actual, rtol=1e-3, atol=1e-5)

    def test_active_dims_list(self):
        self.check_active_dims([0, 2, 4, 6][: self.case.width])

    def test_active_dims_range(self):
        self.check_active_dims(list(range(3, 3 + self.case.width)))


def _suite(label, case, dtype, fails):
    """Return a test class in which the named tests have to fail."""
    base = Suite if case.width is None else OfSomeColumns

    def failing(test):
        return unittest.expectedFailure(lambda self: getattr(base, test)(self))

    methods = {test: failing(test) for test in fails}
    attributes = {"case": case, "dtype": dtype, "__module__": __name__, **methods}
    return type(label, (base, unittest.TestCase), attributes)


def _suites():
    ours = {name: (case, FAILS.get(name, ())) for name, case in CASES.items()}
    peers = {f"GPyTorch's {name}": given for name, given in PEERS.items()}
    for dtype in (torch.float32, torch.float64):
        for name, (case, fails) in {**ours, **peers}.items():
            label = f"Test[{name}, {str(dtype)[6:]}]"
            yield label, _suite(label, case, dtype, fails)


globals().update(_suites())


def test_every_public_kernel_is_a_case():
    public = {
        name
        for name in tvbo.kernels.__all__
        if inspect.isclass(kind := getattr(tvbo.kernels, name)) and issubclass(kind, Kernel)
    }
    assert public - {"TemporalKernel"} == public & {name.split(",")[0] for name in CASES}


def table():
    """The rows of the page: what of the suite each kernel passes, and what differs."""
    tests = [name for name in dir(Suite) if name.startswith("test_")]
    alike = {}
    for name, case in CASES.items():
        passed = len(tests) - len(FAILS.get(name, ()))
        columns = {None: "any", 1: "one", 2: "two"}[case.width]
        columns += " of integers" if case.kind == "index" else ""
        gradient = "yes" if case.has_gradient else "none"
        row = f"{passed} of {len(tests)} | {columns} | {gradient} |"
        alike.setdefault(row, []).append(f"`{name}`")
    rows = ["| kernels | pass | columns | gradient in the input |", "|---|---|---|---|"]
    rows += [f"| {', '.join(names)} | {row}" for row, names in alike.items()]
    reasons = {}
    for name, failed in FAILS.items():
        for test, reason in failed.items():
            reasons.setdefault((test, reason), []).append(f"`{name}`")
    rows += ["", "| not passed | by | why |", "|---|---|---|"]
    rows += [f"| `{test}` | {', '.join(by)} | {why} |" for (test, why), by in reasons.items()]
    return "\n".join(rows)


def test_the_page_says_what_these_tests_do():
    page = PAGE.read_text()
    [found] = re.findall(r"<!-- begin of table -->\n(.*)\n<!-- end of table -->", page, re.DOTALL)
    assert found == table()
