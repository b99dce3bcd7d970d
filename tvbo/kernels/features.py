"""Random features of tvbo's kernels, for BoTorch's pathwise samples.

Importing this module registers them with :func:`botorch.sampling.pathwise.gen_kernel_features`,
and with them products and sums of kernels, for which BoTorch has no rule.
"""

from __future__ import annotations

import math
from functools import partial, singledispatch
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features import KernelFeatureMap
from botorch.sampling.pathwise.features.generators import GenKernelFeatures, gen_kernel_features
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    FeatureSelector,
    SineCosineTransform,
)
from gpytorch.kernels import AdditiveKernel, IndexKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor
from torch.distributions import Gamma

from tvbo.kernels.batch import ColumnKernel
from tvbo.kernels.context_action import ContextActionKernel
from tvbo.kernels.covariance_matrix import CovarianceMatrixKernel, index_column
from tvbo.kernels.spectrum import Spectrum, product_of, spectrum_of_matrix, sum_of
from tvbo.kernels.temporal import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
from tvbo.kernels.temporal_base import TemporalKernel

FASTEST_DECAY = 1e6
"""Largest rate of decay that is drawn, per unit of time: with ε = 1 it would be infinite."""


class SpectralFeatureMap(KernelFeatureMap):
    r"""Features :math:`n^{-1/2} a_j(x) \sin(w_j^\top x)` and the same with cosines.

    Args:
        kernel: The kernel.
        spectrum: ``n`` draws of it, over the columns that it sees.
    """

    amplitudes: Tensor

    def __init__(self, kernel: Kernel, spectrum: Spectrum):
        # Without transforms, those that BoTorch chains to them would have nothing to follow.
        active = kernel.active_dims
        super().__init__(
            kernel,
            spectrum.frequencies,
            input_transform=ChainedTransform() if active is None else FeatureSelector(active),
            output_transform=ChainedTransform(),
        )
        self.register_buffer("amplitudes", spectrum.amplitudes)
        self.columns = [column for column, _ in spectrum.tables]
        for i, (_, table) in enumerate(spectrum.tables):
            self.register_buffer(f"table_{i}", table)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of rows ``... x q x d``, ``... x q x 2 n``."""
        angles = super().forward(x)
        amplitudes = self.amplitudes.unsqueeze(-2) / math.sqrt(angles.shape[-1])
        for i, column in enumerate(self.columns):
            table = getattr(self, f"table_{i}")
            index = index_column(x[..., column : column + 1], table.shape[-2])
            amplitudes = amplitudes * _rows_of(table, index)
        return torch.cat([amplitudes * angles.sin(), amplitudes * angles.cos()], dim=-1)

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        """Number of features, ``2 n``."""
        return 2 * int(self.weight.shape[-2])


def has_features(kernel: Kernel) -> bool:
    """Return whether random features can be drawn of a kernel."""
    inner = [part for part in kernel.modules() if isinstance(part, Kernel)]
    return all(GenKernelFeatures.dispatch(type(part)) is not None for part in inner)


def draw_spectrum(kernel: Kernel, n: int, d: int) -> Spectrum:
    """Return ``n`` draws of a kernel over ``d`` columns, from torch's global generator.

    Raises:
        UnsupportedError: if BoTorch's features of a kernel inside are no sines and cosines.
        NotImplementedError: if nothing draws features of a kernel inside.
    """
    if kernel.active_dims is None:
        return _draw(kernel, n, d)
    columns = kernel.active_dims.tolist()
    return _draw(_without_selection(kernel), n, len(columns)).within(columns, d)


@singledispatch
def _draw(kernel: Kernel, n: int, d: int) -> Spectrum:
    """Return draws of a kernel without ``active_dims``; by BoTorch where there is no rule here."""
    features = gen_kernel_features(kernel, num_inputs=d, num_outputs=2 * n)
    if type(features) is not KernelFeatureMap or not isinstance(
        features.output_transform, SineCosineTransform
    ):
        raise UnsupportedError(
            f"Expected features that are sines and cosines. Got others of {type(kernel).__name__}."
        )
    unit = torch.eye(d).to(features.weight)
    transform = features.input_transform
    frequencies = features.forward(unit if transform is None else transform(unit)).mT.detach()
    return Spectrum(frequencies, torch.ones_like(frequencies[..., 0]))


@_draw.register
def _(kernel: ScaleKernel, n: int, d: int) -> Spectrum:
    # Its base kernel is evaluated on the columns selected by the outer one.
    base = _draw(_without_selection(kernel.base_kernel), n, d)
    return base.scaled(kernel.outputscale.detach())


@_draw.register
def _(kernel: ColumnKernel, n: int, d: int) -> Spectrum:
    return draw_spectrum(kernel.base_kernel, n, d)


@_draw.register
def _(kernel: ProductKernel, n: int, d: int) -> Spectrum:
    return product_of([draw_spectrum(part, n, d) for part in kernel.kernels])


@_draw.register
def _(kernel: AdditiveKernel, n: int, d: int) -> Spectrum:
    return sum_of([partial(_in_number, part, d) for part in kernel.kernels], n)


@_draw.register
def _(kernel: ContextActionKernel, n: int, d: int) -> Spectrum:
    action = partial(_in_number, kernel.action_kernel, d)
    context = partial(_in_number, kernel.context_kernel, d)

    def both(m: int) -> Spectrum:
        return product_of([action(m), context(m)])

    if kernel.structure == "product":
        return both(n)
    if kernel.structure == "additive":
        return sum_of([action, context], n)
    a, b, c = kernel.outputscales.detach().unbind(dim=-1)
    return sum_of(
        [
            lambda m: action(m).scaled(a),
            lambda m: context(m).scaled(b),
            lambda m: both(m).scaled(c),
        ],
        n,
    )


@_draw.register
def _(kernel: CovarianceMatrixKernel, n: int, d: int) -> Spectrum:
    return spectrum_of_matrix(kernel.covar_matrix, n, d)


@_draw.register
def _(kernel: IndexKernel, n: int, d: int) -> Spectrum:
    return spectrum_of_matrix(kernel._eval_covar_matrix().detach(), n, d)


@_draw.register
def _(kernel: TemporalDecayKernel, n: int, d: int) -> Spectrum:
    return _in_time(_cauchy(kernel, n))


@_draw.register
def _(kernel: TemporalMaternKernel, n: int, d: int) -> Spectrum:
    # Student's distribution with 2 ν degrees of freedom (Rasmussen, Williams, 2006, Section 4.2.1).
    nu = torch.tensor(kernel.nu).to(kernel._one)
    shape = *kernel.batch_shape, n
    normal = torch.randn(shape).to(nu)
    students = normal * Gamma(nu, nu).sample(shape).rsqrt()
    return _in_time(students / kernel.lengthscale.detach().squeeze(-1))


@_draw.register
def _(kernel: SeasonalKernel, n: int, d: int) -> Spectrum:
    cumulated = kernel.weights.detach().cumsum(dim=-1)
    harmonic = torch.searchsorted(cumulated, _uniform(kernel, n)).clamp_max(
        kernel.num_harmonics - 1
    )
    return _in_time(2 * math.pi * (harmonic + 1) * _signs(kernel, n) / kernel.period.detach())


@_draw.register
def _(kernel: ConstantTemporalKernel, n: int, d: int) -> Spectrum:
    return _in_time(kernel._one.new_zeros(*kernel.batch_shape, n))


def _in_number(kernel: Kernel, d: int, n: int) -> Spectrum:
    return draw_spectrum(kernel, n, d)


def _in_time(frequencies: Tensor) -> Spectrum:
    return Spectrum(frequencies.unsqueeze(-1), torch.ones_like(frequencies))


def _cauchy(kernel: Any, n: int) -> Tensor:
    """Return draws from the Cauchy spectrum of exponential decay, ``batch_shape x n``."""
    rate = (-0.5 * torch.log1p(-kernel.forgetting_rate.detach())).clamp_max(FASTEST_DECAY)
    return rate * torch.tan(math.pi * (_uniform(kernel, n) - 0.5))


def _uniform(kernel: TemporalKernel, n: int) -> Tensor:
    """Return uniform numbers, one in each ``n``-th of (0, 1), ``batch_shape x n``."""
    within = torch.rand(*kernel.batch_shape, n, dtype=torch.float64)
    return ((torch.arange(n) + within) / n).to(kernel._one)


def _signs(kernel: TemporalKernel, n: int) -> Tensor:
    return (2 * torch.randint(2, (*kernel.batch_shape, n)) - 1).to(kernel._one)


def _rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of tables, ``... x q x n``.

    Args:
        table: ``batch_shape x num_indices x n``.
        index: The numbers of the rows, ``... x q``.
    """
    batch = torch.broadcast_shapes(table.shape[:-2], index.shape[:-1])
    place = index.expand(*batch, -1).unsqueeze(-1).expand(*batch, -1, table.shape[-1])
    return table.expand(*batch, -1, -1).gather(-2, place)


def _without_selection(kernel: Kernel) -> Kernel:
    """Return a kernel that is evaluated on all columns of its input."""
    # Not by `copy`: GPyTorch's copies share their attributes.
    new: Kernel = object.__new__(type(kernel))
    buffers = {**kernel._buffers, "active_dims": None}
    new.__setstate__({**kernel.__dict__, "_buffers": buffers})
    return new


def _generate(kernel: Kernel, *, num_inputs: int, num_outputs: int) -> SpectralFeatureMap:
    if num_outputs % 2:
        raise UnsupportedError(f"Expected an even number of features. Got {num_outputs}.")
    active = kernel.active_dims
    d = num_inputs if active is None else len(active)
    spectrum = _draw(_without_selection(kernel), num_outputs // 2, d)
    return SpectralFeatureMap(kernel, spectrum)


for _kind in (
    ColumnKernel,
    ContextActionKernel,
    CovarianceMatrixKernel,
    TemporalKernel,
    IndexKernel,
    ProductKernel,
    AdditiveKernel,
):
    GenKernelFeatures.add((_kind,), _generate)
