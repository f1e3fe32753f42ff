"""The privacy filter: an (ε, δ) budget that is fixed first and that every Gaussian query must fit into.

It counts public costs only, exactly, and under a lock. It does not know what a query computes: whoever
answers a query spends here *before* touching a record.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

from dpmcmc.errors import BudgetExceededError, NotPrivateError, QueryError
from dpmcmc.privacy.exact import Exact, check_number, exact_cost, rounded_down, rounded_up
from dpmcmc.privacy.gaussian import check_delta, delta_of_gaussians, gaussian_mu
from dpmcmc.privacy.subsampled import Scheme, subsampled_steps

_LATTICE_EPSILON_SHARE = 1e-5
_LATTICE_DELTA_SHARE = 1e-6


class LatticeReserve(NamedTuple):
    """What is left of (ε, δ) for Gaussian queries, and what is set aside for discrete noise."""

    epsilon: float
    delta_of_gaussians: float
    lattice_epsilon: Fraction
    lattice_delta: Fraction


def after_lattice_reserve(epsilon: float, delta: float) -> LatticeReserve:
    """Return how `Budget.reserve_lattice` divides (``epsilon``, ``delta``)."""
    left_epsilon = check_number("epsilon", epsilon, above=0.0) * (1.0 - _LATTICE_EPSILON_SHARE)
    left_delta = check_delta(delta) * (1.0 - _LATTICE_DELTA_SHARE)
    # What is left are floats, and the reserves are exactly the rest of epsilon and delta.
    lattice_epsilon = Fraction(float(epsilon)) - Fraction(left_epsilon)
    return LatticeReserve(
        epsilon=left_epsilon,
        delta_of_gaussians=delta_of_gaussians(Fraction(left_delta), lattice_epsilon),
        lattice_epsilon=lattice_epsilon,
        lattice_delta=Fraction(float(delta)) - Fraction(left_delta),
    )


class Books(Protocol):
    """What writes charges down, durably: :class:`~dpmcmc.privacy.ledger.Account`."""

    def charge(
        self,
        meter: Any,
        spent: Fraction,
        lattice_epsilon: Fraction,
        lattice_delta: Fraction,
        what: Mapping[str, Any] | None,
    ) -> int:
        """Charge, or raise and charge nothing. Return the number of the entry."""
        ...

    def spent(self, meter: Any) -> tuple[Fraction, Fraction, Fraction]:
        """Return what was charged before, by this and other processes."""
        ...


class Spending(NamedTuple):
    """One charge: what it was for, and what is spent after it."""

    what: dict[str, Any]
    spent: Fraction


class _Filter:
    """What both kinds of budget have in common: a total that is fixed first, exact sums, a lock and a reserve."""

    _currency: ClassVar[str]

    def _price(self, epsilon: float, delta: float) -> float:
        """Return the total cost that (epsilon, delta) allows."""
        raise NotImplementedError

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon = check_number("epsilon", epsilon, above=0.0)
        self._delta = check_delta(delta)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._total = Fraction(self._price(self._epsilon, self._delta))
        self._spent = Fraction(0)
        self._lattice_epsilon_reserved = Fraction(0)
        self._lattice_delta_reserved = Fraction(0)
        self._lattice_epsilon_spent = Fraction(0)
        self._lattice_delta_spent = Fraction(0)
        self._books: tuple[Books, str] | None = None
        self._last_entry = 0
        self._history: list[Spending] = []

    @property
    def history(self) -> tuple[Spending, ...]:
        """All charges so far, in order."""
        return tuple(self._history)

    @property
    def last_entry(self) -> int:
        """Number of the last charge in the books; 0 without books."""
        return self._last_entry

    @property
    def epsilon(self) -> float:
        """The privacy parameter ε of the whole interaction."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """The privacy parameter δ of the whole interaction."""
        return self._delta

    @property
    def total(self) -> float:
        """The total cost that may be spent."""
        return float(self._total)

    @property
    def spent(self) -> float:
        """The cost spent so far, rounded up."""
        return rounded_up(self._spent)

    @property
    def spent_exactly(self) -> Fraction:
        """The cost spent so far."""
        with self._lock:
            return self._spent

    @property
    def left(self) -> float:
        """What can still be spent, rounded down: ``spend(budget.left)`` fits."""
        with self._lock:
            return rounded_down(self._total - self._spent)

    @property
    def room(self) -> tuple[Fraction, Fraction, Fraction]:
        """What can still be spent, exactly: cost, and of the reserve for discrete noise its ε and its δ."""
        with self._lock:
            return (
                self._total - self._spent,
                self._lattice_epsilon_reserved - self._lattice_epsilon_spent,
                self._lattice_delta_reserved - self._lattice_delta_spent,
            )

    @property
    def lattice_epsilon_reserved(self) -> float:
        """The part of ε set aside for discrete noise, rounded down."""
        return rounded_down(self._lattice_epsilon_reserved)

    @property
    def lattice_delta_reserved(self) -> float:
        """The part of δ set aside for discrete noise, rounded down."""
        return rounded_down(self._lattice_delta_reserved)

    @property
    def lattice_epsilon_spent(self) -> float:
        """The part of the reserve on ε that is used, rounded up."""
        return rounded_up(self._lattice_epsilon_spent)

    @property
    def lattice_delta_spent(self) -> float:
        """The part of the reserve on δ that is used, rounded up."""
        return rounded_up(self._lattice_delta_spent)

    def reserve_lattice(self) -> None:
        """Set 1e-5 of ε and 1e-6 of δ aside for discrete noise and lower the total accordingly.

        Has no effect when the reserve exists already.

        Raises
        ------
        QueryError
            If something was spent: the filter's total must be fixed before the first query.
        """
        with self._lock:
            if self._lattice_epsilon_reserved > 0:
                return
            if self._spent > 0:
                raise QueryError(
                    f"reserve_lattice() came after {self._currency} = {rounded_up(self._spent):g} was spent; "
                    "call it before the first query, the total cannot change afterwards"
                )
            reserve = after_lattice_reserve(self._epsilon, self._delta)
            self._total = Fraction(self._price(reserve.epsilon, reserve.delta_of_gaussians))
            self._lattice_epsilon_reserved = reserve.lattice_epsilon
            self._lattice_delta_reserved = reserve.lattice_delta

    def can_spend(self, mu: Exact, *, lattice_epsilon: Exact = 0.0, lattice_delta: Exact = 0.0) -> bool:
        """Whether `spend` with the same arguments would fit now (another thread may be faster)."""
        costs = self._checked_costs(mu, lattice_epsilon, lattice_delta)
        with self._lock:
            return self._refusal(*costs) is None

    def keep_books(self, books: Books, meter: str) -> None:
        """Have every charge written down, durably, before it counts.

        To be called before anything is spent here. What the books know of an earlier process counts when `count_again`
        has gone through the part of it whose answers are known, and `settle` through the rest.
        """
        with self._lock:
            if self._spent > 0 or self._books is not None:
                raise QueryError("keep_books() came too late, or twice; call it before the first query")
            self._books = books, meter

    def count_again(self, entry: int, mu: Exact, lattice_epsilon: Exact, lattice_delta: Exact, what: Any) -> None:
        """Count a charge that is in the books already, and whose answer is known: nothing will be answered for it."""
        costs = self._checked_costs(mu, lattice_epsilon, lattice_delta)
        with self._lock:
            self._last_entry = entry
            self._count(costs, what)

    def settle(self) -> None:
        """Count all that is in the books, also charges whose answers were lost."""
        with self._lock:
            if self._books is None:
                return
            books, meter = self._books
            costs = books.spent(meter)
            counted = self._spent, self._lattice_epsilon_spent, self._lattice_delta_spent
            lost = tuple(total - here for total, here in zip(costs, counted, strict=True))
            if min(lost) < 0:
                raise QueryError("more was counted than the books know; the run's files do not belong together")
            if any(lost):
                self._count(lost, {"lost": 1})

    def spend(
        self,
        mu: Exact,
        *,
        lattice_epsilon: Exact = 0.0,
        lattice_delta: Exact = 0.0,
        what: Mapping[str, Any] | None = None,
    ) -> None:
        """Charge one query, or refuse it and change nothing. To be called before the query is answered.

        Parameters
        ----------
        mu
            Cost of the query: μ = 1/(2τ²) for a `Budget`; for a `StepBudget` the number of steps. Floats, integers and
            fractions are all taken as the exact numbers that they are.
        lattice_epsilon, lattice_delta
            Slack of discrete noise against Gaussian noise: 12 N/S and N·1e-31 for N released numbers with
            integer noise parameter S. Taken from the reserve of `reserve_lattice`.
        what
            What is paid for, for the books and the history: kinds of queries and their numbers.

        Raises
        ------
        BudgetExceededError
            If the query does not fit.
        QueryError
            If a cost is not a finite number ≥ 0.
        """
        costs = self._checked_costs(mu, lattice_epsilon, lattice_delta)
        if os.getpid() != self._process:
            raise NotPrivateError(
                "this budget was made in another process, and a forked copy of it would be spent twice; make the "
                "budget and ask in one process"
            )
        with self._lock:
            refusal = self._refusal(*costs)
            if refusal is not None:
                raise BudgetExceededError(refusal)
            if self._books is not None:
                books, meter = self._books
                self._last_entry = books.charge(meter, costs[0], costs[1], costs[2], what)
            self._count(costs, what)

    def _count(self, costs: tuple[Fraction, ...], what: Mapping[str, Any] | None) -> None:
        self._spent += costs[0]
        self._lattice_epsilon_spent += costs[1]
        self._lattice_delta_spent += costs[2]
        self._history.append(Spending(dict(what or {}), self._spent))

    def _checked_costs(
        self, cost: Exact, lattice_epsilon: Exact, lattice_delta: Exact
    ) -> tuple[Fraction, Fraction, Fraction]:
        return (
            exact_cost(self._currency, cost),
            exact_cost("lattice_epsilon", lattice_epsilon),
            exact_cost("lattice_delta", lattice_delta),
        )

    def _refusal(self, cost: Fraction, lattice_epsilon: Fraction, lattice_delta: Fraction) -> str | None:
        """Return why these costs do not fit, or None. The lock is held."""
        left = self._total - self._spent
        if cost > left:
            return (
                f"{self._currency} = {float(cost)!r} was asked, {rounded_down(left)!r} is left of "
                f"{float(self._total)!r}; "
                "ask with more noise, stop here, or start with a larger epsilon or delta"
            )
        meters = (
            ("lattice_epsilon", lattice_epsilon, self._lattice_epsilon_reserved, self._lattice_epsilon_spent),
            ("lattice_delta", lattice_delta, self._lattice_delta_reserved, self._lattice_delta_spent),
        )
        for name, asked, reserved, spent in meters:
            if asked > 0 and reserved == 0:
                return (
                    f"{name} = {float(asked)!r} was asked, but nothing is reserved for discrete noise; "
                    "call reserve_lattice() before the first query (the curator does)"
                )
            if asked > reserved - spent:
                return (
                    f"{name} = {float(asked)!r} was asked, {rounded_down(reserved - spent)!r} is left "
                    f"of the reserve of {rounded_down(reserved)!r}; "
                    "use a larger integer noise parameter or stop here"
                )
        return None

    def __reduce__(self) -> NoReturn:
        # copy.copy, copy.deepcopy and pickle all come here.
        raise NotPrivateError(
            f"a {type(self).__name__} cannot be copied or pickled: what is spent from one copy the other would not "
            "know, and both together would exceed (epsilon, delta); share the one object"
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(epsilon={self._epsilon!r}, delta={self._delta!r}, total={self.total!r}, "
            f"spent={self.spent!r}, left={self.left!r})"
        )


class Budget(_Filter):
    r"""A budget (ε, δ) for adaptively chosen Gaussian queries.

    A query with noise multiplier τ (noise sd / sensitivity) costs μ = 1/(2τ²). The total B = μ(ε, δ) is fixed
    when the budget is made, and each query's cost, which may depend on everything released before, is spent
    before the query is answered: it fits into what is left, or it is refused and nothing changes. The whole
    interaction then is (ε, δ)-differentially private, whenever and for whatever reason it stops. Chains that
    share the data share the budget.

    Costs are added as exact fractions (floats are dyadic, so these stay short), so that no number of
    roundings can let the sum past the total; `left` is rounded down. To use the budget up, spend `left` last:
    ten rounded tenths of the total may exceed it, in which case the tenth is refused. A budget cannot be copied or
    pickled: that would make two of it.

    Parameters
    ----------
    epsilon
        Privacy parameter ε > 0.
    delta
        Privacy parameter δ in (0, 1).

    Notes
    -----
    **The lattice reserve.** Discrete Gaussian noise of integer parameter S has, once dithered (rounding the
    dither off again is post-processing), a density within e^{±c} of the Gaussian's, c = 6/S per released
    number, off an event of tiny probability. Such slack is no Gaussian cost, and spending two kinds of
    currency adaptively along a curve is not covered by the filter theorem. So the slack is set aside first,
    by `reserve_lattice`: let r = Σ 2c and d be the reserved totals, which no path of the interaction can
    exceed, P and Q the laws of the transcript under Gaussian noise on two neighbouring data sets, P' and Q'
    those under discrete noise. For any event, by the bound on the densities along each path,

    .. math::

        P' \le e^{r/2} P + d \le e^{r/2}(e^{ε_0} Q + δ_0) + d \le e^{ε_0 + r} Q' + e^{r/2} δ_0 + d,

    where (ε₀, δ₀) is what the filter over Gaussian costs guarantees. The total is therefore taken as
    μ(ε − r, (δ − d)·e^{−r/2}): the factor on δ₀ is easily overlooked and costs next to nothing.

    References
    ----------
    Smith & Thakurta (2022), "Fully adaptive composition for Gaussian differential privacy"; Koskela, Tobaben
    & Honkela (2023), "Individual privacy accounting with Gaussian differential privacy" (the filter).
    Canonne, Kamath & Steinke (2020), "The discrete Gaussian for differential privacy".

    Examples
    --------
    >>> budget = Budget(epsilon=4.0, delta=1e-6)
    >>> budget.spend(0.3)
    >>> budget.can_spend(0.1)
    False
    """

    _currency = "mu"

    def _price(self, epsilon: float, delta: float) -> float:
        return gaussian_mu(epsilon, delta)


class StepBudget(_Filter):
    """A budget (ε, δ) for steps of the subsampled Gaussian mechanism, all of one noise ratio and sampling probability.

    No lossless filter is known for these: noise and sampling are fixed beforehand, and with them the number of steps in
    all. Stopping early is fine. The lattice reserve is that of `Budget`.

    Parameters
    ----------
    epsilon, delta
        As for `Budget`.
    noise_ratio, sampling_prob, scheme
        As for `subsampled_steps`.
    """

    _currency = "steps"

    def __init__(
        self, epsilon: float, delta: float, *, noise_ratio: float, sampling_prob: float, scheme: Scheme
    ) -> None:
        self.noise_ratio, self.sampling_prob, self.scheme = noise_ratio, sampling_prob, scheme
        super().__init__(epsilon, delta)

    def _price(self, epsilon: float, delta: float) -> float:
        return subsampled_steps(self.noise_ratio, self.sampling_prob, epsilon, delta, scheme=self.scheme)
