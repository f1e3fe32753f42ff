"""The sum of clipped gradients over a secret random batch, and how many rows it takes to draw one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from dpmcmc.checks import choice, convert_count, convert_positive
from dpmcmc.queries.gradient import GradientNumbers
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise

Sampling = Literal["without_replacement", "poisson"]

# Above this share of the records a full permutation is cheaper than drawing until enough are distinct.
_PERMUTE_ABOVE = 0.25


def largest_size(num_records: int, batch_size: int, sampling: str) -> int:
    """Return the largest batch to make room for; Poisson sampling exceeds it with probability below 1e-40."""
    if sampling == "without_replacement":
        return batch_size
    # Chernoff: P(Binomial(n, q) ≥ b + t) ≤ exp(−t²/(2(b + t/3))) < 1e-40 for t = 14√b + 62.
    return min(num_records, math.ceil(batch_size + 14.0 * math.sqrt(batch_size) + 62.0))


def num_draws(num_records: int, size: int) -> int:
    """Return how many uniform draws hold ``size`` distinct records, but for a probability below 1e-30."""
    share = size / num_records
    if share > _PERMUTE_ABOVE:
        return num_records
    mean = -num_records * math.log1p(-share)
    # The variance of the number of draws is below n·(share/(1 − share))²/2; small numbers are Poisson-like.
    return math.ceil(mean + 12.0 * math.sqrt(0.5 * num_records) * share / (1.0 - share) + 40.0)


@dataclass(frozen=True)
class BatchGradient:
    """Sum over a secret random batch of the clipped gradient, with noise of sd C·noise_ratio per coordinate.

    Accounted for by the subsampled Gaussian (``dpmcmc.privacy.subsampled_steps``), not by μ.

    Parameters
    ----------
    l2_clip_norm
        C. Sensitivity 2C if the replaced record is in the batch.
    noise_ratio
        Noise sd on the batch sum / C.
    batch_size
        b, the (expected) number of records in a batch; each record is in it with probability b/n.
    sampling
        "without_replacement" or "poisson".
    """

    l2_clip_norm: float
    noise_ratio: float
    batch_size: int
    sampling: Sampling = "without_replacement"
    kind: ClassVar[str] = "batch_gradient"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_ratio")
        convert_count(self, "batch_size")
        choice("sampling", self.sampling, ("without_replacement", "poisson"))

    def rows(self, num_records: int) -> int:
        """Return how many rows are looked up to make a batch."""
        return num_draws(num_records, largest_size(num_records, self.batch_size, self.sampling))

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers, such that a whole batch adds up exactly in float64."""
        rows = self.rows(num_records)
        bound = 2 ** min(lattice_bits(rows, max(1.0, self.noise_ratio)), 52 - math.ceil(math.log2(rows)))
        return Lattice(bound, 2.0 * bound, scaled_noise(1.0, bound, self.noise_ratio), dimension)

    def spacing(self, lattice: Lattice) -> float:
        """γ = C/K."""
        return self.l2_clip_norm / lattice.bound

    def numbers(self, num_records: int, dimension: int) -> GradientNumbers:
        """γ, K and the noise's sd."""
        return GradientNumbers.of(self, num_records, dimension)
