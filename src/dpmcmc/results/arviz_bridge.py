"""The one place that knows which ArviZ is installed: 0.x (InferenceData) or 1.x (xarray's DataTree).

It passes on the groups it is given and adds none. ArviZ is imported when first used, because that takes seconds.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

Groups = Mapping[str, Mapping[str, np.ndarray]]

# What 0.x computes unless told otherwise, in the words of 1.x, and how 0.x calls the two ends of that interval.
_INTERVAL = {"ci_kind": "hdi", "ci_prob": 0.94}
_ENDS = {"hdi94_lb": "hdi_3%", "hdi94_ub": "hdi_97%"}


def import_arviz() -> Any:
    """Return the ``arviz`` module; the announcement that 0.x prints when it is imported is left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        return import_module("arviz")


def build(
    groups: Groups,
    *,
    dims: Mapping[str, Sequence[str]],
    coords: Mapping[str, Sequence[Any]],
    attributes: dict[str, Any],
) -> Any:
    """Return ``groups`` as the object that the installed ArviZ works with; root and every group get ``attributes``."""
    with quiet():
        data = _from_dict(
            import_arviz(),
            {group: dict(sorted(variables.items())) for group, variables in groups.items()},  # as 0.x does itself
            dims={name: list(names) for name, names in dims.items()},
            coords={name: list(values) for name, values in coords.items()},
        )
    data.attrs.update(attributes)
    for group in groups:
        data[group].attrs.pop("created_at", None)  # results carry no times
        data[group].attrs.update(attributes)
    data.attrs.pop("created_at", None)
    return data


def summarise(data: Any, **options: Any) -> Any:
    """Return ``arviz.summary``: with the interval, the digits and the names of 0.x, unless ``options`` say otherwise.

    1.x would give intervals of 89 % with equal tails, and a table that goes on showing the numbers it was made with
    when others are put in. With an option of 1.x's own (``ci_kind`` or ``ci_prob``) the interval has the names of 1.x.
    """
    arviz = import_arviz()
    if not is_1(arviz):
        return arviz.summary(data, **options)
    digits = options.pop("round_to", None)
    digits = 3 if digits in (None, "auto") else digits
    by_hand = isinstance(digits, int)  # 1.x rounds no table of fmt="long" that has labels
    table = arviz.summary(data, **(_INTERVAL | options), round_to="none" if by_hand else digits)
    table = table.round(digits) if by_hand else table
    ends = {} if _INTERVAL.keys() & options.keys() else _ENDS
    if options.get("fmt", "wide") != "xarray":
        return table.rename(index=ends, columns=ends)
    names = [ends.get(name, name) for name in table["summary"].values.tolist()]
    return table.assign_coords(summary=names).rename(summary="metric")


def is_1(arviz: Any) -> bool:
    """Return whether a module ``arviz`` is ArviZ 1.x, or a later one."""
    return int(arviz.__version__.split(".")[0]) >= 1


def _from_dict(arviz: Any, groups: dict[str, dict[str, np.ndarray]], **options: Any) -> Any:
    """Call ``from_dict`` as the installed version wants it: groups as keywords (0.x) or as one mapping (1.x)."""
    if is_1(arviz):
        return arviz.from_dict(groups, save_warmup=True, **options)
    return arviz.from_dict(**groups, save_warmup=True, **options)


def as_tree(data: Any) -> Any:
    """Return what :func:`build` made as a DataTree, which both versions write and read alike."""
    xarray = import_module("xarray")
    if isinstance(data, xarray.DataTree):
        return data
    tree = xarray.DataTree.from_dict({group: data[group] for group in data.groups()})
    tree.attrs = dict(data.attrs)
    return tree


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what ArviZ says about one chain, few draws or constant draws: its NaN says the same."""
    # ArviZ 0.x logs through an object of its own, which `getLogger` does not know.
    known = [logging.getLogger("arviz"), getattr(import_arviz(), "_log", None)]
    levels = [(logger, logger.level) for logger in known if logger is not None]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", category=RuntimeWarning)
        warnings.simplefilter("ignore", category=UserWarning)
        for logger, _ in levels:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in levels:
                logger.setLevel(level)
