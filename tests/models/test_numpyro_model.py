"""NumPyro models: the same log-density as NumPyro's own, and refusals that name the site."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import log_density, potential_energy

from dpmcmc import Field, Schema, Table
from dpmcmc.errors import DataError, ModelError
from dpmcmc.models import from_numpyro

NUM_ROWS = 7


def records_plate(column):
    return numpyro.plate("records", column.shape[0])


def normal(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


def logistic(X, y):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 3.0))
    coefficients = numpyro.sample("coefficients", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with records_plate(X) as index:
        numpyro.sample("y", dist.Bernoulli(logits=intercept + X[index] @ coefficients), obs=y[index])


def hierarchical(X, group, y):
    center = numpyro.sample("center", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 3):
        effect = numpyro.sample("effect", dist.Normal(center, spread))
    noise = numpyro.sample("noise", dist.Exponential(1.0))
    numpyro.deterministic("shifted", center + 1.0)
    with records_plate(X):
        numpyro.sample("y", dist.StudentT(4.0, effect[group] + X[:, 0], noise), obs=y)


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    centers = numpyro.sample(
        "centers",
        dist.TransformedDistribution(dist.Normal(0.0, 2.0).expand([3]).to_event(1), dist.transforms.OrderedTransform()),
    )
    width = numpyro.sample("width", dist.Uniform(0.5, 2.0))
    with records_plate(x):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(probs=weights), dist.Normal(centers, width)), obs=x)


def correlated(x):
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    scales = numpyro.sample("scales", dist.HalfNormal(jnp.array([1.0, 2.0])).to_event(1))
    probability = numpyro.sample("probability", dist.Beta(2.0, 3.0))
    with records_plate(x):
        numpyro.sample(
            "x",
            dist.MultivariateNormal(probability * jnp.ones(2), scale_tril=scales[:, None] * factor),
            obs=x,
        )


def positive_outcome(x):
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    with records_plate(x):
        numpyro.sample("x", dist.Gamma(shape, 2.0), obs=x)


def crossed(x):
    """Several outcomes per record, in a plate of their own on the left of the records'."""
    with numpyro.plate("items", 3):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0], dim=-2), numpyro.plate("items_again", 3, dim=-1):
        numpyro.sample("x", dist.Normal(level, 1.0), obs=x)


def scaled_and_masked(x, weight, present):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with records_plate(x):
        with handlers.scale(scale=weight), handlers.mask(mask=present):
            numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)
        numpyro.sample("again", dist.Normal(mean, rate), obs=x)
        numpyro.factor("penalty", -rate * x**2)


@handlers.reparam(config={"effect": LocScaleReparam(0.0)})
def reparametrised(x):
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    effect = numpyro.sample("effect", dist.Normal(1.0, spread))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(effect, 1.0), obs=x)


def make_columns(**kinds):
    generator = np.random.default_rng(0)
    makers = {
        "vector": lambda: generator.normal(size=NUM_ROWS),
        "pair": lambda: generator.normal(size=(NUM_ROWS, 2)),
        "triple": lambda: generator.normal(size=(NUM_ROWS, 3)),
        "positive": lambda: generator.exponential(size=NUM_ROWS),
        "binary": lambda: generator.integers(0, 2, size=NUM_ROWS),
        "code": lambda: generator.integers(0, 3, size=NUM_ROWS),
        "flag": lambda: generator.uniform(size=NUM_ROWS) < 0.6,
    }
    return {name: makers[kind]() for name, kind in kinds.items()}


MODELS = [
    (normal, make_columns(x="vector")),
    (logistic, make_columns(X="pair", y="binary")),
    (hierarchical, make_columns(X="pair", group="code", y="vector")),
    (mixture, make_columns(x="vector")),
    (correlated, make_columns(x="pair")),
    (positive_outcome, make_columns(x="positive")),
    (crossed, make_columns(x="triple")),
    (scaled_and_masked, make_columns(x="vector", weight="positive", present="flag")),
    (reparametrised, make_columns(x="vector")),
]


