"""What a likelihood may compute: no bit of any row depends on another, for everything that is on the allowlist.

A model is written for one record and compiled for many. Here every allowed primitive, and some hundred functions that
are built on them, go through the curator's own compiled tiles; then one record is replaced by others (finite, huge,
tiny, NaN, infinite, and such that 0/0 or an overflow arises inside), and every bit of every other row must stay:
float32 and float64, unpacked and mapped, value and gradient, and second derivatives. Deterministic: there is no false
failure.
"""

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives
from jax.scipy.linalg import solve_triangular
from numpyro import distributions as dist

import dpmcmc
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.kernels import AutodiffKernel, has_closed_form, view_of
from dpmcmc.curator.placement import COMPILER_OPTIONS
from dpmcmc.curator.tiles import Tile
from dpmcmc.errors import ModelError
from dpmcmc.models import allowed

ROWS = 128
CHANGED = 5
NUM_TILES = 2  # a loop of one turn would be compiled in another way
THETA = np.array([[0.3, -0.2, 0.5], [1.0, 0.2, -0.4]])


def integer(x):
    return x.astype(jnp.int32)


def spread(t, r):
    """A positive-definite 3 × 3 matrix."""
    return jnp.outer(r[:3], r[:3]) + jnp.eye(3) * (1 + t[0] ** 2)


def bits(t, r):
    a, b = integer(r[0] * 100), integer(r[1] * 3) & 7
    mixed = (a & b) | (a ^ 5) | ~b
    shifted = lax.shift_left(a, b) + lax.shift_right_arithmetic(a, b) + lax.shift_right_logical(a, b)
    return t[0] * (mixed + shifted + lax.rem(a, b + 1))


