"""What a likelihood may compute: an allowlist of JAX's primitives, and a look for data that came in by the back door.

The guarantee needs that a record's contribution depends on that record alone. A likelihood is written for one record,
but it is compiled for many at once, and some primitives then mix rows: a convolution multiplies its neighbours' NaN by
zero, an iterative function stops when the slowest row has converged, another package's primitive does what it likes.
So only primitives are let through for which tests/curator/test_row_independence.py shows, bit for bit, that no row
depends on another. What does not depend on the record (θ alone) may be anything that stays inside the program.

Functions are traced here once; what was checked is what the curator runs. No value of a record is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.extend.core import primitives

from dpmcmc.errors import ModelError

__all__ = [
    "ALLOWED",
    "Traced",
    "check_constants",
    "fingerprint",
    "refuse_host_access",
    "trace",
    "trace_curvature",
    "trace_likelihood",
    "trace_scalar",
]

# The objects themselves, not their names: another package may call a primitive of its own "add".
# fmt: off
_ELEMENTWISE = (
    lax.abs_p, lax.acos_p, lax.acosh_p, lax.add_p, primitives.add_jaxvals_p, lax.and_p, lax.asin_p, lax.asinh_p,
    lax.atan_p, lax.atan2_p, lax.atanh_p, lax.bessel_i0e_p, lax.bessel_i1e_p, lax.cbrt_p, lax.ceil_p,
    lax.clamp_p, lax.convert_element_type_p, lax.copy_p, lax.cos_p, lax.cosh_p, lax.digamma_p, lax.div_p,
    lax.eq_p, lax.erf_p, lax.erf_inv_p, lax.erfc_p, lax.exp_p, lax.exp2_p, lax.expm1_p,
    lax.floor_p, lax.ge_p, lax.gt_p, lax.igamma_p, lax.igamma_grad_a_p, lax.igammac_p, lax.integer_pow_p,
    lax.is_finite_p, lax.le_p, lax.le_to_p, lax.lgamma_p, lax.log_p, lax.log1p_p, lax.logistic_p, lax.lt_p,
    lax.lt_to_p, lax.max_p, lax.min_p, lax.mul_p, lax.ne_p, lax.neg_p, lax.nextafter_p, lax.not_p,
    lax.optimization_barrier_p, lax.or_p, lax.polygamma_p, lax.pow_p, lax.reduce_precision_p, lax.rem_p,
    lax.round_p, lax.rsqrt_p, lax.select_n_p, lax.shift_left_p, lax.shift_right_arithmetic_p,
    lax.shift_right_logical_p, lax.sign_p, lax.sin_p, lax.sinh_p, lax.sqrt_p, lax.square_p, lax.stop_gradient_p,
    lax.sub_p, lax.tan_p, lax.tanh_p, lax.xor_p, lax.zeta_p,
)
_MOVES = (
    lax.broadcast_in_dim_p, lax.concatenate_p, lax.dynamic_slice_p, lax.dynamic_update_slice_p, lax.gather_p,
    lax.pad_p, lax.reshape_p, lax.rev_p, lax.scatter_p, lax.scatter_add_p, lax.scatter_max_p, lax.scatter_min_p,
    lax.scatter_mul_p, lax.slice_p, lax.sort_p, lax.split_p, lax.squeeze_p, lax.stack_p, lax.top_k_p,
    lax.transpose_p, lax.unstack_p,
)
_OVER_ONE_RECORDS_NUMBERS = (
    lax.argmax_p, lax.argmin_p, lax.cumlogsumexp_p, lax.cummax_p, lax.cummin_p, lax.cumprod_p, lax.cumsum_p,
    lax.dot_general_p, lax.reduce_and_p, lax.reduce_max_p, lax.reduce_min_p, lax.reduce_or_p, lax.reduce_prod_p,
    lax.reduce_sum_p, primitives.cholesky_p, primitives.triangular_solve_p,
)
# Their bodies are looked at as well.
_CONTROL = (lax.cond_p, lax.linear_solve_p, lax.scan_p)
# fmt: on
ALLOWED = frozenset((*_ELEMENTWISE, *_MOVES, *_OVER_ONE_RECORDS_NUMBERS, *_CONTROL))
"""The primitives that may work on what depends on a record."""

# Transparent: what they call is looked at in their place.
_CALLS = {
    primitives.jit_p: "jaxpr",
    primitives.closed_call_p: "call_jaxpr",
    primitives.call_p: "call_jaxpr",
    primitives.custom_jvp_call_p: "call_jaxpr",
    primitives.custom_vjp_call_p: "call_jaxpr",
    primitives.remat_p: "jaxpr",
}
# Numbers of other kinds (complex, half precision, random keys) were not tested.
_DTYPES = frozenset(
    map(
        np.dtype,
        ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32", "float64"),
    )
)
# Through these a compiled function can reach the host, where it could print or store a record.
_HOST_PRIMITIVES = frozenset({"infeed", "outfeed", "ffi_call", "custom_call", "debug_print"})

_OWN_BATCHING = "it brings a rule of its own for many records at once, which nobody has shown to keep them apart"
_REMEDIES = {
    "conv_general_dilated": (
        "a convolution over many records multiplies one record's NaN with another's zeros",
        "write it with slices, for example sum(c[k] * x[k : len(x) - K + 1 + k] for k in range(K)), K = len(c)",
    ),
    "regularized_incomplete_beta": (
        "its series stops when the slowest record has converged, which moves the others",
        "use a distribution whose cdf has a closed form (logistic, Laplace, normal), or a table of a fixed grid and "
        "jnp.interp; the cdfs of Student-t, Beta and GammaPoisson, and censored models made of them, need it",
    ),
    "while": (
        "the number of turns would follow the records, and one record could keep all others waiting for ever",
        "use jax.lax.fori_loop or jax.lax.scan with a fixed number of turns",
    ),
    "custom_vmap_call": (_OWN_BATCHING, "write it for one record without jax.custom_batching.custom_vmap"),
    "reduce_window_max": ("it was not shown to keep records apart", "take the maximum of shifted slices"),
}
for _name in ("svd", "eigh", "eig", "qr", "schur", "lu", "hessenberg", "tridiagonal", "householder_product"):
    _REMEDIES[_name] = (
        "LAPACK works on the records' own matrices here, and prints a message where a value is infinite",
        "decompose matrices of parameters only, and use jnp.linalg.cholesky and "
        "jax.scipy.linalg.solve_triangular for a record's",
    )
_OTHERWISE = (_OWN_BATCHING, "write it with elementwise jax.numpy, sums, products, indexing, sorting or lax.scan")


# How errors name what was traced.
_FIRST = "log_likelihood, or its gradient,"
_SECOND = "log_likelihood, differentiated twice for a curvature (ScoreMoments needs the gradient only),"


class Traced(NamedTuple):
    """A log-likelihood of (θ, record) and its gradient by θ, as programs that were checked."""

    value: core.ClosedJaxpr
    gradient: core.ClosedJaxpr


def trace_likelihood(function: Callable[..., Any], theta: Any, record: Any) -> Traced:
    """Trace ``function(theta, record)`` and its gradient, and refuse what may not be computed with records.

    Parameters
    ----------
    function
        Log-likelihood of one record at an unconstrained vector.
    theta, record
        Shapes and dtypes.

    Raises
    ------
    ModelError
        If tracing fails, the result is not a real scalar, or a primitive is not allowed.
    """
    traced = Traced(
        trace_scalar("log_likelihood", function, theta, record),
        trace("the gradient of log_likelihood", jax.grad(function), theta, record)[0],
    )
    for closed in traced:
        refuse_host_access("log_likelihood", closed)
        _check_primitives(closed.jaxpr, [False] + [True] * (len(closed.jaxpr.invars) - 1), _FIRST)
    return traced


def trace_curvature(function: Callable[..., Any], theta: Any, record: Any) -> core.ClosedJaxpr:
    """Trace minus the second derivatives of ``function(theta, record)`` by θ, and check them like the gradient.

    Raises
    ------
    ModelError
        If there are none, or if a primitive is not allowed.
    """

    def curvature(theta: Any, record: Any) -> jax.Array:
        return -jax.jacfwd(jax.grad(function))(theta, record)

    try:
        closed = jax.make_jaxpr(curvature)(theta, record)
    except Exception as error:  # any error of the user's function; tracers hold no values
        raise ModelError(
            f"{_SECOND} failed: {in_one_line(error)}. Write it with functions that have second derivatives "
            "(the incomplete gamma function, and cdfs made of it, have none by their shape)."
        ) from error
    refuse_host_access(_SECOND, closed)
    _check_primitives(closed.jaxpr, [False] + [True] * (len(closed.jaxpr.invars) - 1), _SECOND)
    return closed


def trace_scalar(name: str, function: Callable[..., Any], *arguments: Any) -> core.ClosedJaxpr:
    """Trace a function that must return one real floating-point scalar."""
    jaxpr, output = trace(name, function, *arguments)
    if not isinstance(output, jax.ShapeDtypeStruct):
        raise ModelError(f"{name} returned a {type(output).__name__}; return one real floating-point scalar.")
    if output.shape != () or not jnp.issubdtype(output.dtype, jnp.floating):
        raise ModelError(
            f"{name} returned shape {output.shape} and dtype {output.dtype}; return one real floating-point "
            "scalar (sum over the components of one record, never over records)."
        )
    return jaxpr


def trace(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[core.ClosedJaxpr, Any]:
    """Trace a function of the user's; return the program and the shapes that it returns."""
    try:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    except Exception as error:  # any error of the user's function; tracers hold no values
        raise ModelError(
            f"{name} failed while JAX traced it for one record: {in_one_line(error)}. "
            "Write it in jax.numpy for a single record, without Python control flow on values. (Columns of tables and "
            "Parquet files are floating, since a value may be missing: to look up by a code, cast it to an integer.)"
        ) from error


