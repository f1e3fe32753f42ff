"""Random-walk Metropolis without noise, for research on data that are not secret.

The kernel is DP-penalty's with an oracle that adds no noise; clipping is optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from dpmcmc.checks import choice, convert_positive
from dpmcmc.models import Model
from dpmcmc.samplers.base import Kernel, Queries
from dpmcmc.samplers.dp_penalty import Update, build_kernel, check_proposal_scale


@dataclass(frozen=True)
class RWMH:
    """Settings of random-walk Metropolis. Not private.

    Parameters
    ----------
    proposal_scale, update
        As for :class:`~dpmcmc.samplers.dp_penalty.DPPenalty`.
    ratio_clip
        Clip bound b, or None for no clipping.
    """

    proposal_scale: Any
    ratio_clip: float | None = None
    update: Update = "all"
    name: ClassVar[str] = "RWMH"
    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_proposal_scale(self.proposal_scale)
        convert_positive(self, "ratio_clip")
        choice("update", self.update, ("all", "one_component", "guided"))

    def queries(self, num_records: int) -> Queries:
        """Declare how often the oracle is asked."""
        return Queries(log_ratios_per_step=1)

    def kernel(self, model: Model, num_records: int) -> Kernel:
        """Build init and step."""
        return build_kernel(model, self.proposal_scale, self.update)
