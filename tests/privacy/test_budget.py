import copy
import math
import pickle
import threading
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.errors import BudgetExceededError, NotPrivateError, QueryError
from dpmcmc.privacy import Budget, StepBudget, gaussian_delta, gaussian_mu


def state(budget: Budget) -> tuple[float, ...]:
    return (
        budget.total,
        budget.spent,
        budget.left,
        budget.lattice_epsilon_reserved,
        budget.lattice_delta_reserved,
        budget.lattice_epsilon_spent,
        budget.lattice_delta_spent,
    )


def test_new_budget():
    budget = Budget(4.0, 1e-6)
    assert (budget.epsilon, budget.delta) == (4.0, 1e-6)
    assert budget.total == budget.left == gaussian_mu(4.0, 1e-6)
    assert budget.spent == 0.0


def test_refuses_what_does_not_fit_and_changes_nothing():
    budget = Budget(4.0, 1e-6)
    budget.spend(0.3)
    before = state(budget)
    assert not budget.can_spend(0.1)
    with pytest.raises(BudgetExceededError, match=r"mu = 0\.1 was asked, 0\.05\d+ is left") as refusal:
        budget.spend(0.1)
    assert "more noise" in str(refusal.value)
    assert state(budget) == before
    budget.spend(0.05)  # what fits still fits after a refusal


def test_left_can_be_spent_to_the_last_bit():
    budget = Budget(2.0, 1e-6)
    budget.spend(budget.total / 3.0)
    budget.spend(budget.left)
    assert budget.spent <= budget.total
    budget.spend(budget.left)
    assert budget.left == 0.0
    assert not budget.can_spend(5e-324)
    assert budget.can_spend(0.0)


def test_one_unit_too_much_is_refused():
    budget = Budget(2.0, 1e-6)
    with pytest.raises(BudgetExceededError):
        budget.spend(math.nextafter(budget.total, math.inf))
    budget.spend(budget.total)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 8.0, 15.0])
@pytest.mark.parametrize("parts", [3, 7, 10, 1000])
def test_equal_parts(epsilon, parts):
    budget = Budget(epsilon, 1e-6)
    part = budget.total / parts
    allowed = Fraction(budget.total) // Fraction(part)
    spent = 0
    while budget.can_spend(part):
        budget.spend(part)
        spent += 1
    assert spent == allowed
    assert spent in (parts - 1, parts)


def test_tiny_spends_are_not_lost_in_rounding():
    # In floating point 1 + 1e-17 is 1: a meter that rounds would never notice these.
    budget = Budget(15.0, 1e-6)
    budget.spend(1.0)
    left = Fraction(budget.total) - 1
    tiny = 1e-17
    for _ in range(1000):
        budget.spend(tiny)
    assert budget.spent > 1.0
    assert Fraction(budget.left) <= left - 1000 * Fraction(tiny)
    assert 1.0 + tiny == 1.0  # the twin: the naive meter does lose them


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.0, 0.05), max_size=60))
def test_sum_never_exceeds_the_total(costs):
    budget = Budget(4.0, 1e-6)
    exact = Fraction(0)
    for cost in costs:
        fits = exact + Fraction(cost) <= Fraction(budget.total)
        assert budget.can_spend(cost) == fits
        if fits:
            budget.spend(cost)
            exact += Fraction(cost)
        else:
            with pytest.raises(BudgetExceededError):
                budget.spend(cost)
    assert exact <= Fraction(budget.total)
    assert Fraction(budget.left) <= Fraction(budget.total) - exact
    assert Fraction(budget.spent) >= exact


def test_racing_threads_never_overspend():
    budget = Budget(4.0, 1e-6)
    cost = budget.total / 2000.5
    accepted = []
    start = threading.Barrier(32)

    def spend_until_refused() -> None:
        start.wait()
        count = 0
        try:
            while True:
                budget.spend(cost)
                count += 1
        except BudgetExceededError:
            accepted.append(count)

    threads = [threading.Thread(target=spend_until_refused) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(accepted) == 2000
    assert 2000 * Fraction(cost) <= Fraction(budget.total)
    assert len(accepted) == 32


class Unlocked:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def test_without_the_lock_a_race_would_overspend():
    # The twin: both threads are held between the check and the charge.
    budget = Budget(4.0, 1e-6)
    budget._lock = Unlocked()
    both_checked = threading.Barrier(2)
    refusal = budget._refusal

    def slow_refusal(*costs):
        answer = refusal(*costs)
        both_checked.wait(timeout=10.0)
        return answer

    budget._refusal = slow_refusal
    threads = [threading.Thread(target=budget.spend, args=(0.6 * budget.total,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.spent > budget.total


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-300, "much", None])
def test_bad_costs_are_named_and_change_nothing(bad):
    budget = Budget(4.0, 1e-6)
    budget.reserve_lattice()
    before = state(budget)
    for name in ("mu", "lattice_epsilon", "lattice_delta"):
        costs = {"mu": 0.01, name: bad}
        for call in (budget.spend, budget.can_spend):
            with pytest.raises(QueryError, match=name):
                call(costs["mu"], **{key: value for key, value in costs.items() if key != "mu"})
    assert state(budget) == before


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [
        (0.0, 1e-6, "epsilon"),
        (-1.0, 1e-6, "epsilon"),
        (math.nan, 1e-6, "epsilon"),
        (math.inf, 1e-6, "epsilon"),
        (1.0, 0.0, "delta"),
        (1.0, 1.0, "delta"),
        (1.0, math.nan, "delta"),
    ],
)
def test_bad_budget_is_named(epsilon, delta, name):
    with pytest.raises(QueryError, match=name):
        Budget(epsilon, delta)


def test_slack_needs_a_reserve():
    budget = Budget(4.0, 1e-6)
    for slack in ({"lattice_epsilon": 1e-12}, {"lattice_delta": 1e-40}):
        assert not budget.can_spend(0.01, **slack)
        with pytest.raises(BudgetExceededError, match=r"reserve_lattice\(\)"):
            budget.spend(0.01, **slack)
    assert budget.spent == 0.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 15.0])
