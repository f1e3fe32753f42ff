"""Draws from public surrogates, by Hamiltonian Monte Carlo: no record has a part in them, and they cost nothing.

Many short chains side by side, each with weights of its own: the weights' uncertainty is then in the draws. A chain
does not leave the region around the points that were asked about, where alone the surrogate is known: a soft wall, in
the accept test only. (That is why it is written here: a kernel of BlackJAX takes one log-density, and would look for
the nearest of all points in every leapfrog step; ``python -m benchmarks.surrogate`` measures what that costs.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import Model
from dpmcmc.surrogate import Form, polynomials
from dpmcmc.tuning.fit import Fit, Frame

Array = NDArray[np.float64]

NUM_CHAINS = 256
NUM_ITERATIONS = 40
"""Iterations of one call of the compiled program."""
NUM_LEAPFROG = 16
MAX_POINTS = 512
_TARGET = 0.8  # accepted proposals, on average
_WALL = 5.0


class Region(NamedTuple):
    """Where a surrogate is known: points, the inverses of their local coordinates (in u), and a radius in these."""

    points: Array
    inverses: Array
    radius: float

    def distances(self, u: Array) -> Array:
        """Distance of each u from the nearest point, in that point's local coordinates."""
        apart = u[:, None, :] - self.points
        return np.asarray(np.sqrt(np.min(np.sum(np.einsum("kij,nkj->nki", self.inverses, apart) ** 2, axis=2), axis=1)))


class Walk:
    """A compiled program for a model's prior and the polynomials of a form; forms of lower degree are padded to it.

    Parameters
    ----------
    model
        The model, of which the prior is used.
    form
        The largest form.
    """

    def __init__(self, model: Model, form: Form) -> None:
        self.form = form
        self._run = _compile(model.unconstrained_log_prior, form)

    def draw(
        self,
        fit: Fit,
        weights: Array,
        start: Array,
        region: Region,
        generator: np.random.Generator,
        *,
        temperature: float = 1.0,
        warmup: int = 2,
        calls: int = 1,
    ) -> tuple[Array, float]:
        """Return positions in u (iterations × chains × d) and the step size, after so many calls to warm up.

        Parameters
        ----------
        fit
            For the form and coordinates.
        weights
            Of each chain: chains × d × polynomials of the fit's form.
        start
            Of each chain: chains × d.
        region
            Where the surrogate is known.
        generator
            Of the public randomness.
        temperature
            The potential is divided by it.
        warmup, calls
            Calls of the compiled program, each of ``NUM_ITERATIONS``: to warm up, and whose draws are returned.
        """
        padded = np.zeros((NUM_CHAINS, self.form.dimension, len(self.form.powers)))
        # Polynomials come by rising degree, so that those of a lower degree are the first ones of a higher.
        padded[:, :, : weights.shape[2]] = weights
        points = np.full((MAX_POINTS, self.form.dimension), 1e9)
        inverses = np.broadcast_to(np.eye(self.form.dimension), (MAX_POINTS, *fit.frame.matrix.shape)).copy()
        points[: len(region.points)], inverses[: len(region.points)] = region.points, region.inverses
        fixed = (padded, fit.frame.center, fit.frame.matrix, points, inverses, region.radius, temperature)
        u, log_step, kept = start, np.log(0.3), []
        for call in range(warmup + calls):
            key = jax.random.wrap_key_data(jnp.asarray(generator.integers(0, 2**32, 2, dtype=np.uint32)))
            u, log_step, positions = self._run(key, u, log_step, float(call < warmup), *fixed)
            if call >= warmup:
                kept.append(np.asarray(positions))
        return np.concatenate(kept), float(np.exp(log_step))


