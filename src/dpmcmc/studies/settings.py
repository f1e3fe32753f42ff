"""The settings of the paper's experiments, as data: what is run, how often, with which numbers.

Source: the paper's text, and where it is silent or differs the code published with it (GitHub,
DPBayes/DP-HMC-experiments). Nothing here runs anything or sees data.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import dpmcmc

NUM_RECORDS = 100_000
NUM_CHAINS = 4
EPSILONS = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0)
MODELS = ("banana", "gaussian")
NUM_REFERENCE = 1000
"""Exact posterior draws that a run is compared with."""
THINNED_TO = 5000
"""Minibatch chains are thinned to about this many draws each, warm-up included."""
POSTERIOR_EPSILON = 15.0
"""ε of the figure that shows posteriors."""
CLIPPED_GUIDELINE = 0.2
"""The paper's guideline: clipping fewer than this fraction of the log-ratios does no harm."""

# What ends in `_per_root_n` is multiplied by √n, `_times_n` divided by n.
_PAPER_SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "paper-banana": {
        "dp-hmc": {
            "step_size": 0.006,
            "num_leapfrog": 25,
            "ratio_clip": 0.1,
            "gradient_clip": 0.05,
            "ratio_noise_per_root_n": 0.10,
            "gradient_noise_per_root_n": 0.55,
        },
        "dp-penalty": {"proposal_scale": 0.06, "ratio_clip": 0.15, "ratio_noise_per_root_n": 0.17},
        "dp-sgld": {"batch_size": 1000, "gradient_clip": 0.2, "step_size_times_n": 1.0, "temperature": 0.5},
        "dp-sgnht": {"batch_size": 1000, "gradient_clip": 0.2, "step_size_times_n": 100.0, "diffusion": 50.0},
    },
    "paper-gaussian": {
        "dp-hmc": {
            "step_size": 0.00015,
            "num_leapfrog": 12,
            "ratio_clip": 6.0,
            "gradient_clip": 10.0,
            "ratio_noise_per_root_n": 0.10,
            "gradient_noise_per_root_n": 0.25,
        },
        "dp-penalty": {"proposal_scale": 0.0007, "ratio_clip": 10.0, "ratio_noise_per_root_n": 0.05},
        "dp-sgld": {"batch_size": 1000, "gradient_clip": 15.0, "step_size_times_n": 0.008, "temperature": 0.5},
        "dp-sgnht": {"batch_size": 1000, "gradient_clip": 12.0, "step_size_times_n": 0.2, "diffusion": 30.0},
    },
}
_CLASSES = {"dp-hmc": "DPHMC", "dp-penalty": "DPPenalty", "dp-sgld": "DPSGLD", "dp-sgnht": "DPSGNHT"}


def paper_settings(preset: str, sampler: str, num_records: int) -> dict[str, Any]:
    """Return the arguments of a sampler as in the paper's experiments, noise scaled with √n.

    Parameters
    ----------
    preset
        "paper-banana" or "paper-gaussian".
    sampler
        "dp-hmc", "dp-penalty", "dp-sgld" or "dp-sgnht".
    num_records
        n. The paper has 100,000.

    Examples
    --------
    >>> paper_settings("paper-banana", "dp-penalty", 10_000)
    {'proposal_scale': 0.06, 'ratio_clip': 0.15, 'ratio_noise': 17.0}
    """
    settings: dict[str, Any] = {}
    for name, value in _PAPER_SETTINGS[preset][sampler].items():
        if name.endswith("_per_root_n"):
            settings[name.removesuffix("_per_root_n")] = value * math.sqrt(num_records)
        elif name.endswith("_times_n"):
            settings[name.removesuffix("_times_n")] = value / num_records
        else:
            settings[name] = value
    return settings


# ------------------------------------------------------------------------------------------------- comparison

Accountant = Literal["gaussian", "authors", "own"]
"""Who says how many iterations the budget buys.

- "gaussian": the closed form of Gaussian composition, for samplers that ask all records;
- "authors": for batches, the count of the accountant that the paper used. It is lower than what is allowed, so that the
  project's accountant covers the run too;
- "own": for batches, the project's tighter valid accountant.
"""