def test_reserve_pays_for_itself(epsilon):
    budget = Budget(epsilon, 1e-6)
    unreserved = budget.total
    budget.reserve_lattice()
    assert budget.lattice_epsilon_reserved == pytest.approx(1e-5 * epsilon, rel=1e-9)
    assert budget.lattice_delta_reserved == pytest.approx(1e-12, rel=1e-9)
    assert unreserved * (1 - 1e-4) < budget.total < unreserved
    # The guarantee of the docstring: e^{r/2}·δ₀ + d ≤ δ at ε₀ = ε − r.
    epsilon_left = math.nextafter(epsilon - budget.lattice_epsilon_reserved, 0.0)
    delta = gaussian_delta(budget.total, epsilon_left)
    assert math.exp(budget.lattice_epsilon_reserved / 2) * delta + budget.lattice_delta_reserved <= 1e-6
    assert delta == pytest.approx(1e-6, rel=2e-4)


def test_without_the_factor_on_delta_the_guarantee_would_fail():
    # The twin: at ε = 15 the plain total μ(ε − r, δ − d) breaks e^{r/2}·δ₀ + d ≤ δ.
    budget = Budget(15.0, 1e-6)
    budget.reserve_lattice()
    reserve = budget.lattice_epsilon_reserved
    plain = gaussian_mu(15.0 - reserve, 1e-6 - budget.lattice_delta_reserved)
    delta = gaussian_delta(plain, 15.0 - reserve)
    assert math.exp(reserve / 2) * delta + budget.lattice_delta_reserved > 1e-6


def test_reserve_is_idempotent_and_comes_first():
    budget = Budget(4.0, 1e-6)
    budget.reserve_lattice()
    before = state(budget)
    budget.reserve_lattice()
    assert state(budget) == before
    budget.spend(0.01)
    budget.reserve_lattice()  # already there
    late = Budget(4.0, 1e-6)
    late.spend(0.01)
    before = state(late)
    with pytest.raises(QueryError, match="before the first query"):
        late.reserve_lattice()
    assert state(late) == before


@pytest.mark.parametrize("name", ["lattice_epsilon", "lattice_delta"])
def test_slack_is_limited_by_the_reserve(name):
    budget = Budget(4.0, 1e-6)
    budget.reserve_lattice()
    reserved = getattr(budget, f"{name}_reserved")
    budget.spend(0.01, **{name: 0.75 * reserved})
    before = state(budget)
    with pytest.raises(BudgetExceededError, match=f"{name}.*of the reserve"):
        budget.spend(0.01, **{name: 0.3 * reserved})
    assert state(budget) == before
    budget.spend(0.01, **{name: 0.25 * reserved})
    assert getattr(budget, f"{name}_spent") == pytest.approx(reserved, rel=1e-12)
    assert not budget.can_spend(0.0, **{name: 1e-9 * reserved})
    assert budget.can_spend(0.01)


def test_repr_shows_the_public_numbers():
    budget = Budget(2.0, 1e-6)
    budget.spend(0.05)
    assert "epsilon=2.0, delta=1e-06" in repr(budget)
    assert "spent=0.05" in repr(budget)
    assert f"left={budget.left!r}" in repr(budget)


def test_fractions_are_charged_exactly():
    budget = Budget(4.0, 1e-6)
    third = Fraction(budget.total) / 3
    for _ in range(3):
        budget.spend(third)
    assert budget.room[0] == 0
    assert not budget.can_spend(Fraction(1, 10**400))
    # The twin: as a float the third may be too much, and then the last one is refused.
    rounded = Budget(4.0, 1e-6)
    up = math.nextafter(float(third), math.inf)
    rounded.spend(up)
    rounded.spend(up)
    assert not rounded.can_spend(up)


def test_integers_are_charged_exactly():
    budget = StepBudget(1.0, 1e-6, noise_ratio=1e6, sampling_prob=1.0, scheme="poisson")
    assert budget.total == 10**9
    budget.spend(10**9 - 1)
    assert budget.left == 1.0
    assert not budget.can_spend(2**53 + 1)
    assert Budget(1.0, 1e-6).can_spend(0)


@pytest.mark.parametrize("bad", [Fraction(-1, 10**9), Fraction(10) ** 400, -1, 10**400])
def test_bad_exact_costs_are_named(bad):
    budget = Budget(4.0, 1e-6)
    with pytest.raises(QueryError, match="mu"):
        budget.spend(bad)


def test_room_is_what_is_left_exactly():
    budget = Budget(4.0, 1e-6)
    budget.reserve_lattice()
    before = budget.room
    budget.spend(Fraction(1, 7), lattice_epsilon=Fraction(1, 10**9), lattice_delta=Fraction(1, 10**20))
    spent = [first - second for first, second in zip(before, budget.room, strict=True)]
    assert spent == [Fraction(1, 7), Fraction(1, 10**9), Fraction(1, 10**20)]


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize(
    "budget",
    [Budget(1.0, 1e-6), StepBudget(1.0, 1e-6, noise_ratio=10.0, sampling_prob=1.0, scheme="poisson")],
    ids=["Budget", "StepBudget"],
)
def test_a_budget_cannot_be_doubled(budget, copier):
    with pytest.raises(NotPrivateError, match="cannot be copied or pickled"):
        copier(budget)
