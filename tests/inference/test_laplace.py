"""``dpmcmc.sample`` by DPLaplace, with the real curator: what it returns, charges, refuses and survives."""

import json
import math
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from scipy import optimize, stats

import dpmcmc
from dpmcmc import models
from dpmcmc.curator import Curator
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DPMCMCError, DPMCMCWarning, ModelError, QueryError, RunError
from dpmcmc.inference import tuned as laplace
from dpmcmc.queries import WeightedGradient
from dpmcmc.tuning import Questions
from tests.inference.test_sampling import count_compilations
from tests.inference.test_scale import as_text, in_a_process, write

NUM_RECORDS = 20_011
EPSILON, DELTA = 1.0, 1e-6


def features():
    return np.random.default_rng(5).normal(size=(NUM_RECORDS, 3))


def outcomes(family):
    generator, predictor = np.random.default_rng(6), 0.3 + features() @ [0.5, -0.5, 0.2]
    match family:
        case "logistic":
            return (generator.random(NUM_RECORDS) < 1 / (1 + np.exp(-predictor))).astype(float)
        case "linear":
            return predictor + generator.normal(size=NUM_RECORDS)
        case "poisson":
            return generator.poisson(np.exp(predictor)).astype(float)
    return generator.poisson(np.exp(predictor) * generator.gamma(2.0, 0.5, NUM_RECORDS)).astype(float)


def numpyro_regression(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)


def own_likelihood(parameters, row):
    return dist.StudentT(6.0, parameters["mean"], parameters["scale"]).log_prob(row).sum()


def own_prior(parameters):
    return dist.Normal(0.0, 5.0).log_prob(parameters["mean"]).sum() + dist.HalfNormal(2.0).log_prob(parameters["scale"])


LOGISTIC = models.LogisticRegression(["a", "b", "c"])
DATA = {"X": features(), "y": outcomes("logistic")}


def case(name):
    match name:
        case "logistic":
            return LOGISTIC, DATA
        case "numpyro":
            data = {"x": features()[:, 0], "y": outcomes("linear")}
            return dpmcmc.from_numpyro(numpyro_regression, data), data
        case "own":
            return dpmcmc.Model(own_likelihood, own_prior, {"mean": (2,), "scale": "positive"}), features()[:, :2] + 1.0
    family = {
        "linear": models.LinearRegression,
        "poisson": models.PoissonRegression,
        "negative-binomial": models.NegativeBinomialRegression,
    }[name]
    return family(3), {"X": features(), "y": outcomes(name)}


CASES = ["logistic", "linear", "poisson", "negative-binomial", "numpyro", "own"]


def run(model=LOGISTIC, data=DATA, **options):
    """A run whose warnings do not matter."""
    options = {"epsilon": EPSILON, "delta": DELTA, "seed": 3, "progress": False} | options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return dpmcmc.sample(model, data, sampler=dpmcmc.DPLaplace(), **options)


def same(first, second):
    return all(np.array_equal(first.draws[name], second.draws[name]) for name in first.draws)


@pytest.fixture
def log(monkeypatch):
    """What happens, in order: ("charge", μ, budget) and ("look", query)."""
    events = []
    spend, total = dpmcmc.Budget.spend, Curator._host_total

    def charging(self, mu, **options):
        spend(self, mu, **options)
        events.append(("charge", mu, self))

    def looking(self, way, query, *rest):
        events.append(("look", query, None))
        return total(self, way, query, *rest)

    monkeypatch.setattr(dpmcmc.Budget, "spend", charging)
    monkeypatch.setattr(Curator, "_host_total", looking)
    return events


def fail_at_look(monkeypatch, number, error):
    """Let the pass of this number over the records raise."""
    total, looks = Curator._host_total, []

    def failing(self, *arguments):
        looks.append(None)
        if len(looks) == number:
            raise error
        return total(self, *arguments)

    monkeypatch.setattr(Curator, "_host_total", failing)


# ------------------------------------------------------------------ what comes back


