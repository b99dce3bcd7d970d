"""Files of fitted panels: NumPy archives, read without pickle."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Interval, Positive
from numpy.typing import NDArray

from tvbo.kernels import (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)
from tvbo.logs.panel_coefficients import Posterior
from tvbo.logs.panel_data import regressors
from tvbo.logs.panel_evidence import PanelCandidate
from tvbo.logs.panel_mean import ModeForecast
from tvbo.logs.saved import SavedFitError, finite_json, from_plain, reading
from tvbo.logs.season import PeriodicSeason, Season, SegmentProfile, WorkweekSeason

FORMAT, VERSION = "tvbo panel fit", 1

LARGEST = 2**29
"""Bytes that the arrays of a file may have: those of about 8,000 arms."""

MOST_HARMONICS = 10_000
"""Harmonics that a kernel or a season of a file may have."""

ARRAYS = ("amplitudes", "modes", "posterior_mean", "posterior_covariance")

READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""What reads the header of an array, by the version of NumPy's format."""

PLAIN = (
    "time_unit",
    "num_times",
    "last_time",
    "mean",
    "noise_variance",
    "log_likelihood",
    "chosen",
    "reason",
    "messages",
)

KERNELS: tuple[type[TemporalKernel], ...] = (
    ConstantTemporalKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalMaternKernel,
)
SEASONS = (PeriodicSeason, SegmentProfile, WorkweekSeason)


def write_panel_fit(
    path: str | Path,
    numbers: dict[str, Any],
    evidence: list[PanelCandidate],
    forecast: ModeForecast,
) -> None:
    """Write a fit.

    Args:
        path: The file.
        numbers: The fields that :data:`PLAIN` names.
        evidence: The table of candidates.
        forecast: The distribution of the modes after the log.

    Raises:
        SavedFitError: if the arrays are larger than :data:`LARGEST`.
    """
    posterior = forecast.posterior
    arrays = forecast.amplitudes, forecast.modes, posterior.mean, posterior.covariance
    if (size := sum(array.nbytes for array in arrays)) > LARGEST:
        raise SavedFitError(f"Expected a fit of at most {LARGEST} bytes. Got {size}.")
    header = {
        "format": FORMAT,
        "version": VERSION,
        **numbers,
        "season": None if forecast.season is None else forecast.season.to_dict(),
        "temporal_kernels": [describe(kernel) for kernel in forecast.kernels],
        "evidence": [vars(row) for row in evidence],
    }
    with Path(path).open("wb") as file:
        np.savez_compressed(
            file,
            header=np.array(json.dumps(header)),
            amplitudes=forecast.amplitudes,
            modes=forecast.modes,
            posterior_mean=posterior.mean,
            posterior_covariance=posterior.covariance,
        )


def read_panel_fit(path: str | Path) -> dict[str, Any]:
    """Return the fields of a fit that was written.

    Raises:
        SavedFitError: if the file is none, or one of a newer version.
        OSError: if it cannot be read.
    """
    with Path(path).open("rb") as file, reading(path, "PanelFit"), zipfile.ZipFile(file) as archive:
        size = sum(archive.getinfo(f"{name}.npy").file_size for name in ("header", *ARRAYS))
        if size > LARGEST:
            raise ValueError(f"Expected at most {LARGEST} bytes, decompressed. Got {size}.")
        header = finite_json(str(_array(archive, "header", ())))
        if header["format"] != FORMAT:
            raise ValueError(f"Expected a {FORMAT}. Got {header['format']!r:.99}.")
        if not 1 <= header["version"] <= VERSION:
            raise SavedFitError(
                f"Expected a panel fit of version 1 to {VERSION}. Got version "
                f"{header['version']} in {path}, which a newer tvbo wrote."
            )
        kernels = [make_kernel(words) for words in header["temporal_kernels"]]
        season = header["season"] and _make_season(header["season"])
        states = sum(kernel.num_states for kernel in kernels)
        width = regressors(season, np.zeros(1)).shape[1] + states
        modes = _array(archive, "modes", (None, None))
        n = len(modes)
        amplitudes = _array(archive, "amplitudes", (len(kernels), n))
        mean = _array(archive, "posterior_mean", (n, width))
        covariance = _array(archive, "posterior_covariance", (n, width, width))
        posterior = Posterior(mean, covariance)
        return {
            **{name: header[name] for name in PLAIN},
            "arm_means": torch.as_tensor(modes @ posterior.mean[:, 0]),
            "temporal_kernels": kernels,
            "covariances": [torch.as_tensor((modes * scale) @ modes.T) for scale in amplitudes],
            "evidence": [from_plain(PanelCandidate, row) for row in header["evidence"]],
            "mode_forecast": ModeForecast(
                season, kernels, amplitudes, modes, posterior, header["last_time"]
            ),
        }


