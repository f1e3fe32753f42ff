"""How a budget was spent: checked, kept in the file, and read again."""

import numpy as np
import pytest

from dpmcmc.errors import ResultError
from dpmcmc.results import Posterior, Spend
from dpmcmc.results.spending import checked_spending
from tests.results.cases import make_posterior

COURSE = (Spend("invalid_count", 1, 0.01), Spend("gradient", 12, 0.4), Spend("steps 1 to 40", 160, 1.0))


def test_it_is_kept_in_the_file(tmp_path):
    made = make_posterior(spending=COURSE)
    assert made.spending == COURSE
    loaded = Posterior.load(made.save(tmp_path / "p.nc"))
    assert loaded.spending == COURSE
    assert all(isinstance(entry, Spend) for entry in loaded.spending)
    assert Posterior.load(make_posterior().save(tmp_path / "q.nc")).spending == ()


def test_plain_entries_become_spends():
    (entry,) = make_posterior(spending=[["gradient", np.int64(3), np.float64(0.5)]]).spending
    assert entry == Spend("gradient", 3, 0.5)
    assert type(entry.answers) is int
    assert type(entry.share) is float
    assert checked_spending([("x", 1, 1.0 + 1e-12)])[0].share == 1.0


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("gradient", "give a tuple of Spend"),
        (7, "give a tuple of Spend"),
        ([("gradient", 1)], r"spending\[0\]"),
        (["abc"], r"spending\[0\]"),
        ([("", 1, 0.5)], "what = ''"),
        ([("gradient", -1, 0.5)], "answers = -1"),
        ([("gradient", True, 0.5)], "answers = True"),
        ([("gradient", 1.5, 0.5)], r"answers = 1\.5"),
        ([("gradient", 1, 1.5)], r"share = 1\.5"),
        ([("gradient", 1, float("nan"))], "share = nan"),
        ([("gradient", 1, "all")], "share = 'all'"),
        ([("gradient", 1, 0.5), ("gradient", 1, 0.4)], r"spending\[1\] has share = 0\.4, less than the one before"),
    ],
)
def test_other_entries_are_refused(entries, message):
    with pytest.raises(ResultError, match=message):
        make_posterior(spending=entries)
