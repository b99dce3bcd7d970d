import torch

from tvbo.logs import fit_panel
from tvbo.plotting import plot_panel_fit


def test_the_lines_are_the_forecast_of_the_arms_that_are_best():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 6, dtype=torch.float64, generator=generator) + torch.arange(6)
    times = 2 * torch.arange(60, dtype=torch.float64)
    fit = fit_panel(values, times, season=None, temporal_kernel="independent", arms="abcdef")
    figure = plot_panel_fit(fit)
    [axes] = figure.axes
    assert [line.get_label() for line in axes.lines] == list("fedc")
    ahead = torch.as_tensor(axes.lines[0].get_xdata())
    assert ahead[0] == 120
    torch.testing.assert_close(
        torch.as_tensor(axes.lines[0].get_ydata()), fit.forecast(ahead).mean[:, 5]
    )
    assert len(axes.collections) == 4
