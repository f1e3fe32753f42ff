"""The model: unconstrained densities, and checks that see shapes and dtypes only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist

from dpmcmc.errors import ModelError
from dpmcmc.models import Model, Parameter


def log_likelihood(parameters, x):
    return dist.Normal(parameters["mean"], parameters["scale"]).log_prob(x)


def log_prior(parameters):
    return dist.Normal(0.0, 3.0).log_prob(parameters["mean"]) + dist.Gamma(2.0, 1.0).log_prob(parameters["scale"])


def sample_prior(key):
    return {"mean": 3.0 * jax.random.normal(key), "scale": jax.random.gamma(key, 2.0)}


def make(likelihood=log_likelihood, prior=log_prior, **options):
    return Model(likelihood, prior, {"mean": (), "scale": "positive"}, **options)


def test_unconstrained_densities():
    with jax.enable_x64(True):
        model = make()
        theta = jnp.array([0.3, -0.7])
        # By hand: Gamma(2, 1) has density s exp(-s), and the exponential map the Jacobian s.
        scale = np.exp(-0.7)
        prior = dist.Normal(0.0, 3.0).log_prob(0.3) + np.log(scale) - scale + np.log(scale)
        np.testing.assert_allclose(model.unconstrained_log_prior(theta), prior, rtol=1e-14)
        np.testing.assert_allclose(
            model.unconstrained_log_likelihood(theta, 1.0), dist.Normal(0.3, scale).log_prob(1.0), rtol=1e-14
        )


def test_the_unconstrained_prior_integrates_to_one():
    with jax.enable_x64(True):
        model = make()
        grid = jnp.linspace(-12, 4, 4001)
        density = jax.vmap(lambda s: jnp.exp(model.unconstrained_log_prior(jnp.array([0.0, s]))))(grid)
        integral = jnp.trapezoid(density, grid) / jnp.exp(dist.Normal(0.0, 3.0).log_prob(0.0))
        np.testing.assert_allclose(integral, 1.0, rtol=1e-6)


def test_public_attributes():
    model = make(name="normal")
    assert model.name == "normal"
    assert model.dimension == 2
    assert model.parameter_slices == {"mean": slice(0, 1), "scale": slice(1, 2)}
    assert model.parameters == {"mean": Parameter(), "scale": Parameter((), "positive")}
    assert "normal" in repr(model)


def test_prior_draws():
    theta = make(sample_prior=sample_prior).sample_unconstrained_prior(jax.random.key(0))
    assert theta.shape == (2,)
    with pytest.raises(ModelError, match="pass sample_prior"):
        make().sample_unconstrained_prior(jax.random.key(0))


def test_a_good_model_passes_its_check():
    model = make()
    for data in (np.zeros(4), np.zeros(4, np.float32), np.zeros(4, int), np.zeros(4, bool)):
        model.check(model.prepare_records(data)[0])


def test_check_uses_no_values():
    class Explosive(np.ndarray):
        def __array__(self, *arguments, **options):
            raise AssertionError("values were read")

        def __getitem__(self, index):
            raise AssertionError("values were read")

    make().check(np.zeros(4).view(Explosive))


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (lambda parameters, x: log_likelihood(parameters, x)[None], r"shape \(1,\)"),
        (lambda parameters, x: jnp.int32(1), "dtype int32"),
        (lambda parameters, x: (log_likelihood(parameters, x), 0.0), "tuple"),
        (lambda parameters, x: 1j * log_likelihood(parameters, x), "complex"),
        (lambda parameters, x: parameters["mu"], "log_likelihood failed.*KeyError"),
        (lambda parameters, x: 1.0 if x > 0 else 2.0, r"\Alog_likelihood failed.*on values\..*\Z"),  # in one line
        (lambda parameters, x: x["column"], "log_likelihood failed"),
    ],
)
def test_check_refuses_wrong_likelihoods(likelihood, message):
    with pytest.raises(ModelError, match=message):
        make(likelihood).check(np.zeros(4))


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (lambda parameters: jnp.zeros(2), r"log_prior returned shape \(2,\)"),
        (lambda parameters: 1, "log_prior"),
    ],
)
def test_check_refuses_wrong_priors(prior, message):
    with pytest.raises(ModelError, match=message):
        make(prior=prior).check(np.zeros(4))


def printing(parameters, x):
    jax.debug.print("{}", x)
    return log_likelihood(parameters, x)


def calling_back(parameters, x):
    return jax.pure_callback(lambda value: value, jax.ShapeDtypeStruct((), x.dtype), x)


def writing(parameters, x):
    jax.experimental.io_callback(lambda value: None, None, x)
    return log_likelihood(parameters, x)


def printing_in_a_loop(parameters, x):
    def body(carry, _):
        return jax.lax.cond(carry > 0, lambda: printing(parameters, x), lambda: 0.0), None

    return jax.jit(lambda: jax.lax.scan(body, jnp.zeros(()), None, length=2)[0])()


@jax.custom_vjp
def innocent(x):
    return x


def innocent_forward(x):
    return x, x


def treacherous_backward(x, cotangent):
    jax.debug.print("{}", x)
    return (cotangent,)


innocent.defvjp(innocent_forward, treacherous_backward)


def printing_in_the_gradient(parameters, x):
    return innocent(parameters["mean"] * x)


@pytest.mark.parametrize("likelihood", [printing, calling_back, writing, printing_in_a_loop, printing_in_the_gradient])
def test_check_refuses_likelihoods_that_reach_the_host(likelihood):
    with pytest.raises(ModelError, match="could show records"):
        make(likelihood).check(np.zeros(4, np.float32))


def test_check_refuses_likelihoods_with_a_batching_rule_of_their_own():
    @jax.custom_batching.custom_vmap
    def centred(x):
        return x

    @centred.def_vmap
    def rule(size, batched, x):
        return x - x.mean(), batched[0]

    with pytest.raises(ModelError, match="many records at once"):
        make(lambda parameters, x: log_likelihood(parameters, centred(x))).check(np.zeros(4, np.float32))


def test_check_refuses_a_likelihood_without_gradient():
    def looping(parameters, x):
        return jax.lax.while_loop(lambda value: value < x, lambda value: value + 1.0, parameters["mean"])

    with pytest.raises(ModelError, match="gradient of log_likelihood"):
        make(looping).check(np.zeros(4, np.float32))


def test_arguments_must_be_functions():
    with pytest.raises(ModelError, match="log_prior is float"):
        make(prior=1.0)
    with pytest.raises(ModelError, match="sample_prior is int"):
        make(sample_prior=1)


def test_importing_and_using_models_leaves_the_precision_alone():
    make().check(np.zeros(4))
    assert jnp.zeros(()).dtype == jnp.float32