@pytest.mark.parametrize(("model_fn", "data"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_log_density_is_numpyro_s(model_fn, data):
    model = from_numpyro(model_fn, data)
    records, num_records = model.prepare_records(data)
    model.check(records)

    @jax.jit
    def ours_and_theirs(theta, columns):
        values = model.constrain(theta)
        by_record = jax.vmap(model.unconstrained_log_likelihood, (None, 0))(theta, columns)
        pieces = {
            name: theta[where].reshape(model.parameters[name].unconstrained_shape)
            for name, where in model.parameter_slices.items()
        }
        # Each record alone: NumPyro's own density on one row, without the prior.
        row = {name: column[2:3] for name, column in columns.items()}
        alone = log_density(model_fn, (), row, values)[0] - model.log_prior(values)
        ours = (
            model.unconstrained_log_prior(theta) + by_record.sum(),
            model.log_prior(values) + by_record.sum(),
            by_record[2],
        )
        theirs = (
            -potential_energy(model_fn, (), columns, pieces),
            log_density(model_fn, (), columns, values)[0],
            alone,
        )
        return jnp.array(ours), jnp.array(theirs), by_record

    with jax.enable_x64(True):
        columns = {name: jnp.asarray(column) for name, column in records.items()}
        for theta in jax.random.normal(jax.random.key(1), (3, model.dimension)):
            ours, theirs, by_record = ours_and_theirs(theta, columns)
            assert by_record.shape == (num_records,)
            tolerance = 1e-13 * (1 + float(jnp.abs(by_record).sum()))
            np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=tolerance)
    assert model.unconstrained_log_prior(jnp.zeros(model.dimension)).dtype == jnp.float32


def test_names_shapes_and_supports():
    model = from_numpyro(mixture, make_columns(x="vector"), name="three humps")
    assert model.name == "three humps"
    assert {name: parameter.shape for name, parameter in model.parameters.items()} == {
        "weights": (3,),
        "centers": (3,),
        "width": (),
    }
    assert model.dimension == 6
    width = model.constrain(jnp.full(6, 50.0))["width"]
    assert float(width) == pytest.approx(2.0, rel=1e-6)


def test_arrays_fixed_arguments_and_shapes_instead_of_data():
    def model_fn(x, bound):
        mean = numpyro.sample("mean", dist.Uniform(-bound, bound))
        with records_plate(x):
            numpyro.sample("x", dist.Normal(mean, 1.0).expand([2]).to_event(1), obs=x)

    like = jax.ShapeDtypeStruct((1000, 2), jnp.float32)
    model = from_numpyro(model_fn, like, fixed={"bound": 4.0})
    records, num_records = model.prepare_records(np.zeros((5, 2), int))
    assert num_records == 5
    assert records.dtype == np.float64
    model.check(records)
    value = model.unconstrained_log_likelihood(jnp.zeros(1), jnp.zeros(2))
    np.testing.assert_allclose(value, -np.log(2 * np.pi), rtol=1e-6)


def test_prior_draws_come_from_the_model():
    """The mean of 2000 N(0, 3²) draws is off by 5.5 standard errors with probability 4e-8."""
    model = from_numpyro(normal, make_columns(x="vector"))
    draws = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(0), 2000))
    assert abs(float(draws["mean"].mean())) < 5.5 * 3 / np.sqrt(2000)
    assert abs(float(jnp.log(draws["scale"]).mean())) < 5.5 / np.sqrt(2000)


def test_prior_draws_have_the_declared_shapes_and_supports():
    model = from_numpyro(hierarchical, make_columns(X="pair", group="code", y="vector"))
    draw = model.sample_prior(jax.random.key(0))
    assert {name: value.shape for name, value in draw.items()} == {
        "center": (),
        "spread": (),
        "effect": (3,),
        "noise": (),
    }
    assert np.isfinite(model.unconstrain(draw)).all()


def test_a_scaled_prior_is_scaled_on_the_constrained_space():
    def model_fn(x):
        with handlers.scale(scale=0.5):
            rate = numpyro.sample("rate", dist.Exponential(1.0))
        with records_plate(x):
            numpyro.sample("x", dist.Normal(0.0, rate), obs=x)

    model = from_numpyro(model_fn, make_columns(x="vector"))
    np.testing.assert_allclose(model.log_prior({"rate": jnp.array(3.0)}), -1.5, rtol=1e-6)
    # The Jacobian belongs to the coordinates and not to the prior: it is not scaled.
    np.testing.assert_allclose(model.unconstrained_log_prior(jnp.log(jnp.array([3.0]))), -1.5 + np.log(3.0), rtol=1e-6)


def test_no_value_of_the_data_is_used():
    class Explosive(np.ndarray):
        def __array__(self, *arguments, **options):
            raise AssertionError("values were read")

        def __getitem__(self, index):
            raise AssertionError("values were read")

    from_numpyro(normal, {"x": np.zeros(9).view(Explosive)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((4, 2)), "mapping"),
        ({"X": np.zeros((4, 2))}, "made for"),
        ({"X": np.zeros((4, 3)), "y": np.zeros(4, int)}, "rows of shape"),
    ],
)
def test_records_are_compared_with_data_like(data, message):
    model = from_numpyro(logistic, make_columns(X="pair", y="binary"))
    with pytest.raises(DataError, match=message):
        model.prepare_records(data)


