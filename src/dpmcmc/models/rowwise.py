"""A class derived from `Model` may prepare records in its own way, if it is shown on made-up rows to keep them apart.

A `prepare_records` that centres a column, say, would let one record move all others before anything is clipped. What is
shown here finds honest mistakes; a method written to deceive could still do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import DataError, ModelError
from dpmcmc.models.model import Model
from dpmcmc.models.numpyro_model import NumpyroModel
from dpmcmc.models.paper import VectorModel
from dpmcmc.models.records import Records, copy_records
from dpmcmc.models.regression import RegressionModel

__all__ = ["prepare"]

_OWN = tuple(kind.prepare_records for kind in (Model, RegressionModel, VectorModel, NumpyroModel))
_NUM_ROWS = 7
_FEWER_ROWS = 4


def prepare(model: Model, data: Any) -> tuple[Records, int]:
    """Return ``model.prepare_records(data)``; a method that is not this package's must be row-wise.

    Raises
    ------
    ModelError
        If the method mixes made-up rows, depends on their number, or fails on them.
    DataError
        If the data do not fit. No message holds a value of a record.
    """
    if type(model).prepare_records in _OWN and "prepare_records" not in vars(model):
        return model.prepare_records(data)
    # The method is given plain arrays, those of the made-up rows and the real ones alike.
    columns, num_records = copy_records(data)
    shown = _show_row_wise(model.prepare_records, columns)
    try:
        prepared, count = model.prepare_records(columns)
        fits = count == num_records and _structure(prepared, num_records) == shown
    except Exception:  # its text could quote a value
        fits = False
    if not fits:
        raise DataError(
            f"prepare_records of {type(model).__name__} failed on the data, or returned other columns, shapes or "
            "dtypes than for made-up rows of the same dtypes; it must do the same for any values."
        )
    return prepared, num_records


def _show_row_wise(method: Callable[[Any], tuple[Records, int]], columns: Records) -> Any:
    """Replace one made-up row at a time: no bit of another may change. Return the structure of what is prepared."""
    generator = np.random.default_rng(0)
    rows = jax.tree.map(lambda column: _made_up(generator, column, _NUM_ROWS), columns)
    try:
        reference, count = method(jax.tree.map(np.copy, rows))
        structure = _structure(reference, count)
        fewer, _ = method(jax.tree.map(lambda column: column[:_FEWER_ROWS].copy(), rows))
        alike = count == _NUM_ROWS and _same_bits(reference, fewer, slice(_FEWER_ROWS))
        for make in (_made_up, _extreme, _missing):
            for place in range(_NUM_ROWS):
                changed = jax.tree.map(np.copy, rows)
                for column in jax.tree.leaves(changed):
                    column[place] = make(generator, column, 1)[0]
                others = np.arange(_NUM_ROWS) != place
                result, _ = method(changed)
                alike = alike and _structure(result, count) == structure and _same_bits(reference, result, others)
    except Exception as error:  # rows are made up: the text may be shown
        raise ModelError(
            f"prepare_records failed on made-up rows, so that it cannot be shown to keep records apart: "
            f"{type(error).__name__}: {error}. It is given a dict of NumPy columns, or one array."
        ) from error
    if not alike:
        raise ModelError(
            "prepare_records makes a row depend on other rows or on their number, so that one record would move all "
            "others; use public constants (centres, scales, levels) in place of what it computes from the data."
        )
    return structure


def _structure(records: Records, count: int) -> Any:
    leaves, tree = jax.tree.flatten(records)
    if any(len(leaf) != count for leaf in leaves):
        raise ValueError("columns of different lengths")
    return tree, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]


def _same_bits(left: Records, right: Records, rows: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(a[rows].tobytes() == (b if len(b) < len(a) else b[rows]).tobytes() for a, b in pairs)


def _made_up(generator: np.random.Generator, column: NDArray[Any], count: int) -> NDArray[Any]:
    shape = count, *column.shape[1:]
    if column.dtype.kind == "f":
        return generator.normal(size=shape).astype(column.dtype)
    return generator.integers(0, 2 if column.dtype.kind == "b" else 4, shape).astype(column.dtype)


def _extreme(generator: np.random.Generator, column: NDArray[Any], count: int) -> NDArray[Any]:
    largest = 1 if column.dtype.kind == "b" else (np.finfo if column.dtype.kind == "f" else np.iinfo)(column.dtype).max
    return np.full((count, *column.shape[1:]), largest, column.dtype)


def _missing(generator: np.random.Generator, column: NDArray[Any], count: int) -> NDArray[Any]:
    return np.full((count, *column.shape[1:]), np.nan if column.dtype.kind == "f" else 0, column.dtype)
