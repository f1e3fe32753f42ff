"""The penalty test is exact for discrete noise on the curator's own lattice: a(λ) = e^λ a(−λ)."""

import math

import jax
import jax.numpy as jnp
import mpmath
import pytest

from dpmcmc.queries import LogRatio

THETA, PROPOSAL = [0.2, -0.1], [0.6, 0.3]


def acceptance(ratio, spacing, scale, variance):
    """a(λ) = E min(1, exp(λ + ξ − σ²/2)), ξ discrete Gaussian of integer scale S on γZ, summed term by term."""
    reach = 14 * scale
    total = weight_sum = mpmath.mpf(0)
    for k in range(-reach, reach + 1):
        weight = mpmath.e ** (-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(scale) ** 2))
        weight_sum += weight
        total += weight * min(1, mpmath.e ** (ratio + k * spacing - variance / 2))
    return total / weight_sum


def imbalance(query, ratio, move_variance=0.0):
    with mpmath.workdps(40), jax.enable_x64(True):
        lattice = query.lattice(1000)
        geometry = query.geometry(jnp.asarray(THETA), jnp.asarray(PROPOSAL), query.numbers(1000))
        spacing = mpmath.mpf(float(geometry.spacing))
        variance = mpmath.mpf(float(geometry.noise_sd)) ** 2 + move_variance * spacing
        forward = acceptance(mpmath.mpf(ratio), spacing, lattice.noise_scale, variance)
        backward = acceptance(-mpmath.mpf(ratio), spacing, lattice.noise_scale, variance)
        return float(forward / (mpmath.e ** mpmath.mpf(ratio) * backward) - 1)


QUERIES = {
    "constant τ, 8 levels": LogRatio(1.5, noise_multiplier=1.1, lattice_bits=3),
    "constant τ, 64 levels": LogRatio(1.5, noise_multiplier=0.7, lattice_bits=6),
    "constant τ, bound as a function": LogRatio(
        lambda a, b: 0.4 + jnp.sum(jnp.abs(a - b)), noise_multiplier=1.3, lattice_bits=4
    ),
    "constant σ, S = 16": LogRatio(0.8, noise_sd=2.0, lattice_bits=4),
    "constant σ, S = 64": LogRatio(0.8, noise_sd=1.37, lattice_bits=6),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("ratio", [0.013, 0.31, -1.7, 2.9])
def test_identity_holds_on_the_lattice(query, ratio):
    assert abs(imbalance(query, ratio)) < 1e-12


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_twin_identity_fails_off_the_lattice(query):
    """σ² moved by less than one step of γ: the same check fails by far more than its tolerance."""
    worst = max(abs(imbalance(query, ratio, move_variance=0.37)) for ratio in (0.013, 0.31, -1.7, 2.9))
    assert worst > 1e-8


@pytest.mark.parametrize("num_records", [100, 100_000, 10**9])
@pytest.mark.parametrize("multiplier", [0.5, 31.6, 5e4])
@pytest.mark.parametrize("bound", [1e-9, 0.03, 7.0])
def test_default_lattice_has_the_stated_noise_and_bound(num_records, multiplier, bound):
    """At full resolution γ ≥ c/K, σ = Sγ = 2τc and σ² = γm with m an integer, as far as floats go."""
    with jax.enable_x64(True):
        query = LogRatio(lambda a, b: jnp.asarray(bound), noise_multiplier=multiplier)
        lattice = query.lattice(num_records)
        geometry = query.geometry(jnp.asarray(THETA), jnp.asarray(PROPOSAL), query.numbers(num_records))
        spacing, sd = float(geometry.spacing), float(geometry.noise_sd)
    assert bound / spacing <= lattice.bound * (1 + 1e-12)
    # m is rounded up to the next integer: at most one step of 1/S more noise than asked.
    asked = 2 * multiplier * bound
    assert asked * (1 - 1e-12) <= sd <= asked * (1 + 1e-9) + 1 / lattice.noise_scale
    assert math.isclose(sd, spacing * lattice.noise_scale, rel_tol=1e-12)
    multiple = sd * lattice.noise_scale
    assert math.isclose(multiple, round(multiple), rel_tol=1e-15)


@pytest.mark.parametrize("num_records", [100, 100_000, 10**9])
def test_rounding_of_the_records_is_far_below_the_noise(num_records):
    """Nearest rounding moves λ by at most n·γ/2: under 1e-4 of σ at the paper's τ = 0.1·√n, in the worst case."""
    with jax.enable_x64(True):
        query = LogRatio(0.1, noise_multiplier=0.1 * math.sqrt(num_records))
        geometry = query.geometry(jnp.asarray(THETA), jnp.asarray(PROPOSAL), query.numbers(num_records))
        assert num_records * float(geometry.spacing) / 2 <= 1e-4 * float(geometry.noise_sd)


def acceptance_at_full_resolution(ratio, lattice, spacing):
    """a(λ) = P(k ≥ k₀) + e^λ P(k < k₀ − m), k₀ = ⌈(σ²/2 − λ)/γ⌉; tails of the discrete law by its continuity

    correction, which is right to 1/S² < 1e-20 here.
    """
    scale = mpmath.mpf(lattice.noise_scale)
    multiple = mpmath.nint(spacing * scale**2)
    start = mpmath.ceil((spacing * multiple / 2 - ratio) / spacing)

    def above(k):
        return mpmath.erfc((k - mpmath.mpf("0.5")) / scale / mpmath.sqrt(2)) / 2

    return above(start) + mpmath.e**ratio * (1 - above(start - multiple))


@pytest.mark.parametrize("ratio", [0.013, -1.7, 2.9])
def test_identity_holds_at_the_resolution_in_use(ratio):
    with mpmath.workdps(60), jax.enable_x64(True):
        query = LogRatio(0.03, noise_multiplier=31.6)
        lattice = query.lattice(100_000)
        geometry = query.geometry(jnp.asarray(THETA), jnp.asarray(PROPOSAL), query.numbers(100_000))
        spacing = mpmath.mpf(float(geometry.spacing))
        forward = acceptance_at_full_resolution(mpmath.mpf(ratio), lattice, spacing)
        backward = acceptance_at_full_resolution(-mpmath.mpf(ratio), lattice, spacing)
        assert abs(float(forward / (mpmath.e ** mpmath.mpf(ratio) * backward) - 1)) < 1e-12


def test_the_bound_is_symmetrised():
    with jax.enable_x64(True):
        query = LogRatio(lambda a, b: a[0] ** 2 + 2 * b[0] ** 2, noise_multiplier=1.0)
        a, b = jnp.array([1.0]), jnp.array([3.0])
        assert float(query.clip_bound(a, b)) == float(query.clip_bound(b, a)) == 19.0


def test_a_diverged_proposal_makes_the_release_nan():
    with jax.enable_x64(True):
        for query in (LogRatio(0.1, noise_multiplier=1.0), LogRatio(0.1, noise_sd=2.0)):
            geometry = query.geometry(jnp.zeros(2), jnp.array([jnp.inf, 0.0]), query.numbers(100))
            assert jnp.isnan(geometry.spacing)