def scores(model, data):
    """Log-likelihoods and gradients, record by record."""
    with jax.enable_x64(True):
        records, _ = model.prepare_records(data)
        model.check(records)
        columns = jax.tree.map(jnp.asarray, records)
        theta = jnp.full(model.dimension, 0.3)
        both = jax.jit(jax.vmap(jax.value_and_grad(model.unconstrained_log_likelihood), (None, 0)))
        return [np.asarray(part) for part in both(theta, columns)]


INTEGERS = {"X": "pair", "group": "code", "y": "vector"}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.uint16, np.int64, object])
def test_codes_of_any_dtype_are_cast_to_the_declared_one(dtype):
    data = make_columns(**INTEGERS)
    like = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in data.items()}
    like["group"] = jax.ShapeDtypeStruct((NUM_ROWS,), np.int32)
    model = from_numpyro(hierarchical, like)
    for ours, theirs in zip(
        scores(model, data | {"group": data["group"].astype(dtype)}), scores(model, data), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("declared", "codes", "good"),
    [
        ("int32", [0.0, 2.0, np.nan, 0.5, np.inf, -np.inf, 2.0**31], [0, 1]),
        ("int64", [0.0, 2.0, 2.0**63, 1e300, -0.5, -(2.0**64), np.nan], [0, 1]),
        ("int8", np.array([0, 1, 128, -129, 256, 2**40, -(2**40)]), [0, 1]),
        ("uint8", [0.0, 1.0, -1.0, 256.0, 1e30, np.nan, 0.5], [0, 1]),
        ("uint64", np.array([0, 1, -1, -2, -(2**62), -3, -4]), [0, 1]),
        ("bool", [0.0, 1.0, 2.0, -1.0, 0.5, np.nan, np.inf], [0, 1]),
    ],
)
def test_a_value_that_the_declared_dtype_lacks_counts_for_nothing(declared, codes, good):
    """NaN in the log-likelihood and in its gradient, which the curator counts as zero; good records are as ever."""

    def flagged(code, x):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
        assert code.dtype == np.dtype(declared)
        with records_plate(x):
            numpyro.sample("x", dist.Normal(mean * jnp.where(code == 0, 1.0, 2.0), 1.0), obs=x)

    x = make_columns(x="vector")["x"]
    model = from_numpyro(
        flagged,
        {"code": jax.ShapeDtypeStruct((NUM_ROWS,), declared), "x": jax.ShapeDtypeStruct((NUM_ROWS,), float)},
    )
    value, gradient = scores(model, {"code": np.asarray(codes), "x": x})
    bad = ~np.isin(np.arange(NUM_ROWS), good)
    np.testing.assert_array_equal(np.isnan(value), bad)
    np.testing.assert_array_equal(np.isnan(gradient).all(axis=1), bad)
    expected = scores(model, {"code": np.array([0, 1, 0, 0, 0, 0, 0], declared), "x": x})
    np.testing.assert_allclose(value[good], expected[0][good], rtol=1e-12)
    np.testing.assert_allclose(gradient[good], expected[1][good], rtol=1e-12)


def test_one_bad_entry_of_a_vector_is_a_bad_record():
    def votes(x):
        level = numpyro.sample("level", dist.Normal(0.0, 3.0))
        with records_plate(x):
            numpyro.sample("x", dist.Bernoulli(logits=level).expand([2]).to_event(1), obs=x)

    model = from_numpyro(votes, jax.ShapeDtypeStruct((NUM_ROWS, 2), int))
    value, gradient = scores(model, np.array([[0.0, 1.0], [np.nan, 1.0], [1.0, 0.5]]))
    np.testing.assert_array_equal(np.isnan(value), [False, True, True])
    np.testing.assert_array_equal(np.isnan(gradient[:, 0]), [False, True, True])


