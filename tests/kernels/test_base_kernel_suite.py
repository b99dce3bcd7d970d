"""GPyTorch's own tests of a kernel, as they are in the installed version, on each of ours."""

import inspect
import unittest

import pytest
import torch
from gpytorch.kernels import Kernel
from gpytorch.test import base_kernel_test_case
from kernel_cases import CASES

import tvbo.kernels

pytestmark = pytest.mark.draws_globally  # the suite does

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
    for name, case in CASES.items():
        label = f"Test[{name}]"
        yield label, _suite(label, case, torch.float64, FAILS.get(name, ()))


globals().update(_suites())


def test_every_public_kernel_is_a_case():
    public = {
        name
        for name in tvbo.kernels.__all__
        if inspect.isclass(kind := getattr(tvbo.kernels, name)) and issubclass(kind, Kernel)
    }
    assert public - {"TemporalKernel"} == public & {name.split(",")[0] for name in CASES}