def _array(archive: zipfile.ZipFile, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return an array of an archive, whose header is compared before its values are read.

    Args:
        archive: The archive.
        name: Name of the array.
        shape: Shape to expect, None for any size; all None are of one size, 1 at least.

    Raises:
        ValueError: if it is of another shape, holds anything but finite numbers (text where the
            shape is ``()``), or its size is not that of its header.
    """
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version not in READERS:
            raise ValueError(f"Expected {name} of version {' or '.join(map(str, READERS))}.")
        found, is_fortran, dtype = READERS[version](file)
        free = found[0] if None in shape and found else 1
        expected = tuple(free if size is None else size for size in shape)
        length = math.prod(found) * dtype.itemsize
        is_right_type = dtype.kind == "U" if shape == () else dtype == np.float64
        if (
            found != expected
            or free < 1
            or not is_right_type
            or file.tell() + length != info.file_size
        ):
            raise ValueError(f"Expected {name} of shape {expected}. Got {dtype} of shape {found}.")
        values = np.frombuffer(bytearray(file.read(length)), dtype)
    array: NDArray[Any] = values.reshape(found, order="F" if is_fortran else "C")
    if shape and not np.isfinite(array).all():
        raise ValueError(f"Expected finite numbers. Got others in {name}.")
    return array


def describe(kernel: TemporalKernel) -> dict[str, Any]:
    """Return class and parameters of a temporal kernel, in types of JSON."""
    names = [name.removeprefix("raw_") for name, _ in kernel.named_parameters()]
    given = {
        name: getattr(kernel, name) for name in ("nu", "num_harmonics") if hasattr(kernel, name)
    }
    values = {name: getattr(kernel, name).item() for name in names}
    return {"class": type(kernel).__name__, **given, **values}


def make_kernel(words: dict[str, Any]) -> TemporalKernel:
    """Return the kernel that :func:`describe` described, with parameters equal to the bit."""
    values = dict(words)
    kinds = {kind.__name__: kind for kind in KERNELS}
    kind = kinds[values.pop("class")]
    made: dict[str, Any] = {
        name: values.pop(name) for name in ("nu", "num_harmonics") if name in values
    }
    _check_harmonics(made)
    if "period" in values:
        made["period"] = values["period"]
    for name in values:
        # Without a transform, whose inverse would round.
        made[f"{name}_constraint"] = (
            Interval(0.0, 1.0, transform=None, initial_value=0.5)
            if name == "forgetting_rate"
            else Positive(transform=None)
        )
    kernel: TemporalKernel = kind(**made).double()
    held = {name.removeprefix("raw_") for name, _ in kernel.named_parameters()}
    if set(values) != held:
        raise ValueError(f"Expected {sorted(held)} of {kind.__name__}. Got {sorted(values)}.")
    for name, value in values.items():
        if value < 0 or (value == 0 and name != "forgetting_rate"):
            raise ValueError(f"Expected {name} > 0. Got {value}.")
        setattr(kernel, name, torch.tensor(value, dtype=torch.float64))
    kernel.requires_grad_(False)
    return kernel


def _make_season(words: dict[str, Any]) -> Season:
    """Return the season that its :meth:`Season.to_dict` described."""
    values = dict(words)
    kinds = {kind.__name__: kind for kind in SEASONS}
    kind = kinds[values.pop("class")]
    _check_harmonics(values)
    if not values["length"] > 0:
        raise ValueError(f"Expected a season of length > 0. Got {values['length']}.")
    season: Season = kind(**values)
    return season


def _check_harmonics(values: dict[str, Any]) -> None:
    harmonics = values.get("num_harmonics", 1)
    if type(harmonics) is not int or not 1 <= harmonics <= MOST_HARMONICS:
        raise ValueError(f"Expected num_harmonics from 1 to {MOST_HARMONICS}. Got {harmonics}.")
