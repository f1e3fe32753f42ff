"""``dpmcmc.sample`` without a sampler, with the real curator: what it returns, charges, refuses and survives.

On the paper's banana with 20,000 records at ε = 15, and on regressions and other models of the tests of DP-Laplace.
"""

import json
import re
import warnings
from fractions import Fraction
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc import models
from dpmcmc.curator import Curator
from dpmcmc.errors import BudgetExceededError, DataError, DPMCMCError, DPMCMCWarning, QueryError, RunError
from dpmcmc.inference import tuned
from dpmcmc.inference.stepwise import BUDGET, ChainOutcome
from dpmcmc.queries import ClipCount, Gradient, LogRatio, ScoreMoments
from dpmcmc.tuning import RatioBound
from tests.inference.test_laplace import fail_at_look, log, same, scale_table  # noqa: F401
from tests.inference.test_sampling import count_compilations
from tests.inference.test_scale import as_text, in_a_process, write
from tests.streams import stream_of

NUM_RECORDS, EPSILON, DELTA = 20_000, 15.0, 1e-6
BANANA = models.Banana()
RECORDS = BANANA.generate(jax.random.key(1), NUM_RECORDS)
SURROGATE = "auto: a curved surrogate"
CHAIN = "auto: a chain with exact accept tests on a surrogate"


