"""Draws from a public surrogate: the package's own HMC beside BlackJAX's (``python -m benchmarks.surrogate``).

Both run 256 chains on the same map, each with weights of its own, for 40 iterations of 16 leapfrog steps, in double
precision. BlackJAX's kernels take one log-density, so that the wall around the known region is in its gradient too;
without the wall it is measured as well.
"""

import time
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.surrogate import Form, polynomials
from dpmcmc.tuning.fit import Fit, Frame
from dpmcmc.tuning.walk import MAX_POINTS, NUM_CHAINS, NUM_ITERATIONS, NUM_LEAPFROG, Region, Walk

_REPEATS = 7


class _Flat:
    """A model as far as `Walk` needs it: a flat prior."""

    def unconstrained_log_prior(self, theta: jax.Array) -> jax.Array:
        return 0.0 * jnp.sum(theta)


def _banana(form: Form) -> np.ndarray[Any, np.dtype[np.float64]]:
    weights = np.zeros((form.dimension, len(form.powers)))
    weights[:, 1 : form.dimension + 1] = np.eye(form.dimension)
    weights[1, 1 + form.dimension] = 1.5  # a bend along the first coordinate
    return weights


def _own(form: Form) -> tuple[float, Callable[[int], Any]]:
    began = time.perf_counter()
    walk = Walk(_Flat(), form)  # type: ignore[arg-type]
    compiled = time.perf_counter() - began
    size = form.dimension
    fit = Fit(form, Frame(np.zeros(size), np.eye(size)), np.zeros(1), np.eye(1), 0.01, (), 0.0, 1.0, 1.0)
    weights = np.broadcast_to(_banana(form), (NUM_CHAINS, size, len(form.powers)))
    points = np.random.default_rng(0).standard_normal((100, size))
    region = Region(points, np.broadcast_to(np.eye(size), (100, size, size)), 6.0)
    start = points[np.arange(NUM_CHAINS) % 100]
    return compiled, lambda seed: walk.draw(fit, weights, start, region, np.random.default_rng(seed), warmup=0)


def _blackjax(form: Form, walled: bool) -> tuple[float, Callable[[int], Any]]:
    evaluate, size = polynomials(form), form.dimension
    weights = jnp.broadcast_to(jnp.asarray(_banana(form)), (NUM_CHAINS, size, len(form.powers)))
    points = np.full((MAX_POINTS, size), 1e9)
    points[:100] = np.random.default_rng(0).standard_normal((100, size))
    start = jnp.asarray(points[np.arange(NUM_CHAINS) % 100])
    kernel = blackjax.hmc.build_kernel()

    def run(key: Any, u: Any, weights: Any, points: Any) -> Any:
        def chain(key: Any, u: Any, own: Any) -> Any:
            def log_density(u: jax.Array) -> jax.Array:
                if not walled:
                    return -0.5 * jnp.sum((own @ evaluate(u)) ** 2)
                distance = jnp.sqrt(jnp.min(jnp.sum((u - points) ** 2, axis=1)))
                wall = 5.0 * jnp.maximum(0.0, distance - 6.0) ** 2
                return -0.5 * jnp.sum((own @ evaluate(u)) ** 2) - wall

            def step(state: Any, key: Any) -> Any:
                state, _ = kernel(key, state, log_density, 0.2, jnp.ones(size), NUM_LEAPFROG)
                return state, state.position

            keys = jax.random.split(key, NUM_ITERATIONS)
            return jax.lax.scan(step, blackjax.hmc.init(u, log_density), keys)[1]

        return jax.vmap(chain)(jax.random.split(key, NUM_CHAINS), u, weights)

    began = time.perf_counter()
    program = jax.jit(run).lower(jax.random.key(0), start, weights, jnp.asarray(points)).compile()
    compiled = time.perf_counter() - began
    return compiled, lambda seed: np.asarray(program(jax.random.key(seed), start, weights, jnp.asarray(points)))


def main() -> None:
    """Measure both by turns, and print the ratio of the medians."""
    with jax.enable_x64(True):
        for form in (Form(2, 2, 5), Form(5, 5, 3)):
            contestants = {
                "own": _own(form),
                "BlackJAX": _blackjax(form, True),
                "BlackJAX without the wall": _blackjax(form, False),
            }
            times: dict[str, list[float]] = {name: [] for name in contestants}
            for seed in range(_REPEATS):
                for name, (_, draw) in contestants.items():
                    began = time.perf_counter()
                    draw(seed)
                    times[name].append(time.perf_counter() - began)
            own = float(np.median(times["own"]))
            print(f"{form.dimension} parameters, degree {form.degree}")
            for name, (compiled, _) in contestants.items():
                median = float(np.median(times[name]))
                print(f"  {name}: {median:.3f} s, {median / own:.2f} times our own; compiled in {compiled:.1f} s")


if __name__ == "__main__":
    main()
