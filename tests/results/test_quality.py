"""What a sampler knows about its result: checked, kept exactly, and shown with the right numbers."""

import io
import json
import math
import pickle

import numpy as np
import pytest

from dpmcmc.errors import DPMCMCWarning, ResultError
from dpmcmc.privacy import gaussian_epsilon, gaussian_mu
from dpmcmc.results import Quality, arviz_bridge, summary_table
from dpmcmc.results.quality import as_percent, share_of_noise
from dpmcmc.results.table import summary_rows
from tests.results.cases import FLAGGED, REASON, assert_same, fitted, make_posterior, make_quality

ARVIZ_1 = arviz_bridge.is_1(arviz_bridge.import_arviz())


@pytest.mark.parametrize("changes", [{}, FLAGGED, {"noise_share": {}}, {"independent_draws": False, "rounds": 0}])
def test_json_and_pickle_restore_it_exactly(changes):
    quality = make_quality(**changes)
    for other in (Quality.from_dict(json.loads(quality.to_json())), pickle.loads(pickle.dumps(quality))):
        assert other == quality
        assert str(other) == str(quality)
        assert {name: value.shape for name, value in other.noise_share.items()} == {
            name: value.shape for name, value in quality.noise_share.items()
        }
    assert quality != make_quality(**(changes | {"rounds": 8}))
    assert quality != "quality"