def test_a_table_gives_its_columns_but_not_the_unit_s():
    """As the command line does it: the model that data of the same shapes give."""
    fields = [Field("x", "number", minimum=-1.0, maximum=3.0), Field("who", "string")]
    table = Table({"x": [0.0, 2.0, 5.0], "who": ["a", "b", "b"]}, Schema(fields, unit="who", max_rows=2))
    of_table, of_shapes = from_numpyro(normal, table), from_numpyro(normal, {"x": np.empty(2)})
    rows = {"x": np.linspace(-1.0, 1.0, NUM_ROWS)}
    for found, expected in zip(scores(of_table, rows), scores(of_shapes, rows), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("codes", [[0, 1, 2], [0, None, 2]])
def test_a_model_that_looks_up_by_a_table_s_column_gets_a_hint(codes):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"group": codes, "y": [0.5, 0.1, 0.2]})

    def by_group(group, y):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with records_plate(y):
            numpyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)

    hints = set()
    for data_like in (frame, {"group": frame["group"], "y": frame["y"]}):
        with pytest.raises(ModelError, match=r"ShapeDtypeStruct\(\(n,\), int\)") as caught:
            from_numpyro(by_group, data_like)
        hints.add(str(caught.value))
    assert len(hints) == 1
    like = {"group": jax.ShapeDtypeStruct((3,), int), "y": jax.ShapeDtypeStruct((3,), float)}
    value, _ = scores(from_numpyro(by_group, like), frame)
    np.testing.assert_array_equal(np.isnan(value), [code is None for code in codes])
    # A table's schema says that they are categories: no hint is needed.
    fields = [Field("group", "integer", levels=[0, 1, 2]), Field("y", "number", minimum=0.0, maximum=1.0)]
    of_table, _ = scores(from_numpyro(by_group, Table(frame, Schema(fields))), frame)
    np.testing.assert_array_equal(of_table, value)
    # An error that has nothing to do with it gets none.
    with pytest.raises(ModelError) as caught:
        from_numpyro(lambda group, y: a_mean(), frame)
    assert "ShapeDtypeStruct" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda pandas: pandas.Series([0.5, None, 1.0]), lambda _: np.zeros(3)])
def test_a_series_is_an_array(make):
    data = make(pytest.importorskip("pandas"))
    assert from_numpyro(normal, data).prepare_records(data)[0].shape == (3,)


# ---------------------------------------------------------------- refusals


def refused(name, *words, **kinds):
    """Register a model that must be refused, with what the message must say."""

    def register(model_fn):
        REFUSED.append(pytest.param(model_fn, make_columns(**(kinds or {"x": "vector"})), words, id=name))
        return model_fn

    return register


REFUSED = []


def a_mean():
    return numpyro.sample("mean", dist.Normal(0.0, 1.0))


@refused("observation outside the plate", "'outside'", "outside the record plate")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)
    numpyro.sample("outside", dist.Normal(mean, 1.0), obs=x.sum())


@refused("no plate at all", "'x'", "outside the record plate")
def _(x):
    numpyro.sample("x", dist.Normal(a_mean(), 1.0), obs=x)


@refused("latent per record", "'z'", "latent variable per record")
def _(x):
    mean = a_mean()
    with records_plate(x):
        z = numpyro.sample("z", dist.Normal(mean, 1.0))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


@refused("latent per record without plate", "'z'", "grows with the number of rows")
def _(x):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)


@refused("two record plates", "2 plates", "'records'", "'again'")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)
    with numpyro.plate("again", x.shape[0]):
        numpyro.sample("x2", dist.Normal(mean, 2.0), obs=x)


@refused("factor outside", "factor 'penalty'", "outside the record plate")
def _(x):
    mean = a_mean()
    numpyro.factor("penalty", -(mean**2))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("factor that mixes rows", "'penalty'", "other rows")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)
        numpyro.factor("penalty", -mean * jnp.sum(x))


@refused("discrete latent", "'kind'", "discrete")
def _(x):
    kind = numpyro.sample("kind", dist.Bernoulli(0.5))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(kind, 1.0), obs=x)


@refused("subsampling", "'records'", "subsample_size")
def _(x):
    mean = a_mean()
    with numpyro.plate("records", x.shape[0], subsample_size=2) as index:
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x[index])


@refused("centring by the data", "'x'", "other rows")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x - x.mean())


@refused("scaling by the maximum", "'y'", "other rows", X="pair", y="binary")
def _(X, y):
    mean = a_mean()
    with records_plate(X):
        numpyro.sample("y", dist.Bernoulli(logits=mean * X[:, 0] / jnp.abs(X).max()), obs=y)


@refused("counting other codes", "'x'", "other rows", x="vector", group="code")
def _(x, group):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean * (group == 2).sum(), 1.0), obs=x)


@refused("the row before", "'x'", "other rows")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean * jnp.roll(x, 1), 1.0), obs=x)