# Primitives, one or a few each.
PRIMITIVES = {
    "arithmetic": lambda t, r: (t[0] + r[0]) * r[1] / (r[2] - t[1]) - jnp.abs(r[3] * t[2]) + (r[0] * t[0]) ** 3,
    "sign and rounding": lambda t, r: (
        jnp.sign(r[0]) * t[0] + jnp.floor(r[1]) * t[1] + jnp.ceil(r[2]) * t[2] + jnp.round(r[3]) * t[0]
    ),
    "remainder": lambda t, r: jnp.fmod(r[0] * t[0], r[1]) + jnp.nextafter(r[2], r[3]) * t[1],
    "powers": lambda t, r: jnp.abs(r[0]) ** t[0] + lax.rsqrt(jnp.abs(r[1] + t[1])) + jnp.cbrt(r[2] * t[2]),
    "square": lambda t, r: jnp.square(r[0] * t[0]) + jnp.sqrt(jnp.abs(r[1] * t[1])) + jnp.exp2(r[2] * t[2]),
    "exponentials": lambda t, r: jnp.exp(t[0] * r[0]) + jnp.expm1(t[1] * r[1]) + jnp.log(jnp.abs(r[2] * t[2])),
    "log1p": lambda t, r: jnp.log1p(jnp.abs(t[0] * r[0])) + jax.nn.sigmoid(t[1] * r[1]) + lax.logistic(t[2] * r[2]),
    "trigonometry": lambda t, r: jnp.sin(t[0] * r[0]) + jnp.cos(t[1] * r[1]) + jnp.tan(t[2] * r[2]),
    "inverse trigonometry": lambda t, r: (
        jnp.arcsin(jnp.tanh(t[0] * r[0]))
        + jnp.arccos(jnp.tanh(t[1] * r[1]))
        + jnp.arctan(t[2] * r[2])
        + jnp.arctan2(t[0] * r[0], r[3])
    ),
    "hyperbolic": lambda t, r: jnp.sinh(t[0] * r[0]) + jnp.cosh(t[1] * r[1]) + jnp.tanh(t[2] * r[2]),
    "inverse hyperbolic": lambda t, r: (
        jnp.arcsinh(t[0] * r[0]) + jnp.arccosh(1 + jnp.exp(t[1] + r[1])) + jnp.arctanh(jnp.tanh(t[2] * r[2]))
    ),
    "error functions": lambda t, r: (
        special.erf(t[0] * r[0]) + special.erfc(t[1] * r[1]) + special.erfinv(jnp.tanh(t[2] + r[2]))
    ),
    "gamma functions": lambda t, r: special.gammaln(jnp.exp(t[0]) + r[0]) + special.digamma(t[1] + r[1]),
    "incomplete gamma": lambda t, r: special.gammainc(jnp.exp(t[0] + r[1]), jnp.exp(r[0] + t[1])),
    "incomplete gamma, slow": lambda t, r: special.gammainc(1e3 * jnp.exp(t[0]), 1e3 * jnp.exp(0.1 * r[0])),
    "upper incomplete gamma": lambda t, r: special.gammaincc(jnp.exp(t[0] + r[2]), jnp.exp(r[0] + t[1])),
    "polygamma": lambda t, r: special.polygamma(1, jnp.exp(t[0] + r[0])),
    "zeta": lambda t, r: special.zeta(1.5 + jnp.exp(r[0]), 1 + jnp.exp(t[0] + r[1])),
    "Bessel": lambda t, r: special.i0e(t[0] * r[0]) + special.i1e(t[0] * r[1]),
    "choice": lambda t, r: (
        jnp.where(r[0] > t[0], r[1] * t[1], t[2])
        + jnp.maximum(r[2], t[0]) * t[1]
        + jnp.minimum(r[3], t[1])
        + jnp.clip(r[0] * t[0], -1.0, r[1])
    ),
    "comparisons": lambda t, r: (
        t[0] * ((r[0] < r[1]) & (r[0] <= r[2]) | (r[1] >= r[2]) & ~(r[2] > r[3]) | (r[0] == 0) & (r[1] != 1))
        + t[1] * jnp.isfinite(r[3])
    ),
    "bits of integers": bits,
    "conversions": lambda t, r: lax.reduce_precision(t[0] * r[0], 8, 10) + integer(r[1]).astype(t.dtype) * t[1],
    "no gradient": lambda t, r: lax.stop_gradient(t[0] * r[0]) * t[1] + lax.optimization_barrier(r[1] * t[2]),
    "copies": lambda t, r: jnp.sum(jnp.array(r * t[0], copy=True) ** 2),
    "moves": lambda t, r: (
        jnp.sum(jnp.concatenate([r * t[0], t])[::-1] * jnp.arange(7.0))
        + jnp.pad(r * t[1], 2)[3]
        + jnp.sum(jnp.outer(r, t).T[1:, :2] * t[1:, None])
        + jnp.squeeze((r * t[0])[None, :1])[()]
    ),
    "stacks": lambda t, r: jnp.sum(jnp.stack([r * t[0], r * t[1]])[1] * jnp.arange(4.0)),
    "splits": lambda t, r: jnp.split(r * t[0], 2)[1][0] * jnp.unstack(r * t[1])[2],
    "gather": lambda t, r: (
        t[jnp.clip(integer(r[0]), 0, 2)] * r[1]
        + t[integer(r[2])]
        + r[integer(r[1] * 2)] * t[0]
        + t.at[integer(r[2])].get(mode="promise_in_bounds")
        + (r * t[0]).at[integer(r[3])].get(mode="fill")
    ),
    "scatter": lambda t, r: (
        jnp.sum(jnp.zeros(3, t.dtype).at[integer(r[0])].add(r[1] * t[0]) * t)
        + jnp.sum((r * t[1]).at[integer(r[0])].set(t[2]))
        + jnp.sum((r * t[1]).at[integer(r[3])].set(t[2], mode="promise_in_bounds"))
    ),
    "scatter with products": lambda t, r: jnp.sum((r * t[1]).at[integer(r[0])].mul(t[2], unique_indices=True)),
    "scatter with extremes": lambda t, r: (
        jnp.sum((r * t[1]).at[integer(r[0])].max(t[2])) + jnp.sum((r * t[1]).at[integer(r[1])].min(t[2]))
    ),
    "slices that move": lambda t, r: (
        jnp.sum(lax.dynamic_slice(r * t[0], (integer(r[0]),), (2,)))
        + jnp.sum(lax.dynamic_update_slice(r * t[0], t[:2], (integer(r[1]),)) * jnp.arange(4.0))
    ),
    "sort": lambda t, r: jnp.sum(jnp.sort(r * t[0]) * jnp.arange(4.0)) + (r * t[1])[jnp.argsort(r)][0],
    "largest": lambda t, r: jnp.sum(lax.top_k(r * t[0], 2)[0]) + (jnp.argmax(r) * t[0] + jnp.argmin(r) * t[1]),
    "reductions": lambda t, r: (
        jnp.sum(r * t[0])
        + jnp.prod(r * t[1])
        + jnp.max(r * t[2])
        + jnp.min(r * t[0])
        + t[0] * jnp.any(r > 1)
        + t[1] * jnp.all(r > -1)
    ),
    "cumulated": lambda t, r: jnp.sum(jnp.cumsum(r * t[0]) ** 2) + jnp.sum(jnp.cumprod(r * t[1])),
    "cumulated extremes": lambda t, r: (
        jnp.sum(lax.cummax(r * t[0]) * t[1])
        + jnp.sum(lax.cummin(r * t[1]) * t[2])
        + jnp.sum(lax.cumlogsumexp(r * t[2]) * t[0])
    ),
    "products": lambda t, r: (
        jnp.dot(r[:3], t) + jnp.sum((jnp.outer(r, t) @ t) ** 2) + jnp.sum(jnp.outer(r, r) @ jnp.outer(r, t))
    ),
    "Cholesky": lambda t, r: jnp.sum(jnp.linalg.cholesky(spread(t, r)) * jnp.arange(9.0).reshape(3, 3)),
    "triangular, shared matrix": lambda t, r: jnp.sum(
        solve_triangular(jnp.eye(3) + jnp.tril(jnp.outer(t, t)), r[:3], lower=True) ** 2
    ),
    "triangular, own matrix": lambda t, r: jnp.sum(
        solve_triangular(jnp.eye(3) + jnp.tril(jnp.outer(r[:3], t)), r[:3], lower=True) ** 2
    ),
    "solve, shared matrix": lambda t, r: jnp.sum(jnp.linalg.solve(jnp.eye(3) + jnp.outer(t, t), r[:3]) ** 2),
    "decompositions of parameters": lambda t, r: (
        jnp.linalg.slogdet(jnp.eye(3) + jnp.outer(t, t))[1]
        + jnp.sum(jnp.linalg.inv(jnp.eye(3) + jnp.outer(t, t)) @ r[:3])
    ),
    "scan": lambda t, r: lax.scan(lambda c, x: (c * t[0] + jnp.sin(x), c), 0.0 * t[0], r)[0],
    "fixed loop": lambda t, r: lax.fori_loop(0, 5, lambda i, c: c * t[0] + r[i % 4] * jnp.cos(c), t[1]),
    "branch": lambda t, r: lax.cond(r[0] > 0, lambda: jnp.sin(t[0] * r[1]), lambda: jnp.exp(t[1] * r[2])),
    "switch": lambda t, r: lax.switch(
        integer(r[0]), [lambda: t[0] * r[1], lambda: jnp.log(t[1] * r[2]), lambda: t[2] / r[3]]
    ),
    "total order": lambda t, r: jnp.interp(r[0] * t[0], jnp.linspace(-2, 2, 7), jnp.arange(7.0)),
}

