"""High-precision references and the shipped vectors for the tests of the privacy mathematics."""

import json
from pathlib import Path
from typing import Any

import mpmath
from mpmath import mpf

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "accounting.json").read_text())


def exact_curve(mu: float, epsilon: float) -> tuple[mpf, mpf]:
    """δ and log δ of the Gaussian curve by the textbook formula, with digits to spare."""
    # mpmath's exponents are unbounded, so only the relative cancellation of the two terms costs digits: at
    # most about √μ/a² ≥ 1e-13 of each is left over μ ≥ 1e-16 and a² ≤ 1e5.
    with mpmath.workdps(80):
        mu_, epsilon_ = mpf(mu), mpf(epsilon)
        lower = (epsilon_ - mu_) / (2 * mpmath.sqrt(mu_))
        upper = (epsilon_ + mu_) / (2 * mpmath.sqrt(mu_))
        second = mpmath.exp(epsilon_) * mpmath.erfc(upper)
        delta = (mpmath.erfc(lower) - second) / 2
        complement = (mpmath.erfc(-lower) + second) / 2
        log_delta = mpmath.log1p(-complement) if complement < 0.5 else mpmath.log(delta)
        return delta, log_delta


def relative_error(value: float, reference: mpf) -> float:
    with mpmath.workdps(80):
        return float(abs(mpf(value) - reference) / abs(reference))
