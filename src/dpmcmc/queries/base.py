"""What a query is: a sum over records of bounded integers, with all that is its own in one place.

A query is public. It knows its lattice, its sensitivity, its cost, how one tile of records is summed (written against
the :class:`Kernel` that the curator hands it) and what is released. It never holds a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.queries.lattice import Lattice

# total(query, theta, proposal, *public) -> the un-noised integers, which only the curator can compute
Total = Callable[..., Any]


# One array of integers for each lattice of a query: chains × numbers.
Noise = Sequence[jax.Array | NDArray[np.int64]]


class Question(NamedTuple):
    """A query at some parameters, for all chains: what is public about it.

    Attributes
    ----------
    theta, proposal
        Parameters, chains × dimension; the other end of a log-ratio, or None.
    public
        What the query's own ``public`` returned.
    num_records
        n.
    """

    theta: Any
    proposal: Any
    public: Any
    num_records: int


class Answer(NamedTuple):
    """The noised value of a query for each chain, the sd of its noise, and its cost."""

    value: Any
    noise_sd: Any
    mu: Any


class Kernel(Protocol):
    """What a query may do with one tile of records (B rows) for all chains at once. Implemented by the curator.

    Queries in other coordinates θ = m + C z can be had by a kernel that wraps another one: scores become Cᵀ·score, and
    clipping and noise then live in z.
    """

    def log_likelihood(self, tile: Any, theta: jax.Array) -> jax.Array:
        """Return chains × B."""
        ...

    def scores(self, tile: Any, theta: jax.Array) -> list[jax.Array]:
        """Return gradients with respect to theta: d arrays of chains × B."""
        ...

    def gradient_sum(self, tile: Any, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the sum of the clipped integer gradients."""
        ...

    def ratio_sum(
        self, tile: Any, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
    ) -> jax.Array:
        """Return the sum of the clipped integer log-ratios."""
        ...

    def clipped(
        self, tile: Any, compute: Callable[[], Sequence[jax.Array]], spacing: jax.Array, bound: jax.Array
    ) -> list[jax.Array]:
        """Clip vectors, given as d arrays of chains × B, to integers of norm at most ``bound``."""
        ...

    def magnitudes(self, tile: Any, theta: jax.Array, proposal: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Return norms of the gradients, or |log-ratios| if there is a proposal, and which records count."""
        ...


class Query:
    """Base of the queries that the curator answers; each is a frozen dataclass of public settings."""

    kind: ClassVar[str]
    """Name in statements and tables."""
    differentiates: ClassVar[bool] = True
    """Whether a tile's gradients are needed, rather than its log-likelihoods."""

    @property
    def mu(self) -> float | None:
        """Cost of one release; None if it follows the parameters (see :meth:`cost`)."""
        raise NotImplementedError

    @property
    def needs_proposal(self) -> bool:
        """Whether the question is about two parameter vectors."""
        return False

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers of what is released first."""
        raise NotImplementedError

    def lattices(self, num_records: int, dimension: int) -> list[Lattice]:
        """Return the integers of all that is released together, in the order in which noise is drawn."""
        return [self.lattice(num_records, dimension)]

    def numbers(self, num_records: int, dimension: int) -> Any:
        """Return the settings that compiled code takes as inputs: a tree of floats, or None."""
        return None

    def public(self, theta: Any, proposal: Any, numbers: Any) -> Any:
        """Return the public numbers of one question, for each chain. Plain JAX."""
        return numbers

    def cost(self, public: Any, num_chains: int) -> Fraction:
        """Return the exact cost of one question for all chains."""
        assert self.mu is not None
        return num_chains * Fraction(self.mu)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the function ``(tile, theta, [proposal,] *public) -> integers`` that sums one tile.

        Numbers come in as arguments, never from ``self``: what is compiled for one query serves all of its class.
        """
        raise NotImplementedError

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Add noise to the sums. Serves the host and compiled code alike."""
        raise NotImplementedError