# Functions that people write.
FUNCTIONS = {
    "logaddexp": lambda t, r: jnp.logaddexp(t[0] * r[0], t[1] * r[1]),
    "logsumexp": lambda t, r: special.logsumexp(r * t[0]),
    "softmax": lambda t, r: jax.nn.softmax(r * t[0])[1] + jax.nn.log_softmax(r * t[1])[2],
    "softplus": lambda t, r: jax.nn.softplus(r[0] * t[0]) + jax.nn.log_sigmoid(r[1] * t[1]),
    "gelu": lambda t, r: jax.nn.gelu(r[0] * t[0]) + jax.nn.silu(r[1] * t[1]) + jax.nn.elu(r[2] * t[2]),
    "relu": lambda t, r: jax.nn.relu(r[0] * t[0]) + jax.nn.leaky_relu(r[1] * t[1]) + jax.nn.selu(r[2] * t[0]),
    "one_hot": lambda t, r: jax.nn.one_hot(integer(r[0]), 3) @ t,
    "xlogy": lambda t, r: special.xlogy(r[0], jnp.exp(t[0])) + special.xlog1py(r[1], t[1] ** 2),
    "entr": lambda t, r: special.entr(jnp.abs(t[0] * r[0])) + special.rel_entr(jnp.exp(t[1]), jnp.exp(r[1])),
    "logit": lambda t, r: special.logit(jax.nn.sigmoid(t[0] + r[0])) + special.expit(t[1] * r[1]),
    "log_ndtr": lambda t, r: special.log_ndtr(t[0] * r[0]) + special.ndtr(t[1] * r[1]),
    "ndtri": lambda t, r: special.ndtri(jax.nn.sigmoid(t[0] + r[0])),
    "beta": lambda t, r: special.betaln(jnp.exp(t[0]), jnp.exp(r[0])),
    "multigammaln": lambda t, r: special.multigammaln(jnp.exp(t[1] + r[1]) + 2, 2),
    "factorial": lambda t, r: special.factorial(jnp.abs(r[0]) + t[0] ** 2),
    "Bessel functions": lambda t, r: special.i0(t[0] * r[0]) + special.i1(t[1] * r[1]),
    "mean and variance": lambda t, r: jnp.mean(r * t[0]) + jnp.var(r * t[1]) + jnp.std(r * t[2]) + jnp.median(r * t[0]),
    "quantile": lambda t, r: jnp.quantile(r * t[0], 0.3),
    "norm": lambda t, r: jnp.linalg.norm(r * t[0]) + jnp.linalg.norm(r[:3] - t, 1),
    "einsum": lambda t, r: jnp.einsum("i,j,ij->", r, t, jnp.ones((4, 3))) + jnp.trace(jnp.outer(r[:3], t)),
    "kron": lambda t, r: jnp.sum(jnp.kron(r, t) ** 2) + jnp.sum(jnp.cross(r[:3], t)),
    "diff": lambda t, r: jnp.sum(jnp.diff(r * t[0]) ** 2) + jnp.sum(jnp.roll(r, 1) * r * t[1]),
    "autoregression by slices": lambda t, r: -0.5 * jnp.sum((r[2:] - t[0] * r[1:-1] - t[1] * r[:-2]) ** 2),
    "polyval": lambda t, r: jnp.polyval(t, r[0]) + jnp.sum(jnp.vander(r[:3], 3) @ t),
    "searchsorted": lambda t, r: t[jnp.searchsorted(jnp.array([-0.5, 0.5]), r[0])] * r[1],
    "piecewise": lambda t, r: jnp.piecewise(
        r[0], [r[0] < 0, r[0] > 1], [lambda x: x * t[0], lambda x: jnp.log(x) * t[1], lambda x: t[2]]
    ),
    "select": lambda t, r: jnp.select([r[0] < -1, r[0] > 1], [t[0] * r[1], t[1] / r[2]], t[2]),
    "nan_to_num": lambda t, r: jnp.nan_to_num(r[0]) * t[0] + jnp.nansum(r * t[1]),
    "heaviside": lambda t, r: jnp.heaviside(r[0], t[0]) * t[1] + jnp.sinc(t[2] * r[1]),
    "hypot": lambda t, r: jnp.hypot(r[0] * t[0], r[1]) + jnp.logaddexp2(r[2] * t[1], r[3]),
    "floor_divide": lambda t, r: jnp.floor_divide(r[0], r[1]) * t[0] + jnp.mod(r[2], r[3]) * t[1],
    "float_power": lambda t, r: jnp.float_power(jnp.abs(r[1]), t[1]) + jnp.deg2rad(r[0]) * t[0],
    "convex mixture": lambda t, r: special.logsumexp(jnp.stack([t[0] * r[0], t[1] - r[0] ** 2, t[2]])),
    "recursion": lambda t, r: lax.scan(lambda h, x: (jnp.tanh(t[0] * h + t[1] * x), h), 0.0 * t[0], r)[0] * t[2],
    "matrix power": lambda t, r: jnp.sum(jnp.linalg.matrix_power(jnp.outer(r[:3], t) + jnp.eye(3), 3)),
    "checkpoint": lambda t, r: jax.checkpoint(lambda x: jnp.sin(x * t[0]) * x)(r[0]),
    "jit inside": lambda t, r: jax.jit(lambda x: jnp.sum(jnp.exp(x * t[0])))(r),
    "vmap inside": lambda t, r: jnp.sum(jax.vmap(lambda x: jnp.tanh(x * t[0]))(r)),
}


