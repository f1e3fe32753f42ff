"""The planning curve: its numbers are those of single plans, and what it says is needed is needed and suffices."""

import json
import math

import numpy as np
import pytest

import dpmcmc
from dpmcmc.errors import BudgetExceededError, QueryError

RUN = {"num_records": 48_842, "epsilon": 1.0, "dimension": 5}


def curve(**changes):
    return dpmcmc.plan_curve(**(RUN | changes))


def single(made, epsilon, num_records):
    """The plan of one point of a curve."""
    delta = 0.1 / num_records if made.delta is None else made.delta
    budget = {"num_records": int(num_records), "epsilon": float(epsilon), "delta": delta}
    return dpmcmc.plan("auto", **budget, dimension=made.dimension)


@pytest.fixture(scope="module", params=[{}, {"delta": 1e-7, "dimension": 14, "epsilon": 0.5}], ids=["0.1/n", "fixed"])
def made(request):
    return curve(**request.param)


def test_the_grid_is_made_of_single_plans(made):
    assert made.epsilons[8] == made.epsilon
    assert made.record_numbers[8] == made.num_records
    assert made.epsilons[[0, 16]] == pytest.approx([made.epsilon / 16.0, made.epsilon * 16.0])
    assert not np.isfinite(made.interval_widening).all()
    assert np.isfinite(made.interval_widening).any()
    for row, column in ((0, 0), (3, 12), (8, 8), (11, 5), (16, 16)):
        plan = single(made, made.epsilons[row], made.record_numbers[column])
        assert made.relative_noise[row, column] == pytest.approx(plan.relative_noise, rel=1e-12)
        assert made.noise_sd[row, column] == pytest.approx(plan.noise_sd, rel=1e-12)
        if plan.feasible:
            assert made.interval_widening[row, column] == pytest.approx(plan.interval_widening, rel=1e-12)
        else:
            assert np.isnan(made.interval_widening[row, column]).all()


def test_widths_shrink_with_the_root_of_n(made):
    shrinking = np.sqrt(made.num_records / made.record_numbers)
    assert made.interval_width == pytest.approx(made.interval_widening * shrinking[:, None], nan_ok=True)
    assert made.interval_width[:, 8] == pytest.approx(made.interval_widening[:, 8], nan_ok=True)


CASES = [
    {},
    {"delta": 1e-6, "width": 1.05},
    {"width": 4.0, "dimension": 2},
    {"delta": 1e-8, "width": 1.2},
    {"delta": 1e-6, "num_records": 2_000, "dimension": 20},  # the curvature decides, not the width
    {"num_records": 10**7, "epsilon": 0.01, "dimension": 1},
    {"delta": 1e-6, "epsilon": 30.0, "dimension": 3},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_needed_suffices_and_less_does_not(case):
    """Two digits, rounded up: a tenth less must not do."""
    made = curve(**case)

    def enough(place, epsilon, num_records):
        plan = single(made, epsilon, num_records)
        return plan.feasible and plan.interval_widening[place] <= made.width

    for place, (epsilon, records) in enumerate(zip(made.epsilon_needed, made.records_needed, strict=True)):
        assert enough(place, epsilon, made.num_records)
        assert not enough(place, 0.9 * epsilon, made.num_records)
        assert enough(place, made.epsilon, records)
        assert not enough(place, made.epsilon, math.floor(0.9 * records))


def test_as_json(made):
    plain = made.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["interval_widening"][0][0] == [None, None]
    assert plain["epsilon_needed"] == list(made.epsilon_needed)
    assert {"interval_width", "noise_sd", "relative_noise", "record_numbers"} < set(plain)


def test_samplers_have_the_same_numbers():
    ours, other = curve(), dpmcmc.plan_curve(dpmcmc.DPLaplace(), **RUN)
    assert (ours.sampler, other.sampler) == ("auto", "DP-Laplace")
    assert np.array_equal(ours.interval_widening, other.interval_widening, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sampler": "dp-hmc"}, 'give "auto" or dpmcmc.DPLaplace()'),
        ({"sampler": dpmcmc.DPPenalty(1.0, 1.0, 1.0)}, "for the others dpmcmc.plan"),
        ({"width": 1.0}, "width = 1 is out of reach"),
        ({"width": math.inf}, "width"),
        ({"num_records": 0}, "num_records"),
        ({"dimension": 2.5}, "dimension"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(change, words):
    with pytest.raises(QueryError) as caught:
        curve(**change)
    assert words in str(caught.value)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(BudgetExceededError, match="pays for nothing"):
        curve(epsilon=1e-170, delta=1e-300)


# ----------------------------------------------------------------------------------------------------- picture


def lines_of(axis, style):
    return [line for line in axis.lines if line.get_linestyle() == style and len(line.get_xdata()) > 100]


def test_what_is_drawn_is_what_is_planned(made):
    """The lines of the asked n, and of the asked ε, at points of the grid and between them."""
    axes = made.plot().axes
    assert len(axes) == 4
    for column, against_epsilon in enumerate((True, False)):
        for row in range(2):
            for place, style in enumerate(("-", "--")):
                lines = lines_of(axes[2 * row + column], style)
                assert len(lines) == 3
                places, heights = lines[1].get_data()
                drawn = np.flatnonzero(np.isfinite(heights))
                for chosen in drawn[[0, len(drawn) // 3, -1]]:
                    where = (places[chosen], made.num_records) if against_epsilon else (made.epsilon, places[chosen])
                    plan = single(made, where[0], round(where[1]))
                    expected = plan.interval_widening[place]
                    if row == 1:
                        expected *= math.sqrt(made.num_records / where[1])
                    assert plan.relative_noise < 0.0103  # between points of the grid ρ is interpolated
                    assert heights[chosen] == pytest.approx(expected, rel=0.01)


def test_what_cannot_work_is_hatched():
    strips = [patch for patch in curve(dimension=14).plot().axes[0].patches if patch.get_hatch()]
    ends = [patch.get_x() + patch.get_width() for patch in strips]
    assert ends == sorted(ends, reverse=True)  # more records need less ε
    made = curve(dimension=14)
    first = next(value for value, noise in zip(made.epsilons, made.relative_noise[:, 8], strict=True) if noise <= 0.01)
    assert first / math.sqrt(2.0) <= ends[1] <= first
    assert not [patch for patch in curve(num_records=10**8).plot().axes[0].patches if patch.get_hatch()]


@pytest.mark.parametrize(
    "case", [{"num_records": 2}, {"epsilon": 1e-9}, {"dimension": 3000}, {"epsilon": 1e5}], ids=str
)
def test_extremes_are_drawn(case, tmp_path):
    curve(**(case | {"delta": 1e-6})).plot().savefig(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_notebook_shows_the_figure():
    """Also where pyplot was never used, which is what tells notebooks how to show figures."""
    assert curve().plot()._repr_png_().startswith(b"\x89PNG")
