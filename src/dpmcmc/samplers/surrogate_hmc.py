r"""Surrogate HMC: proposals from a public stand-in for the posterior, accepted by a noisy, penalised test.

The surrogate −ln p(x|θ) ≈ ½‖ψ(u)‖², θ = m + C u, is public (:mod:`dpmcmc.surrogate`), so that moving along it is free.
One step of a chain at θ:

1. θ' by k transitions of plain HMC in u, each with its own accept test, on π_s(θ) ∝ p(θ)·exp(−½‖ψ‖²): momenta N(0, I),
   L leapfrog steps of size η·5^−U, U uniform, drawn anew for each transition;
2. R + ξ = Σ_x clip_c(ln p(x|θ') − ln p(x|θ)) + noise of *constant* sd σ, with c = κ‖ψ(θ') − ψ(θ)‖/√n;
3. accept θ' if ln u < R + ξ + ½‖ψ(θ')‖² − ½‖ψ(θ)‖² − σ²/2.

The prior is in both densities and cancels. The posterior is exact where no log-ratio is clipped, however poor the
surrogate is: a poor one lowers the acceptance below :attr:`SurrogateHMC.ceiling`, which is all that noise leaves to a
perfect one. A step costs 2c²/σ²: what it costs follows the length of the move, and is known before it is asked. A
proposal that has not moved has c = 0: it costs nothing, and is no question about the records.

Why the proposal is reversible for π_s, as step 3 needs it: for a fixed step size a transition P_η is (HMC with its own
accept test). The step sizes of the k transitions are independent, have the same law, and know nothing of the position.
So the proposal's law given θ is P̄ᵏ with P̄ = E P_η: a mean of reversible kernels is reversible, and so is the power of
one, since ⟨f, P̄ᵏg⟩ = ⟨P̄f, P̄ᵏ⁻¹g⟩ = … = ⟨P̄ᵏf, g⟩ in L²(π_s). (For step sizes that are only exchangeable it holds
as well: the adjoint of P_{η₁}…P_{η_k} is P_{η_k}…P_{η₁}, which has the same mean.) The test then accepts with a
probability a(θ, θ') whose ratio a(θ, θ')/a(θ', θ) is π(θ')π_s(θ)/(π(θ)π_s(θ')), by the penalty identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import convert_count, convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.models import Model
from dpmcmc.queries import LogRatio
from dpmcmc.samplers.acceptance import choose, penalty_test
from dpmcmc.surrogate import Form, Surrogate, polynomials

JITTER = 5.0
"""Step sizes of a transition are log-uniform over this factor, up to the one given."""


class Numbers(NamedTuple):
    """Settings that are inputs of compiled code: m, C, C⁻¹ and weights of the surrogate, η and κ/√n."""

    center: Any
    matrix: Any
    inverse: Any
    weights: Any
    step_size: Any
    ratio_scale: Any


class Proposal(NamedTuple):
    """Proposals of all chains; whether each has moved; ½‖ψ(θ')‖² − ½‖ψ(θ)‖²; and the bound c."""

    position: jax.Array
    moved: jax.Array
    change: jax.Array
    clip: jax.Array


@dataclass(frozen=True, eq=False, repr=False)
class SurrogateHMC:
    """Settings of Surrogate HMC.

    Parameters
    ----------
    surrogate
        ψ, m and C, all public: fitted to releases, or guessed. In its coordinates u the posterior should be about as
        wide as N(0, I).
    ratio_bound
        κ: log-ratios are clipped to κ‖ψ(θ') − ψ(θ)‖/√n. Where the surrogate fits, the root mean square of
        |ln p(x|θ') − ln p(x|θ)|·√n/‖Δψ‖ over the records is about 1, so that 4 clips next to nothing of Gaussian
        tails (see :func:`dpmcmc.tuning.ratios.ratio_bound`).
    noise_sd
        σ, constant. Useful values are near 2.
    step_size
        η, the largest step size in u (before jitter).
    num_leapfrog
        L, leapfrog steps of a transition.
    transitions
        k, transitions of a proposal.

    Notes
    -----
    In `sample` the number of steps is not known beforehand: the run ends when the budget does not pay for the next step
    of all chains, or after ``num_steps``. Starting points are drawn from the surrogate if none are given.
    """

    surrogate: Surrogate
    ratio_bound: float
    noise_sd: float = 2.0
    step_size: float = 0.3
    num_leapfrog: int = 24
    transitions: int = 2
    name: ClassVar[str] = "Surrogate-HMC"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_positive(self, "ratio_bound", "noise_sd", "step_size")
        convert_count(self, "num_leapfrog", "transitions")
        LogRatio(1.0, noise_sd=self.noise_sd)  # for its own opinion on the noise
        object.__setattr__(self, "surrogate", _checked(self.surrogate))

    def __repr__(self) -> str:
        form = self.surrogate.form
        settings = ("ratio_bound", "noise_sd", "step_size", "num_leapfrog", "transitions")
        listed = ", ".join(f"{name}={getattr(self, name)!r}" for name in settings)
        return f"SurrogateHMC(surrogate of degree {form.degree} in {form.dimension} dimensions, {listed})"

    @property
    def ceiling(self) -> float:
        """2Φ(−σ/2), the acceptance of moves if the surrogate were the likelihood itself: 0.317 at σ = 2."""
        return self.ceiling_at(self.noise_sd)

    @staticmethod
    def ceiling_at(noise_sd: float) -> float:
        """Return the ceiling for a σ."""
        return math.erfc(noise_sd / math.sqrt(8.0))

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs."""
        return self.surrogate.form, self.num_leapfrog, self.transitions

    def numbers(self, num_records: int) -> Numbers:
        """Return what the compiled code takes as inputs."""
        surrogate, scale = self.surrogate, self.ratio_bound / math.sqrt(num_records)
        return Numbers(
            surrogate.center,
            surrogate.matrix,
            np.linalg.inv(surrogate.matrix),
            surrogate.weights,
            np.float64(self.step_size),
            np.float64(scale),
        )

    def log_ratio(self, num_records: int) -> LogRatio:
        """Return what a step asks: log-ratios of constant noise, with a public and symmetric bound."""
        form, numbers = self.surrogate.form, self.numbers(num_records)

        def bound(theta: jax.Array, proposal: jax.Array) -> jax.Array:
            # The surrogate's numbers are inputs there: another surrogate of the same form compiles nothing.
            return clip_bound(theta, proposal, numbers, form=form)

        return LogRatio(bound, noise_sd=self.noise_sd)


def _checked(surrogate: Any) -> Surrogate:
    """Return a copy in NumPy that nobody can change, or raise."""
    if not isinstance(surrogate, Surrogate):
        raise QueryError(f"surrogate must be a dpmcmc.surrogate.Surrogate, got {type(surrogate).__name__}")
    form = surrogate.form
    shapes = {"center": (form.dimension,), "matrix": (form.dimension,) * 2, "weights": (None, len(form.powers))}
    copies = {}
    for name, shape in shapes.items():
        array = np.array(getattr(surrogate, name), np.float64)
        wanted = " × ".join("rows" if size is None else str(size) for size in shape)
        if array.ndim != len(shape) or any(
            size not in (None, own) for size, own in zip(shape, array.shape, strict=True)
        ):
            raise QueryError(f"surrogate.{name} has shape {array.shape}; its form wants {wanted}")
        if not np.all(np.isfinite(array)):
            raise QueryError(f"surrogate.{name} has NaN or infinite entries; give finite ones")
        array.setflags(write=False)
        copies[name] = array
    if np.linalg.matrix_rank(copies["matrix"]) < form.dimension:
        raise QueryError("surrogate.matrix has no inverse; give independent directions")
    return Surrogate(form, **copies)


@partial(jax.jit, static_argnames="form")
def clip_bound(theta: jax.Array, proposal: jax.Array, numbers: Numbers, *, form: Form) -> jax.Array:
    """c = κ‖ψ(θ') − ψ(θ)‖/√n for one chain, the same in both directions to the last bit."""
    u = (jnp.stack([theta, proposal]) - numbers.center) @ numbers.inverse.T
    start, end = jax.vmap(polynomials(form))(u) @ numbers.weights.T
    return jnp.asarray(numbers.ratio_scale) * jnp.sqrt(jnp.sum((end - start) ** 2))


class _Place(NamedTuple):
    """Where the chains are in u: ln π_s and its gradient there, ½‖ψ‖², and whether it is another place by now."""

    u: jax.Array
    log_density: jax.Array
    gradient: jax.Array
    potential: jax.Array
    moved: jax.Array


def build_propose(
    model: Model, form: Form, num_leapfrog: int, transitions: int
) -> Callable[[jax.Array, jax.Array, Numbers], Proposal]:
    """Return ``propose(key, theta, numbers) -> Proposal`` for all chains: step 1. Public, plain JAX."""
    evaluate = polynomials(form)

    def propose(key: jax.Array, theta: jax.Array, numbers: Numbers) -> Proposal:
        center, matrix = jnp.asarray(numbers.center), jnp.asarray(numbers.matrix)

        def log_density(u: jax.Array) -> tuple[jax.Array, jax.Array]:
            potential = 0.5 * jnp.sum((jnp.asarray(numbers.weights) @ evaluate(u)) ** 2)
            return model.unconstrained_log_prior(center + matrix @ u) - potential, potential

        def at(u: jax.Array, moved: jax.Array) -> _Place:
            (value, potential), gradient = jax.vmap(jax.value_and_grad(log_density, has_aux=True))(u)
            return _Place(u, value, gradient, potential, moved)

        def transition(place: _Place, key: jax.Array) -> tuple[_Place, None]:
            size_key, momentum_key, accept_key = jax.random.split(key, 3)
            chains = len(theta)
            size = numbers.step_size * JITTER ** -jax.random.uniform(size_key, (chains, 1), jnp.float64)
            momentum = jax.random.normal(momentum_key, place.u.shape, jnp.float64)

            def leapfrog(_: Any, here: tuple[_Place, jax.Array]) -> tuple[_Place, jax.Array]:
                place, momentum = here
                momentum = momentum + 0.5 * size * place.gradient
                place = at(place.u + size * momentum, place.moved)
                return place, momentum + 0.5 * size * place.gradient

            end, last = jax.lax.fori_loop(0, num_leapfrog, leapfrog, (place, momentum))
            kinetic = 0.5 * jnp.sum(momentum**2 - last**2, axis=1)
            accepted = penalty_test(accept_key, end.log_density - place.log_density + kinetic, jnp.zeros(chains))
            accepted &= jnp.isfinite(end.log_density)
            return choose(accepted, end._replace(moved=jnp.ones_like(accepted)), place), None

        start = at((theta - center) @ jnp.asarray(numbers.inverse).T, jnp.zeros(len(theta), bool))
        end, _ = jax.lax.scan(transition, start, jax.random.split(key, transitions))
        # Chains that have not moved keep their θ to the last bit, so that their bound c is 0.
        position = choose(end.moved, center + end.u @ matrix.T, theta)
        clip = jax.vmap(lambda theta, proposal: clip_bound(theta, proposal, numbers, form=form))(theta, position)
        return Proposal(position, end.moved, end.potential - start.potential, clip)

    return propose


def accept(
    key: jax.Array, theta: jax.Array, proposal: Proposal, noisy_log_ratio: jax.Array, noise_sd: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the next positions, and which chains accepted a move: step 3. Uses released quantities only."""
    accepted = penalty_test(key, noisy_log_ratio + proposal.change, noise_sd) & proposal.moved
    return choose(accepted, proposal.position, theta), accepted
