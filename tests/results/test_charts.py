"""Charts: sound SVG whatever the draws are, numbers where they belong, labels that do not run into each other."""

import math
import re
import warnings
from itertools import pairwise

import numpy as np
import pytest

from dpmcmc.results import Spend, charts
from tests.results.pages import Page

RNG = np.random.default_rng(20240601)
PLAIN = RNG.normal(2.0, 0.5, size=(4, 300))
WITH_GAPS = PLAIN.copy()
WITH_GAPS[0, ::7] = np.nan
WITH_GAPS[1, 3] = np.inf
WITH_GAPS[2, 5] = -np.inf
DRAWS = {
    "plain": PLAIN,
    "gaps": WITH_GAPS,
    "constant": np.full((4, 50), 3.0),
    "zero": np.zeros((4, 50)),
    "not finite": np.full((2, 10), np.nan),
    "one draw": np.array([[1.5]]),
    "one chain": PLAIN[:1],
    "two draws": PLAIN[:, :2],
    "huge": PLAIN * 1e300,
    "largest": np.array([[-1.7e308, 1.7e308] * 10] * 2),
    "tiny": PLAIN * 1e-300,
    "far": 1e9 + PLAIN * 1e-3,
    "two values": RNG.integers(0, 2, size=(4, 100)).astype(float),
    "one outlier": np.where(np.arange(400).reshape(4, 100) == 7, 1e12, PLAIN[:, :100]),
    "many chains": RNG.normal(size=(40, 20)),
    "long": RNG.normal(size=(2, 20_000)),
    "boolean": RNG.random((2, 30)) < 0.5,
}


def numbers_of(drawing):
    drawing = re.sub(r'aria-label="[^"]*"', "", drawing)
    return [float(text) for text in re.findall(r'(?:[MLHV ]|x="|y="|cx="|cy=")(-?[\d.]+)', drawing)]


@pytest.mark.parametrize("kind", list(DRAWS))
@pytest.mark.parametrize("chart", [charts.density, charts.trace, charts.ranks])
def test_any_draws_have_a_sound_drawing(chart, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawing = chart("a<b>&\"c'", DRAWS[kind])
    Page(drawing)
    assert drawing.startswith('<svg class="chart" role="img" aria-label="')
    assert not re.search(r"\b(nan|inf)\b", drawing)
    assert "<b>" not in drawing
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawing).groups())
    assert all(-1.0 <= number <= max(width, height) + 1.0 for number in numbers_of(drawing))
    assert len(drawing) < 60_000


