"""Columns of a Parquet file, whatever their types, serve every kind of model as arrays in memory do."""

import jax
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.data import ParquetRecords
from dpmcmc.queries import Gradient

pyarrow = pytest.importorskip("pyarrow")

NUM_RECORDS = 300


def columns():
    generator = np.random.default_rng(0)
    return {
        "x": generator.normal(size=NUM_RECORDS),
        "kind": generator.integers(0, 3, NUM_RECORDS),
        "flag": generator.random(NUM_RECORDS) < 0.5,
    }


def write(path, table):
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=100)
    return path


def by_kind(x, kind, flag):
    effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("flag", dist.Bernoulli(logits=x * effects[kind]), obs=flag)


def gradient(model, data):
    curator = dpmcmc.Curator(model, data, noise=NoNoiseNotPrivate())
    return curator.ask(Gradient(10.0, 1.0), np.full(model.dimension, 0.3)).value


def test_integer_and_boolean_columns_of_a_numpyro_model(tmp_path):
    model = dpmcmc.from_numpyro(by_kind, columns())
    in_memory = gradient(model, columns())
    assert np.abs(in_memory).min() > 1e-3
    names = {name: name for name in columns()}
    streamed = gradient(model, ParquetRecords(write(tmp_path / "whole.parquet", columns()), names))
    np.testing.assert_allclose(streamed, in_memory, rtol=1e-9)
    # Missing, not whole or out of range: the record counts for nothing.
    odd = columns()
    odd["kind"] = odd["kind"].astype(float)
    odd["kind"][:4] = np.nan, 0.5, 1e300, -np.inf
    streamed = gradient(model, ParquetRecords(write(tmp_path / "odd.parquet", odd), names))
    np.testing.assert_allclose(streamed, gradient(model, {name: c[4:] for name, c in columns().items()}), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_of_a_regression(tmp_path, dtype):
    data = columns()
    table = {"x": data["x"], "y": data["flag"], "g": [None, *data["kind"][1:].tolist()]}
    fields = {"X": ["x"], "y": "y", "group": "g"}
    stream = ParquetRecords(write(tmp_path / "groups.parquet", table), fields, dtype=dtype)
    (chunk,) = stream.chunks(NUM_RECORDS)
    assert {array.dtype for array in chunk.values()} == {np.dtype(dtype)}
    model = dpmcmc.models.LogisticRegression(1, groups=3)
    codes = np.concatenate([[-1], data["kind"][1:]])
    in_memory = {"X": data["x"][:, None].astype(dtype), "y": data["flag"].astype(dtype), "group": codes}
    assert np.array_equal(gradient(model, stream), gradient(model, in_memory))


def test_a_record_out_of_range_raises_no_warning(tmp_path, recwarn):
    """A warning of NumPy's would tell that some record has such a value."""
    table = {"a": [1e300, 2.0, None], "y": [0.0, 1.0, 1.0], "g": [1e300, 1.0, None]}
    fields = {"X": ["a"], "y": "y", "group": "g"}
    stream = ParquetRecords(write(tmp_path / "odd.parquet", table), fields, dtype="float32")
    (chunk,) = stream.chunks(10)
    np.testing.assert_array_equal(chunk["group"], [np.inf, 1.0, np.nan])
    records, _ = dpmcmc.models.LogisticRegression(1, groups=2).prepare_records(chunk)
    assert records["group"].tolist() == [-1, 1, -1]
    assert np.isnan(records["X"][2, 0])
    assert not recwarn.list


def test_a_column_of_nothing_but_missing_values_is_numeric(tmp_path):
    path = write(tmp_path / "null.parquet", {"a": pyarrow.nulls(3), "b": [1, 2, None]})
    (chunk,) = ParquetRecords(path, ["a", "b"]).chunks(10)
    np.testing.assert_array_equal(chunk, [[np.nan, 1.0], [np.nan, 2.0], [np.nan, np.nan]])


def test_a_narrow_declared_dtype_does_not_wrap_around(tmp_path):
    """300 is no uint8, and does not become 44: the record counts for nothing."""
    like = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in columns().items()}
    like["kind"] = jax.ShapeDtypeStruct((NUM_RECORDS,), np.uint8)
    model = dpmcmc.from_numpyro(by_kind, like)
    odd = columns()
    odd["kind"][0] = 300
    names = {name: name for name in odd}
    streamed = gradient(model, ParquetRecords(write(tmp_path / "odd.parquet", odd), names))
    for others in (odd, {name: column[1:] for name, column in odd.items()}):
        np.testing.assert_allclose(streamed, gradient(model, others), rtol=1e-9)
