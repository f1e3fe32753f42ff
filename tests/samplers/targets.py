"""A small skewed target with a known posterior, an oracle for tens of thousands of chains, and the test for both.

The model is a regression with skewed (generalised logistic) errors and a Gumbel prior, in two dimensions. Scores are
bounded, |∂ ln p/∂z| ≤ α, so that a log-ratio never exceeds α‖(1, x)‖‖θ' − θ‖ ≤ ``RATIO_CLIP``‖θ' − θ‖: nothing is ever
clipped, and the samplers' target is the posterior itself.
"""

from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.interpolate
import scipy.stats

import dpmcmc
from dpmcmc.curator import SeededNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.batches import Batch, draw_rows, draw_sizes
from dpmcmc.curator.integers import clip_to_lattice, ratio_sum
from dpmcmc.curator.placement import COMPILER_OPTIONS
from dpmcmc.curator.tiles import Tile
from dpmcmc.queries import BatchGradient, Gradient, LogRatio, NotPrivateRelease, Oracle, PaidDraws, PaidNoise, Queries

ALPHA = 2.5
RATIO_CLIP = GRADIENT_CLIP = 3.6  # ≥ α√(1 + x²) for |x| ≤ 1
PRIOR_SCALE = 0.45
# Six records (x, y), in the order of y: batches of neighbours pull in different directions.
RECORDS = np.array([[-0.9, -1.8], [0.2, -0.9], [0.7, -0.3], [-0.4, 1.1], [1.0, 1.6], [-0.1, 2.4]])


def log_likelihood(parameters, record):
    residual = record[1] - parameters["theta"][0] - record[0] * parameters["theta"][1]
    return jnp.log(ALPHA) - residual - (ALPHA + 1.0) * jax.nn.softplus(-residual)


def log_prior(parameters):
    standard = parameters["theta"] / PRIOR_SCALE
    return -jnp.sum(standard + jnp.exp(-standard))


SKEWED = dpmcmc.Model(log_likelihood, log_prior, {"theta": (2,)}, name="skewed")


def quantised(spacing):
    """The same model with its log-likelihood rounded to multiples of γ: log-ratios of a record then lie on γZ."""

    def rounded(parameters, record):
        return spacing * jnp.round(log_likelihood(parameters, record) / spacing)

    return dpmcmc.Model(rounded, log_prior, {"theta": (2,)}, name="quantised")


def per_record(model, records, theta):
    """Log-likelihoods, chains × records."""
    over_rows = jax.vmap(model.unconstrained_log_likelihood, in_axes=(None, 0))
    return jax.vmap(over_rows, in_axes=(0, None))(theta, jnp.asarray(records))


def scores(model, records, theta):
    """Their gradients, chains × records × dimension."""
    over_rows = jax.vmap(jax.grad(model.unconstrained_log_likelihood), in_axes=(None, 0))
    return jax.vmap(over_rows, in_axes=(0, None))(theta, jnp.asarray(records))


# ---------------------------------------------------------------------- the exact posterior


