"""The program of scalars computes what jax.vmap computes, and steps back where it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist

from dpmcmc.curator.kernels import unpacked
from dpmcmc.curator.kernels.unpacked import columns_of, unpack
from tests.curator.cases import by_name

CHAINS, ROWS = 3, 7


def both_ways(function, dimension, records):
    """(unpacked, vmapped) values of function(theta, record), chains × rows × …; None where it is not unpacked."""
    with jax.enable_x64(True):
        records = jax.tree.map(jnp.asarray, records)
        record = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records)
        theta = jnp.asarray(np.random.default_rng(0).normal(size=(CHAINS, dimension)) * 0.3)
        program = unpack(function, jax.ShapeDtypeStruct((dimension,), theta.dtype), record)
        if program is None:
            return None
        cells = program.finish(theta, program.stage(columns_of(records)))
        plain = np.asarray(jax.vmap(jax.vmap(function, (None, 0)), (0, None))(theta, records))
        values = np.stack([np.broadcast_to(cell, (CHAINS, ROWS)) for cell in cells.flat], axis=-1)
        return values.reshape(plain.shape), plain


@pytest.mark.parametrize("case", **by_name)
@pytest.mark.parametrize("order", ["value", "gradient"])
def test_models_come_out_the_same(case, order):
    with jax.enable_x64(True):
        records, _ = case.model.prepare_records(case.good_records(ROWS))
    function = case.model.unconstrained_log_likelihood
    result = both_ways(jax.grad(function) if order == "gradient" else function, case.model.dimension, records)
    if "groups" in case.name:
        assert result is None  # a look-up by a record's code is left to vmap
    else:
        np.testing.assert_allclose(*result, rtol=1e-12, atol=1e-12)


FUNCTIONS = {
    "matrix": lambda theta, x: jnp.sum((jnp.arange(6.0).reshape(2, 3) @ (x - theta)) ** 2),
    "outer": lambda theta, x: jnp.sum(jnp.outer(theta, x)[1:, ::2]),
    "extremes": lambda theta, x: jnp.max(theta * x) - jnp.min(jnp.concatenate([theta, x])) + jnp.prod(x),
    "mixture": lambda theta, x: jax.nn.logsumexp(dist.Normal(theta, 1.0).log_prob(x[0])),
    "record alone": lambda theta, x: jnp.sum(jnp.exp(x)),
    "parameters alone": lambda theta, x: jnp.sum(jnp.tanh(theta)),
    "constant": lambda theta, x: jnp.asarray(2.0) * 3.0,
    "padded": lambda theta, x: jnp.sum(jnp.pad(theta * x, (1, 2), constant_values=3.0)[::-1] ** 2),
    "choice": lambda theta, x: jnp.sum(jnp.where(x > theta, x, theta**3)),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_functions_come_out_the_same(function):
    records = np.random.default_rng(1).normal(size=(ROWS, 3))
    np.testing.assert_allclose(*both_ways(function, 3, records), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(*both_ways(jax.grad(function), 3, records), rtol=1e-12, atol=1e-12)


def test_what_is_not_known_is_left_to_vmap(monkeypatch):
    records = np.random.default_rng(1).normal(size=(ROWS, 3))
    assert both_ways(lambda theta, x: jnp.sum(jnp.sort(x) * theta), 3, records) is None
    assert both_ways(lambda theta, x: jax.lax.scan(lambda c, v: (c + v, None), theta[0], x)[0], 3, records) is None
    monkeypatch.setattr(unpacked, "MAX_OPERATIONS", 3)
    assert both_ways(FUNCTIONS["matrix"], 3, records) is None


def test_the_record_stage_keeps_the_parameters_out():
    """What depends on the record alone is computed once a row: a Gaussian's whitened records, not the records."""
    program = unpack(lambda theta, x: jnp.sum((jnp.exp(x) - theta) ** 2), jnp.zeros(2), jnp.zeros(2))
    records = jnp.ones((5, 2))
    staged = program.stage(columns_of(records))
    assert len(staged) == 2
    np.testing.assert_allclose(staged[0][0], np.exp(np.ones(5)), rtol=1e-6)
