"""The whole privacy curve of a run: pairs (ε, δ), each of which holds for everything that it released.

It belongs to what was *granted*, not to what was spent: where a run stopped may follow from what it released, and a
curve read off there would not be valid.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from dpmcmc.privacy.budget import after_lattice_reserve
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.privacy.gaussian import gaussian_delta_bound, gaussian_mu
from dpmcmc.privacy.subsampled import subsampled_delta

if TYPE_CHECKING:
    from dpmcmc.privacy.statement import PrivacyStatement

__all__ = ["curve_mu", "guarantee_curve"]

_POINTS = range(2, 33)  # sixteenths of the stated ε
_POINTS_OF_BATCHES = range(4, 33, 4)  # each of them is a longer computation


def curve_mu(statement: PrivacyStatement) -> float | None:
    """Return the Gaussian cost that the curve belongs to: what the budget allowed, or what was fixed beforehand.

    None for batches, where something is set apart, and where there is no ε. If ε is all that was granted, this is the
    total of the filter, which no path of the run could exceed; if it is less, the number of queries was fixed
    beforehand, and it is their cost.
    """
    if statement.epsilon is None or statement.delta is None or statement.batches is not None or statement.set_apart:
        return None
    if statement.epsilon != statement.budget_epsilon and statement.mu is not None:
        return statement.mu
    reserve = after_lattice_reserve(statement.epsilon, statement.delta)
    return gaussian_mu(reserve.epsilon, reserve.delta_of_gaussians)


def guarantee_curve(statement: PrivacyStatement) -> list[tuple[float, float]]:
    r"""Return pairs (ε, δ) with increasing ε, the stated one among them; empty if the run had no budget.

    With r and d the slack of discrete noise, (ε', δ') what is set apart and δ₀ the accountant's curve,

    .. math:: δ(ε) = e^{r/2} δ_0(ε - r - Σε') + d + Σδ',

    rounded up, and never more than the stated δ from the stated ε on. Of batches that were interrupted only the stated
    pair is returned: the number of batches that were granted is not part of a statement.
    """
    if statement.epsilon is None or statement.delta is None:
        return []
    stated = (statement.epsilon, statement.delta)
    mu = curve_mu(statement)
    if mu is None and (statement.interrupted or statement.batches is None):
        return [stated]
    slack_epsilon, slack_delta = Fraction(statement.lattice_epsilon), Fraction(statement.lattice_delta)
    if mu is not None and statement.epsilon == statement.budget_epsilon:
        reserve = after_lattice_reserve(*stated)
        slack_epsilon, slack_delta = reserve.lattice_epsilon, reserve.lattice_delta
    factor = math.exp(0.5 * rounded_up(slack_epsilon)) * (1.0 + 1e-15)
    if mu is None:
        slack_epsilon += sum(Fraction(part["epsilon"]) for part in statement.set_apart.values())
        slack_delta += sum(Fraction(part["delta"]) for part in statement.set_apart.values())
    points = []
    for sixteenths in _POINTS if mu is not None else _POINTS_OF_BATCHES:
        epsilon = stated[0] * sixteenths / 16.0
        if epsilon == stated[0]:
            points.append(stated)
            continue
        inner = Fraction(epsilon) - slack_epsilon
        if inner < 0:
            continue
        own = factor * _accountant_delta(statement, mu, math.nextafter(float(inner), 0.0)) * (1.0 + 1e-15)
        delta = min(1.0, rounded_up(Fraction(own) + slack_delta))
        points.append((epsilon, min(delta, stated[1]) if epsilon > stated[0] else max(delta, stated[1])))
    return points


def _accountant_delta(statement: PrivacyStatement, mu: float | None, epsilon: float) -> float:
    if mu is not None:
        return gaussian_delta_bound(mu, epsilon)
    assert statement.batches is not None
    return subsampled_delta(
        statement.batches["noise_ratio"],
        statement.batches["sampling_prob"],
        statement.queries.get("batch_gradient", 0),
        epsilon,
        statement.batches["sampling"],
    )
