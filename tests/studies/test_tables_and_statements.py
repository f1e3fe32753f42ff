"""Medians and quartiles, and the paper's statements on made-up tables: they hold, they do not, they are not tested."""

import csv
import io
import math

import numpy as np
import pandas as pd
import pytest

from studies import statements, tables
from tests.studies import made_up


def verdicts(found):
    return [statement.verdict for statement in found]


def test_statements_that_hold():
    table = made_up.comparison(
        {("gaussian", "dp-penalty"): 0.9, ("gaussian", "dp-sgld"): 0.1, ("gaussian", "dp-hmc"): 0.3, **made_up.MMD}
    )
    found = statements.of_comparison(table)
    assert verdicts(found[:3]) == ["holds"] * 3
    assert [statement.by for statement in found[:3]] == ["the paper"] * 3
    assert len(found) == 7  # and with temperature 1, the tight accountant and this package's defaults beside it
    assert found[0].numbers[0].startswith("at 2 of 2 budgets")
    assert "ε = 8: median MMD DP-HMC 0.206, DP-penalty 0.258" in found[0].numbers[1]
    assert str(found[0]).startswith("HOLDS: On the banana DP-HMC and DP-penalty beat")


@pytest.mark.parametrize("name", ["dp-hmc", "dp-penalty"])
def test_one_that_loses_at_one_budget_is_enough(name):
    table = made_up.comparison()
    table.loc[(table["model"] == "banana") & (table["sampler"] == name) & (table["epsilon"] == 15.0), "mmd"] = 0.55
    found = statements.of_comparison(table)[0]
    assert found.verdict == "does not hold"
    assert found.numbers[0].startswith("at 1 of 2 budgets")


def test_a_budget_below_eight_does_not_count():
    table = made_up.comparison()
    table.loc[(table["sampler"] == "dp-hmc") & (table["epsilon"] == 4.0), "mmd"] = 2.0
    assert verdicts(statements.of_comparison(table))[0] == "holds"


def test_gaussian_statements_that_do_not_hold():
    assert verdicts(statements.of_comparison(made_up.comparison()))[1:3] == ["does not hold"] * 2


@pytest.mark.parametrize("arguments", [{"epsilons": (2.0, 4.0)}, {"names": ["dp-hmc", "dp-sgld"]}, {"models": []}])
def test_what_has_no_runs_is_not_tested(arguments):
    assert verdicts(statements.of_comparison(made_up.comparison(**arguments)))[0] == "not tested"


def test_a_diverged_run_counts_as_the_worst():
    table = made_up.comparison()
    table.loc[table["sampler"] == "dp-hmc", "mmd"] = math.nan
    found = statements.of_comparison(table)
    assert found[0].verdict == "does not hold"
    assert "DP-HMC diverged" in found[0].numbers[1]


def test_clipping():
    """Twins: the same table with a harm larger than the spread wherever 1 to 20 % are clipped."""
    harmless, counter_example = statements.of_clipping(made_up.clipping())
    assert harmless.verdict == "holds"
    assert sum("15 % clipped" in line for line in harmless.numbers) == 4
    assert not any("30 % clipped" in line for line in harmless.numbers)
    assert counter_example.verdict == "does not hold"
    assert statements.of_clipping(made_up.clipping(harm=0.05))[0].verdict == "does not hold"
    few = made_up.clipping()
    few = few[few["ratios_clipped"] == 0.0]
    assert statements.of_clipping(few)[0].verdict == "not tested"


def test_the_counter_example():
    """The root of the clipped expected score, λ(1 − e^{−(1+b)/λ}) = 1 with 1 + b = ln 20, and no clipping: no shift."""
    from scipy.optimize import brentq

    root = brentq(lambda log_rate: math.exp(log_rate) * (1.0 - 20.0 ** -math.exp(-log_rate)) - 1.0, 0.001, 0.5)
    assert statements.skewed_shift(0.05) == pytest.approx(root * math.sqrt(100_000), rel=0.01)
    assert statements.skewed_shift(0.05) == pytest.approx(19.6, abs=0.3)
    assert statements.skewed_shift(0.01) == pytest.approx(3.4, abs=0.1)
    assert statements.skewed_shift(0.0) == pytest.approx(0.0, abs=1e-6)


def test_quantiles():
    assert tables.quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert tables.quantile([1.0, math.nan, 2.0], 0.5) == 2.0
    assert tables.quantile([1.0, math.nan, math.nan], 0.5) == math.inf
    assert math.isnan(tables.quantile([], 0.5))


def test_summary_and_files(tmp_path):
    table = made_up.comparison(repeats=5)
    summary = tables.summarise(table, "comparison")
    assert len(summary) == 2 * 9 * 3
    first = summary.iloc[0]
    assert (first["model"], first["sampler"], first["epsilon"], first["runs"]) == ("banana", "dp-hmc", 4.0, 5)
    assert (first["mmd_lower_quartile"], first["mmd_median"], first["mmd_upper_quartile"]) == pytest.approx(
        (0.204, 0.208, 0.212)
    )
    assert summary.loc[summary["sampler"] == "dp-sgld", "ratios_clipped_median"].isna().all()
    tables.write_csv(tmp_path / "results.csv", table)
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(table)
    assert list(rows[0]) == tables.columns("comparison")
    assert rows[0]["temperature"] == ""
    if tables.write_parquet(tmp_path / "results.parquet", table):
        import pyarrow.parquet

        assert pyarrow.parquet.read_table(tmp_path / "results.parquet").num_rows == len(table)


def test_markdown():
    text = tables.markdown(made_up.comparison(), "comparison", "mmd", "banana")
    assert text.splitlines()[0] == "|  | runs | ε = 4 | ε = 8 | ε = 15 |"
    assert text.splitlines()[2] == "| DP-HMC | 4 |" + " 0.206 (0.203–0.209) |" * 3
    assert "| DP-SGNHT, tight accountant | 4 |" in text
    missing = tables.markdown(made_up.comparison(), "comparison", "ratios_clipped", "banana")
    assert "| DP-SGLD (T = ½) | 4 | – | – | – |" in missing


def test_a_written_table_is_read_as_it_was(tmp_path):
    """To the last digit, with runs that have no value, a measure that is infinite and a commit that is unknown."""
    table = made_up.comparison()
    table["mmd"] *= np.random.default_rng(1).normal(size=len(table)) / 3.0
    table.loc[::5, "mmd"] = math.nan
    table.loc[::7, "max_r_hat"] = math.inf
    table.loc[::3, "commit"] = ""
    tables.write_csv(tmp_path / "results.csv", table)
    read = tables.read_csv(tmp_path / "results.csv")
    table["in_paper"] = table["in_paper"].astype(str)
    pd.testing.assert_frame_equal(read, table, check_exact=True, check_dtype=False)
    tables.write_csv(tmp_path / "again.csv", read)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "results.csv").read_bytes()


def test_the_bytes_of_a_written_table(tmp_path):
    """As Python's own csv module writes them: every digit, nothing for NaN."""
    table = made_up.comparison(epsilons=(2.5, 1e-5), repeats=1, names=["dp-sgld"])
    tables.write_csv(tmp_path / "results.csv", table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.to_dict("records"):
        writer.writerow("" if isinstance(value, float) and math.isnan(value) else value for value in row.values())
    assert (tmp_path / "results.csv").read_text() == text.getvalue()