class ExactPosterior:
    """The posterior of the skewed model on a fine grid, and its Rosenblatt transform (θ₀, θ₁) → (F(θ₀), F(θ₁|θ₀)).

    The transform of exact draws is uniform on the unit square. Cubic splines of distribution functions on 600 × 600
    points err by less than 1e-5; the tests resolve about 0.01.
    """

    low, high, points = np.array([-1.7, -1.8]), np.array([4.0, 5.0]), 600

    def __init__(self, records=RECORDS):
        self.records = records
        self.grids = [np.linspace(self.low[i], self.high[i], self.points) for i in range(2)]

    @cached_property
    def density(self):
        first, second = np.meshgrid(*self.grids, indexing="ij")
        theta = np.stack([first.ravel(), second.ravel()], axis=1)
        with exact_arithmetic():
            log_density = jax.jit(
                lambda theta: (
                    jnp.sum(per_record(SKEWED, self.records, theta), axis=1)
                    + jax.vmap(SKEWED.unconstrained_log_prior)(theta)
                )
            )(theta)
        log_density = np.asarray(log_density).reshape(self.points, self.points)
        density = np.exp(log_density - log_density.max())
        edge = max(density[0].max(), density[-1].max(), density[:, 0].max(), density[:, -1].max())
        assert edge < 1e-6, "the grid does not hold the posterior"
        return density / density.sum()

    @cached_property
    def _splines(self):
        def cumulate(values, grid):
            spline = scipy.interpolate.make_interp_spline(grid, values, axis=-1).antiderivative()
            cumulated = spline(grid)
            return cumulated / cumulated[..., -1:]

        marginal = cumulate(self.density.sum(axis=1), self.grids[0])
        conditional = cumulate(self.density, self.grids[1])
        return (
            scipy.interpolate.make_interp_spline(self.grids[0], marginal),
            scipy.interpolate.RectBivariateSpline(*self.grids, conditional),
        )

    def transform(self, theta):
        """Return numbers that are uniform and independent if theta is drawn from the posterior."""
        theta = np.clip(theta, self.low, self.high)
        marginal, conditional = self._splines
        uniform = np.stack([marginal(theta[:, 0]), conditional(theta[:, 0], theta[:, 1], grid=False)], axis=1)
        return np.clip(uniform, 0.0, 1.0)

    def draw(self, generator, num_draws):
        """Invert the transform, one coordinate after the other."""
        uniform = generator.random((num_draws, 2))
        marginal, conditional = self._splines
        first = self._invert(0, uniform[:, 0], marginal)
        second = self._invert(1, uniform[:, 1], lambda value: conditional(first, value, grid=False))
        return np.stack([first, second], axis=1)

    def _invert(self, coordinate, uniform, distribution_function):
        """Bisect."""
        low, high = np.full(len(uniform), self.low[coordinate]), np.full(len(uniform), self.high[coordinate])
        for _ in range(32):
            middle = (low + high) / 2
            below = distribution_function(middle) < uniform
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def moments(self):
        """Return mean and variance of each coordinate."""
        weights = [self.density.sum(axis=1), self.density.sum(axis=0)]
        mean = np.array([w @ g for w, g in zip(weights, self.grids, strict=True)])
        return mean, np.array([w @ (g - m) ** 2 for w, g, m in zip(weights, self.grids, mean, strict=True)])


EXACT = ExactPosterior()


def p_value(uniform, reference=None):
    """Smallest p-value, times their number, of: KS of each coordinate and χ² of the joint law on 8 × 8 cells.

    Of numbers that should be uniform on the square, or have the law of an independent sample ``reference``. As a
    Bonferroni bound it is ≤ p with probability at most p.
    """
    cells = 8

    def count(values):
        place = np.minimum((values * cells).astype(int), cells - 1)
        return np.bincount(place[:, 0] * cells + place[:, 1], minlength=cells**2)

    if reference is None:
        values = [scipy.stats.kstest(uniform[:, i], "uniform").pvalue for i in range(2)]
        values.append(scipy.stats.chisquare(count(uniform)).pvalue)
    else:
        values = [scipy.stats.ks_2samp(uniform[:, i], reference[:, i]).pvalue for i in range(2)]
        table = np.stack([count(uniform), count(reference)])
        values.append(scipy.stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue)
    return min(1.0, len(values) * min(values))


# ---------------------------------------------------------------------- the oracle


def direct_oracle(
    model, records, gradient: Any = None, log_ratio: Any = None, round_ratios=True, smooth=None
) -> Oracle:
    """The curator's answers, computed directly for few records and many chains: same lattice, same integers.

    round_ratios=False leaves the records' log-ratios as they are, so that only the noise lives on the lattice (the
    penalty identity holds for any λ). Without queries: no noise, no clipping, as for HMC and RWMH. ``smooth`` is a
    model whose gradient stands in for that of a model that has none.
    """
    num_records, dimension = len(records), model.dimension
    real = jnp.ones(num_records, bool)

    def on_lattice(each, spacing, bound):
        columns = [each[..., j] for j in range(dimension)]
        tile = Tile(real, here=num_records > 0)
        return jnp.stack(clip_to_lattice(lambda: columns, jnp.asarray(spacing), jnp.asarray(float(bound)), tile), -1)

    def answer_gradient(theta, noise):
        each = scores(smooth or model, records, theta)
        if gradient is None:
            return NotPrivateRelease(jnp.sum(each, axis=1), jnp.zeros(len(theta)), jnp.zeros(len(theta)))
        lattice = gradient.lattice(num_records, dimension)
        spacing = gradient.spacing(lattice)
        integers = on_lattice(each, spacing, lattice.bound)
        value = spacing * (jnp.sum(integers, axis=1).astype(jnp.int64) + noise)
        return NotPrivateRelease(value, jnp.full(len(theta), spacing * lattice.noise_scale), jnp.zeros(len(theta)))

    def answer_log_ratio(theta, proposal, noise):
        ratio = per_record(model, records, proposal) - per_record(model, records, theta)
        if log_ratio is None:
            return NotPrivateRelease(jnp.sum(ratio, axis=1), jnp.zeros(len(theta)), jnp.zeros(len(theta)))
        geometry = log_ratio.geometry(theta, proposal, log_ratio.numbers(num_records))
        if round_ratios:
            value = geometry.spacing * (ratio_sum(ratio, geometry.spacing, geometry.bound, real) + noise)
        else:
            value = jnp.sum(ratio, axis=1) + geometry.spacing * noise
        return NotPrivateRelease(value, geometry.noise_sd, geometry.mu)

    def answer_batch_gradient(theta, batch, noise):
        lattice = gradient.lattice(num_records, dimension)
        spacing = gradient.spacing(lattice)

        def chosen(key, size):
            index, mask = draw_rows(key, num_records, gradient.rows(num_records), size)
            return jnp.zeros(num_records).at[index].add(mask)

        weights = jax.vmap(chosen)(jax.random.split(batch.key, len(theta)), batch.size)
        integers = on_lattice(scores(model, records, theta), spacing, lattice.bound)
        total = jnp.sum(weights[..., None] * integers, axis=1).astype(jnp.int64)
        sd = jnp.full(len(theta), spacing * lattice.noise_scale)
        return NotPrivateRelease(spacing * (total + noise), sd, jnp.full(len(theta), jnp.nan))

    return Oracle(answer_gradient, answer_log_ratio, answer_batch_gradient)