def in_one_line(error: Exception) -> str:
    """Return what an error of the user's function says first; JAX's go on about tracing, and the cause is chained."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


def check_constants(name: str, closed: core.ClosedJaxpr, num_records: int, public: Collection[int] = ()) -> None:
    """Refuse a function that has captured an array with an axis of n entries (or a multiple): probably the data.

    Scalars and small tables that were computed from the data cannot be noticed. ``public``: sizes that are known to
    be those of settings.
    """
    for shape in {np.shape(constant) for constant in _constants(closed)}:
        if any(size > 0 and size % num_records == 0 and size not in public for size in shape):
            raise ModelError(
                f"{name} uses an array of shape {shape} from outside, and there are {num_records} records: data that "
                "come in this way are not protected. Make it a column of the data, so that each record brings its own "
                "entry; public numbers that happen to be as many can be padded by one."
            )


def _constants(value: Any) -> Iterator[Any]:
    """Yield all arrays that a program holds, those of inner programs and literals too."""
    if hasattr(value, "consts") and hasattr(value, "jaxpr"):
        yield from value.consts
        yield from _constants(value.jaxpr)
    elif hasattr(value, "eqns"):
        for equation in value.eqns:
            yield from (variable.val for variable in equation.invars if isinstance(variable, core.Literal))
            yield from _constants(tuple(equation.params.values()))
    elif isinstance(value, tuple | list):
        for entry in value:
            yield from _constants(entry)
    elif isinstance(value, Mapping):
        yield from _constants(tuple(value.values()))
    elif isinstance(value, np.ndarray | jax.Array):
        yield value


def _check_primitives(jaxpr: Any, depends: list[bool], name: str) -> list[bool]:
    """Return which results depend on the record, given which inputs do; refuse what is not allowed."""
    on_record = dict(zip(jaxpr.invars, depends, strict=True))

    def reads(variable: Any) -> bool:
        return not isinstance(variable, core.Literal) and on_record.get(variable, False)

    for equation in jaxpr.eqns:
        inputs = [reads(variable) for variable in equation.invars]
        outputs = [any(inputs)] * len(equation.outvars)
        if any(inputs):
            if equation.primitive in _CALLS:
                inner = equation.params[_CALLS[equation.primitive]]
                outputs = _check_primitives(getattr(inner, "jaxpr", inner), inputs, name)
            else:
                _check_equation(equation, name)
        on_record.update(zip(equation.outvars, outputs, strict=True))
    return [reads(variable) for variable in jaxpr.outvars]


def _check_equation(equation: Any, name: str) -> None:
    primitive = equation.primitive
    if primitive not in ALLOWED:
        reason, remedy = _REMEDIES.get(primitive.name, _OTHERWISE)
        raise ModelError(
            f"{name} uses the primitive {primitive.name!r}, which may not be used on what depends on a record: "
            f"{reason}. Instead: {remedy}."
        )
    for variable in (*equation.invars, *equation.outvars):
        dtype = variable.aval.dtype
        if dtype not in _DTYPES and dtype != jax.dtypes.float0:
            raise ModelError(
                f"{name} computes with dtype {dtype} ({primitive.name}); compute with booleans, integers, float32 or "
                "float64."
            )
    # Inside a loop or a branch everything counts as depending on the record.
    for inner in _inner_jaxprs(equation.params.values()):
        _check_primitives(inner, [True] * len(inner.invars), name)


def refuse_host_access(name: str, closed: Any) -> None:
    """Refuse a program that leaves the compiled code, where it could print or store what it sees."""
    names = set(_primitive_names(closed.jaxpr))
    reaching = sorted(name for name in names if "callback" in name or name in _HOST_PRIMITIVES)
    if reaching or closed.effects:
        found = ", ".join(reaching) or ", ".join(sorted(type(effect).__name__ for effect in closed.effects))
        raise ModelError(
            f"{name} reaches out of the compiled program ({found}) and could show records; remove "
            "jax.debug.print, callbacks and other side effects from it."
        )


def _primitive_names(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in _inner_jaxprs(equation.params.values()):
            yield from _primitive_names(inner)


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, tuple | list):
            yield from _inner_jaxprs(value)
        elif isinstance(value, Mapping):
            yield from _inner_jaxprs(value.values())


def fingerprint(closed: core.ClosedJaxpr) -> Hashable:
    """Return what tells two programs apart: equal fingerprints compute the same, whatever objects they were made from.

    What cannot be compared by value is part of the fingerprint itself, so that it is compared by identity.
    """
    return _program(closed.jaxpr), tuple(map(_comparable, closed.consts))


def _program(jaxpr: Any) -> Hashable:
    numbers: dict[Any, int] = {}

    def name(variable: Any) -> Hashable:
        if isinstance(variable, core.Literal):
            return _comparable(np.asarray(variable.val)), str(variable.aval)
        return numbers.setdefault(variable, len(numbers)), str(variable.aval)

    inputs = tuple(map(name, (*jaxpr.constvars, *jaxpr.invars)))
    equations = tuple(
        (
            equation.primitive,
            tuple(map(name, equation.invars)),
            tuple(map(name, equation.outvars)),
            # Of a call only what it calls matters: these programs are not differentiated any more.
            _comparable(
                equation.params[_CALLS[equation.primitive]]
                if equation.primitive in _CALLS
                else tuple(sorted(equation.params.items()))
            ),
        )
        for equation in jaxpr.eqns
    )
    return inputs, equations, tuple(map(name, jaxpr.outvars))


def _comparable(value: Any) -> Hashable:
    if hasattr(value, "consts") and hasattr(value, "jaxpr"):
        return fingerprint(value)
    if hasattr(value, "eqns"):
        return _program(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_comparable, value))
    if isinstance(value, Mapping):
        return tuple((key, _comparable(entry)) for key, entry in value.items())
    try:
        hash(value)
    except TypeError:
        return _ByIdentity(value)
    return type(value), value


class _ByIdentity:
    """An object that cannot be hashed; equal to itself only, and kept alive so that its identity stays its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)
