"""HMC without noise, for research on data that are not secret: the baseline, and the paper's clipping study.

The kernel is DP-HMC's with an oracle that adds no noise; clipping is optional.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from dpmcmc.checks import choice, convert_count, convert_positive
from dpmcmc.models import Model
from dpmcmc.queries import Queries
from dpmcmc.samplers.base import Kernel
from dpmcmc.samplers.dp_hmc import JITTERS, Inputs, Jitter, Leapfrog, build_kernel, make_inputs
from dpmcmc.samplers.integrators import INTEGRATORS, gradients_per_step


@dataclass(frozen=True)
class HMC:
    """Settings of HMC. Not private.

    Parameters
    ----------
    step_size, num_leapfrog, mass_matrix, leapfrog, jitter
        As for :class:`~dpmcmc.samplers.dp_hmc.DPHMC`.
    ratio_bound, gradient_clip_norm
        Clip bounds b_l and b_g of DP-HMC, or None for no clipping.
    """

    step_size: float
    num_leapfrog: int
    ratio_bound: float | None = None
    gradient_clip_norm: float | None = None
    mass_matrix: Any = None
    leapfrog: Leapfrog = "momentum_first"
    jitter: Jitter = None
    name: ClassVar[str] = "HMC"
    private: ClassVar[bool] = False

    def __post_init__(self) -> None:
        convert_positive(self, "step_size", "ratio_bound", "gradient_clip_norm")
        convert_count(self, "num_leapfrog")
        choice("leapfrog", self.leapfrog, tuple(INTEGRATORS))
        choice("jitter", self.jitter, JITTERS)

    def queries(self, num_records: int) -> Queries:
        """Declare how often the oracle is asked."""
        per_step, at_start = gradients_per_step(self.leapfrog, self.num_leapfrog)
        return Queries(gradients_per_step=per_step, log_ratios_per_step=1, gradients_at_start=at_start)

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs."""
        return self.leapfrog, self.jitter

    def inputs(self, model: Model, num_records: int) -> Inputs:
        """Step size and mass matrix."""
        return make_inputs(model, self.step_size, self.mass_matrix)

    def kernel(self, model: Model, num_records: int, inputs: Inputs | None = None) -> Kernel:
        """Build init and step."""
        inputs = self.inputs(model, num_records) if inputs is None else inputs
        return build_kernel(model, inputs, self.leapfrog, self.jitter)