def run(model=BANANA, data=RECORDS, **options):
    """A run whose warnings do not matter, without a word about a sampler."""
    options = {"epsilon": EPSILON, "delta": DELTA, "seed": 3, "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return dpmcmc.sample(model, data, **options)


@pytest.fixture(scope="module")
def seeded():
    return run()


@pytest.fixture(scope="module")
def chained():
    return run(exact=True)


def recomputed(statement):
    """μ, from what the statement says was asked."""
    return sum(number / (2.0 * statement.noise_multipliers[label] ** 2) for label, number in statement.queries.items())


def answers(log):  # noqa: F811
    """What was asked, if each answer was charged, at its price, directly before its looks at the records; else raise.

    Second moments are two looks for one charge: the score sum, which is a gradient, and the moments around it.
    """
    asked, place = [], 0
    while place < len(log):
        event, mu, _ = log[place]
        assert event == "charge", "a look at the records that nobody has paid for"
        looks = [entry[1] for entry in log[place + 1 : place + 3] if entry[0] == "look"]
        if [type(query) for query in looks] != [Gradient, ScoreMoments]:
            looks = looks[:1]
        assert looks, "a charge for nothing"
        query = looks[-1]
        # (Log-ratios have prices of their own.)
        assert isinstance(query, LogRatio) or float(mu) == pytest.approx(query.mu, rel=1e-12)
        asked.append(query)
        place += 1 + len(looks)
    return asked


# ------------------------------------------------------------------ what comes back


def test_a_private_run_without_a_sampler(log, tmp_path):  # noqa: F811
    posterior = run(seed=None)
    assert posterior.sampler == "auto"
    assert posterior.draws["theta"].shape == (4, 1000, 2)
    assert np.all(np.isfinite(posterior.draws["theta"]))
    quality = posterior.quality
    assert quality.method == SURROGATE
    assert quality.independent_draws
    assert any("drawn from a surrogate of degree" in note for note in quality.notes)
    statement = posterior.privacy
    statement.check()
    assert statement.private
    assert statement.recomputed_epsilon() <= statement.epsilon == statement.budget_epsilon == EPSILON
    assert (statement.delta, statement.num_records) == (DELTA, NUM_RECORDS)
    assert recomputed(statement) == pytest.approx(statement.mu, rel=1e-6)
    assert sum(statement.queries.values()) == len(answers(log))
    assert statement.adaptive.startswith("Which question was asked next")
    assert "chain" not in statement.adaptive
    (budget,) = {id(budget): budget for event, _, budget in log if event == "charge"}.values()
    assert budget.spent <= statement.mu <= budget.total * (1 + 1e-12)
    assert budget.spent > 0.98 * budget.total
    # Nothing without noise: neither records nor anything else of theirs.
    tree = posterior.to_arviz()
    groups = set(tree.groups()) if not hasattr(tree, "children") else {name.strip("/") for name in tree.groups}
    assert not {"observed_data", "constant_data", "log_likelihood"} & groups
    assert posterior.sample_stats == {}
    posterior.save(tmp_path / "posterior.nc")
    loaded = dpmcmc.Posterior.load(tmp_path / "posterior.nc")
    assert (loaded.quality, loaded.privacy) == (quality, statement)
    assert same(loaded, posterior)


def test_the_draws_are_near_the_exact_posterior(seeded):
    """In straight coordinates, in exact sds; at this budget noise moves and widens them by about a tenth."""
    location, scale = BANANA.straight_posterior_not_private(RECORDS)
    theta = seeded.draws["theta"].reshape(-1, 2)
    straight = np.column_stack([theta[:, 0], theta[:, 1] + BANANA.curvature * theta[:, 0] ** 2])
    standard = (straight - location) / scale
    assert np.all(np.abs(standard.mean(axis=0)) < 0.6)
    assert np.all(np.abs(standard.std(axis=0) - 1.0) < 0.4)


def test_exact_runs_return_a_chain(chained):
    assert chained.sampler == "auto"
    assert chained.quality.method == CHAIN
    assert not chained.quality.independent_draws
    rates = chained.sample_stats["acceptance_rate"]
    assert rates.shape == chained.draws["theta"].shape[:2]
    assert set(np.unique(rates)) == {0.0, 1.0}
    assert 0.0 < chained.acceptance_rate < 1.0
    # A move that is refused leaves the chain where it was, one that is accepted does not.
    moved = np.any(np.diff(chained.draws["theta"], axis=1) != 0, axis=2)
    assert np.array_equal(moved, rates[:, 1:] == 1.0)
    assert all(np.all(share == 0.0) for share in chained.quality.noise_share.values())
    assert any("% of the moves were accepted" in note for note in chained.quality.notes)


def test_statements_of_exact_runs_recompute_to_their_budget(chained):
    statement = chained.privacy
    statement.check()
    assert statement.queries["log_ratio"] > 0
    assert recomputed(statement) == pytest.approx(statement.mu, rel=1e-6)
    assert statement.recomputed_epsilon() <= EPSILON


def test_every_release_of_a_chain_is_charged_before_its_look(log):  # noqa: F811
    posterior = run(exact=True, seed=5)
    # The filter may refuse a last step: charged and looked at is none of that.
    asked = answers(log)
    assert {ScoreMoments, ClipCount, LogRatio} <= {type(query) for query in asked}
    others = sum(number for kind, number in posterior.privacy.queries.items() if kind != "log_ratio")
    assert len([query for query in asked if not isinstance(query, LogRatio)]) == others
    assert float(sum(mu for event, mu, _ in log if event == "charge")) == pytest.approx(posterior.privacy.mu, rel=1e-12)
    # Twins: a look that comes first, one too many, a charge too many, and one that is too small.
    (charge, mu, budget), look = log[:2]
    for wrong in ([look, log[0]], [*log[:2], look], [log[0], *log[:2]], [(charge, 0.5 * mu, budget), look]):
        with pytest.raises(AssertionError):
            answers(wrong)


@pytest.mark.slow
def test_a_chain_is_thinned_to_the_draws_that_are_asked_for(chained):
    """Its steps are what the budget buys, whatever is asked for; with more than there are, all of them come."""
    fewer, steps = run(exact=True, num_steps=40), chained.num_draws
    assert fewer.privacy == chained.privacy
    thin = -(-steps // 40)
    assert fewer.num_draws == steps // thin <= 40
    kept = chained.draws["theta"][:, -fewer.num_draws * thin :]
    assert np.array_equal(fewer.draws["theta"], kept[:, thin - 1 :: thin])
    rates = chained.sample_stats["acceptance_rate"][:, -fewer.num_draws * thin :]
    means = rates.reshape(4, -1, thin).mean(axis=2)
    np.testing.assert_allclose(fewer.sample_stats["acceptance_rate"], means, rtol=1e-12)
    assert any(f"every draw stands for {thin} steps" in note for note in fewer.quality.notes)


def made_up_chain(share, num_steps=9):
    """A chain that moved in every other step, and what share of its log-ratios may be clipped."""
    accepted = np.tile([[True], [False]], (num_steps, 4))[:num_steps]
    positions = np.arange(num_steps * 8.0).reshape(num_steps, 4, 2)
    moved = np.ones_like(accepted)
    outcome = ChainOutcome(positions, accepted, moved, positions[-1], 4 * num_steps, Fraction(1), BUDGET, 2.0)
    return tuned._Chain(outcome, RatioBound(4.0, share))


@pytest.mark.parametrize(
    ("share", "flagged", "text"),
    [
        (2e-4, False, r"At most about 2 records in 10,000 had their log-ratio clipped, by noised counts\.$"),
        (0.0033, False, r"At most about 33 records .* \(2 have done no harm to skewed data\)\.$"),
        (0.02, True, r"As many as 2e\+02 records in 10,000 may .* Use a larger ε or more records\.$"),
        (np.inf, True, "nothing like the likelihood .* Use a larger ε, or other parameters"),
    ],
)
def test_clipped_log_ratios_are_told_and_flagged_if_many(share, flagged, text, chained):
    reasons, notes = tuned._said_of_chain(SimpleNamespace(num_chains=4), made_up_chain(share), 1)
    assert any(re.search(text, one) for one in (reasons if flagged else notes))
    assert ("clipped" in "".join(reasons)) == flagged
    assert any("log-ratio clipped" in note for note in chained.quality.notes)  # and it is said of real ones


@pytest.mark.parametrize(
    ("wanted", "kept"), [(None, range(2, 9)), (8, range(2, 9)), (4, (4, 6, 8)), (3, (5, 8)), (1, (8,))]
)
def test_draws_of_a_chain_are_equally_far_apart(wanted, kept):
    """Of nine steps, seven after the warm-up; the last ones, if they cannot be divided."""
    chain = made_up_chain(2e-4)
    positions, accepted, thin = chain.kept(wanted)
    assert np.array_equal(positions, chain.outcome.positions[list(kept)])
    assert accepted.shape == positions.shape[:2]
    assert np.all((accepted == 0.5) if thin == 2 else (accepted <= 1.0))


def test_numbers_of_chains_and_draws_of_a_surrogate_are_free(seeded):
    other = run(num_chains=2, num_steps=37)
    assert other.draws["theta"].shape == (2, 37, 2)
    assert other.privacy == seeded.privacy


def test_seeded_runs_repeat_and_say_so(seeded, chained):
    again = run()
    assert same(seeded, again)
    assert seeded.quality == again.quality
    assert same(chained, run(exact=True))
    assert not same(seeded, run(seed=4))
    for posterior in (seeded, chained):
        assert not posterior.privacy.private
        posterior.privacy.check()


def test_a_regression_is_a_gaussian_and_what_is_near_is_said():
    table = {name: column.astype(float) for name, column in scale_table().items()}
    posterior = run(models.LogisticRegression(["a", "b", "c"]), table, epsilon=2.0)
    assert posterior.quality.method == "auto: a Gaussian (DP-Laplace)"
    assert posterior.quality.independent_draws
    assert not posterior.quality.flagged
    assert recomputed(posterior.privacy) == pytest.approx(posterior.privacy.mu, rel=1e-6)


# ------------------------------------------------------------------ devices, streams, compilation


@pytest.mark.slow
def test_draws_do_not_depend_on_devices(seeded):
    script = (
        "from tests.inference.test_auto import *; print(json.dumps([as_text(run(devices=2).draws['theta'][:, :20])]))"
    )
    texts = in_a_process(script, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert json.loads(json.dumps(texts)) == [as_text(seeded.draws["theta"][:, :20])]


def test_streamed_draws_are_those_in_memory(tmp_path, monkeypatch):
    from dpmcmc.curator import streaming

    monkeypatch.setattr(streaming, "CHUNK_ROWS", 4096)
    records, model = scale_table(), models.LogisticRegression(3)
    streamed = run(model, write(tmp_path / "table.parquet", records), epsilon=1.0)
    assert same(streamed, run(model, records, epsilon=1.0))
    records["X"][7, 1] += 30.0
    assert not same(streamed, run(model, records, epsilon=1.0))  # twin: another row gives other draws


@pytest.mark.slow
def test_a_survey_and_a_chain_of_streamed_records_are_those_in_memory(chained, tmp_path, monkeypatch):
    """Scores with second moments, and log-ratios, which regressions do not ask for."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from dpmcmc.curator import streaming

    monkeypatch.setattr(streaming, "CHUNK_ROWS", 8192)
    columns = {"a": np.asarray(RECORDS)[:, 0], "b": np.asarray(RECORDS)[:, 1]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "records.parquet", row_group_size=6000)
    assert same(run(data=stream_of(tmp_path / "records.parquet", ["a", "b"]), exact=True), chained)


def compiled_by(*arguments, **options):
    """Names of what a run compiles: before its first charge, and after."""
    spend, at_first = dpmcmc.Budget.spend, []

    def charging(self, *given, **slack):
        at_first.append(len(names))
        spend(self, *given, **slack)

    with pytest.MonkeyPatch.context() as patch, count_compilations() as names:
        patch.setattr(dpmcmc.Budget, "spend", charging)
        run(*arguments, **options)
    return names[: at_first[0]], names[at_first[0] :]


def test_everything_is_compiled_before_anything_is_charged():
    """In a process of its own, where nothing is compiled yet, however small; 3 chains, so that moves come in parts."""
    script = (
        "from tests.inference.test_auto import *; "
        "print(json.dumps([compiled_by(models.Banana(curvature=a), num_chains=3, num_steps=31, exact=exact) "
        "for a, exact in ((20.0, True), (19.0, False))]))"
    )
    for before, after in in_a_process(script):
        assert {"total", "propose"} <= set(before)
        assert after == []


def test_nothing_is_compiled_for_a_survey_that_there_will_not_be(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    def prepared(*arguments, **options):
        kinds = set()
        monkeypatch.setattr(Curator, "prepare", lambda self, query, *rest, **more: kinds.add(query.kind))
        with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
            run(*arguments, **options)
        return kinds

    monkeypatch.setattr(tuned, "_gaussian", interrupted)  # what comes after the queries are compiled
    model, table = models.PoissonRegression(3), scale_table()
    assert prepared(model, table) == prepared(model, table, sampler=dpmcmc.DPLaplace())
    assert "score_moments" in prepared(model, table, exact=True)  # twins: where there will be one
    assert "score_moments" in prepared()
    walks = []
    monkeypatch.setattr(tuned, "Walk", lambda *rest: walks.append(rest))
    prepared(data=RECORDS[:2000], epsilon=2.0)  # too few records for one
    assert walks == []


# ------------------------------------------------------------------ refused, before anything is spent

BAD = {
    "no epsilon": ({"epsilon": None}, QueryError, "epsilon"),
    "no delta": ({"delta": None}, QueryError, "delta"),
    "negative epsilon": ({"epsilon": -1.0}, DPMCMCError, "epsilon"),
    "delta of one": ({"delta": 1.0}, DPMCMCError, "delta"),
    "warm-up": ({"num_warmup": 10}, QueryError, 'num_warmup = 10 means nothing to sampler="auto"'),
    "thin": ({"thin": 2}, QueryError, 'thin = 2 means nothing to sampler="auto"'),
    "init for chains": ({"init": np.zeros((4, 2))}, QueryError, r'init has shape \(4, 2\); sampler="auto"'),
    "init too short": ({"init": np.zeros(1)}, QueryError, 'init has shape .* sampler="auto"'),
    "init nan": ({"init": np.full(2, np.nan)}, QueryError, "init has NaN"),
    "init text": ({"init": "zero"}, QueryError, "init is not numeric"),
    "init of other names": ({"init": {"slope": 0.0}}, QueryError, "init does not fit"),
    "no draws": ({"num_steps": 0}, DPMCMCError, "num_steps"),
    "another word": ({"sampler": "automatic"}, QueryError, 'one of "auto", .*got str'),
    "exact DPLaplace": (
        {"sampler": dpmcmc.DPLaplace(), "exact": True},
        QueryError,
        'exact = True goes with sampler="auto" only; leave it out for DP-Laplace',
    ),
    "exact DPHMC": (
        {
            "sampler": dpmcmc.DPHMC(0.01, 3, 3.0, 3.0, ratio_noise_multiplier=3.0, gradient_noise_multiplier=9.0),
            "exact": True,
        },
        QueryError,
        'exact = True goes with sampler="auto" only; leave it out for DP-HMC',
    ),
    "one record, exact": ({"data": RECORDS[:1], "exact": True}, DataError, "give at least 2"),
    "few records, exact": (
        {"data": RECORDS[:2000], "epsilon": 2.0, "exact": True},
        BudgetExceededError,
        "exact = True takes a surrogate of the posterior first, for which 2000 records",
    ),
    "two records": ({"data": RECORDS[:2]}, BudgetExceededError, "2 records, 2 parameters.* takes .* records"),
    "few records": ({"data": RECORDS[:30], "epsilon": 1.0}, BudgetExceededError, "30 records.* takes .* records"),
}


@pytest.mark.parametrize(("change", "error", "names"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_before_anything_is_spent(change, error, names, log):  # noqa: F811
    with pytest.raises(error, match=names):
        run(**change)
    assert log == []


def test_starting_points(seeded):
    vector, named = (run(init=init, num_steps=50) for init in (np.array([1.0, 2.0]), {"theta": np.array([1.0, 2.0])}))
    assert same(vector, named)
    assert not np.array_equal(vector.draws["theta"], seeded.draws["theta"][:, :50])


# ------------------------------------------------------------------ ends before its time


@pytest.mark.parametrize("number", [1, 40])
@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted before there were any draws"),
        (RuntimeError("quotes 'Johannes-1234'"), RunError, "of an error of type RuntimeError"),
    ],
    ids=["ctrl-c", "foreign"],
)
def test_what_ends_a_search_says_that_the_budget_is_spent(raised, expected, text, number, monkeypatch):
    fail_at_look(monkeypatch, number, raised)
    with pytest.raises(expected, match=text) as caught:
        run()
    assert "the whole budget counts as spent" in str(caught.value)
    assert "Johannes" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("place", ["describe_prior", "largest_form", "prepare_chain"])
def test_ctrl_c_before_the_first_question_spends_nothing(place, monkeypatch, log):  # noqa: F811
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuned, place, interrupted)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run()
    assert log == []


def test_ctrl_c_before_the_first_charge_spends_nothing(monkeypatch, log):  # noqa: F811
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Curator, "_draw", interrupted)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run()
    assert log == []


def fail_at_step(monkeypatch, number, error):
    """Let the pass of this number for log-ratios of a chain raise, after it was charged."""
    total, looks = Curator._host_total, []

    def failing(self, way, query, *rest):
        looks.extend([None] if isinstance(query, LogRatio) else [])
        if isinstance(query, LogRatio) and len(looks) == number:
            raise error
        return total(self, way, query, *rest)

    monkeypatch.setattr(Curator, "_host_total", failing)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(KeyboardInterrupt(), "it was interrupted"), (ValueError("secret 17"), "of an error of type ValueError")],
    ids=["ctrl-c", "foreign"],
)
def test_a_chain_that_ends_early_is_kept_and_said_to_have(error, reason, monkeypatch):
    fail_at_step(monkeypatch, 21, error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = dpmcmc.sample(BANANA, RECORDS, epsilon=EPSILON, delta=DELTA, seed=3, progress=False, exact=True)
    assert posterior.draws["theta"].shape == (4, 15, 2)  # of 20 steps, the first quarter is left out
    texts = [str(warning.message) for warning in caught if issubclass(warning.category, DPMCMCWarning)]
    assert (
        f"the run ended after 15 draws of each chain, because {reason}; these are returned, marked incomplete; the "
        "whole budget counts as spent" in texts
    )
    assert f"The chain ended early, because {reason}." in posterior.quality.notes
    assert posterior.privacy.interrupted
    assert posterior.privacy.epsilon == EPSILON
    posterior.privacy.check()
    assert recomputed(posterior.privacy) == pytest.approx(posterior.privacy.mu, rel=1e-6)


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted before there were any draws"),
        (ValueError("secret 17"), RunError, "because of an error of type ValueError"),
    ],
    ids=["ctrl-c", "foreign"],
)
def test_a_chain_whose_first_step_fails_has_no_draws(error, expected, text, monkeypatch):
    fail_at_step(monkeypatch, 1, error)
    with pytest.raises(expected, match=text) as caught:
        run(exact=True)
    assert "the whole budget counts as spent" in str(caught.value)
    assert caught.value.__context__ is None


# ------------------------------------------------------------------ bad data


NASTY = {
    "a tenth missing": np.where(np.arange(NUM_RECORDS)[:, None] < NUM_RECORDS // 10, np.nan, RECORDS),
    "all the same": np.ones_like(RECORDS),
    "hopelessly huge": 1e140 * RECORDS,
}


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "label",
    [pytest.param(label, marks=[pytest.mark.slow] if "huge" in label or "same" in label else []) for label in NASTY],
)
def test_bad_data_give_a_posterior_flagged_where_it_is_hopeless(label, exact, monkeypatch):
    """Never an error of linear algebra: after the first charge it would cost the whole budget."""
    monkeypatch.setattr(tuned, "_MOST_STEPS", 100)
    posterior = run(data=NASTY[label], num_steps=100, exact=exact)
    assert not np.any(np.isnan(posterior.draws["theta"]))
    posterior.privacy.check()
    assert posterior.quality.flagged or "huge" not in label


@pytest.mark.parametrize("exact", [False, True])
def test_a_table_of_nothing_but_missing_values_is_refused_by_the_record_check(exact, log):  # noqa: F811
    with pytest.raises(RunError, match=r"because about \d+% of the records count as nothing"):
        run(data=np.full_like(RECORDS, np.nan), exact=exact)
    assert [event for event, *_ in log] == ["charge", "look"]


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_three_columns_of_huge_values_do_not_crash(exact, monkeypatch):
    """A mean with a standard covariance and a wide prior: the scores are a million times as long as expected."""
    model = models.GaussianMean(np.eye(3))
    data = 1e6 * np.random.default_rng(0).normal(size=(NUM_RECORDS, 3))
    monkeypatch.setattr(tuned, "_MOST_STEPS", 100)
    posterior = run(model, data, epsilon=EPSILON if exact else 1.0, exact=exact)
    assert exact == any("There is no chain, though exact=True" in reason for reason in posterior.quality.reasons)
    assert not any(np.any(np.isnan(draws)) for draws in posterior.draws.values())
    assert posterior.quality.flagged
