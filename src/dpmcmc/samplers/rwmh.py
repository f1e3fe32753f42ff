"""Random-walk Metropolis without noise, for research on data that are not secret.

The kernel is DP-penalty's with an oracle that adds no noise; clipping is optional.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from dpmcmc.checks import choice, convert_positive
from dpmcmc.models import Model
from dpmcmc.queries import Queries
from dpmcmc.samplers.base import Kernel, per_coordinate
from dpmcmc.samplers.dp_penalty import Update, build_kernel, check_proposal_scale


@dataclass(frozen=True)
class RWMH:
    """Settings of random-walk Metropolis. Not private.

    Parameters
    ----------
    proposal_scale, update
        As for :class:`~dpmcmc.samplers.dp_penalty.DPPenalty`.
    ratio_bound
        Clip bound b, or None for no clipping.
    """

    proposal_scale: Any
    ratio_bound: float | None = None
    update: Update = "all"
    name: ClassVar[str] = "RWMH"
    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_proposal_scale(self.proposal_scale)
        convert_positive(self, "ratio_bound")
        choice("update", self.update, ("all", "one_component", "guided"))

    def queries(self, num_records: int) -> Queries:
        """Declare how often the oracle is asked."""
        return Queries(log_ratios_per_step=1)

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs."""
        return self.update

    def inputs(self, model: Model, num_records: int) -> jax.Array:
        """Scales of the proposal, one for each coordinate."""
        return per_coordinate("proposal_scale", self.proposal_scale, model.dimension)

    def kernel(self, model: Model, num_records: int, inputs: jax.Array | None = None) -> Kernel:
        """Build init and step."""
        return build_kernel(model, self.inputs(model, num_records) if inputs is None else inputs, self.update)
