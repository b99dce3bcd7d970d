"""Five named variants, two contexts, and outcomes that come days later in a DataFrame."""

import random

import pandas as pd

from tvbo import recipes

optimizer = recipes.tv_cgp_ucb(
    choices={"variant": ["red", "green", "blue", "gray", "gold"]},
    context_bounds={"age": (18.0, 90.0), "device": ["phone", "desktop"]},
    time_unit="1D",
)
sales, day = random.Random(0), pd.Timestamp("2026-05-01")
for number in range(40):
    now = day + pd.Timedelta(hours=number)
    optimizer.ask(now, {"age": 20 + number, "device": ["phone", "desktop"][number % 2]})
    if number % 10 == 9:  # some days later, what of it was bought, and what is not known yet
        late = optimizer.open_frame()
        late["outcome"] = [(arm == "blue") + sales.gauss(0, 0.2) for arm in late.variant]
        late.loc[late.index[-2:], "outcome"] = None
        optimizer.tell_frame(late)
best = optimizer.recommend({"age": 33.0, "device": "phone"}, now)
print(best.parameters, best.mean)
