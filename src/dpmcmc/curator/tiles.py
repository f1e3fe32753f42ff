"""A tile: some rows of the records, as compiled code sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# {"rows": the model's records, "real": which rows are records (the rest is padding), "here": true, and what a kernel's
# prepare adds}
Tile = dict[str, Any]


def stored(fresh: Callable[[], Any], here: jax.Array) -> Any:
    """Return ``fresh()``, computed once and stored before anything uses it. ``here`` is true; the compiler cannot know.

    The compiler likes to compute a value again wherever it is used, and may round it differently there. What a
    conditional returns is never computed again: so what is checked is what is added. (And a slice of the records that
    is merged into the loop that uses it would be looked up again for every element, one at a time.)
    """
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fresh))
    return jax.lax.cond(here, fresh, lambda: zeros)
