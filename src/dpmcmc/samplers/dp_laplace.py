"""DP-Laplace: independent draws of a private Gaussian approximation that knows its own noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class DPLaplace:
    """Independent draws of the noise-aware Gaussian posterior. It has no settings: nothing is tuned by hand.

    A budget is spent, in rounds of which each follows what the ones before released, on where the posterior lies and
    how wide it is; then draws are free. They are draws of

        N(θ̂, H⁻¹ + P + allowance for clipping)

    in unconstrained space, brought to constrained space by the model's own transforms: H is the curvature of the
    posterior, P what the noise leaves unknown of its centre. So intervals are as wide as they must be for all that is
    not known, the noise included. The draws are independent: R̂ and ESS say nothing about the search, but
    ``posterior.quality`` does. See :mod:`dpmcmc.tuning.laplace` for the search.

    Right where the posterior is about Gaussian, as it is with many records for each parameter. In `sample`,
    ``num_steps`` is the number of draws of each chain (default 1000), ``init`` one unconstrained vector.

    Examples
    --------
    >>> DPLaplace()
    DPLaplace()
    """

    name: ClassVar[str] = "DP-Laplace"
    private: ClassVar[bool] = True
