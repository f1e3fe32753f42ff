"""What a sampler declares that it will ask, and what that costs: the same fractions for the plan and for the charge."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from dpmcmc.errors import QueryError
from dpmcmc.queries.base import Query
from dpmcmc.queries.batch_gradient import BatchGradient
from dpmcmc.queries.gradient import Gradient
from dpmcmc.queries.log_ratio import LogRatio


class Queries(NamedTuple):
    """What a sampler asks of the data for each chain; a counting oracle in the tests holds it to this."""

    gradient: Gradient | BatchGradient | None = None
    log_ratio: LogRatio | None = None
    gradients_per_step: int = 0
    log_ratios_per_step: int = 0
    gradients_at_start: int = 0


class Cost(NamedTuple):
    """What is charged, exactly: μ (or, for batches, steps), and what discreteness adds to ε and δ."""

    spent: Fraction = Fraction(0)
    lattice_epsilon: Fraction = Fraction(0)
    lattice_delta: Fraction = Fraction(0)

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(*(one + more for one, more in zip(self, other, strict=True)))

    def times(self, number: int) -> Cost:
        """Return the cost of so many."""
        return Cost(*(number * one for one in self))


def cost_of_answer(query: Query | BatchGradient, num_records: int, dimension: int) -> Cost:
    """Return the cost of one answer to one chain. A batch is one step: what that costs is the budget's to know."""
    mu = 1.0 if isinstance(query, BatchGradient) else query.mu
    if mu is None:
        raise QueryError("a log-ratio of constant noise_sd has no cost known beforehand; give noise_multiplier")
    return slack_of_answer(query, num_records, dimension)._replace(spent=Fraction(mu))


def slack_of_answer(query: Query | BatchGradient, num_records: int, dimension: int) -> Cost:
    """Return what discreteness adds to one answer, with nothing else spent."""
    sizes = num_records, dimension
    lattices = [query.lattice(*sizes)] if isinstance(query, BatchGradient) else query.lattices(*sizes)
    return Cost(
        lattice_epsilon=sum((Fraction(lattice.lattice_epsilon) for lattice in lattices), Fraction(0)),
        lattice_delta=sum((Fraction(lattice.lattice_delta) for lattice in lattices), Fraction(0)),
    )


def cost_of(
    queries: Queries, *, num_records: int, dimension: int, num_chains: int, gradients: int, log_ratios: int
) -> Cost:
    """Return the exact cost of so many answers of each kind for each chain: fractions, nothing is rounded.

    Parameters
    ----------
    queries
        What the sampler declares.
    num_records, dimension, num_chains
        Public sizes of the run.
    gradients, log_ratios
        Number of answers of each kind, for each chain.
    """
    total = Cost()
    for query, number in ((queries.gradient, gradients), (queries.log_ratio, log_ratios)):
        if query is not None and number:
            total = total + cost_of_answer(query, num_records, dimension).times(num_chains * number)
    return total
