"""What the tuning asks, at its price."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpmcmc
from dpmcmc import models
from dpmcmc.privacy import gaussian_cost
from dpmcmc.queries import Affine, ClipCount, Gradient, InvalidCount, Release
from dpmcmc.tuning import Asked, Questions, Style
from dpmcmc.tuning.questions import multiplier_of
from tests.tuning.made_up import TRACED, GaussianRecords

NUM_RECORDS, DIMENSION = 10_000, 4
COORDINATES = Affine.identity(DIMENSION)


@given(st.floats(1e-200, 1e6))
def test_noise_never_costs_more_than_its_price(mu):
    """In the rounded-up cost that is charged; and no more than 1 in 10⁸ of a price is left over."""
    assert mu * (1 - 1e-8) < gaussian_cost(multiplier_of(mu)) <= mu


class Counting:
    """Answers counts of records with the given sizes."""

    def __init__(self, sizes, noise, generator):
        self.sizes, self.noise, self.generator, self.asked = sizes, noise, generator, []

    def __call__(self, query, theta, coordinates):
        self.asked.append(query)
        noise = query.noise_sd * self.generator.normal() if self.noise else 0.0
        return Release(np.sum(self.sizes > query.threshold) + noise, query.noise_sd, query.mu)


def search(sizes, wanted, mu, of="gradient", noise=False, about=None, seed=1, **more):
    ask = Counting(sizes, noise, np.random.default_rng(seed))
    questions = Questions(ask, TRACED, NUM_RECORDS, DIMENSION)
    return questions.search(np.zeros(DIMENSION), COORDINATES, of, wanted, mu, about, **more), ask.asked


@pytest.mark.parametrize("wanted", [10, 100, 2000])
@pytest.mark.parametrize("of", ["gradient", "score_bound", "information", "curvature"])
def test_a_search_finds_the_bound_that_so_many_exceed(wanted, of):
    """Without noise, to within the last interval: 16 octaves halved seven times, or 3 halved three times; twice that
    for matrices."""
    unit = math.sqrt(DIMENSION / NUM_RECORDS) ** (2 if of == "curvature" else 1)
    sizes = unit * np.exp(np.random.default_rng(0).normal(size=NUM_RECORDS))
    exact = np.sort(sizes)[-wanted]
    octaves = 2.0 if of == "curvature" else 1.0
    for about, resolution in ((None, 0.125), (exact, 0.375)):
        found, asked = search(sizes, wanted, 1e6, of, about=about)
        assert exact * (1 - 1e-9) <= found <= exact * 2 ** (octaves * resolution) * (1 + 1e-9)
        assert {query.of for query in asked} == {of}
        assert sum(query.mu for query in asked) <= 1e6


def test_a_search_asks_for_no_fewer_than_its_noise_can_show():
    """With few records above any bound, and noise: it does not run to the top of the range."""
    unit = math.sqrt(DIMENSION / NUM_RECORDS)
    sizes = unit * np.random.default_rng(0).uniform(0.5, 1.5, NUM_RECORDS)
    astray = 0
    for seed in range(100):
        found, asked = search(sizes, 1.0, 1e-3, noise=True, seed=seed)
        astray += found > 1.5 * unit * 2**0.125 * (1 + 1e-9)
        assert sum(query.mu for query in asked) <= 1e-3
    # A count of none exceeds 3 sds with probability 0.00135, and at most 6 of a search's counts are of none: 0.0081 of
    # the searches, so that 9 or more of 100 are fewer than 1e-6.
    assert astray < 9


def test_a_search_hands_on_what_belongs_to_the_count():
    _, asked = search(np.ones(NUM_RECORDS), 10, 1.0, "information", majorise=0.3, weight_bound=2.0)
    assert {(query.majorise, query.weight_bound) for query in asked} == {(0.3, 2.0)}


MODELS = {
    "logistic": (models.LogisticRegression(2), Style(True, True, True, 3)),
    "linear": (models.LinearRegression(2), Style(False, True, True, 3)),
    "poisson": (models.PoissonRegression(2), Style(False, True, True, 3)),
    "negative binomial": (models.NegativeBinomialRegression(2), Style(False, True, False, 3)),
    "another": (models.GaussianMean(np.eye(2)), Style(False, False, False)),
    "derived": (type("Derived", (models.LogisticRegression,), {})(2), Style(False, False, False)),
}


@pytest.mark.parametrize(("model", "style"), MODELS.values(), ids=MODELS.keys())
def test_the_style_goes_by_the_exact_class(model, style):
    assert Style.of(model) == style


@pytest.mark.parametrize("model", [model for model, _ in MODELS.values()], ids=MODELS.keys())
def test_the_curator_can_answer_every_kind(model):
    records = np.zeros((10, 2)) if not isinstance(model, models.RegressionModel) else None
    records = {"X": np.zeros((10, 2)), "y": np.zeros(10)} if records is None else records
    curator = dpmcmc.Curator(model, records, dpmcmc.Budget(1.0, 1e-6))
    for query in Questions(None, Style.of(model), 10, model.dimension).programs():
        curator.cost(query, np.zeros(model.dimension), coordinates=Affine.identity(model.dimension))


def test_what_was_asked_is_labelled_by_kind_and_multiplier():
    asked = Asked()
    for query in (InvalidCount(30.0), ClipCount(1.0, 5.0), ClipCount(2.0, 5.0), ClipCount(2.0, 7.0), Gradient(1.0, 3)):
        asked.add(query)
    assert asked.labelled() == {
        "invalid_count": (1, 30.0),
        "clip_count (1)": (2, 5.0),
        "clip_count (2)": (1, 7.0),
        "gradient": (1, 3.0),
    }
    assert Asked().labelled() == {}


def test_the_labels_cost_what_was_charged():
    records = GaussianRecords(np.eye(2) * 100.0, np.zeros(2), NUM_RECORDS, 1.0, np.random.default_rng(0))
    asked = Asked()
    questions = Questions(lambda query, *rest: (asked.add(query), records(query, *rest))[1], TRACED, NUM_RECORDS, 2)
    place = np.zeros(2), Affine.identity(2)
    questions.scales(*place, 0.1)
    questions.search(*place, "gradient", 10, 0.2, 0.1)
    questions.score(*place, 1.0, 0.1, weighted=False)
    questions.curvature(*place, 1.0, 0.1, information=False)
    cost = sum(number * gaussian_cost(multiplier) for number, multiplier in asked.labelled().values())
    assert cost == pytest.approx(records.spent, rel=1e-12)
    assert sum(number for number, _ in asked.labelled().values()) == len(records.asked) == 6