def positive(x):
    return jnp.exp(x)


def log_prob(make, value):
    return lambda t, r: jnp.sum(make(t, r).log_prob(value(r)))


def unit(r):
    return jax.nn.sigmoid(r[0])


def count(r):
    return jnp.floor(jnp.abs(r[0] * 3))


# The distributions of NumPyro.
DISTRIBUTIONS = {
    "Normal": log_prob(lambda t, r: dist.Normal(t[0] * r[1], positive(t[1])), lambda r: r[0]),
    "Cauchy": log_prob(lambda t, r: dist.Cauchy(t[0] * r[1], positive(t[1])), lambda r: r[0]),
    "Laplace": log_prob(lambda t, r: dist.Laplace(t[0] * r[1], positive(t[1])), lambda r: r[0]),
    "Logistic": log_prob(lambda t, r: dist.Logistic(t[0] * r[1], positive(t[1])), lambda r: r[0]),
    "StudentT": log_prob(lambda t, r: dist.StudentT(positive(t[2]), t[0], positive(t[1] + r[1])), lambda r: r[0]),
    "SoftLaplace": log_prob(lambda t, r: dist.SoftLaplace(t[0], positive(t[1] * r[1])), lambda r: r[0]),
    "AsymmetricLaplace": log_prob(
        lambda t, r: dist.AsymmetricLaplace(t[0], positive(t[1]), positive(t[2] * r[1])), lambda r: r[0]
    ),
    "Gumbel": log_prob(lambda t, r: dist.Gumbel(t[0], positive(t[1] * r[1])), lambda r: r[0]),
    "Exponential": log_prob(lambda t, r: dist.Exponential(positive(t[0] * r[1])), lambda r: positive(r[0])),
    "Gamma": log_prob(lambda t, r: dist.Gamma(positive(t[0]), positive(t[1] * r[1])), lambda r: positive(r[0])),
    "InverseGamma": log_prob(
        lambda t, r: dist.InverseGamma(positive(t[0]), positive(t[1] * r[1])), lambda r: positive(r[0])
    ),
    "Weibull": log_prob(lambda t, r: dist.Weibull(positive(t[0]), positive(t[1] * r[1])), lambda r: positive(r[0])),
    "LogNormal": log_prob(lambda t, r: dist.LogNormal(t[0] * r[1], positive(t[1])), lambda r: positive(r[0])),
    "Pareto": log_prob(lambda t, r: dist.Pareto(0.1, positive(t[0] * r[1])), lambda r: 1 + positive(r[0])),
    "HalfNormal": log_prob(lambda t, r: dist.HalfNormal(positive(t[0] * r[1])), lambda r: jnp.abs(r[0])),
    "HalfCauchy": log_prob(lambda t, r: dist.HalfCauchy(positive(t[0] * r[1])), lambda r: jnp.abs(r[0])),
    "Chi2": log_prob(lambda t, r: dist.Chi2(positive(t[0] * r[1])), lambda r: positive(r[0])),
    "Beta": log_prob(lambda t, r: dist.Beta(positive(t[0]), positive(t[1] * r[1])), unit),
    "BetaProportion": log_prob(lambda t, r: dist.BetaProportion(jax.nn.sigmoid(t[0]), positive(t[1])), unit),
    "Kumaraswamy": log_prob(lambda t, r: dist.Kumaraswamy(positive(t[0]), positive(t[1] * r[1])), unit),
    "Uniform": log_prob(lambda t, r: dist.Uniform(-positive(t[0]), positive(t[1])), lambda r: r[0]),
    "TruncatedNormal": log_prob(
        lambda t, r: dist.TruncatedNormal(t[0] * r[1], positive(t[1]), low=0.0), lambda r: jnp.abs(r[0])
    ),
    "TruncatedCauchy": log_prob(
        lambda t, r: dist.TruncatedCauchy(t[0] * r[1], positive(t[1]), low=0.0), lambda r: jnp.abs(r[0])
    ),
    "VonMises": log_prob(lambda t, r: dist.VonMises(t[0] * r[1], positive(t[1])), lambda r: jnp.tanh(r[0])),
    "Bernoulli": log_prob(lambda t, r: dist.Bernoulli(logits=t[0] * r[1]), lambda r: (r[0] > 0).astype(r.dtype)),
    "BernoulliProbs": log_prob(lambda t, r: dist.Bernoulli(jax.nn.sigmoid(t[0] * r[1])), lambda r: integer(r[0])),
    "Binomial": log_prob(lambda t, r: dist.Binomial(10, logits=t[0] * r[1]), count),
    "BetaBinomial": log_prob(lambda t, r: dist.BetaBinomial(positive(t[0]), positive(t[1] * r[1]), 10), count),
    "Poisson": log_prob(lambda t, r: dist.Poisson(positive(t[0] * r[1])), count),
    "ZeroInflatedPoisson": log_prob(
        lambda t, r: dist.ZeroInflatedPoisson(jax.nn.sigmoid(t[1]), rate=positive(t[0] * r[1])), count
    ),
    "GammaPoisson": log_prob(lambda t, r: dist.GammaPoisson(positive(t[0]), positive(t[1] * r[1])), count),
    "NegativeBinomial2": log_prob(lambda t, r: dist.NegativeBinomial2(positive(t[0] * r[1]), positive(t[1])), count),
    "NegativeBinomialLogits": log_prob(lambda t, r: dist.NegativeBinomialLogits(positive(t[0]), t[1] * r[1]), count),
    "Geometric": log_prob(lambda t, r: dist.Geometric(logits=t[0] * r[1]), count),
    "Categorical": log_prob(lambda t, r: dist.Categorical(logits=t * r[1]), lambda r: integer(r[0])),
    "OrderedLogistic": log_prob(
        lambda t, r: dist.OrderedLogistic(t[0] * r[1], jnp.array([-1.0, 1.0])), lambda r: integer(jnp.abs(r[0]))
    ),
    "Multinomial": log_prob(
        lambda t, r: dist.Multinomial(10, logits=t * r[3]), lambda r: jnp.floor(jnp.abs(r[:3] * 3))
    ),
    "Dirichlet": log_prob(lambda t, r: dist.Dirichlet(positive(t * r[3])), lambda r: jax.nn.softmax(r[:3])),
    "DirichletMultinomial": log_prob(
        lambda t, r: dist.DirichletMultinomial(positive(t), 10), lambda r: jnp.floor(jnp.abs(r[:3] * 3))
    ),
    "MultivariateNormal": log_prob(
        lambda t, r: dist.MultivariateNormal(t, jnp.eye(3) + jnp.outer(t, t)), lambda r: r[:3]
    ),
    "MultivariateNormal, own covariance": log_prob(
        lambda t, r: dist.MultivariateNormal(t, scale_tril=jnp.linalg.cholesky(spread(t, r))), lambda r: r[1:]
    ),
    "MultivariateNormal, precision": log_prob(
        lambda t, r: dist.MultivariateNormal(t, precision_matrix=jnp.eye(3) + jnp.outer(t, t)), lambda r: r[:3]
    ),
    "MultivariateStudentT": log_prob(
        lambda t, r: dist.MultivariateStudentT(4.0, t, jnp.eye(3) + jnp.tril(jnp.outer(t, t))), lambda r: r[:3]
    ),
    "LowRankMultivariateNormal": log_prob(
        lambda t, r: dist.LowRankMultivariateNormal(t, t[:, None] * r[3], jnp.exp(t)), lambda r: r[:3]
    ),
    "MixtureSameFamily": log_prob(
        lambda t, r: dist.MixtureSameFamily(dist.Categorical(logits=t[:2]), dist.Normal(t[1:] * r[1], jnp.exp(t[:2]))),
        lambda r: r[0],
    ),
    "Mixture": log_prob(
        lambda t, r: dist.Mixture(
            dist.Categorical(logits=t[:2]), [dist.Normal(t[0], 1.0), dist.Laplace(t[1] * r[1], positive(t[2]))]
        ),
        lambda r: r[0],
    ),
    "GaussianRandomWalk": log_prob(lambda t, r: dist.GaussianRandomWalk(positive(t[0]), num_steps=4), lambda r: r),
    "Normal, cdf": lambda t, r: jnp.log(dist.Normal(t[0], positive(t[1])).cdf(r[0])),
    "Logistic, censored": lambda t, r: jnp.where(
        r[1] > 0, jnp.log1p(-dist.Logistic(t[0], positive(t[1])).cdf(r[0])), dist.Logistic(t[0], 1.0).log_prob(r[0])
    ),
    "Laplace, cdf": lambda t, r: dist.Laplace(t[0], positive(t[1])).cdf(r[0]),
    "Gamma, cdf": lambda t, r: dist.Gamma(positive(t[0]), positive(t[1])).cdf(positive(r[0])),
    "Weibull, cdf": lambda t, r: dist.Weibull(positive(t[0]), positive(t[1])).cdf(positive(r[0])),
    "Cauchy, cdf": lambda t, r: dist.Cauchy(t[0], positive(t[1])).cdf(r[0]),
    "Poisson, cdf": lambda t, r: dist.Poisson(positive(t[0])).cdf(count(r)),
}

