"""What a query is: a sum over records of bounded integers, with all that is its own in one place.

A query is public. It knows its lattice, its sensitivity, its cost, how one tile of records is summed (written against
the :class:`Kernel` that the curator hands it) and what is released. It never holds a record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.queries.coordinates import Affine
from dpmcmc.queries.lattice import Lattice

# total(query, theta, proposal, *public) -> the un-noised integers, which only the curator can compute
Total = Callable[..., Any]

Requirement = Literal["any", "regression", "logistic"]

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

    Vectors and matrices are those of the question's coordinates: with θ = m + C z scores are Cᵀ·score and curvatures
    Cᵀ·H·C, so that clipping and noise live in z. Arrays of several numbers a record are chains × numbers × B, float64.
    """

    def log_likelihood(self, tile: Any, theta: jax.Array) -> jax.Array:
        """Return chains × B."""
        ...

    def ratio_sum(
        self, tile: Any, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
    ) -> jax.Array:
        """Return the sum of the clipped integer log-ratios."""
        ...

    def gradient_sum(self, tile: Any, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the sum of the clipped integer gradients."""
        ...

    def scores(self, tile: Any, theta: jax.Array) -> jax.Array:
        """Return gradients: chains × d × B."""
        ...

    def score_sizes(self, tile: Any, theta: jax.Array) -> jax.Array:
        """Return |gradients|, and -1 throughout for a record that does not count: chains × d × B."""
        ...

    def weighted_scores(self, tile: Any, theta: jax.Array, weight_bound: jax.Array) -> jax.Array:
        """Return gradients, each times min(1, c/(largest norm that any outcome would give it)): chains × d × B."""
        ...

    def curvatures(self, tile: Any, theta: jax.Array) -> jax.Array:
        """Return the upper triangles of minus the second derivatives, row by row: chains × d(d + 1)/2 × B."""
        ...

    def information_roots(
        self, tile: Any, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> jax.Array:
        """Return vectors whose outer products add up to a record's information: chains × (number of them)·d × B."""
        ...

    def information_sizes(
        self, tile: Any, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Return the norms of all of a record's ``information_roots`` together (chains × B), and who counts."""
        ...

    def clipped(
        self,
        tile: Any,
        compute: Callable[[], jax.Array],
        spacing: jax.Array,
        bound: jax.Array,
        weights: NDArray[np.float64] | None = None,
    ) -> jax.Array:
        """Clip vectors (chains × numbers × B) to integers of norm at most ``bound``; weights: of the squares."""
        ...

    def magnitudes(
        self, tile: Any, theta: jax.Array, proposal: jax.Array | None, of: str
    ) -> tuple[jax.Array, jax.Array]:
        """Return one number a record (chains × B; see :data:`~dpmcmc.queries.quantile.Magnitude`), and who counts."""
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

    @property
    def requires(self) -> Requirement:
        """Which models can answer: any, the package's own regressions, or its logistic regression."""
        return "any"

    @property
    def differentiates_twice(self) -> bool:
        """Whether second derivatives are needed."""
        return False

    @property
    def structure(self) -> Hashable:
        """The settings that change the program of ``tile_sum``; all others are numbers in it."""
        return ()

    def width(self, dimension: int) -> int:
        """Return how many numbers of a record are in memory at a time: a tile has fewer rows if these are many."""
        return 1

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers of what is released first."""
        raise NotImplementedError

    def lattices(self, num_records: int, dimension: int) -> list[Lattice]:
        """Return the integers of all that is released together, in the order in which noise is drawn."""
        return [self.lattice(num_records, dimension)]

    def numbers(self, num_records: int, dimension: int) -> Any:
        """Return the settings that compiled code takes as inputs: a tree of floats, or None."""
        return None

    def public(self, theta: Any, proposal: Any, numbers: Any, coordinates: Affine | None = None) -> Any:
        """Return the public numbers of one question, for each chain. Plain JAX."""
        return numbers

    def cost(self, public: Any, num_chains: int) -> Fraction:
        """Return the exact cost of one question for all chains."""
        assert self.mu is not None
        return num_chains * Fraction(self.mu)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Return the function ``(tile, theta, [proposal,] *public) -> integers`` that sums one tile.

        Numbers come in as arguments, never from ``self``: what is compiled for one query serves all of its class that
        have the same ``structure``.
        """
        raise NotImplementedError

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Add noise to the sums. Serves the host and compiled code alike."""
        raise NotImplementedError
