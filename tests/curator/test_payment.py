"""Payment: every number of noise and every secret batch that is handed out is a new one."""

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc import Budget, Curator
from dpmcmc.curator import Order, SeededNoiseNotPrivate
from dpmcmc.curator.payment import Random
from dpmcmc.models import GaussianMean
from dpmcmc.queries import Gradient, LogRatio

MODEL = GaussianMean(np.eye(2))
DATA = np.random.default_rng(0).normal(size=(200, 2))
SAMPLER = dpmcmc.DPHMC(0.1, 3, 1.0, 1.0, 1000.0, 1000.0, leapfrog="cached")


def all_paid_noise(curators):
    """The integers of a start and of three blocks of two draws of two steps of four chains, drawn ahead as in a run."""
    queries = SAMPLER.queries(len(DATA))
    block = Order(queries, 4, 2, 2, 2)
    paid = []
    for curator in curators:
        paid += [curator.pay(order, block) for order in (Order.start(queries, 4), block, block, block)]
        curator.stop_drawing()
    numbers = [np.ravel(draws._integers) for one in paid for draws in (one.gradient, one.log_ratio)]
    return np.concatenate(numbers)


def test_no_number_of_noise_is_paid_for_twice():
    """At these scales (above 2^40) 344 numbers have a repeat by chance with probability below 1e-7."""
    numbers = all_paid_noise([Curator(MODEL, DATA, Budget(8.0, 1e-6))])
    assert numbers.size == 4 * 2 + 3 * 4 * (3 * 4 * 2 + 4)
    assert np.unique(numbers).size == numbers.size


def test_twin_noise_that_comes_again_is_seen():
    curators = [Curator(MODEL, DATA, noise=SeededNoiseNotPrivate(3)) for _ in range(2)]
    numbers = all_paid_noise(curators)
    assert np.unique(numbers).size == numbers.size // 2


@pytest.mark.parametrize("query", [Gradient(1.0, 300.0), LogRatio(0.5, noise_multiplier=300.0)], ids=lambda q: q.kind)
def test_chains_of_a_question_have_noise_of_their_own(query):
    """Five chains at one place, asked twice: no two answers are the same (but for a chance below 1e-7)."""
    curator, theta = Curator(MODEL, DATA, Budget(8.0, 1e-6)), np.zeros((5, 2))
    proposal = theta + 0.1 if query.needs_proposal else None
    values = np.stack([curator.ask(query, theta, proposal).value for _ in range(2)])
    assert np.unique(values).size == values.size


def test_every_step_has_a_secret_batch_of_its_own():
    """Keys of 64 bits: 60 of them have a repeat by chance with probability below 1e-15."""
    query = dpmcmc.DPSGLD(20, 1.0, 1e-4).queries(len(DATA)).gradient
    random = Random(None)
    words = [
        np.asarray(jax.random.key_data(random.batches(query, len(DATA), (5, 4, 3)).key)).reshape(-1, 2)
        for _ in range(3)
    ]
    words = np.concatenate(words)
    assert len(words) == 60
    assert len(np.unique(words, axis=0)) == len(words)