@pytest.mark.parametrize("kind", list(DRAWS))
def test_any_draws_have_an_interval(kind):
    row = charts.interval_of("x", DRAWS[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = charts.intervals([row, charts.Interval("y", math.nan, math.nan, math.nan)])
    Page(text)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert "no finite draws" in text


def test_an_interval_is_the_central_one():
    row = charts.interval_of("x", np.arange(101.0))
    assert row[1:] == pytest.approx((5.0, 50.0, 95.0))
    text = charts.intervals([row])
    (bar,) = re.findall(r'class="bar private" style="left: ([\d.]+)%; width: ([\d.]+)%', text)
    low, high = -0.04 * 95.0, 95.0 * 1.04
    assert float(bar[0]) == pytest.approx(100.0 * (5.0 - low) / (high - low), abs=0.01)
    assert float(bar[1]) == pytest.approx(100.0 * 90.0 / (high - low), abs=0.01)
    assert "50 (5 to 95)" in text
    assert "--zero: 3.70%" in text


def test_numbers_have_the_digits_that_tell_the_ends_apart():
    text = charts.intervals([charts.Interval("x", 2.98612, 2.99401, 3.00311)])
    assert "2.994 (2.986 to 3.003)" in text
    assert "--zero" not in text  # so far away that the bar would be a point


def test_intervals_of_one_size_share_an_axis():
    sizes = [5.0, 0.02, 3.0, 0.0, 0.01, 1e-7, math.nan]
    rows = [charts.Interval(str(place), -size, 0.0 * size, size) for place, size in enumerate(sizes)]
    groups = [[row.name for row in group] for group in charts.interval_groups(rows)]
    assert groups == [["0", "2"], ["1", "4"], ["3", "5", "6"]]
    spread = [charts.Interval(str(place), 0.0, 0.5, 10.0**-place) for place in range(0, 24, 2)]
    assert len(charts.interval_groups(spread)) == 4
    assert sum(map(len, charts.interval_groups(spread))) == len(spread)
    assert charts.interval_groups([charts.Interval("x", 0.0, 0.0, 0.0)]) == [[charts.Interval("x", 0.0, 0.0, 0.0)]]


def test_a_density_is_high_where_the_draws_are():
    draws = np.concatenate([RNG.normal(0.0, 0.1, 3000), RNG.normal(10.0, 0.1, 1000)])
    drawing = charts.density("x", draws)
    points = re.search(r'class="stroke" d="M([^"]+)"', drawing).group(1).split("L")
    xs, ys = np.array([list(map(float, point.split())) for point in points]).T
    left, right = ys[xs < 140.0].min(), ys[xs > 140.0].min()
    assert left < right - 20.0  # SVG counts from the top
    assert 'class="zero"' in drawing
    assert 'class="zero"' not in charts.density("x", 5.0 + 0.1 * RNG.normal(size=1000))


def test_a_trace_has_a_line_for_each_chain_and_keeps_the_extremes():
    assert len(re.findall(r'class="chain chain-\d"', charts.trace("x", PLAIN))) == 4
    assert len(re.findall(r'class="chain chain-\d"', charts.trace("x", DRAWS["many chains"]))) == charts.MAX_CHAINS
    spiky = np.zeros((1, 10_000))
    spiky[0, 4321] = 1.0
    points = re.search(r'class="chain chain-1" d="M([^"]+)"', charts.trace("x", spiky)).group(1).split("L")
    assert len(points) <= 300
    heights = [float(point.split()[1]) for point in points]
    assert min(heights) < 20.0 < 90.0 < max(heights)


def test_ranks_tell_agreement_from_disagreement():
    def unevenness(draws):
        return int(re.search(r"differs by (\d+) %", charts.ranks("x", draws)).group(1))

    apart = PLAIN + np.arange(4.0)[:, None] * 10.0
    assert unevenness(np.random.default_rng(3).normal(size=(4, 4000))) < 40
    assert unevenness(apart) == 300
    assert "two chains" in charts.ranks("x", PLAIN[:1])
    assert "never change" in charts.ranks("x", DRAWS["constant"])


def test_the_privacy_curve_marks_the_stated_pair():
    points = [(0.5, 1e-2), (1.0, 1e-6), (2.0, 1e-12)]
    drawing = charts.privacy_curve(points, (1.0, 1e-6))
    ((x, y),) = re.findall(r'class="stated" cx="([\d.]+)" cy="([\d.]+)"', drawing)
    line = re.search(r'class="stroke" d="M([^"]+)"', drawing).group(1).split("L")
    assert f"{x} {y}" == line[1]
    assert "ε = 1, δ = 10⁻⁶" in drawing
    Page(charts.privacy_curve([(1e-3, 0.5), (2e-3, 0.4)], (1e-3, 0.5)))


def test_the_course_of_spending_ends_where_it_should():
    entries = [Spend("gradient", 10, 0.25), Spend("log_ratio", 30, 1.0)]
    drawing = charts.spending_course(entries)
    points = re.search(r'class="stroke" d="M([^"]+)"', drawing).group(1).split("L")
    xs, ys = np.array([list(map(float, point.split())) for point in points]).T
    assert len(xs) == 3
    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx(0.25, abs=0.01)
    assert (ys[0] - ys[1]) / (ys[0] - ys[2]) == pytest.approx(0.25, abs=0.01)
    assert "40 answers: 100 % at the end" in drawing
    Page(charts.spending_course([Spend("x", 0, 0.0)]))
    long = [Spend("x", 1, place / 2000) for place in range(2000)]
    assert len(charts.spending_course(long)) < 20_000


def test_the_bar_of_a_ledger_adds_up():
    text = charts.ledger_bar(0.1, 0.35, 1.0, "μ")
    assert re.findall(r'class="(\w+)" style="width: ([\d.]+)%"', text) == [
        ("earlier", "10.000"),
        ("own", "25.000"),
        ("left", "65.000"),
    ]
    assert 'aria-label="μ: earlier runs 10 %, this run 25 %, left 65 %"' in text
    for odd in ((0.0, 0.0, 0.0), (1.0, 1.0 + 1e-12, 1.0), (0.0, 1e-300, 1e300)):
        widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", charts.ledger_bar(*odd, "μ"))]
        assert sum(widths) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("low", "high"), [(-1.1, 2.9), (0.0, 1e-300), (-3e9, 4e9), (0.9999, 1.0001), (1e9, 1e9 + 1e-3)]
)
def test_ticks_are_a_few_numbers_that_differ(low, high):
    for about in (3, 4, 6):
        ticks = charts._ticks(low, high, about)
        assert 1 <= len(ticks) <= about + 2
        assert len({text for _, text in ticks}) == len(ticks)
        assert all(second > first for (first, _), (second, _) in pairwise(ticks))
        assert all(low - 1e-6 * (high - low) <= value <= high + 1e-6 * (high - low) for value, _ in ticks)