@refused("tempering by the number of rows", "'x'", "number")
def _(x):
    mean = a_mean()
    with records_plate(x), handlers.scale(scale=1.0 / x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("the row's position", "'x'", "position")
def _(x):
    mean = a_mean()
    with records_plate(x) as index:
        numpyro.sample("x", dist.Normal(mean * index, 1.0), obs=x)


@refused("accidental broadcasting", "'x'", "other rows")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean * x[:, None], 1.0), obs=x)


@refused("prior from the data", "'mean'", "prior that depends on the data")
def _(x):
    mean = numpyro.sample("mean", dist.Normal(x.mean(), 1.0))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("prior from the number of rows", "'mean'", "number of rows")
def _(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, x.shape[0] * 1.0))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("bounds from the data", "'mean'", "support depends on the data")
def _(x):
    mean = numpyro.sample("mean", dist.Uniform(x.min(), x.max() + 1.0))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("bounds from a latent", "'inner'", "another latent")
def _(x):
    outer = numpyro.sample("outer", dist.HalfNormal(1.0))
    inner = numpyro.sample("inner", dist.Uniform(0.0, outer))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(inner, 1.0), obs=x)


@refused("param", "'free'", "numpyro.param")
def _(x):
    free = numpyro.param("free", 1.0)
    with records_plate(x):
        numpyro.sample("x", dist.Normal(a_mean(), free), obs=x)


@refused("mutable", "'state'", "mutable")
def _(x):
    numpyro.primitives.mutable("state", {"value": 1.0})
    with records_plate(x):
        numpyro.sample("x", dist.Normal(a_mean(), 1.0), obs=x)


@refused("no observation", "no observed site")
def _(x):
    a_mean()


@refused("no latent", "no latent site")
def _(x):
    with records_plate(x):
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=x)


@refused("hard-coded plate", "'records'", f"hard-coded size {NUM_ROWS}", "X.shape[0]")
def _(x):
    mean = a_mean()
    with numpyro.plate("records", NUM_ROWS):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("hard-coded plate that fails", "'records'", f"size {NUM_ROWS}", "hard-coded")
def _(x):
    mean = a_mean()
    with numpyro.plate("records", NUM_ROWS):
        numpyro.sample("x", dist.Normal(mean + x, 1.0), obs=x)


@refused("plate of another size", "'records'", "without being it")
def _(x):
    mean = a_mean()
    with numpyro.plate("records", 2 * x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=jnp.tile(x, 2))


@refused("improper prior", "'mean'", "improper")
def _(x):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


@refused("no unconstrained space", "'direction'", "unconstrained space")
def _(x):
    direction = numpyro.sample("direction", dist.ProjectedNormal(jnp.ones(2)))
    with records_plate(x):
        numpyro.sample("x", dist.Normal(direction[0], 1.0), obs=x)


@refused("missing outcomes as latents", "'x_unobserved'", "latent variable per record", x="vector", seen="flag")
def _(x, seen):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x, obs_mask=seen)


@refused("a chain over rows", "scan")
def _(x):
    mean = a_mean()

    def transition(previous, value):
        numpyro.sample("step", dist.Normal(previous, 1.0), obs=value)
        return value, None

    scan(transition, mean, x)


@refused("a random likelihood", "prng_key")
def _(x):
    noise = jax.random.normal(numpyro.prng_key())
    with records_plate(x):
        numpyro.sample("x", dist.Normal(a_mean() + noise, 1.0), obs=x)


@refused("Python control flow on values", "failed on made-up data")
def _(x):
    mean = a_mean()
    with records_plate(x):
        numpyro.sample("x", dist.Normal(mean if x[0] > 0 else 0.0, 1.0), obs=x)


@pytest.mark.parametrize(("model_fn", "data", "words"), REFUSED)
def test_refusals_name_the_site_and_the_reason(model_fn, data, words):
    with pytest.raises(ModelError) as caught:
        from_numpyro(model_fn, data)
    for word in words:
        assert word in str(caught.value)


def test_a_failing_model_leaves_numpyro_s_handlers_clean():
    for case in REFUSED[:3]:
        with pytest.raises(ModelError):
            from_numpyro(case.values[0], case.values[1])
    assert numpyro.primitives._PYRO_STACK == []


@pytest.mark.parametrize(
    ("data_like", "message"),
    [
        ({}, "no columns"),
        ({"x": np.zeros(0)}, "at least one row"),
        ({"x": np.array(["2020-01-01"], "datetime64[D]")}, "encode it|dates"),
        ({"x": np.zeros(2), "y": np.zeros(3)}, "different lengths"),
    ],
)
def test_data_like_is_checked(data_like, message):
    with pytest.raises(DataError, match=message):
        from_numpyro(normal, data_like)