@dataclass(frozen=True)
class Row:
    """One algorithm of the comparison.

    Attributes
    ----------
    label
        What a reader is shown.
    sampler
        Whose settings are taken: a key of the paper's table.
    accountant
        Who counts the iterations.
    changes
        Arguments that differ from the paper's table.
    in_paper
        Whether the paper has this row.
    figure
        Where it is drawn: in the paper's figures ("main"), or beside them ("variants"), with fewer repeats.
    """

    label: str
    sampler: str
    accountant: Accountant = "gaussian"
    changes: Mapping[str, Any] = field(default_factory=dict)
    in_paper: bool = False
    figure: Literal["main", "variants"] = "main"


# To compare another sampler, add a row. Labels go into legends, names onto the command line.
ROWS: dict[str, Row] = {
    "dp-hmc": Row(
        "DP-HMC", "dp-hmc", changes={"leapfrog": "momentum_first", "jitter": "halton_from_zero"}, in_paper=True
    ),
    "dp-penalty": Row("DP-penalty", "dp-penalty", in_paper=True),
    "dp-sgld": Row("DP-SGLD (T = ½)", "dp-sgld", "authors", in_paper=True),
    "dp-sgnht": Row("DP-SGNHT", "dp-sgnht", "authors", in_paper=True),
    "dp-hmc-default": Row("DP-HMC, this package's defaults", "dp-hmc"),
    "dp-sgld-t1": Row("DP-SGLD (T = 1)", "dp-sgld", "authors", {"temperature": 1.0}, figure="variants"),
    "dp-sgld-tight": Row("DP-SGLD (T = ½), tight accountant", "dp-sgld", "own", figure="variants"),
    "dp-sgld-t1-tight": Row(
        "DP-SGLD (T = 1), tight accountant", "dp-sgld", "own", {"temperature": 1.0}, figure="variants"
    ),
    "dp-sgnht-tight": Row("DP-SGNHT, tight accountant", "dp-sgnht", "own", figure="variants"),
}


@functools.cache
def make_model(model: str) -> Any:
    """Return the paper's model of this name."""
    return dpmcmc.models.Banana() if model == "banana" else dpmcmc.models.GaussianMean.paper()


def make_sampler(row: Row, model: str, num_records: int) -> Any:
    """Return a row's sampler; for another n than the paper's, moves follow the posterior's width, batches hold 1 %."""
    arguments = paper_settings(f"paper-{model}", row.sampler, num_records) | dict(row.changes)
    width = _width(num_records)
    if row.sampler == "dp-hmc":
        arguments["step_size"] *= width
    elif row.sampler == "dp-penalty":
        arguments["proposal_scale"] *= width
    else:
        arguments["batch_size"] = max(1, round(arguments["batch_size"] * num_records / NUM_RECORDS))
    return getattr(dpmcmc, _CLASSES[row.sampler])(**arguments)


def _width(num_records: int) -> float:
    """Return the posterior's width relative to that of the paper's n."""
    return math.sqrt(NUM_RECORDS / num_records)


# --------------------------------------------------------------------------------------------------- clipping


@dataclass(frozen=True)
class ClippingSettings:
    """The clipping experiment of one model: no noise, the bound of the log-ratios varied.

    Attributes
    ----------
    bounds
        Clip bounds b of the log-ratios.
    hmc
        Step size, leapfrog steps, gradient clip bound and iterations of each chain.
    rwmh
        Proposal sd and iterations of each chain.
    """

    bounds: tuple[float, ...]
    hmc: tuple[float, int, float, int]
    rwmh: tuple[float, int]


CLIPPING = {
    "banana": ClippingSettings(
        (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0, 10.0), hmc=(0.01, 100, 10.0, 1000), rwmh=(0.3, 12_000)
    ),
    "gaussian": ClippingSettings(
        (0.1, 0.2, 1.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0), hmc=(0.0005, 12, 100.0, 1000), rwmh=(0.0007, 25_000)
    ),
}
CLIPPING_ROWS = {"hmc": "HMC", "rwmh": "RWMH"}


def make_clipping_sampler(algorithm: str, model: str, bound: float, num_records: int) -> tuple[Any, int]:
    """Return the sampler without noise and the number of steps of each chain."""
    settings, width = CLIPPING[model], _width(num_records)
    if algorithm == "hmc":
        step_size, num_leapfrog, gradient_clip, num_steps = settings.hmc
        sampler = dpmcmc.HMC(
            step_size * width,
            num_leapfrog,
            ratio_clip=bound,
            gradient_clip=gradient_clip,
            leapfrog="momentum_first",
            jitter="halton_from_zero",
        )
        return sampler, num_steps
    proposal_scale, num_steps = settings.rwmh
    return dpmcmc.RWMH(proposal_scale * width, ratio_clip=bound), num_steps
