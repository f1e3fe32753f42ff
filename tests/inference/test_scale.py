"""The same draws, bit for bit: on 1, 2, 3 and 8 devices, by 1 and 2 processes, in memory and streamed from a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, NoNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import DataError, DPMCMCWarning, QueryError
from dpmcmc.queries import Gradient, PaidDraws
from tests.streams import stream_of

pyarrow = pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[2]
NUM_RECORDS = 20_011
NAMES = ["a", "b", "c"]


def table(num_records=NUM_RECORDS, dtype=np.float32):
    generator = np.random.default_rng(5)
    X = generator.normal(size=(num_records, 3)).astype(dtype)
    y = (generator.random(num_records) < 1 / (1 + np.exp(-X[:, 0]))).astype(dtype)
    return {"X": X, "y": y}


def write(path, records, row_group_size=3_000):
    import pyarrow.parquet

    columns = {name: records["X"][:, j] for j, name in enumerate(NAMES)} | {"y": records["y"]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=row_group_size)
    return stream_of(path, {"X": NAMES, "y": "y"}, dtype=str(records["X"].dtype))


SAMPLERS = {
    "hmc": dpmcmc.DPHMC(0.01, 3, 3.0, 3.0, ratio_noise_multiplier=3.0, gradient_noise_multiplier=10.0),
    "penalty": dpmcmc.DPPenalty(0.01, 3.0, ratio_noise_multiplier=3.0),
    "sgld": dpmcmc.DPSGLD(batch_size=100, gradient_clip_norm=3.0, step_size=1e-5),
}


def sample(data, sampler="hmc", **options):
    options = {"num_steps": 20, "num_warmup": 0, "seed": 2, "progress": False} | options
    return dpmcmc.sample(
        dpmcmc.models.LogisticRegression(3),
        data,
        sampler=SAMPLERS[sampler],
        epsilon=60.0,
        delta=1e-6,
        init=np.tile([0.0, 1.0, 0.0, 0.0], (4, 1)),
        **options,
    )


def run(data, sampler="hmc", **options):
    posterior = sample(data, sampler, **options)
    draws = np.concatenate([posterior.draws["intercept"][..., None], posterior.draws["coefficients"]], axis=-1)
    assert np.std(draws, axis=1).min() > 0.0, "a chain that does not move shows nothing"
    return draws


def as_text(draws):
    return np.ascontiguousarray(draws).tobytes().hex()


def in_a_process(script, **environment):
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_draws_do_not_depend_on_devices():
    script = (
        "from tests.inference.test_scale import *; import json; "
        "print(json.dumps({s: [as_text(run(table(), s, devices=k)) for k in (1, 2, 3, 8)] for s in ('hmc', 'sgld')}))"
    )
    texts = in_a_process(script, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    for name, by_device in texts.items():
        assert by_device == [as_text(run(table(), name))] * 4


def test_twin_another_row_gives_other_draws():
    other = table()
    other["X"][7, 1] += 0.5
    assert as_text(run(other)) != as_text(run(table()))


@pytest.mark.parametrize("sampler", ["hmc", "penalty"])
def test_streamed_draws_are_those_in_memory(tmp_path, monkeypatch, sampler):
    from dpmcmc.curator import streaming

    monkeypatch.setattr(streaming, "CHUNK_ROWS", 4096)  # several chunks, none of which ends with a row group
    records = table()
    assert np.array_equal(run(write(tmp_path / "table.parquet", records), sampler), run(records, sampler))


def test_streamed_answers_are_those_in_memory(tmp_path):
    """Questions from the host, in float64, with a missing value."""
    records = table(dtype=np.float64)
    records["X"][3, 1] = np.nan
    stream = write(tmp_path / "table.parquet", records)
    model, query = dpmcmc.models.LogisticRegression(3), dpmcmc.queries.Gradient(2.0, 5.0)
    answers = [
        dpmcmc.Curator(model, data, noise=dpmcmc.curator.NoNoiseNotPrivate()).ask(query, np.zeros(4)).value
        for data in (stream, records)
    ]
    assert np.array_equal(*answers)


def test_what_cannot_be_streamed_is_refused(tmp_path):
    stream = write(tmp_path / "table.parquet", table())
    with pytest.raises(QueryError, match="memory"):
        run(stream, "sgld")
    with pytest.raises(QueryError, match="memory"):
        dpmcmc.sample(dpmcmc.models.LogisticRegression(3), stream, sampler=dpmcmc.HMC(0.01, 3), num_steps=3)
    write(tmp_path / "table.parquet", table(NUM_RECORDS + 1))
    with pytest.raises(DataError, match="changed"):
        run(stream)


def test_a_file_that_changes_meanwhile_costs_no_paid_draws(tmp_path, monkeypatch, capfd):
    """What was drawn before comes back; no reader's text gets out; nothing of the blocks after it is kept."""
    stream = write(tmp_path / "table.parquet", table())
    chunks, calls = type(stream).chunks, []

    def touched(self, rows):
        calls.append(None)
        if len(calls) == 5:
            raise ValueError("could not convert 'Johannes-1234'")
        return chunks(self, rows)

    monkeypatch.setattr(type(stream), "chunks", touched)
    with pytest.warns(DPMCMCWarning, match="the records could not be read") as caught:
        posterior = sample(stream, "penalty", num_steps=7)
    assert posterior.privacy.interrupted
    assert posterior.num_draws == 2  # the first two calls are for shapes and for the record check
    assert not any("Johannes" in str(warning.message) for warning in caught)
    captured = capfd.readouterr()
    assert "Johannes" not in captured.out + captured.err


