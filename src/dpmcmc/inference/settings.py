"""What a run is asked for, beside the model, the records and the sampler: one set of settings for all kinds of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from dpmcmc.errors import QueryError


class Settings(NamedTuple):
    """The arguments of :func:`dpmcmc.sample`, which explains them; counts are checked already."""

    epsilon: float | None
    delta: float | None
    num_chains: int
    num_steps: int | None
    num_warmup: int | None
    thin: int
    init: Any
    progress: bool
    seed: int | None
    devices: int | Sequence[jax.Device] | None
    check_records: bool

    @property
    def granted(self) -> tuple[float, float]:
        """The privacy budget: ε and δ. Refused if there is none."""
        if self.epsilon is None or self.delta is None:
            raise QueryError("epsilon and delta are required: they are the privacy budget, for example 1.0 and 1e-6")
        return self.epsilon, self.delta