def _compile(log_prior: Callable[[jax.Array], jax.Array], form: Form) -> Callable[..., Any]:
    evaluate, dimension = polynomials(form), form.dimension

    def potential(u: jax.Array, weights: jax.Array, frame: Any, temperature: jax.Array) -> jax.Array:
        center, matrix = frame
        value = 0.5 * jnp.sum((weights @ evaluate(u)) ** 2) - log_prior(center + matrix @ u)
        return value / temperature

    slope = jax.grad(potential)

    def wall(u: jax.Array, points: jax.Array, inverses: jax.Array, radius: jax.Array) -> jax.Array:
        apart = jnp.matmul(inverses, (u - points)[..., None])[..., 0]
        distance = jnp.sqrt(jnp.min(jnp.sum(apart**2, axis=1)))
        return _WALL * jnp.maximum(0.0, distance - radius) ** 2

    def transition(key: Any, u: Any, height: Any, step: Any, weights: Any, frame: Any, region: Any, heat: Any) -> Any:
        momentum_key, accept_key, step_key = jax.random.split(key, 3)
        momentum = jax.random.normal(momentum_key, (dimension,), jnp.float64)
        step = step * jnp.exp(jax.random.uniform(step_key, (), jnp.float64, -1.2, 0.2))

        def leapfrog(_: int, state: Any) -> Any:
            position, momentum = state
            position = position + 0.5 * step * momentum
            momentum = momentum - step * slope(position, weights, frame, heat)
            return position + 0.5 * step * momentum, momentum

        end, last = jax.lax.fori_loop(0, NUM_LEAPFROG, leapfrog, (u, momentum))
        end_height = potential(end, weights, frame, heat) + wall(end, *region)
        gain = height - end_height + 0.5 * (jnp.sum(momentum**2) - jnp.sum(last**2))
        rate = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        accepted = jax.random.uniform(accept_key, (), jnp.float64) < rate
        return jnp.where(accepted, end, u), jnp.where(accepted, end_height, height), rate

    def run(
        key: Any, u: Any, log_step: Any, adapting: Any, weights: Any, center: Any, matrix: Any, *rest: Any
    ) -> tuple[Any, Any, Any]:
        *region, heat = rest
        frame = center, matrix
        heights = jax.vmap(lambda one, w: potential(one, w, frame, heat) + wall(one, *region))(u, weights)

        def iteration(carry: Any, key_and_index: Any) -> Any:
            u, heights, log_step = carry
            key, index = key_and_index
            u, heights, rates = jax.vmap(
                lambda key, one, height, w: transition(key, one, height, jnp.exp(log_step), w, frame, region, heat)
            )(jax.random.split(key, NUM_CHAINS), u, heights, weights)
            gain = adapting * jnp.maximum(1.5 / jnp.sqrt(index + 1.0), 0.2)
            return (u, heights, log_step + gain * (jnp.mean(rates) - _TARGET)), u

        keys = jax.random.split(key, NUM_ITERATIONS), jnp.arange(NUM_ITERATIONS, dtype=jnp.float64)
        (u, _, log_step), positions = jax.lax.scan(iteration, (u, heights, log_step), keys)
        return u, log_step, positions

    numbers = jnp.float64
    shapes = [
        jax.ShapeDtypeStruct(shape, numbers)
        for shape in (
            (NUM_CHAINS, dimension),
            (),
            (),
            (NUM_CHAINS, dimension, len(form.powers)),
            (dimension,),
            (dimension, dimension),
            (MAX_POINTS, dimension),
            (MAX_POINTS, dimension, dimension),
            (),
            (),
        )
    ]
    key = jax.eval_shape(lambda: jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)))
    return jax.jit(run).lower(key, *shapes).compile()


def frame_of(fit_frame: Frame, draws: Array) -> tuple[Frame, float]:
    """Return coordinates in which draws have mean 0 and sds of 1, and how many sds the centre has moved."""
    mean = draws.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(draws.T)))
    values = np.clip(values, 0.05, 20.0)
    root = (vectors * np.sqrt(values)) @ vectors.T
    return fit_frame.moved(mean, root), float(np.linalg.norm(np.linalg.solve(root, mean)))
