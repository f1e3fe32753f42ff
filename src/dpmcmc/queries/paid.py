"""Payment as a type: noise that was charged for and drawn, which is all that an oracle takes.

`Curator.pay` makes it, in one place: it checks, charges and draws. Samplers hand it on; the oracle unpacks it. Both
classes are JAX pytrees, so that steps of a compiled loop get their slices of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import jax

from dpmcmc.errors import QueryError


@jax.tree_util.register_pytree_node_class
class PaidDraws:
    """Integer noise that was paid for; slicing it gives slices of the same kind."""

    def __init__(self, integers: Any) -> None:
        self._integers = integers

    def __getitem__(self, place: Any) -> PaidDraws:
        return PaidDraws(self._integers[place])

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        """Take apart for JAX."""
        return (self._integers,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Self:
        """Put together again."""
        return cls(*children)


class PaidNoise(NamedTuple):
    """What a sampler's steps (or its start) were charged for.

    Attributes
    ----------
    gradient
        :class:`PaidDraws`: … × gradients × chains × dimension.
    log_ratio
        :class:`PaidDraws`: … × chains.
    batch
        The secret batches of a minibatch sampler, or None.
    """

    gradient: Any
    log_ratio: Any
    batch: Any = None


def unpack(draws: Any) -> Any:
    """Return the integers of paid draws; refuse anything else."""
    if not isinstance(draws, PaidDraws):
        raise QueryError(
            f"an oracle takes noise that was paid for (PaidDraws, from Curator.pay), got {type(draws).__name__}; "
            "nothing was released"
        )
    return draws._integers