def test_a_private_run(log, tmp_path):
    posterior = run(seed=None)
    assert {name: draws.shape for name, draws in posterior.draws.items()} == {
        "intercept": (4, 1000),
        "coefficients": (4, 1000, 3),
    }
    assert posterior.dims == {"coefficients": ("feature",)}
    assert tuple(posterior.coords["feature"]) == ("a", "b", "c")
    assert posterior.sampler == "DPLaplace()"
    assert all(np.all(np.isfinite(draws)) for draws in posterior.draws.values())
    quality = posterior.quality
    assert (quality.method, quality.independent_draws) == ("DP-Laplace", True)
    assert {name: shares.shape for name, shares in quality.noise_share.items()} == {
        "intercept": (),
        "coefficients": (3,),
    }
    statement = posterior.privacy
    statement.check()
    assert statement.private
    assert statement.recomputed_epsilon() <= statement.epsilon == statement.budget_epsilon == EPSILON
    assert (statement.delta, statement.num_records) == (DELTA, NUM_RECORDS)
    # Each answer is charged, then looked up in one pass over the records; nothing else is charged or looked at.
    assert [event for event, *_ in log] == ["charge", "look"] * (len(log) // 2)
    assert sum(statement.queries.values()) == len(log) // 2
    (budget,) = {id(budget): budget for event, _, budget in log if event == "charge"}.values()
    assert statement.mu == pytest.approx(budget.spent, rel=1e-15)
    assert statement.mu >= budget.spent
    assert 0.98 * budget.total < budget.spent <= budget.total
    posterior.save(tmp_path / "posterior.nc")
    loaded = dpmcmc.Posterior.load(tmp_path / "posterior.nc")
    assert loaded.quality == quality
    assert loaded.privacy == statement
    assert same(loaded, posterior)


def test_numbers_of_chains_and_draws():
    posterior = run(num_chains=2, num_steps=37)
    assert posterior.draws["coefficients"].shape == (2, 37, 3)
    # Draws are free: the statement is that of any other number.
    assert posterior.privacy == run(num_chains=1, num_steps=5).privacy


def test_draws_are_independent():
    """Lag-one correlations of 4000 draws: sd 1/√4000; off by more than 6 of them in 2e-9 of the times, of 4 entries."""
    draws = run().draws
    for series in (draws["intercept"], *np.moveaxis(draws["coefficients"], -1, 0)):
        assert abs(np.corrcoef(series[:, :-1].ravel(), series[:, 1:].ravel())[0, 1]) < 6 / math.sqrt(4000)


def test_seeded_runs_repeat_and_say_so():
    first, again, other = run(), run(), run(seed=4)
    assert same(first, again)
    assert not same(first, other)
    assert first.quality == again.quality
    assert not first.privacy.private
    first.privacy.check()
    assert not same(run(seed=None), run(seed=None))


def scale_table():
    return {"X": features().astype(np.float32), "y": outcomes("logistic").astype(np.float32)}


def scale_draws(data, **options):
    posterior = run(models.LogisticRegression(3), data, num_steps=20, **options)
    return np.concatenate([posterior.draws["intercept"][..., None], posterior.draws["coefficients"]], axis=-1)


@pytest.mark.slow
def test_draws_do_not_depend_on_devices():
    script = (
        "from tests.inference.test_laplace import *; "
        "print(json.dumps([as_text(scale_draws(scale_table(), devices=k)) for k in (1, 2)]))"
    )
    texts = in_a_process(script, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert json.loads(json.dumps(texts)) == [as_text(scale_draws(scale_table()))] * 2


def test_streamed_draws_are_those_in_memory(tmp_path, monkeypatch):
    from dpmcmc.curator import streaming

    monkeypatch.setattr(streaming, "CHUNK_ROWS", 4096)
    records = scale_table()
    streamed = scale_draws(write(tmp_path / "table.parquet", records))
    assert np.array_equal(streamed, scale_draws(records))
    records["X"][7, 1] += 30.0
    assert not np.array_equal(streamed, scale_draws(records))  # twin: another row gives other draws


# ------------------------------------------------------------------ compiled once, before anything is charged


def test_everything_is_compiled_before_anything_is_charged_and_nothing_twice(monkeypatch):
    model = models.LogisticRegression(["a", "b", "c"], prior_scale=1.7)  # used nowhere else
    spend, at_first = dpmcmc.Budget.spend, []

    def charging(self, *arguments, **options):
        at_first.append(len(names))
        spend(self, *arguments, **options)

    with monkeypatch.context() as patch, count_compilations() as names:
        patch.setattr(dpmcmc.Budget, "spend", charging)
        run(model)
    assert "total" in names
    assert names[at_first[0] :] == []
    with count_compilations() as names:
        run(models.LogisticRegression(["a", "b", "c"], prior_scale=1.7), DATA | {"X": features() + 0.1}, epsilon=1.1)
    assert names == []
    with count_compilations() as names:
        run(models.LogisticRegression(["a", "b", "c"], prior_scale=1.8))
    assert names  # twin: another prior is compiled


def test_a_second_call_of_other_models_compiles_nothing():
    for name in ("numpyro", "own", "negative-binomial"):
        model, data = case(name)
        run(model, data)
        with count_compilations() as names:
            run(model, data, seed=9)
        assert names == [], name


# ------------------------------------------------------------------ near the exact posterior


def exact_posterior(model, data):
    """Mode and covariance in unconstrained space, by plain optimisation."""
    with exact_arithmetic():
        records, _ = model.prepare_records(data)
        records = jax.tree.map(jnp.asarray, records)

        @jax.jit
        def value(theta):
            likelihood = jax.vmap(model.unconstrained_log_likelihood, in_axes=(None, 0))(theta, records)
            return -(likelihood.sum() + model.unconstrained_log_prior(theta))

        gradient = jax.jit(jax.grad(value))
        hessian = jax.jit(jax.hessian(value))
        found = optimize.minimize(value, np.zeros(model.dimension), jac=gradient, hess=hessian, method="trust-ncg")
        mode = found.x
        for _ in range(3):
            mode = mode - np.linalg.solve(np.asarray(hessian(mode)), np.asarray(gradient(mode)))
        return mode, np.linalg.inv(np.asarray(hessian(mode)))


def found_by(monkeypatch, model, data, **options):
    """The approximation itself, in unconstrained space."""
    kept, search = [], laplace.find_laplace

    def watched(*arguments, **keywords):
        kept.append(search(*arguments, **keywords))
        return kept[-1]

    with monkeypatch.context() as patch:
        patch.setattr(laplace, "find_laplace", watched)
        posterior = run(model, data, **options)
    return kept[0], posterior


def distance(found, mode):
    """χ² of the exact mode by the reported covariance; weights and clipping move the centre, the noise does too."""
    error = found.mean - mode
    return error @ np.linalg.solve(found.covariance, error)


@pytest.mark.parametrize(("name", "seed"), [(name, 3) for name in CASES[:-1]])
def test_near_the_exact_posterior(name, seed, monkeypatch):
    """The error is a part of what is reported, so that χ² of d is an upper bound: it fails falsely in under 1e-6."""
    model, data = case(name)
    mode, covariance = exact_posterior(model, data)
    found, posterior = found_by(monkeypatch, model, data, seed=seed)
    assert distance(found, mode) < stats.chi2.isf(1e-6, model.dimension)
    # Never narrower than the truth by much: the curvature has noise of a few per cent.
    widths = np.linalg.eigvals(np.linalg.solve(covariance, found.posterior)).real
    assert widths.min() > 0.7
    assert widths.max() < 3.0
    with exact_arithmetic():
        constrained = {name: np.asarray(value) for name, value in model.constrain(jnp.asarray(mode)).items()}
    for parameter, draws in posterior.draws.items():
        assert np.all(np.abs(draws.mean(axis=(0, 1)) - constrained[parameter]) < 6 * draws.std(axis=(0, 1)))


def test_near_the_exact_posterior_of_a_likelihood_that_is_not_concave(monkeypatch):
    """The same of Student's t, from four seeds."""
    for seed in range(4):
        test_near_the_exact_posterior("own", seed, monkeypatch)


def test_twin_a_search_that_leaves_out_a_part_of_the_score_is_noticed(monkeypatch):
    """Scores off by what moves the centre by eight posterior sds, along the widest axis."""
    model, data = case("linear")
    mode, covariance = exact_posterior(model, data)
    original, (variances, axes) = Questions.score, np.linalg.eigh(covariance)
    pull = np.linalg.solve(covariance, 8.0 * math.sqrt(variances[-1]) * axes[:, -1])

    def biased(self, theta, coordinates, *arguments, **options):
        score = original(self, theta, coordinates, *arguments, **options)
        return score._replace(value=score.value + coordinates.matrix.T @ pull)

    monkeypatch.setattr(Questions, "score", biased)
    found, _ = found_by(monkeypatch, model, data)
    assert distance(found, mode) > stats.chi2.isf(1e-6, model.dimension)


# ------------------------------------------------------------------ refused, before anything is spent

BAD = {
    "no epsilon": ({"epsilon": None}, QueryError, "epsilon"),
    "no delta": ({"delta": None}, QueryError, "delta"),
    "negative epsilon": ({"epsilon": -1.0}, DPMCMCError, "epsilon"),
    "nan epsilon": ({"epsilon": math.nan}, DPMCMCError, "epsilon"),
    "delta of one": ({"delta": 1.0}, DPMCMCError, "delta"),
    "warm-up": ({"num_warmup": 10}, QueryError, "num_warmup"),
    "thin": ({"thin": 2}, QueryError, "thin"),
    "no draws": ({"num_steps": 0}, DPMCMCError, "num_steps"),
    "no chains": ({"num_chains": 0}, DPMCMCError, "num_chains"),
    "init for chains": ({"init": np.zeros((4, 4))}, QueryError, "init has shape"),
    "init too short": ({"init": np.zeros(3)}, QueryError, "init has shape"),
    "init nan": ({"init": np.full(4, np.nan)}, QueryError, "init has NaN"),
    "init infinite": ({"init": np.full(4, np.inf)}, QueryError, "init has NaN"),
    "init text": ({"init": "zero"}, QueryError, "init is not numeric"),
    "init texts": ({"init": ["a", "b", "c", "d"]}, QueryError, "init is not numeric"),
    "init ragged": ({"init": [[1.0], 2.0, 3.0, 4.0]}, QueryError, "init is not numeric"),
    "init of other names": ({"init": {"slope": 0.0}}, QueryError, "init does not fit"),
    "init of texts by name": ({"init": {"intercept": "a", "coefficients": np.zeros(3)}}, QueryError, "init"),
    "devices": ({"devices": 99}, QueryError, "devices"),
    "seed": ({"seed": "one"}, DPMCMCError, "seed"),
}


@pytest.mark.parametrize(("change", "error", "names"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_before_anything_is_spent(change, error, names, log):
    with pytest.raises(error, match=names):
        run(**change)
    assert log == []


def test_too_few_records_are_refused_with_what_would_do(log):
    few = {name: column[:300] for name, column in DATA.items()}
    with pytest.raises(BudgetExceededError, match=r"300 records, 4 parameters.* takes .* records, .*or epsilon = "):
        run(data=few)
    assert log == []


def test_a_sample_prior_that_holds_the_data_is_refused(log):
    data = features()[:, 0]
    model = dpmcmc.Model(
        lambda p, x: -0.5 * (x - p["m"]) ** 2,
        lambda p: -0.5 * p["m"] ** 2,
        {"m": ()},
        sample_prior=lambda key: {"m": jax.random.choice(key, jnp.asarray(data))},
    )
    for init in (None, np.zeros(1)):
        with pytest.raises(ModelError, match="sample_prior"):
            run(model, data, init=init)
    assert log == []


def test_starting_points():
    """A vector and the same by name; both lead where the prior's centre leads."""
    vector, named = (run(init=init) for init in (np.full(4, 0.2), {"intercept": 0.2, "coefficients": np.full(3, 0.2)}))
    assert same(vector, named)
    default = run().draws["coefficients"]
    # Both within 6 reported sds of the same posterior.
    apart = np.abs(default.mean(axis=(0, 1)) - vector.draws["coefficients"].mean(axis=(0, 1)))
    assert np.all(apart < 12 * default.std(axis=(0, 1)))


# ------------------------------------------------------------------ ends before its time


@pytest.mark.parametrize("number", [1, 2, 30])
@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "interrupted before there were any draws"),
        (RuntimeError("quotes 'Johannes-1234'"), RunError, "of an error of type RuntimeError"),
        (MemoryError(), RunError, "not enough memory"),
    ],
    ids=["ctrl-c", "foreign", "memory"],
)
def test_what_ends_a_search_says_that_the_budget_is_spent(raised, expected, text, number, monkeypatch):
    fail_at_look(monkeypatch, number, raised)
    with pytest.raises(expected, match=text) as caught:
        run()
    assert "the whole budget counts as spent" in str(caught.value)
    assert "Johannes" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("place", ["describe_prior", "plan_laplace"])
def test_ctrl_c_before_the_first_question_spends_nothing(place, monkeypatch, log):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(laplace, place, interrupted)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run()
    assert log == []


def test_ctrl_c_before_the_first_charge_spends_nothing(monkeypatch, log):
    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(Curator, "_draw", interrupted)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run()
    assert log == []


def test_what_the_budget_refuses_is_not_looked_at(monkeypatch, log):
    watched = dpmcmc.Budget.spend

    def refusing(self, mu, **options):
        if len(log) == 20:
            raise BudgetExceededError("mu = 3 was asked")
        watched(self, mu, **options)

    monkeypatch.setattr(dpmcmc.Budget, "spend", refusing)
    with pytest.raises(RunError, match="BudgetExceededError: mu = 3 was asked; the whole budget counts as spent"):
        run()
    assert [event for event, *_ in log] == ["charge", "look"] * 10


def test_draws_that_cannot_be_put_together_are_attached_to_the_error(monkeypatch):
    def broken(**arguments):
        raise ValueError("no room")

    monkeypatch.setattr(laplace, "Posterior", broken)
    with pytest.raises(RunError, match="unconstrained_draws") as caught:
        run(num_steps=10)
    assert caught.value.unconstrained_draws.shape == (10, 4, 4)
    monkeypatch.undo()
    expected = run(num_steps=10).draws["coefficients"]
    np.testing.assert_array_equal(caught.value.unconstrained_draws.swapaxes(0, 1)[..., 1:], expected)


# ------------------------------------------------------------------ bad data


def changed(**columns):
    return {name: column.copy() for name, column in (DATA | columns).items()}


def with_rows(value, share=0.1, name="X"):
    data = changed()
    data[name][: int(share * NUM_RECORDS)] = value
    return data


def scaled(*factors):
    return changed(X=features() * np.array(factors))


NASTY = {
    "a tenth missing": ("logistic", with_rows(np.nan)),
    "a tenth infinite": ("logistic", with_rows(np.inf)),
    "a tenth huge": ("logistic", with_rows(1e300)),
    "one in a hundred large": ("logistic", with_rows(1e6, 0.01)),
    "constant column": ("logistic", scaled(1.0, 1.0, 0.0)),
    "all columns constant": ("logistic", scaled(0.0, 0.0, 0.0)),
    "equal columns": ("logistic", changed(X=features()[:, [0, 0, 1]])),
    "far from zero": ("logistic", changed(X=features() + 1000.0)),
    "other units": ("logistic", scaled(1e-8, 1.0, 1e8)),
    "huge": ("logistic", scaled(1e150, 1e150, 1e150)),
    "all outcomes 1": ("logistic", changed(y=np.ones(NUM_RECORDS))),
    "separated": ("logistic", changed(y=(features()[:, 0] > 0).astype(float))),
    "linear, equal outcomes": ("linear", changed(y=np.full(NUM_RECORDS, 3.0))),
    "linear, huge outcomes": ("linear", changed(y=1e12 * outcomes("linear"))),
    "linear, cauchy outcomes": ("linear", changed(y=np.random.default_rng(0).standard_cauchy(NUM_RECORDS))),
    "poisson, no events": ("poisson", changed(y=np.zeros(NUM_RECORDS))),
    "poisson, huge counts": ("poisson", changed(y=1e9 * outcomes("poisson"))),
    "poisson, far from zero": ("poisson", changed(X=features() + 100.0, y=outcomes("poisson"))),
    "negative-binomial, no events": ("negative-binomial", changed(y=np.zeros(NUM_RECORDS))),
    "negative-binomial, all equal": ("negative-binomial", changed(y=np.full(NUM_RECORDS, 7.0))),
    "numpyro, no slope": ("numpyro", {"x": np.zeros(NUM_RECORDS), "y": np.zeros(NUM_RECORDS)}),
    "own, all equal": ("own", np.zeros((NUM_RECORDS, 2))),
}


HOPELESS = {"a tenth huge", "huge", "separated", "linear, cauchy outcomes", "numpyro, no slope", "own, all equal"}


@pytest.mark.parametrize("label", NASTY)
def test_bad_data_give_a_posterior_flagged_where_it_is_hopeless(label):
    """Never an error of linear algebra: after the first charge it would cost the whole budget."""
    name, data = NASTY[label]
    model, _ = case(name)
    posterior = run(model, data)
    assert not any(np.any(np.isnan(draws)) for draws in posterior.draws.values())
    posterior.privacy.check()
    assert posterior.quality.flagged or label not in HOPELESS


def test_one_feature_and_none():
    one = run(models.LogisticRegression(1), {"X": features()[:, :1], "y": outcomes("logistic")})
    assert one.draws["coefficients"].shape == (4, 1000, 1)
    none = run(models.LogisticRegression(0), {"X": np.zeros((NUM_RECORDS, 0)), "y": outcomes("logistic")})
    share = outcomes("logistic").mean()
    intercept = none.draws["intercept"]
    # Exact up to the prior, which is wide: 6 sds.
    assert abs(intercept.mean() - math.log(share / (1 - share))) < 6 * intercept.std()


def test_a_column_that_says_nothing_is_said_to_be_the_priors():
    """Only the prior holds its coefficient, or the noise hides it: one or the other is said."""
    posterior = run(data=scaled(1.0, 1.0, 0.0))
    quality = posterior.quality
    assert any("coefficients[c]" in label for label in quality.prior_only) or quality.flagged
    assert posterior.draws["coefficients"][..., 2].std() > 0.5  # the prior's sd is 1 or more


def test_a_flagged_run_warns():
    data = changed(y=np.random.default_rng(0).standard_cauchy(NUM_RECORDS))
    with pytest.warns(DPMCMCWarning) as caught:
        posterior = dpmcmc.sample(
            models.LinearRegression(3), data, sampler=dpmcmc.DPLaplace(), epsilon=EPSILON, delta=DELTA, seed=1
        )
    texts = [str(warning.message) for warning in caught]
    assert posterior.quality.flagged
    assert all(reason in texts for reason in posterior.quality.reasons)
    assert all(reason in posterior.warnings for reason in posterior.quality.reasons)


def test_a_quiet_run_does_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error", DPMCMCWarning)
        dpmcmc.sample(LOGISTIC, DATA, sampler=dpmcmc.DPLaplace(), epsilon=EPSILON, delta=DELTA, seed=3)


# ------------------------------------------------------------------ options


def test_records_that_count_as_nothing_are_counted():
    """Gaussian noise: off by more than 6 sds in 2e-9 of the runs."""
    check = run(data=with_rows(np.nan)).record_check
    assert abs(check.estimate - NUM_RECORDS // 10) < 6 * check.noise_sd
    assert check.noise_sd < 0.02 * NUM_RECORDS
    without = run(check_records=False)
    assert without.record_check is None
    assert "invalid_count" not in without.privacy.queries
    without.privacy.check()


def test_mostly_useless_records_stop_the_run(log):
    model, data = case("own")
    for arguments in ((LOGISTIC, with_rows(np.nan, 0.9)), (model, 1e200 * data)):
        del log[:]
        with pytest.raises(
            RunError, match=r"because about \d+% of the records count as nothing.*the whole budget counts as spent"
        ):
            run(*arguments)
        assert [event for event, *_ in log] == ["charge", "look"]


def test_feature_bounds_are_a_cap(monkeypatch):
    """Of the weights' bound: no row is longer, whatever a noisy search says. (The cap's own tests are the model's.)"""
    data = changed(X=np.sign(features()))
    asked, ask = [], Curator.ask

    def watched(self, query, theta, *proposal, **options):
        if isinstance(query, WeightedGradient):
            asked.append((query.l2_clip_norm, options["coordinates"].matrix))
        return ask(self, query, theta, *proposal, **options)

    monkeypatch.setattr(Curator, "ask", watched)
    bounded = models.LogisticRegression(["a", "b", "c"], feature_bounds=[1.0, 1.0, 1.0])
    run(bounded, data)
    assert asked
    assert all(bound <= bounded.design_norm_bound(matrix) for bound, matrix in asked)
    monkeypatch.setattr(models.LogisticRegression, "design_norm_bound", lambda self, matrix: 1e-5)
    for model, is_capped in ((bounded, True), (LOGISTIC, False)):
        del asked[:]
        run(model, data)
        assert {bound == 1e-5 for bound, _ in asked} == {is_capped}


def far_from_the_maximum(model, data):
    """Largest distance of a coefficient from the posterior's mode, in sds of the noise that is reported."""
    posterior = run(model, data, epsilon=10.0)
    design = np.column_stack([np.ones(NUM_RECORDS), data["X"]])
    mode = np.zeros(4)
    for _ in range(30):
        p = 1.0 / (1.0 + np.exp(-design @ mode))
        curvature = (design.T * (p * (1.0 - p))) @ design + np.eye(4) / 2.5**2
        mode += np.linalg.solve(curvature, design.T @ (data["y"] - p) - mode / 2.5**2)
    draws = np.concatenate([posterior.draws["intercept"][..., None], posterior.draws["coefficients"]], axis=-1)
    shares = np.concatenate(
        [[posterior.quality.noise_share["intercept"]], posterior.quality.noise_share["coefficients"]]
    )
    noise = draws.std(axis=(0, 1)) * np.sqrt(1.0 - (1.0 - shares) ** 2)
    weighted = any("weighted down (" in note for note in posterior.quality.notes)
    return float(np.max(np.abs(draws.mean(axis=(0, 1)) - mode) / noise)), weighted


def test_with_public_bounds_the_centre_is_the_posteriors_own_even_if_the_model_does_not_hold():
    """Outcomes that turn back at the ends: weights that leave these out move the centre. Fails by chance once in 1e6.

    (Four coefficients, 6 sds of noise, of which a tenth is for the noise of the shares themselves.) Twin: without the
    bounds the centre is another one.
    """
    generator = np.random.default_rng(8)
    X = generator.uniform(-1.0, 1.0, size=(NUM_RECORDS, 3))
    predictor = np.where(np.abs(X[:, 0]) > 0.8, -2.0, 2.0) * X[:, 0] + 0.5 * X[:, 1]
    data = {"X": X, "y": (generator.random(NUM_RECORDS) < 1.0 / (1.0 + np.exp(-predictor))).astype(float)}
    far, weighted = far_from_the_maximum(models.LogisticRegression(["a", "b", "c"], feature_bounds=1.0), data)
    assert not weighted
    assert far < 6.0
    far, weighted = far_from_the_maximum(LOGISTIC, data)
    assert weighted
    assert far > 6.0


@pytest.mark.parametrize(("mean", "is_far"), [(0.0, False), (3.0, False), (1000.0, True)])
def test_columns_far_from_zero_are_to_be_centred(mean, is_far):
    quality = run(data={"X": features() + np.array([0.0, 0.0, mean]), "y": outcomes("logistic")}).quality
    advice = [text for text in quality.reasons + quality.notes if text.startswith("Centre c (")]
    assert bool(advice) == is_far


def test_public_bounds_say_which_columns_are_to_be_centred():
    """Without a look at the posterior; a reason only beside others."""
    bounded = models.LogisticRegression(["a", "b", "c"], feature_bounds=[1.0, (1990.0, 2030.0), (-5.0, 15.0)])
    found = type("Found", (), {"posterior": np.eye(4)})
    (advice,) = laplace._centring(bounded, found)
    assert advice.startswith("Centre b (")
    for other in (LOGISTIC, models.LogisticRegression(3, intercept=False), models.LogisticRegression(0)):
        assert laplace._centring(other, found) == ()
    assert laplace._centring(dpmcmc.Model(own_likelihood, own_prior, {"mean": (2,), "scale": "positive"}), found) == ()


def test_directions_are_named_by_their_largest_part():
    """Also one that is spread over so many parameters that none has a large part."""
    model = models.LogisticRegression(19)
    directions = np.column_stack([np.full(20, 20**-0.5), np.eye(20)[3]])
    found = type("Found", (), {"prior_directions": directions})
    dims = {name: (dimension,) for name, (dimension, _) in model.labels.items()}
    of_run = SimpleNamespace(curator=SimpleNamespace(model=model), groups=None)
    first, second = laplace._prior_only(of_run, found, dims, dict(model.labels.values()))
    assert first == "intercept"
    assert second == f"coefficients[{model.feature_names[2]}]"
