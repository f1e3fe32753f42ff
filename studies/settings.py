"""The settings of the paper's experiments, as data: what is run, how often, with which numbers.

Source: the paper's text, and where it is silent or differs the code published with it (GitHub,
DPBayes/DP-HMC-experiments). Nothing here runs anything or sees data.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import dpmcmc
from dpmcmc.presets import paper_settings

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

Model = dpmcmc.models.Banana | dpmcmc.models.GaussianMean
PrivateSampler = dpmcmc.DPHMC | dpmcmc.DPPenalty | dpmcmc.DPSGLD | dpmcmc.DPSGNHT
Sampler = PrivateSampler | dpmcmc.HMC | dpmcmc.RWMH

_CLASSES = {"dp-hmc": "DPHMC", "dp-penalty": "DPPenalty", "dp-sgld": "DPSGLD", "dp-sgnht": "DPSGNHT"}


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
    changes: Mapping[str, str | float] = field(default_factory=dict)
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
def make_model(model: str) -> Model:
    """Return the paper's model of this name."""
    return dpmcmc.models.Banana() if model == "banana" else dpmcmc.models.GaussianMean.paper()


def make_sampler(row: Row, model: str, num_records: int) -> PrivateSampler:
    """Return the sampler of a row.

    If n is not the paper's, step sizes and proposals are scaled with the width of the posterior, and a batch keeps the
    paper's share of the records, 1 %.
    """
    arguments: dict[str, Any] = paper_settings(f"paper-{model}", row.sampler, num_records) | dict(row.changes)
    width = _width(num_records)
    if row.sampler == "dp-hmc":
        arguments["step_size"] *= width
    elif row.sampler == "dp-penalty":
        arguments["proposal_scale"] *= width
    else:
        arguments["batch_size"] = max(1, round(arguments["batch_size"] * num_records / NUM_RECORDS))
    made: PrivateSampler = getattr(dpmcmc, _CLASSES[row.sampler])(**arguments)
    return made


def _width(num_records: int) -> float:
    """Return the posterior's width relative to that of the paper's n."""
    return math.sqrt(NUM_RECORDS / num_records)


# --------------------------------------------------------------------------------------------------- clipping


class HMCSettings(NamedTuple):
    """HMC of the clipping experiment; ``num_steps`` is the number of iterations of each chain."""

    step_size: float
    num_leapfrog: int
    gradient_clip_norm: float
    num_steps: int


class RWMHSettings(NamedTuple):
    """The random walk of the clipping experiment; ``num_steps`` is the number of iterations of each chain."""

    proposal_scale: float
    num_steps: int


@dataclass(frozen=True)
class ClippingSettings:
    """The clipping experiment of one model: no noise, the bound of the log-ratios varied.

    Attributes
    ----------
    bounds
        Clip bounds b of the log-ratios.
    hmc, rwmh
        Settings of the two samplers.
    """

    bounds: tuple[float, ...]
    hmc: HMCSettings
    rwmh: RWMHSettings


CLIPPING = {
    "banana": ClippingSettings(
        (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.5, 1.0, 10.0),
        HMCSettings(step_size=0.01, num_leapfrog=100, gradient_clip_norm=10.0, num_steps=1000),
        RWMHSettings(proposal_scale=0.3, num_steps=12_000),
    ),
    "gaussian": ClippingSettings(
        (0.1, 0.2, 1.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0),
        HMCSettings(step_size=0.0005, num_leapfrog=12, gradient_clip_norm=100.0, num_steps=1000),
        RWMHSettings(proposal_scale=0.0007, num_steps=25_000),
    ),
}
CLIPPING_ROWS = {"hmc": "HMC", "rwmh": "RWMH"}


def make_clipping_sampler(
    algorithm: str, model: str, bound: float, num_records: int
) -> tuple[dpmcmc.HMC | dpmcmc.RWMH, int]:
    """Return the sampler without noise and the number of steps of each chain."""
    hmc, rwmh, width = CLIPPING[model].hmc, CLIPPING[model].rwmh, _width(num_records)
    if algorithm == "hmc":
        sampler = dpmcmc.HMC(
            hmc.step_size * width,
            hmc.num_leapfrog,
            ratio_bound=bound,
            gradient_clip_norm=hmc.gradient_clip_norm,
            leapfrog="momentum_first",
            jitter="halton_from_zero",
        )
        return sampler, hmc.num_steps
    return dpmcmc.RWMH(rwmh.proposal_scale * width, ratio_bound=bound), rwmh.num_steps