CASES = PRIMITIVES | FUNCTIONS | DISTRIBUTIONS


def rows_to_put_in(dtype):
    """Records unlike all others: any finite one, zeros, huge, tiny, missing, infinite, and mixtures."""
    huge, tiny = (1e30, 1e-42) if dtype == np.float32 else (1e300, 1e-310)
    single = [0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4, huge, -huge, tiny, np.nan, np.inf, -np.inf]
    mixed = [
        [np.nan, 1, 1, 1],
        [1, np.inf, 0, 2],
        [0, np.inf, -np.inf, np.nan],
        [huge, -huge, 0, 1],
        [7, 7, 7, -300],
        [1e-3, 1e3, 1e3, 1e-3],
        [0, 9, 9, 0],
    ]
    some = np.random.default_rng(7).normal(size=(2, 4)) * [[1.0], [5.0]]
    return np.array([*some, *([value] * 4 for value in single), *mixed], dtype)


def model_of(function):
    return dpmcmc.Model(lambda p, record: function(p["theta"], record), lambda p: 0.0 * p["theta"][0], {"theta": (3,)})


def rows_of_all(kernel, mapped):
    """Compile log-likelihoods and scores of every row of a few tiles, as the curator's loops do."""

    def one_tile(rows):
        tile = Tile(jnp.ones(ROWS, bool), rows=rows, here=jnp.asarray(True))
        by_kind = [tile if mapped else kernel.load(kernel.cut(tile)._replace(here=tile.here), g) for g in (False, True)]
        theta = jnp.asarray(THETA)
        return jnp.stack([kernel.log_likelihood(by_kind[0], theta), *kernel.scores(by_kind[1], theta)])

    def all_tiles(records):
        return lax.map(one_tile, records.reshape(NUM_TILES, ROWS, -1))

    return jax.jit(all_tiles, compiler_options=COMPILER_OPTIONS)


def rows_that_moved(function, dtype, mapped, traced=None):
    """How many other rows change in any bit when one record is replaced, over all replacements; None: not unpacked."""
    with exact_arithmetic():
        records = some_records(dtype)
        kernel = AutodiffKernel(model_of(function), records, traced)
        if not mapped and (kernel._unpacked_gradient is None or kernel._unpacked_value is None):
            return None
        return count_moved(rows_of_all(kernel, mapped), records)


