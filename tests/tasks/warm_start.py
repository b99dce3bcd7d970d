"""A tuner that begins with a log of 2,000 rows."""

import numpy as np
import pandas as pd

from tvbo import recipes
from tvbo.retention import SizeLimit

rng = np.random.default_rng(0)
log = pd.DataFrame(
    {
        "t": pd.date_range("2026-01-01", periods=2000, freq="15min"),
        "pressure": rng.uniform(1, 9, 2000),
        "speed": rng.integers(1, 21, 2000),
    }
)
log["outcome"] = -((log.pressure - 4) ** 2) - (log.speed - 12) ** 2 / 10
optimizer = recipes.tv_gp_ucb(
    bounds={"pressure": (1.0, 9.0), "speed": (1, 20)}, time_unit="1h", retention=SizeLimit(150)
)
optimizer.attach_frame(log)
trial = optimizer.ask(pd.Timestamp("2026-01-22"))
print(trial.parameters, optimizer.model_size)
