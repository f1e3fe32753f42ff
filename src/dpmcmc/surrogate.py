r"""A public stand-in for the likelihood: −ln p(x|θ) ≈ ½‖ψ(u)‖², ψ a polynomial map, θ = m + C u.

Degree 1 is a Gaussian, 2 holds a banana. It has no wells without a floor, and its derivative is what second moments of
scores measure: Σ s sᵀ ≈ JᵀJ. Fitted to releases (:mod:`dpmcmc.tuning`), used by samplers; no record has a part in it.

The polynomials are products of Hermite polynomials of the coordinates, normalised under N(0, I); from degree 2 on, of
the first ``active`` coordinates only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Form(NamedTuple):
    """What the polynomials are: number of coordinates, of those that higher degrees have a part in, and degree."""

    dimension: int
    active: int
    degree: int

    @property
    def num_polynomials(self) -> int:
        """How many there are, without listing them."""
        if not (0 <= self.active <= self.dimension and 1 <= self.degree <= 100):
            return 0
        higher = (math.comb(self.active + degree - 1, degree) for degree in range(2, self.degree + 1))
        return 1 + self.dimension + sum(higher)

    @property
    def powers(self) -> NDArray[np.int64]:
        """Powers of each coordinate in each polynomial (polynomials × coordinates), by rising degree."""
        return _powers(self)

    @property
    def norms(self) -> Array:
        """Factor that makes each polynomial's square 1 on average under N(0, I)."""
        return np.array([1.0 / math.sqrt(math.prod(math.factorial(int(k)) for k in row)) for row in self.powers])


@cache
def _powers(form: Form) -> NDArray[np.int64]:
    rows = [np.zeros(form.dimension, np.int64)]
    for degree in range(1, form.degree + 1):
        taken = range(form.dimension if degree == 1 else form.active)
        for factors in itertools.combinations_with_replacement(taken, degree):
            rows.append(np.bincount(factors, minlength=form.dimension))
    powers = np.array(rows)
    powers.setflags(write=False)
    return powers


def polynomials(form: Form) -> Callable[[jax.Array], jax.Array]:
    """Return the function from one u to all polynomials, in JAX."""
    powers, norms = form.powers, form.norms
    width = max(1, int((powers > 0).sum(axis=1).max()))
    # Each polynomial is a product of few factors: which coordinate, and which degree.
    places, degrees = np.zeros((2, len(powers), width), np.int64)
    for index, row in enumerate(powers):
        (taken,) = np.nonzero(row)
        places[index, : len(taken)], degrees[index, : len(taken)] = taken, row[taken]

    def evaluate(u: jax.Array) -> jax.Array:
        hermite = [jnp.ones_like(u), u]
        for n in range(1, form.degree):
            hermite.append(u * hermite[n] - n * hermite[n - 1])
        factors = jnp.stack(hermite, axis=1)[places, degrees]
        return jnp.asarray(norms, u.dtype) * jnp.prod(factors, axis=1)

    return evaluate


@dataclass(frozen=True, eq=False)
class Surrogate:
    """One such map.

    Parameters
    ----------
    form
        Which polynomials.
    center, matrix
        m and C of θ = m + C u.
    weights
        ψ = weights @ polynomials: d × polynomials.
    """

    form: Form
    center: Any
    matrix: Any
    weights: Any

    def psi(self, theta: jax.Array) -> jax.Array:
        """ψ at one parameter vector, in JAX."""
        u = jnp.linalg.solve(jnp.asarray(self.matrix), theta - jnp.asarray(self.center))
        return jnp.asarray(self.weights) @ polynomials(self.form)(u)

    def potential(self, theta: jax.Array) -> jax.Array:
        """½‖ψ‖²: minus the log-likelihood, but for a constant."""
        return 0.5 * jnp.sum(self.psi(theta) ** 2)