def some_records(dtype):
    return np.random.default_rng(1).normal(size=(NUM_TILES * ROWS, 4)).astype(dtype)


def count_moved(compiled, records):
    """Replace one record by others, and count other rows of which some bit moves. Rows are the last axis."""
    before = np.asarray(compiled(records))
    moved = 0
    for row in rows_to_put_in(records.dtype):
        changed = records.copy()
        changed[CHANGED] = row
        after = np.asarray(compiled(changed))
        same = before.view(np.uint8).reshape(*before.shape, -1) == after.view(np.uint8).reshape(*before.shape, -1)
        moved_rows = ~same.all(axis=(1, 2, 4))
        moved_rows[0, CHANGED] = False
        moved += int(moved_rows.sum())
    return moved


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_no_row_depends_on_another(name, dtype):
    results = [rows_that_moved(CASES[name], dtype, mapped) for mapped in (True, False)]
    assert results[0] == 0
    assert results[1] in (0, None)


def curvatures_of_all(kernel):
    """Compile the second derivatives of every row of a few tiles, in other coordinates, as the curator's loops do."""
    coordinates = np.array([[1.0, 2.0, 0.0], [0.0, 0.1, 1.0], [3.0, 0.0, 1e-3]])

    def one_tile(rows, matrix):
        tile = Tile(jnp.ones(ROWS, bool), rows=rows, here=jnp.asarray(True))
        return view_of(kernel, matrix).curvatures(tile, jnp.asarray(THETA[:1]))

    def all_tiles(records, matrix):
        return lax.map(lambda rows: one_tile(rows, matrix), records.reshape(NUM_TILES, ROWS, -1))

    compiled = jax.jit(all_tiles, compiler_options=COMPILER_OPTIONS)
    return lambda records: compiled(records, coordinates)


# Nobody has written down the derivative of the incomplete gamma function by its shape, twice.
TWICE = {name: function for name, function in PRIMITIVES.items() if "incomplete gamma" not in name}


def curvature_rows_that_moved(function, trace):
    with exact_arithmetic():
        records = some_records(np.float64)
        kernel = AutodiffKernel(model_of(function), records, unchecked(function, np.float64))
        arguments = (jax.ShapeDtypeStruct((size,), np.float64) for size in (3, 4))
        return count_moved(curvatures_of_all(kernel.with_curvature(trace(function, *arguments))), records)


@pytest.mark.parametrize("name", TWICE)
def test_no_row_depends_on_another_in_second_derivatives(name):
    assert curvature_rows_that_moved(TWICE[name], allowed.trace_curvature) == 0


def test_twin_second_derivatives_that_mix_rows_are_caught():
    def unchecked_curvature(function, *arguments):
        return jax.make_jaxpr(jax.jacfwd(jax.grad(function)))(*arguments)

    assert curvature_rows_that_moved(convolved, unchecked_curvature) > 0


def used_primitives(closed):
    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive
            for inner in allowed._inner_jaxprs(equation.params.values()):
                yield from walk(inner)

    return set(walk(closed.jaxpr))


def test_every_allowed_primitive_is_shown():
    """What is on the list is on it because a case above computes with it."""
    shown = set()
    with exact_arithmetic():
        theta, record = (jax.ShapeDtypeStruct((size,), jnp.float64) for size in (3, 4))
        for function in CASES.values():
            for closed in allowed.trace_likelihood(function, theta, record):
                shown |= used_primitives(closed)
    assert sorted(primitive.name for primitive in allowed.ALLOWED - shown) == []


# ------------------------------------------------------------------ what is refused, and why


def convolved(t, r):
    return -0.5 * jnp.sum(jnp.convolve(r, t, mode="valid") ** 2)


def slow_series(t, r):
    return t[0] * special.betainc(jnp.exp(r[1]), jnp.exp(r[2]), special.ndtr(r[0]))


def unchecked(function, dtype):
    """Trace a function without the allowlist."""
    theta, record = (jax.ShapeDtypeStruct((size,), dtype) for size in (3, 4))
    return allowed.Traced(*(jax.make_jaxpr(f)(theta, record) for f in (function, jax.grad(function))))


@pytest.mark.parametrize(("function", "dtype"), [(convolved, np.float64), (slow_series, np.float64)])
def test_the_check_catches_primitives_that_mix_rows(function, dtype):
    """Twin: the two that were found from outside do move other rows, and the check above sees it."""
    with exact_arithmetic():
        traced = unchecked(function, dtype)
    assert rows_that_moved(function, dtype, True, traced) > 0


own_p = jax.extend.core.Primitive("add")  # the name of an allowed one
own_p.def_abstract_eval(lambda x: x)
own_p.def_impl(lambda x: x)
jax.interpreters.mlir.register_lowering(own_p, lambda ctx, x: [x])
jax.interpreters.batching.primitive_batchers[own_p] = lambda args, dims: (args[0] - jnp.mean(args[0]), dims[0])
jax.interpreters.ad.deflinear2(own_p, lambda cotangent, x: [cotangent])


@jax.custom_batching.custom_vmap
def centred(x):
    return x


@centred.def_vmap
def _(axis_size, in_batched, x):
    return x - jnp.mean(x), True