def test_it_cannot_be_changed():
    shares = np.array([0.0, 0.6, 0.05])
    quality = make_quality(noise_share={"beta": shares})
    shares[0] = 1.0
    assert quality.noise_share["beta"][0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        quality.noise_share["beta"][0] = 1.0
    with pytest.raises(TypeError):
        quality.noise_share["other"] = shares
    with pytest.raises(AttributeError):
        quality.reasons = ()


@pytest.mark.parametrize(
    "change",
    [
        {"method": ""},
        {"method": None},
        {"converged": "yes"},
        {"converged": 1},
        {"independent_draws": None},
        {"rounds": -1},
        {"rounds": 2.0},
        {"rounds": True},
        {"reasons": REASON},
        {"reasons": (3,)},
        {"reasons": ("",)},
        {"notes": None},
        {"prior_only": "beta"},
        {"noise_share": [0.1]},
        {"noise_share": {3: 0.1}},
        {"noise_share": {"beta": [0.1, 1.1]}},
        {"noise_share": {"beta": -0.01}},
        {"noise_share": {"beta": math.nan}},
        {"noise_share": {"beta": [[0.1], [0.1, 0.2]]}},
        {"noise_share": {"beta": "much"}},
        {"clipped_share": 0.1},
        {"clipped_share_sd": 0.1},
        {"clipped_share": math.nan, "clipped_share_sd": 0.1},
        {"clipped_share": "some", "clipped_share_sd": 0.1},
        {"clipped_share": 0.1, "clipped_share_sd": -0.1},
        {"clipped_share": True, "clipped_share_sd": 0.1},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(change):
    with pytest.raises(ResultError, match=next(iter(change))):
        make_quality(**change)


def test_a_fit_that_did_not_converge_must_say_so():
    with pytest.raises(ResultError, match="not converged, but gives no reasons"):
        make_quality(converged=False)


@pytest.mark.parametrize("values", [{}, {"method": "x"}, None, make_quality().to_dict() | {"more": 1}])
def test_other_data_are_refused(values):
    with pytest.raises(ResultError, match="exactly the fields"):
        Quality.from_dict(values)


def test_numbers_of_numpy_become_plain_ones():
    quality = make_quality(
        rounds=np.int64(3), converged=np.bool_(True), clipped_share=np.float32(0.5), clipped_share_sd=1
    )
    assert json.loads(quality.to_json())["clipped_share"] == 0.5
    assert quality.converged is True


def test_rounding_beyond_the_ends_is_taken_for_the_ends():
    assert make_quality(noise_share={"beta": [-1e-12, 1.0 + 1e-12]}).noise_share["beta"].tolist() == [0.0, 1.0]


def test_share_of_noise():
    np.testing.assert_allclose(share_of_noise([[1.0, 2.0]], [[2.5, 2.0]]), [[0.6, 0.0]])
    assert share_of_noise(2.0, 1.9999).tolist() == 0.0
    assert share_of_noise(0.0, 0.0).tolist() == 0.0


def test_flagged_means_that_there_are_reasons():
    assert not make_quality().flagged
    assert make_quality(reasons=[REASON]).flagged
    assert make_quality(reasons=[REASON]).reasons == (REASON,)


@pytest.mark.parametrize(("estimate", "shown"), [(-0.1, 0.0), (0.003, 0.003), (1.1, 1.0), (None, None)])
def test_clipped_is_a_share(estimate, shown):
    assert make_quality(clipped_share=estimate, clipped_share_sd=None if estimate is None else 0.1).clipped == shown


RUN = {"epsilon": 1.0, "delta": 1e-6, "num_records": 10_000}


class TestAdvice:
    def test_the_worst_entry_is_named_by_its_label(self):
        labels = {"dims": {"beta": ["coefficient"]}, "coords": {"coefficient": ["intercept", "age", "größe"]}}
        assert make_quality().worst_noise() == ("beta[1]", 0.6)
        assert make_quality(**labels).worst_noise() == ("beta[age]", 0.6)
        assert "60 % of the interval of beta[age]" in make_quality(**labels).advice(**RUN)
        assert "of an interval (beta[age])" in str(make_quality(**labels))
        assert make_quality(noise_share={"covariance": [[0.0, 0.5], [0.1, 0.2]]}).worst_noise() == (
            "covariance[0, 1]",
            0.5,
        )
        assert make_quality(noise_share={"sigma": 0.3}).worst_noise() == ("sigma", 0.3)

    @pytest.mark.parametrize("noise", [0.6, 1.0, 2.3, 40.0])
    def test_its_numbers_hold_where_the_noise_is_computed(self, noise):
        """s = k/√(n·μ) posterior sds; the advice's ε and n give s/2, and the share of s/2 is the one it names."""

        def share(s):
            return 1.0 - 1.0 / math.hypot(1.0, s)

        n, mu = RUN["num_records"], gaussian_mu(1.0, 1e-6)
        constant = noise * math.sqrt(n * mu)
        text = make_quality(noise_share={"beta": share(noise)}).advice(**RUN)
        larger = gaussian_epsilon(4.0 * mu, 1e-6)
        assert f"or ε = {larger:.3g};" in text
        by_budget = share(constant / math.sqrt(n * gaussian_mu(larger, 1e-6)))
        by_records = share(constant / math.sqrt(4 * n * mu))
        assert by_budget == pytest.approx(by_records, rel=1e-9) == pytest.approx(share(noise / 2.0), rel=1e-9)
        assert text.startswith(f"{as_percent(share(noise))} of the interval of beta is noise")
        assert f"it would be {as_percent(1.0 - share(noise))} as wide" in text
        assert f"4 times the records ({4 * n:,})" in text
        assert text.count(f"then be {as_percent(by_records)}.") == 1

    def test_all_noise_and_next_to_none(self):
        assert "100 % of the interval of beta is noise" in make_quality(noise_share={"beta": 1.0}).advice(**RUN)
        little = make_quality(noise_share={"beta": [0.04, 0.0]}).advice(**RUN)
        assert "at most 4 % of an interval (beta[0])" in little
        assert "not known" in make_quality(noise_share={}).advice(**RUN)
        assert make_quality(noise_share={"beta": [0.004, 0.0]}).advice(**RUN).startswith("under 1 % of an interval")


def test_text():
    text = str(make_quality(**FLAGGED))
    for part in (
        "Fit: DP-Laplace did not converge in 7 rounds; flagged (2)",
        "Privacy noise: at most 60 % of an interval (beta[1])",
        "Held by the prior only: beta[größe]; 0.9·beta[age] − 0.4·sigma",
        "Clipped records: about 0 % (± 0.2 %) in the final sums",
        "Note: Two columns",
        f"Reason: {REASON}",
        "R̂ and ESS are those of independent draws",
    ):
        assert part in text, part
    calm = str(make_quality(rounds=1, independent_draws=False))
    assert calm.startswith("Fit: DP-Laplace converged in 1 round; not flagged\n")
    for word in ("Reason", "prior", "Clipped", "R̂", "None"):
        assert word not in calm


# --------------------------------------------------------------------------------------------------- in a posterior


def test_a_posterior_hands_it_on():
    posterior = fitted(make_quality(**FLAGGED))
    assert_same(pickle.loads(pickle.dumps(posterior)), posterior)
    assert Quality.from_dict(json.loads(posterior.to_arviz().attrs["quality"])) == posterior.quality
    assert json.loads(make_posterior().to_arviz().attrs["quality"]) is None


@pytest.mark.parametrize(
    "quality",
    [
        "good",
        make_quality(noise_share={}),
        make_quality(noise_share={"sigma": 0.1, "beta": [0.1, 0.2], "covariance": np.zeros((2, 2))}),
        make_quality(noise_share={"sigma": 0.1, "beta": [0.1, 0.2, 0.3]}),
    ],
)
def test_a_quality_of_other_parameters_is_refused(quality):
    with pytest.raises(ResultError, match="quality"):
        fitted(quality)


def test_each_reason_is_a_warning():
    posterior = fitted(make_quality(**FLAGGED))
    assert posterior.warnings == FLAGGED["reasons"]
    with pytest.warns(DPMCMCWarning, match="did not converge"):
        posterior.summary()
    assert f"Warning: {REASON}" in str(posterior)
    assert "2 warnings" in repr(posterior)


@pytest.mark.parametrize("size", [{"num_chains": 1}, {"num_draws": 3}, {"num_draws": 5}, {"constant": True}], ids=str)
def test_independent_draws_are_not_judged_as_chains(size):
    assert fitted(**size).warnings == ()
    # The twin: chains of the same draws are.
    assert fitted(make_quality(independent_draws=False), **size).warnings != ()


def test_draws_that_are_no_numbers_are_named_without_talk_of_chains():
    draws = dict(make_posterior().draws) | {"sigma": np.full((4, 50), np.inf)}
    (text,) = fitted(draws=draws).warnings
    assert "infinite" in text
    assert "chain" not in text


class TestSummary:
    SHARES = ("sigma", "beta[age]", "covariance[1, 1]")

    def test_it_has_the_shares_in_their_rows(self):
        summary = fitted().summary(round_to="none")
        assert summary.loc[list(self.SHARES), "noise_share"].tolist() == [0.1 + 0.2, 0.6, 1 / 3]
        assert fitted().summary().loc["covariance[1, 1]", "noise_share"] == 0.333
        assert fitted().summary(round_to=4).loc["covariance[1, 1]", "noise_share"] == 0.3333
        assert Quality.from_dict(json.loads(summary.attrs["quality"])) == make_quality()
        assert "independent draws" in summary.attrs["notes"][0]

    @pytest.mark.parametrize(
        ("options", "shares"),
        [
            ({"var_names": ["beta"]}, [0.0, 0.6, 0.05]),
            ({"var_names": ["cov"], "filter_vars": "like"}, [0.0, 0.1, 0.1, 0.333]),
            ({"kind": "diagnostics", "var_names": ["sigma"]}, [0.3]),
            pytest.param(
                {"stat_funcs": {"least": np.min}, "extend": False, "var_names": ["sigma"]},
                [0.3],
                marks=pytest.mark.skipif(ARVIZ_1, reason="an option of ArviZ 0.x"),
            ),
            pytest.param(
                {"ci_kind": "eti", "ci_prob": 0.5, "var_names": ["sigma"]},
                [0.3],
                marks=pytest.mark.skipif(not ARVIZ_1, reason="options of ArviZ 1.x"),
            ),
        ],
    )
    def test_whatever_rows_were_asked_for(self, options, shares):
        assert fitted().summary(**options)["noise_share"].tolist() == shares

    def test_other_formats_have_the_attributes(self):
        for fmt in ("long", "xarray"):
            table = fitted().summary(fmt=fmt)
            assert json.loads(table.attrs["quality"])["rounds"] == 7
            assert table.attrs["notes"]

    def test_names_that_arviz_cannot_hold(self):
        names = {"a/b": 0.25, "a.b": 0.5, "chain": 0.75}
        draws = {name: np.random.default_rng(1).normal(size=(2, 50)) for name in names}
        summary = fitted(make_quality(noise_share=names), draws=draws, dims={}, coords={}).summary()
        assert summary["noise_share"].to_dict() == {"a.b_": 0.25, "a.b": 0.5, "chain_": 0.75}

    def test_draws_that_stand_still_in_part(self):
        draws = {name: value.copy() for name, value in make_posterior().draws.items()}
        draws["covariance"][..., 0, 1] = 0.0
        summary = fitted(draws=draws).summary()
        assert summary.loc["covariance[1, 1]", "noise_share"] == 0.333
        assert np.isnan(summary.loc["covariance[0, 1]", "ess_bulk"])

    def test_without_quality_or_independence_nothing_is_added(self):
        assert "noise_share" not in make_posterior().summary()
        assert "quality" not in make_posterior().summary().attrs
        chains = fitted(make_quality(independent_draws=False)).summary()
        assert "noise_share" not in chains
        assert chains.attrs["notes"] == ()


def test_a_posteriors_text_has_the_labels_and_the_advice():
    text = str(fitted(make_quality(**FLAGGED)))
    for part in (
        "did not converge in 7 rounds",
        "60 % of the interval of beta[age]",
        "(4,000) or ε = 2.12",
        "beta[größe]",
    ):
        assert part in text, part
    assert "Reason:" not in text
    assert text.count(REASON) == 1
    free = str(fitted(kind="noise-free"))
    assert "at most 60 % of an interval (beta[age])" in free


def test_independent_draws_are_not_called_chains():
    posterior = fitted()
    for text in (str(posterior), repr(posterior)):
        assert "200 draws" in text
        assert "chain" not in text
        assert "warm-up" not in text
    assert "4 chains × 50 draws after 0 of warm-up" in str(fitted(make_quality(independent_draws=False)))


def test_table_for_a_terminal():
    from rich.console import Console

    console = Console(file=io.StringIO(), width=80)
    console.print(summary_table(fitted(make_quality(**FLAGGED))))
    shown = " ".join(console.file.getvalue().split())
    assert "noise" in shown
    assert "60 %" in shown
    assert "…" not in shown
    assert "r_hat" not in shown  # it would look like praise
    for text in ("200 draws", "flagged (2)", "Held by the prior only: beta[größe]", f"Warning: {REASON}"):
        assert text in shown, text
    columns = summary_rows(fitted(make_quality(independent_draws=False))).columns
    assert "r_hat" in columns
    assert "noise_share" not in columns
