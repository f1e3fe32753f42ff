"""``dpmcmc.sample`` without a sampler, with the real curator: what it returns, charges, refuses and survives.

On the paper's banana with 20,000 records at ε = 15, and on regressions and other models of the tests of DP-Laplace.
"""

import json
import warnings

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc import models
from dpmcmc.curator import Curator
from dpmcmc.errors import BudgetExceededError, DPMCMCError, DPMCMCWarning, QueryError, RunError
from dpmcmc.inference import tuned
from tests.inference.test_laplace import fail_at_look, log, same, scale_table  # noqa: F401
from tests.inference.test_sampling import count_compilations
from tests.inference.test_scale import as_text, in_a_process, write

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
    # Each answer is charged before the records are looked at; score and second moments are two looks for one charge.
    charges = [mu for event, mu, _ in log if event == "charge"]
    assert sum(statement.queries.values()) == len(charges)
    assert log[0][0] == "charge"
    looks = [query for event, query, _ in log if event == "look"]
    assert len(charges) <= len(looks) <= 2 * len(charges)
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


def test_everything_is_compiled_before_anything_is_charged(monkeypatch):
    """Of an exact run, all that sees records: its chain is as long as the budget made it, and its draws come last."""
    model, spend, at_first = models.Banana(curvature=19.0), dpmcmc.Budget.spend, []  # used nowhere else

    def charging(self, *arguments, **options):
        at_first.append(len(names))
        spend(self, *arguments, **options)

    with monkeypatch.context() as patch, count_compilations() as names:
        patch.setattr(dpmcmc.Budget, "spend", charging)
        run(model)
    assert "total" in names
    assert names[at_first[0] :] == []
    del at_first[:]
    with monkeypatch.context() as patch, count_compilations() as names:
        patch.setattr(dpmcmc.Budget, "spend", charging)
        run(model, exact=True, seed=5)
    assert "total" not in names[at_first[0] :]


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


# ------------------------------------------------------------------ bad data


def test_a_table_without_values_is_refused_by_the_record_check(log):  # noqa: F811
    with pytest.raises(RunError, match=r"because about \d+% of the records count as nothing"):
        run(data=np.full_like(RECORDS, np.nan))
    assert [event for event, *_ in log] == ["charge", "look"]


NASTY = {
    "a tenth missing": np.where(np.arange(NUM_RECORDS)[:, None] < NUM_RECORDS // 10, np.nan, RECORDS),
    "hopelessly huge": 1e140 * RECORDS,
}


@pytest.mark.parametrize("label", NASTY)
def test_bad_data_give_a_posterior_flagged_where_it_is_hopeless(label):
    """Never an error of linear algebra: after the first charge it would cost the whole budget."""
    posterior = run(data=NASTY[label], num_steps=100)
    assert not np.any(np.isnan(posterior.draws["theta"]))
    posterior.privacy.check()
    assert posterior.quality.flagged or "huge" not in label


def test_three_columns_of_huge_values_do_not_crash():
    """A mean with a standard covariance and a wide prior: the scores are a million times as long as expected."""
    model = models.GaussianMean(np.eye(3))
    data = 1e6 * np.random.default_rng(0).normal(size=(NUM_RECORDS, 3))
    posterior = run(model, data, epsilon=1.0)
    assert not any(np.any(np.isnan(draws)) for draws in posterior.draws.values())
    assert posterior.quality.flagged