REFUSED = {
    "conv_general_dilated": convolved,
    "correlate": lambda t, r: jnp.sum(jnp.correlate(r, t)),
    "polymul": lambda t, r: jnp.sum(jnp.polymul(r, t)),
    "conv_transpose": lambda t, r: jnp.sum(lax.conv_transpose(r[None, :, None], t[:, None, None], (1,), "SAME")),
    "regularized_incomplete_beta": slow_series,
    "StudentT, cdf": lambda t, r: dist.StudentT(3.0, t[0], 1.0).cdf(r[0]),
    "Beta, cdf": lambda t, r: t[0] * dist.Beta(2.0, 3.0).cdf(jax.nn.sigmoid(r[0])),
    "GammaPoisson, cdf": lambda t, r: t[0] * dist.GammaPoisson(2.0, 3.0).cdf(count(r)),
    "svd": lambda t, r: jnp.sum(jnp.linalg.svd(jnp.outer(r, t), compute_uv=False)),
    "eigh": lambda t, r: jnp.sum(jnp.linalg.eigvalsh(spread(t, r))),
    "qr": lambda t, r: jnp.sum(jnp.linalg.qr(spread(t, r))[1]),
    "lu": lambda t, r: jnp.linalg.slogdet(spread(t, r))[1],
    "fft": lambda t, r: jnp.sum(jnp.abs(jnp.fft.rfft(r * t[0]))),
    "complex": lambda t, r: jnp.abs(lax.complex(r[0] * t[0], r[1])),
    "half precision": lambda t, r: (r[0].astype(jnp.float16) * t[0].astype(jnp.float16)).astype(t.dtype),
    "while": lambda t, r: t[0] * lax.while_loop(lambda x: x < 10.0, lambda x: x + 1.0, r[0]),
    "while in a branch": lambda t, r: lax.cond(
        r[0] > 0, lambda: t[0] * lax.while_loop(lambda x: x < 3.0, lambda x: x + 1.0, r[0]), lambda: t[0]
    ),
    "convolution in a scan": lambda t, r: lax.scan(lambda c, x: (c + jnp.sum(jnp.convolve(r, t)), c), 0.0 * t[0], r)[0],
    "own primitive": lambda t, r: own_p.bind(r[0]) * t[0],
    "own primitive in jit": lambda t, r: jax.jit(lambda x: own_p.bind(x))(r[0]) * t[0],
    "custom_vmap": lambda t, r: centred(r[0]) * t[0],
    "reduce_window": lambda t, r: jnp.sum(lax.reduce_window(r * t[0], -jnp.inf, lax.max, (2,), (1,), "VALID")),
    "random numbers": lambda t, r: t[0] * jax.random.normal(jax.random.key(integer(r[0]))),
    "host": lambda t, r: t[0] * jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), r.dtype), r[0]),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_may_mix_rows_is_refused(name, dtype):
    """By name, with why and what to write instead, before anything is spent."""
    records = np.random.default_rng(0).normal(size=(50, 4)).astype(dtype)
    budget = dpmcmc.Budget(1.0, 1e-6)
    with pytest.raises(ModelError) as caught:
        dpmcmc.Curator(model_of(REFUSED[name]), records, budget)
    text = str(caught.value)
    assert any(word in text for word in ("Instead:", "compute with booleans", "remove jax.debug.print", "failed while"))
    assert budget.spent == 0.0


@jax.custom_jvp
def hides_in_the_third_rule(t, r):
    return t[0] * r[0]


@jax.custom_jvp
def hides_in_the_second_rule(t, r):
    return t[0] * r[0]


@hides_in_the_third_rule.defjvp
def _(primals, tangents):
    return hides_in_the_third_rule(*primals), jnp.sum(jnp.convolve(*primals)) * tangents[0][0]


@hides_in_the_second_rule.defjvp
def _(primals, tangents):
    return hides_in_the_second_rule(*primals), hides_in_the_third_rule(*primals) * tangents[0][0]


CURVATURE_REFUSED = {
    "conv_general_dilated": (hides_in_the_second_rule, "conv_general_dilated.*Instead: write it with slices"),
    "no second derivative": (CASES["incomplete gamma"], "second derivatives"),
}


@pytest.mark.parametrize(
    "query", [dpmcmc.queries.Curvature(1.0, 30.0), dpmcmc.queries.ClipCount(1.0, 30.0, "curvature")]
)
@pytest.mark.parametrize("name", CURVATURE_REFUSED)
def test_second_derivatives_are_refused_when_they_are_asked_for(name, query):
    """And not before: gradients are answered. Nothing is charged for the refusal."""
    function, message = CURVATURE_REFUSED[name]
    curator = dpmcmc.Curator(model_of(function), some_records(np.float64), dpmcmc.Budget(8.0, 1e-6))
    curator.ask(dpmcmc.queries.Gradient(1.0, 30.0), np.zeros(3))
    spent = curator.budget.spent
    for method in (curator.prepare, curator.ask):
        with pytest.raises(ModelError, match=message):
            method(query, np.zeros(3))
    assert curator.budget.spent == spent


def test_second_derivatives_that_capture_the_data_are_refused():
    records = some_records(np.float64)

    @jax.custom_jvp
    def plain(t, r):
        return t[0] * r[0]

    @plain.defjvp
    def _(primals, tangents):
        t, r = primals
        return plain(t, r), jnp.sum(jnp.asarray(records[:, 0])) * r[0] * t[1] * tangents[0][0]

    with pytest.raises(ModelError, match="from outside"):
        dpmcmc.Curator(model_of(plain), records, dpmcmc.Budget(8.0, 1e-6))
    once = jax.custom_jvp(lambda t, r: t[0] * r[0])
    once.defjvp(lambda primals, tangents: (once(*primals), plain(*primals) * tangents[0][0]))
    curator = dpmcmc.Curator(model_of(once), records, dpmcmc.Budget(8.0, 1e-6))
    with pytest.raises(ModelError, match="from outside"):
        curator.ask(dpmcmc.queries.Curvature(1.0, 30.0), np.zeros(3))
    assert curator.budget.spent == 0.0


