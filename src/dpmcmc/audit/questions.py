"""Asks the production curator one question many times, of both data sets of a pair, with exact noise."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from dpmcmc.audit.attacker import Answered, Attacker
from dpmcmc.audit.bounds import Claim, Finding, claimed_of_batches, claimed_of_gaussians, judge
from dpmcmc.audit.neighbours import Pair, parameters_of
from dpmcmc.curator import Curator, Order
from dpmcmc.privacy import Budget, StepBudget
from dpmcmc.queries import BatchGradient, Queries, Query

# Answers in one pass over the data. (Each has noise of its own.)
_AT_A_TIME = 2000
# Pays for all of it: what is looked at is the price of one answer.
_PLENTY = 1e7


def audit_pair(pair: Pair, guesses: int, delta: float) -> Finding:
    """Ask so often (or a little more), guess each time, and compare with the price."""
    attacker = Attacker(pair.model, pair.first, pair.second, pair.others)
    ask = _ask_batches if isinstance(pair.query, BatchGradient) else _ask

    rounds = math.ceil(guesses / _AT_A_TIME)
    chains = math.ceil(guesses / rounds)

    def say(data: Any) -> tuple[int, Claim]:
        answers, claim = ask(pair, data, rounds, chains)
        return sum(says_second(attacker.log_ratios(answered)) for answered in answers), claim

    (first, claim), (second, _) = say(pair.first), say(pair.second)
    return judge((first, second), rounds * chains, claim, delta)


def says_second(log_ratios: Any) -> int:
    """Return how often the second data set is the guess; where nothing speaks for either, a coin decides."""
    coins = np.random.default_rng().random(np.shape(log_ratios)) < 0.5
    return int(np.sum(np.where(np.asarray(log_ratios) == 0.0, coins, np.asarray(log_ratios) > 0.0)))


def _ask(pair: Pair, data: Any, rounds: int, chains: int) -> tuple[list[Answered], Claim]:
    assert isinstance(pair.query, Query)
    curator = Curator(pair.model, data, Budget(_PLENTY, 0.1))
    theta = np.tile(parameters_of(pair), (chains, 1))
    proposal = None if pair.proposal is None else np.tile(pair.proposal, (chains, 1))
    answers = []
    for _ in range(rounds):
        release = curator.ask(pair.query, theta, proposal, coordinates=pair.coordinates)
        answers.append(Answered(pair.query, theta, proposal, pair.coordinates, release.value))
    assert isinstance(curator.budget, Budget)
    # What was really charged.
    return answers, claimed_of_gaussians(float(curator.budget.spent_exactly) / (rounds * chains))


def _ask_batches(pair: Pair, data: Any, rounds: int, chains: int) -> tuple[list[Answered], Claim]:
    """Ask for sums over batches, as samplers do: from compiled code, with noise that was paid for."""
    query = pair.query
    assert isinstance(query, BatchGradient)
    number = len(data["x"])
    mechanism = {"noise_ratio": query.noise_ratio, "sampling_prob": query.batch_size / number}
    curator = Curator(pair.model, data, StepBudget(10.0 * rounds * chains, 0.1, scheme=query.sampling, **mechanism))
    queries = Queries(gradient=query, gradients_per_step=1)
    theta = np.tile(parameters_of(pair), (chains, 1))
    order = Order(queries, chains, 1, 1, 1)

    def step(oracle: Any, theta: jax.Array, noise: Any) -> jax.Array:
        first = jax.tree.map(lambda leaf: leaf[0, 0], noise)
        return oracle.batch_gradient(theta, first.batch, first.gradient[0]).value

    program = curator.compile("audit", step, curator.oracle(query, None), theta, curator.blank(order))
    values = [np.asarray(program(theta, curator.pay(order))) for _ in range(rounds)]
    # One step of one chain.
    claim = claimed_of_batches(query.noise_ratio, query.batch_size / number, 1, query.sampling)
    return [Answered(query, theta, None, None, value) for value in values], claim