def paying(oracle: Oracle) -> Oracle:
    """Let the curator's oracle take the tests' plain integers, as if they had been paid for."""
    return Oracle(
        lambda theta, noise: oracle.gradient(theta, PaidDraws(noise)),
        lambda theta, proposal, noise: oracle.log_ratio(theta, proposal, PaidDraws(noise)),
        lambda theta, batch, noise: oracle.batch_gradient(theta, batch, PaidDraws(noise)),
    )


def draw_noise(
    source, queries: Queries, num_records, chains, dimension, steps, generator=None
) -> tuple[PaidNoise, PaidNoise]:
    """Noise for the start and for so many steps (leading axis), on the lattices of the queries."""

    def draw(query, *shape):
        if query is None:
            return np.zeros(shape, np.int64)
        return source.draw(query.lattice(num_records, dimension).noise_scale, shape)

    batch = None
    if isinstance(queries.gradient, BatchGradient):
        generator = generator or np.random.default_rng(0)
        query = queries.gradient
        sizes = draw_sizes(generator, num_records, query.batch_size, query.sampling, (steps, chains))
        batch = Batch(jax.random.split(jax.random.key(int(generator.integers(2**31))), steps), jnp.asarray(sizes))
    start = PaidNoise(draw(queries.gradient, queries.gradients_at_start, chains, dimension), None)
    per_step = draw(queries.gradient, steps, queries.gradients_per_step, chains, dimension)
    return start, PaidNoise(per_step, draw(queries.log_ratio, steps, chains), batch)


class Run(NamedTuple):
    """Final state and the acceptance rate."""

    state: Any
    acceptance: float


def compile_chains(kernel, make_oracle):
    """Return ``run(theta, noise, seed, *switches) -> Run``: start and step all chains, compiled, in double precision.

    ``make_oracle(*switches)`` is traced, so that a switch turns a compiled run into its twin.
    """

    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def compiled(key, theta, start, steps, *switches):
        init_key, run_key = jax.random.split(key)
        oracle = make_oracle(*switches)
        state = kernel.init(init_key, theta, oracle, start)
        num_steps = len(jax.tree.leaves(steps)[0])

        def one(state, inputs):
            state, info = kernel.step(inputs[0], state, oracle, inputs[1])
            return state, jnp.mean(getattr(info, "acceptance_rate", jnp.full(1, jnp.nan)))

        state, accepted = jax.lax.scan(one, state, (jax.random.split(run_key, num_steps), steps))
        return state, jnp.mean(accepted)

    def run(theta, noise: tuple[PaidNoise, PaidNoise], seed, *switches) -> Run:
        with exact_arithmetic():
            state, acceptance = compiled(jax.random.key(seed), jnp.asarray(theta), *noise, *switches)
            return Run(jax.tree.map(np.asarray, state), float(acceptance))

    return run


def coarse(queries: Queries, gradient_bits=4, ratio_bits=3) -> Queries:
    """The same queries on a coarse lattice."""
    gradient, log_ratio = queries.gradient, queries.log_ratio
    if gradient is not None:
        gradient = Gradient(gradient.l2_clip_norm, gradient.noise_multiplier, lattice_bits=gradient_bits)
    if log_ratio is not None:
        log_ratio = LogRatio(log_ratio.bound, noise_multiplier=log_ratio.noise_multiplier, lattice_bits=ratio_bits)
    return queries._replace(gradient=gradient, log_ratio=log_ratio)


def seeded(seed):
    return SeededNoiseNotPrivate(seed)