def test_refused_through_numpyro_too():
    import numpyro

    def model(x):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            mean = jax.vmap(lambda row: jnp.sum(jnp.convolve(row, a)))(x)
            numpyro.sample("obs", dist.Normal(mean, 1.0), obs=x[:, 0])

    records = np.random.default_rng(0).normal(size=(50, 4))
    with pytest.raises(ModelError, match="conv_general_dilated"):
        dpmcmc.Curator(dpmcmc.from_numpyro(model, records), records, dpmcmc.Budget(1.0, 1e-6))


@pytest.mark.parametrize("broken", ["check", "unconstrained_log_likelihood"])
def test_a_subclass_cannot_switch_the_check_off(broken):
    class Sly(dpmcmc.Model):
        def check(self, records):
            return None

        def unconstrained_log_likelihood(self, theta, record):
            return convolved(theta, record)

    model = Sly(lambda p, r: p["theta"] @ r[:3], lambda p: 0.0 * p["theta"][0], {"theta": (3,)})
    with pytest.raises(ModelError, match="conv_general_dilated"):
        dpmcmc.Curator(model, np.zeros((50, 4)), dpmcmc.Budget(1.0, 1e-6))


def test_the_model_is_not_traced_again():
    """A function that computes something else when it is called again has no say any more."""
    calls = []

    def changing(p, record):
        calls.append(None)
        return p["theta"] @ record[:3]

    records = np.random.default_rng(0).normal(size=(300, 4))
    model = dpmcmc.Model(changing, lambda p: 0.0 * p["theta"][0], {"theta": (3,)})
    curator = dpmcmc.Curator(model, records, noise=dpmcmc.curator.NoNoiseNotPrivate())
    before = len(calls)
    curator.ask(dpmcmc.queries.Gradient(1.0, 1.0), np.zeros(3))
    curator.ask(dpmcmc.queries.LogRatio(1.0, noise_multiplier=1.0), np.zeros(3), np.ones(3))
    assert len(calls) == before
    # Second derivatives are traced once, when they are first asked for.
    curator.prepare(dpmcmc.queries.Curvature(1.0, 1.0), np.zeros(3))
    assert len(calls) > before
    before = len(calls)
    curator.ask(dpmcmc.queries.Curvature(1.0, 1.0), np.zeros(3), coordinates=dpmcmc.queries.Affine.identity(3))
    curator.ask(dpmcmc.queries.NormQuantile(0.9, 1.0, of="curvature"), np.zeros((2, 3)))
    assert len(calls) == before


@pytest.mark.parametrize(
    "name", ["score_at", "log_likelihood_at", "curvature_at", "information_at", "_predict", "_validity"]
)
def test_an_instances_attribute_never_sees_a_tile(name):
    """A family's methods are called on its class: what is set on the instance is handed nothing."""
    model = dpmcmc.models.LogisticRegression(2)
    handed = []

    def spy(*arguments):
        handed.append(arguments)
        return type(model).score_at(model, *arguments)

    setattr(model, name, spy)
    assert has_closed_form(model)
    generator = np.random.default_rng(0)
    data = {"X": generator.normal(size=(300, 2)), "y": generator.integers(0, 2, 300)}
    curator = dpmcmc.Curator(model, data, noise=dpmcmc.curator.NoNoiseNotPrivate())
    plain = dpmcmc.Curator(dpmcmc.models.LogisticRegression(2), data, noise=dpmcmc.curator.NoNoiseNotPrivate())
    for kind in (dpmcmc.queries.Gradient, dpmcmc.queries.Curvature, dpmcmc.queries.FisherInformation):
        query = kind(1.0, 1.0)
        assert np.array_equal(curator.ask(query, np.ones(3)).value, plain.ask(query, np.ones(3)).value)
    assert not handed


def test_the_hole_that_was_found_from_outside_is_closed():
    """An AR(2) model by slices: one missing value in one record moves the sum by no more than the sensitivity."""

    def autoregression(p, x):
        return -0.5 * jnp.sum((x[2:] - p["a"][0] * x[1:-1] - p["a"][1] * x[:-2]) ** 2)

    model = dpmcmc.Model(autoregression, lambda p: -jnp.sum(p["a"] ** 2), {"a": (2,)})
    records = np.random.default_rng(0).normal(size=(2000, 8))
    changed = records.copy()
    changed[17, 3] = np.nan
    query = dpmcmc.queries.Gradient(0.5, 1.0)
    sums = [
        dpmcmc.Curator(model, data, noise=dpmcmc.curator.NoNoiseNotPrivate()).ask(query, np.array([0.3, 0.1])).value
        for data in (records, changed)
    ]
    assert 0.0 < np.linalg.norm(sums[0] - sums[1]) <= query.sensitivity / 2 * (1 + 1e-9)


def test_all_call_primitives_are_known():
    """Twin of the walk: a convolution behind each kind of call is found."""
    hidden = [
        jax.jit(convolved),
        jax.checkpoint(convolved),
        jax.custom_jvp(convolved),
        lambda t, r: jax.custom_vjp(convolved)(t, r) if False else jax.jit(jax.jit(convolved))(t, r),
    ]
    hidden[2].defjvp(lambda primals, tangents: (convolved(*primals), jnp.sum(tangents[0])))
    assert primitives.custom_jvp_call_p in allowed._CALLS
    for function in hidden:
        with exact_arithmetic(), pytest.raises(ModelError, match="conv_general_dilated"):
            allowed.trace_likelihood(function, *(jax.ShapeDtypeStruct((size,), jnp.float64) for size in (3, 4)))
