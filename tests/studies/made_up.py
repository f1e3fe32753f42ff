"""Tables as the studies write them, with made-up numbers."""

import math

import numpy as np
import pandas as pd

from studies import settings, tables
from studies.cells import Cell

MMD = {"dp-hmc": 0.2, "dp-penalty": 0.25, "dp-sgld": 0.5, "dp-sgnht": 0.6}


def comparison(mmd=None, epsilons=(4.0, 8.0, 15.0), repeats=4, names=None, models=settings.MODELS):
    """MMD of each algorithm (by name, or by model and name), a little different in each repeat."""
    mmd = MMD if mmd is None else mmd
    table = []
    for model in models:
        for name in names or settings.ROWS:
            for epsilon in epsilons:
                for repeat in range(repeats):
                    cell = Cell("comparison", model, name, epsilon, repeat)
                    value = mmd.get((model, name), mmd.get(name, 0.4)) * (1.0 + 0.02 * repeat)
                    table.append(_row(cell, value, ratios_clipped=math.nan if "sg" in name else 0.15))
    return pd.DataFrame(table, columns=tables.columns("comparison"))


def clipping(harm=0.0, repeats=5, models=settings.MODELS):
    """Clip fractions from 100 % to 0 over the bounds; ``harm`` is added to MMD wherever 1 to 20 % are clipped."""
    table = []
    for model in models:
        for name in settings.CLIPPING_ROWS:
            for bound, fraction in zip(
                settings.CLIPPING[model].bounds, (0.95, 0.8, 0.5, 0.3, 0.15, 0.05, 0.01, 0.0, 0.0), strict=True
            ):
                for repeat in range(repeats):
                    mmd = 0.02 + 0.004 * repeat + (0.5 if fraction > 0.2 else harm if fraction > 0.0 else 0.0)
                    table.append(_row(Cell("clipping", model, name, bound, repeat), mmd, ratios_clipped=fraction))
    return pd.DataFrame(table, columns=tables.columns("clipping"))


def cells_of(table, study):
    """The cells that a table is about."""
    columns = (table["model"], table["sampler"], table[tables.LEVELS[study]], table["repeat"])
    return [Cell(study, *values) for values in zip(*columns, strict=True)]


def _row(cell, mmd, **changes):
    study = cell.study
    row = dict.fromkeys(tables.columns(study), 1)
    row |= {
        "model": cell.model,
        "sampler": cell.row,
        "label": cell.label,
        "in_paper": cell.in_paper,
        "accountant": "gaussian",
        "temperature": math.nan,
        tables.LEVELS[study]: cell.level,
        "repeat": cell.repeat,
        "mmd": mmd,
        "mean_error": 0.1 * mmd,
        "max_r_hat": 1.0 + mmd,
        "acceptance": 0.5,
        "gradients_clipped": 0.1,
        "iterations_per_chain": 1000,
        "num_records": cell.num_records,
        "seconds": 2.0,
        "seconds_sampling": 1.5,
        "privacy": "not private: seeded",
        "dpmcmc": "0.1.0",
        "jax": "0.0",
        "commit": "abc",
    }
    return row | changes


def banana_draws(seed=0, number=300):
    generator = np.random.default_rng(seed)
    straight = generator.normal([0.0, 3.0], [0.14, 0.16], (number, 2))
    return np.stack([straight[:, 0], straight[:, 1] - 20.0 * straight[:, 0] ** 2], axis=1)