def test_bad_devices_are_refused():
    for devices in (0, 99, [], "two", 1.5, True):
        with pytest.raises(QueryError, match="devices"):
            run(table(100), devices=devices)


@pytest.mark.slow
def test_twenty_million_rows_stay_below_two_gigabytes(tmp_path):
    """Streamed from a file; the peak of resident memory of a process of its own, of which JAX itself is a part."""
    import pyarrow.parquet

    path = tmp_path / "large.parquet"
    generator = np.random.default_rng(0)
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in [*NAMES, "y"]])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for _ in range(20):
            columns = [generator.normal(size=1_000_000).astype(np.float32) for _ in range(3)]
            columns.append((columns[0] > 0).astype(np.float32))
            writer.write_table(pyarrow.table(columns, schema=schema), row_group_size=250_000)
    script = (
        "import json, numpy as np, dpmcmc; from tests.streams import stream_of; "
        f"data = stream_of({str(path)!r}, {{'X': {NAMES}, 'y': 'y'}}); "
        "sampler = dpmcmc.DPHMC(1e-4, 2, 3.0, 3.0, ratio_noise_multiplier=30.0, gradient_noise_multiplier=30.0); "
        "p = dpmcmc.sample(dpmcmc.models.LogisticRegression(3), data, sampler=sampler, epsilon=4.0, delta=1e-8, "
        "num_steps=2, init=np.zeros((4, 4)), progress=False); "
        "peak = [line for line in open('/proc/self/status') if line.startswith('VmHWM')][0].split()[1]; "
        "print(json.dumps([p.privacy.num_records, int(peak)]))"
    )
    num_records, kilobytes = in_a_process(script)
    assert num_records == 20_000_000
    assert kilobytes < 2 * 1024**2


def test_nothing_of_64_bits_passes_through_a_callback(tmp_path):
    """JAX calls back from threads of its own, in which it would cut 64 bits down to 32: only whole words may pass."""
    stream = write(tmp_path / "table.parquet", table())
    with exact_arithmetic():
        curator = Curator(dpmcmc.models.LogisticRegression(3), stream, noise=NoNoiseNotPrivate())
        bind = curator.oracle(Gradient(1.0, 1.0), None)
        arguments = np.zeros((2, 4)), np.zeros((2, 4), np.int64)
        jaxpr = jax.make_jaxpr(lambda theta, noise: bind({}).gradient(theta, PaidDraws(noise)).value)(*arguments)
    (callback,) = (equation for equation in jaxpr.eqns if equation.primitive.name == "io_callback")
    assert {str(variable.aval.dtype) for variable in (*callback.invars, *callback.outvars)} == {"uint32"}
