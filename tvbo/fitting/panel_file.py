"""Files of fitted panels: NumPy archives, read without pickle."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.constraints import Interval, Positive

from tvbo.fitting.panel_coefficients import Posterior
from tvbo.fitting.panel_evidence import PanelCandidate
from tvbo.fitting.panel_mean import ModeForecast
from tvbo.fitting.season import PeriodicSeason, Season, SegmentProfile, WorkweekSeason
from tvbo.kernels import (
    ConstantTemporalKernel,
    DampedOscillationKernel,
    SeasonalKernel,
    TemporalDecayKernel,
    TemporalKernel,
    TemporalMaternKernel,
)

FORMAT, VERSION = "tvbo panel fit", 1

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
    DampedOscillationKernel,
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
    """
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
            posterior_mean=forecast.posterior.mean,
            posterior_covariance=forecast.posterior.covariance,
        )


def read_panel_fit(path: str | Path) -> dict[str, Any]:
    """Return the fields of a fit that was written.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no such file, or one of a newer version.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")[()]))
        if header["format"] != FORMAT:
            raise KeyError(header["format"])
    except (zipfile.BadZipFile, KeyError, AttributeError, EOFError, ValueError) as error:
        raise ValueError(f"Expected a file written by PanelFit.save. Got {path}.") from error
    if header["version"] > VERSION:
        raise ValueError(
            f"Expected a panel fit of version {VERSION} at most. Got version {header['version']} "
            f"in {path}, which a newer tvbo wrote."
        )
    kernels = [make_kernel(words) for words in header["temporal_kernels"]]
    amplitudes, modes = arrays["amplitudes"], arrays["modes"]
    posterior = Posterior(arrays["posterior_mean"], arrays["posterior_covariance"])
    season = header["season"] and _make_season(header["season"])
    return {
        **{name: header[name] for name in PLAIN},
        "arm_means": torch.as_tensor(modes @ posterior.mean[:, 0]),
        "temporal_kernels": kernels,
        "covariances": [torch.as_tensor((modes * scale) @ modes.T) for scale in amplitudes],
        "evidence": [PanelCandidate(**row) for row in header["evidence"]],
        "mode_forecast": ModeForecast(
            season, kernels, amplitudes, modes, posterior, header["last_time"]
        ),
    }


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
    for name, value in values.items():
        setattr(kernel, name, torch.tensor(value, dtype=torch.float64))
    kernel.requires_grad_(False)
    return kernel


def _make_season(words: dict[str, Any]) -> Season:
    """Return the season that its :meth:`Season.to_dict` described."""
    values = dict(words)
    kinds = {kind.__name__: kind for kind in SEASONS}
    season: Season = kinds[values.pop("class")](**values)
    return season
