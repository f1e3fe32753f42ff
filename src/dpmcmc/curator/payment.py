"""Payment: check, charge and draw, in one place. What is drawn here is the only noise that an oracle takes.

Noise does not depend on records, so that it may be drawn before it is charged for: the next block's is drawn in a
thread beside the block that runs. It becomes :class:`~dpmcmc.queries.PaidNoise` only when it is charged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator import placement
from dpmcmc.curator.batches import Batch, draw_sizes
from dpmcmc.curator.noise import NoiseSource
from dpmcmc.queries import BatchGradient, Cost, PaidDraws, PaidNoise, Queries, cost_of


class Order(NamedTuple):
    """What is to be paid for: some steps of a sampler, or its start.

    Attributes
    ----------
    queries
        What the sampler declares.
    num_chains
        Chains, which share the budget.
    draws, thin
        Kept draws, and steps for each of them. 0 draws: what the sampler asks at its start.
    room
        Draws of a whole block: noise has this leading shape, with zeros behind ``draws``.
    """

    queries: Queries
    num_chains: int
    draws: int
    thin: int
    room: int

    @classmethod
    def start(cls, queries: Queries, num_chains: int) -> Order:
        """What is asked before the first step."""
        return cls(queries, num_chains, 0, 0, 0)

    @property
    def answers(self) -> tuple[int, int]:
        """Numbers of gradients and log-ratios for each chain."""
        if not self.room:
            return self.queries.gradients_at_start, 0
        steps = self.draws * self.thin
        return steps * self.queries.gradients_per_step, steps * self.queries.log_ratios_per_step

    def cost(self, num_records: int, dimension: int) -> Cost:
        """Return what is charged."""
        gradients, log_ratios = self.answers
        sizes = {"num_records": num_records, "dimension": dimension, "num_chains": self.num_chains}
        return cost_of(self.queries, gradients=gradients, log_ratios=log_ratios, **sizes)


class Random:
    """Where a run's other randomness comes from. Seeded runs repeat; private ones take it from the operating system."""

    def __init__(self, seed: int | None) -> None:
        self._seeded = seed is not None
        self._generator = np.random.Generator(np.random.PCG64(secrets.randbits(128) if seed is None else seed))
        self.public_key = self._keys(())  # momenta, proposals, the accept uniform: need not be secret

    def _keys(self, shape: tuple[int, ...]) -> jax.Array:
        """Return independent keys, of 64 bits each."""
        count = 2 * int(np.prod(shape, dtype=int))
        if self._seeded:
            words = self._generator.integers(0, 2**32, count, dtype=np.uint32)
        else:
            words = np.frombuffer(secrets.token_bytes(4 * count), np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words.reshape(*shape, 2)), impl="threefry2x32")

    def batches(self, query: BatchGradient, num_records: int, shape: tuple[int, int, int]) -> Batch:
        """Return the secret batches of a block (draws × thin × chains), a fresh key for every step."""
        sizes = draw_sizes(self._generator, num_records, query.batch_size, query.sampling, shape)
        return Batch(self._keys(shape[:2]), jnp.asarray(sizes))


class Till:
    """Draws noise for orders, one ahead if it is told what comes next, and hands it out when it was charged.

    Parameters
    ----------
    noise, random
        Where noise and secret batches come from.
    num_records, dimension
        Public sizes.
    arithmetic
        The precision in which to draw: a setting of the thread.
    """

    def __init__(
        self,
        noise: NoiseSource,
        random: Random,
        num_records: int,
        dimension: int,
        arithmetic: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._noise, self._random = noise, random
        self._num_records, self._dimension = num_records, dimension
        self._arithmetic = arithmetic
        self._beside: ThreadPoolExecutor | None = None
        self._coming: tuple[Order, Future[PaidNoise]] | None = None

    def take(self, order: Order, ahead: Order | None, charge: Callable[[Cost], None]) -> PaidNoise:
        """Charge an order and return its noise; begin to draw that of the order ``ahead``."""
        expected = self._coming is not None and self._coming[0] == order
        drawn = self._coming[1].result() if expected and self._coming else self.draw(order)
        self._coming = None if ahead is None else (ahead, self._in_a_thread(ahead))
        charge(order.cost(self._num_records, self._dimension))
        return drawn

    def _in_a_thread(self, order: Order) -> Future[PaidNoise]:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(max_workers=1)
        return self._beside.submit(self.draw, order)

    def close(self) -> None:
        """Draw no more ahead, until the next order."""
        self._coming = None
        if self._beside is not None:
            self._beside.shutdown(wait=False, cancel_futures=True)
            self._beside = None

    def draw(self, order: Order, *, blank: bool = False) -> PaidNoise:
        """Draw on the host: room × thin × (…), or (…) for a start. Steps that will not run get none.

        Of several processes only the first draws; the others hold zeros, until all agree on what the first has drawn.
        ``blank``: zeros of the right shapes, to compile with.
        """
        with self._arithmetic():
            queries, chains = order.queries, order.num_chains
            leading = (order.room, order.thin) if order.room else ()
            gradients = queries.gradients_per_step if order.room else queries.gradients_at_start

            def draw(query: Any, *rest: int) -> PaidDraws:
                whole = np.zeros((*leading, *rest), np.int64)
                used = whole[: order.draws] if order.room else whole
                if query is not None and used.size and not blank and placement.is_first_process():
                    scale = query.lattice(self._num_records, self._dimension).noise_scale
                    used[...] = self._noise.draw(scale, used.shape)
                return PaidDraws(whole)

            batch = None
            if isinstance(queries.gradient, BatchGradient) and order.room:
                random = Random(0) if blank else self._random
                batch = random.batches(queries.gradient, self._num_records, (order.room, order.thin, chains))
            # In this order: seeded runs repeat.
            gradient = draw(queries.gradient, gradients, chains, self._dimension)
            log_ratio = draw(queries.log_ratio if order.room else None, *((chains,) if order.room else (0,)))
            return PaidNoise(gradient, log_ratio, batch)
