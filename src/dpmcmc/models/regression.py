"""Regression families with closed-form scores: linear, logistic, Poisson and negative binomial.

The score of a record is a residual times its design row (1, x, one-hot(group)), so that the curator can
clip and sum it without ever forming per-record gradients. A record that cannot have been produced by the
family has a NaN likelihood and score (the curator counts it as zero); it never raises an error.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, polygamma
from numpy.typing import NDArray
from numpyro import distributions as dist

from dpmcmc.data.tables import Records
from dpmcmc.errors import DataError, ModelError
from dpmcmc.models.model import Model
from dpmcmc.models.parameters import Parameter

__all__ = [
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "PoissonRegression",
    "RegressionModel",
]

# Coefficients B_2k / (2k (2k - 1)) of the Stirling series of log Γ, k = 1, …, 6 (DLMF 5.11.1).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
# From here on the series is exact to double precision, and the direct difference of log Γ loses digits.
_STIRLING_START = 12.0


class RegressionModel(Model):
    """A generalised linear model with independent records; base of the families.

    With η = α + xᵀβ + u_group the linear predictor and s the unconstrained extra parameter (if any), a family
    gives log p(y | η, s) and its two derivatives. The unconstrained vector is, in this order, `intercept` (),
    `coefficients` (p,), `group_effects` (G,), then `noise_scale` or `dispersion`, then `group_scale`.

    Priors: α, β ~ N(0, prior_scale²); u ~ N(0, group_scale²); the positive ones ~ HalfNormal(prior_scale).

    Parameters
    ----------
    num_features_or_names
        Number p of columns of X, or their names.
    intercept
        Whether the predictor has a constant term α.
    prior_scale
        Scale of the priors; 2.5 suits features of unit scale.
    groups
        Number of groups, or their names; the records then have a column `group` of codes 0, …, G - 1.
    feature_bounds
        Public bounds on the columns of X, to which features are clamped: a positive number b (all columns lie in
        [-b, b]), or for each column such a number or a pair (low, high). Never take them from the data: minima and
        maxima of columns are as secret as the records. NaN and infinite features stay what they are (such a record
        counts for nothing).
    feature_blocks
        Where columns cannot be large together, as the indicators of a category's levels: pairs of column numbers and
        vertices (states × these columns) whose convex hull holds what any row has in these columns. Public, like the
        bounds, which must be given too. They decide a bound of the design rows only (`design_norm_bound`): a row that
        lies outside is clipped like any other that exceeds a bound.

    Attributes
    ----------
    feature_bounds
        Array of shape (p, 2), or None.
    linear_size
        Number q of leading unconstrained coordinates that multiply the design row (1, x, one-hot(group)).
    extra_size
        1 if a coordinate for `noise_scale` or `dispersion` follows them, else 0. The score of the remaining
        coordinate (`group_scale`) is zero.
    """

    extra_name: ClassVar[str | None] = None
    """Name of the family's positive parameter, which is exp of its unconstrained coordinate."""
    quadratic: ClassVar[bool] = False
    """Whether the log-likelihood is quadratic in η, so that a Newton step in it needs no trust region."""

    def __init__(
        self,
        num_features_or_names: int | Sequence[str],
        *,
        intercept: bool = True,
        prior_scale: float = 2.5,
        groups: int | Sequence[str] | None = None,
        feature_bounds: Any = None,
        feature_blocks: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        if type(self) is RegressionModel:
            raise ModelError("RegressionModel is the base of the families; use LogisticRegression or another one.")
        self.feature_names = _names("num_features_or_names", num_features_or_names, "x")
        self.group_names = () if groups is None else _names("groups", groups, "group")
        if not isinstance(intercept, bool):
            raise ModelError(f"intercept is {intercept!r}; give True or False.")
        if not isinstance(prior_scale, int | float) or not 0 < prior_scale < math.inf:
            raise ModelError(f"prior_scale is {prior_scale!r}; give a positive finite number.")
        if groups is not None and not self.group_names:
            raise ModelError("groups is empty; give at least one group, or None for a model without groups.")
        if not (self.feature_names or intercept or self.group_names):
            raise ModelError("num_features_or_names is 0 and there is no intercept; give at least one feature.")
        self.intercept = intercept
        self.prior_scale = float(prior_scale)
        self.num_features = len(self.feature_names)
        self.num_groups = len(self.group_names)
        self.feature_bounds = None if feature_bounds is None else _bounds(feature_bounds, self.num_features)
        self._blocks = _blocks(feature_blocks, self.feature_bounds)
        self.linear_size = int(intercept) + self.num_features + self.num_groups
        self.extra_size = 0 if self.extra_name is None else 1
        declared: dict[str, Parameter] = {}
        if intercept:
            declared["intercept"] = Parameter()
        declared["coefficients"] = Parameter((self.num_features,))
        if self.num_groups:
            declared["group_effects"] = Parameter((self.num_groups,))
        if self.extra_name is not None:
            declared[self.extra_name] = Parameter((), "positive")
        if self.num_groups:
            declared["group_scale"] = Parameter((), "positive")
        super().__init__(self._log_likelihood, self._log_prior, declared, sample_prior=self._sample_prior)

    @property
    def labels(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Names of the features and of the groups."""
        labels = {"coefficients": ("feature", tuple(self.feature_names))} if self.num_features else {}
        if self.num_groups:
            labels["group_effects"] = ("group", tuple(self.group_names))
        return labels

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns that the records must have."""
        return ("X", "y", "group") if self.num_groups else ("X", "y")

    def log_likelihood_at(self, eta: Any, y: Any, extra: Any = None) -> jax.Array:
        """Elementwise log p(y | η, s); NaN for an invalid outcome or a non-finite argument.

        Parameters
        ----------
        eta, y, extra
            Linear predictor, outcome and unconstrained extra parameter; arrays that broadcast. `extra` is
            None where `extra_size` is 0.
        """
        raise NotImplementedError

    def score_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """Elementwise derivatives of `log_likelihood_at`, in closed form.

        Returns
        -------
        residual, extra_score
            ∂/∂η and ∂/∂s. The score of a record is residual × (1, x, one-hot(group)) on the linear
            coordinates and `extra_score` (None where `extra_size` is 0) on the next one; NaN where the
            likelihood is.
        """
        raise NotImplementedError

    def curvature_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """Elementwise minus the second derivatives of `log_likelihood_at`, in closed form.

        Returns
        -------
        a, b, e
            -∂²/∂η², -∂²/∂η∂s and -∂²/∂s², the last two None where `extra_size` is 0; NaN where the likelihood is. The
            curvature of a record is [w, ẽ] [[a, b], [b, e]] [w, ẽ]ᵀ with its design row w and the unit vector ẽ of s.
        """
        raise NotImplementedError

    def information_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """Elementwise expected information about η and about s, neither negative; NaN where the likelihood is.

        Where the second has no closed form it is the squared score, whose mean it is.
        """
        raise NotImplementedError

    def design_norm_bound(self, matrix: Any) -> float | None:
        """Return an upper bound of ‖Cᵀw‖ over all design rows w = (1, x, one-hot(group)) within `feature_bounds`.

        With centres m_k and half-widths h_k of the bounds and the rows C_k of the matrix, Cᵀw = v + Σ_k h_k t_k C_k
        with |t_k| ≤ 1 and v = C_intercept + C_group + Σ_k m_k C_k. The smallest of these bounds is taken, then the
        largest over the groups:

        - ‖v‖ + Σ_k h_k ‖C_k‖ (triangle inequality),
        - √Σ_j (|v_j| + Σ_k h_k |C_kj|)² (each coordinate at its largest),
        - ‖v‖ + √p ‖diag(h) C_features‖₂ (the box within a ball).

        A fourth takes account of `feature_blocks`: Cᵀw = v + Σ_b u_b with u_b one of the vertices of block b times C
        (of a column that is in none: of its two bounds; and of the groups), each less their mean, which is then in v.
        ‖Cᵀw‖² ≤ ‖v‖² + Σ_b max (‖u_b‖² + 2 vᵀu_b) + 2 Σ_{a<b} max u_aᵀu_b, since the norm is largest at vertices.

        In the coordinates θ = m + C z no logistic score is longer than this, and no log-ratio larger than this times
        ‖Δz‖.

        Parameters
        ----------
        matrix
            C, of shape (d, d), as in :class:`dpmcmc.queries.Affine`.

        Returns
        -------
        float, or None for a model without `feature_bounds`.

        Examples
        --------
        >>> model = LogisticRegression(2, feature_bounds=[2.0, (0.0, 1.0)])
        >>> round(model.design_norm_bound([[1, 0, 0], [0, 1, 0], [0, 0, 1]]), 9)
        2.449489743
        """
        if self.feature_bounds is None:
            return None
        rows = np.asarray(matrix, np.float64)
        if rows.shape != (self.dimension, self.dimension) or not np.all(np.isfinite(rows)):
            raise ModelError(
                f"matrix has shape {rows.shape}; give finite numbers of shape ({self.dimension}, {self.dimension})."
            )
        start, stop = int(self.intercept), int(self.intercept) + self.num_features
        features, (low, high) = rows[start:stop], self.feature_bounds.T
        center, reach = 0.5 * (low + high), 0.5 * (high - low)[:, None] * features
        shifts = rows[stop : stop + self.num_groups] if self.num_groups else np.zeros((1, self.dimension))
        fixed = shifts + center @ features + rows[:start].sum(axis=0)
        lengths = np.linalg.norm(fixed, axis=1)
        bounds = [
            lengths + np.linalg.norm(reach, axis=1).sum(),
            np.linalg.norm(np.abs(fixed) + np.abs(reach).sum(axis=0), axis=1),
            lengths + math.sqrt(self.num_features) * (np.linalg.norm(reach, 2) if reach.size else 0.0),
        ]
        smallest = min(float(np.min(bounds, axis=0).max()), self._pairwise_bound(rows))
        return smallest * (1.0 + 1e-12)  # for the rounding of it all

    def _pairwise_bound(self, rows: NDArray[np.float64]) -> float:
        """Return the bound of ‖Cᵀw‖ by pairs of blocks, see `design_norm_bound`."""
        assert self.feature_bounds is not None
        start, stop = int(self.intercept), int(self.intercept) + self.num_features
        features, fixed = rows[start:stop], rows[:start].sum(axis=0)
        vertices = [states @ features[columns] for columns, states in self._blocks]
        alone = np.setdiff1d(np.arange(self.num_features), [c for columns, _ in self._blocks for c in columns])
        vertices += [np.outer(self.feature_bounds[column], features[column]) for column in alone]
        if self.num_groups:
            vertices.append(rows[stop : stop + self.num_groups])
        for place, block in enumerate(vertices):
            fixed = fixed + block.mean(axis=0)
            vertices[place] = block - block.mean(axis=0)
        square = float(fixed @ fixed)
        for place, block in enumerate(vertices):
            square += float(np.max(np.sum(block**2, axis=1) + 2.0 * block @ fixed))
            square += 2.0 * sum(float(np.max(block @ other.T)) for other in vertices[:place])
        return math.sqrt(max(square, 0.0))

    def linear_predictor(self, theta: Any, X: Any, group: Any = None) -> jax.Array:
        """Linear predictors η of a batch of rows at one unconstrained vector; NaN for a group out of range.

        Parameters
        ----------
        theta
            Unconstrained vector of shape (d,).
        X
            Feature rows of shape (B, p).
        group
            Integer codes of shape (B,), for a model with groups.

        Returns
        -------
        jax.Array
            Shape (B,).
        """
        theta = jnp.asarray(theta)
        slices = self.parameter_slices
        intercept = theta[slices["intercept"]][0] if self.intercept else None
        effects = theta[slices["group_effects"]] if self.num_groups else None
        return self._predict(intercept, theta[slices["coefficients"]], effects, X, group)

    def prepare_records(self, data: Any) -> tuple[Records, int]:
        """Copy data into records `{"X": n × p, "y": n}`, plus `"group": n` in a model with groups.

        X may be an array or a table of p columns. Groups may be of any numeric dtype; a record whose code is missing or
        none of 0, …, G - 1 counts for nothing, like any other that the family cannot have produced.

        Raises
        ------
        DataError
            If a column is missing, superfluous or of the wrong shape or dtype; never because of a value.

        Examples
        --------
        >>> import numpy as np
        >>> model = LogisticRegression(["age", "hours"])
        >>> model.prepare_records({"X": np.zeros((4, 2)), "y": np.array([0, 1, 1, 0])})[1]
        4
        """
        records, num_records = super().prepare_records(data)
        expected = list(self.column_names)
        if not isinstance(records, dict):
            raise DataError(f"data is one array; give a mapping with the columns {expected}.")
        if set(records) != set(expected):
            remedy = (
                'add the missing and drop the other columns, for example {"X": table[["age", "hours"]], "y": '
                'table["income"]}.'
                if self.design is None
                else "give the records that came with the model: model, records = dpmcmc.regression(formula, table)."
            )
            raise DataError(f"data has the columns {list(records)}, but the model needs exactly {expected}; {remedy}")
        if records["X"].shape != (num_records, self.num_features):
            raise DataError(
                f"column 'X' has shape {records['X'].shape}, but the model has {self.num_features} features; "
                f"give an array of shape ({num_records}, {self.num_features})."
            )
        for name in expected[1:]:
            if records[name].ndim != 1:
                raise DataError(
                    f"column {name!r} has shape {records[name].shape}; give one number per record, "
                    f"shape ({num_records},)."
                )
        # This class's own: one that is derived from it could learn from all rows at once.
        features = records["X"] if self.feature_bounds is None else RegressionModel._clamped(self, records["X"])
        # Narrow outcomes stay, so that float32 features are computed with in float32.
        prepared = {
            "X": features if features.dtype.kind == "f" else features.astype(np.float64),
            "y": _without_wide_integers(records["y"]),
        }
        if self.num_groups:
            prepared["group"] = _group_codes(records["group"], self.num_groups)
        return prepared, num_records

    def _clamped(self, features: NDArray[Any]) -> NDArray[Any]:
        """Clamp columns to their bounds; what is not finite stays, so that the record counts for nothing."""
        bounds = np.asarray(self.feature_bounds, np.float64)
        if bounds.shape != (self.num_features, 2):  # an attribute that somebody set: it could hold a number a record
            raise ModelError(
                f"feature_bounds has shape {bounds.shape}, not ({self.num_features}, 2); give it to the model's class."
            )
        features = features if features.dtype.kind == "f" else features.astype(np.float64)
        low, high = bounds.T.astype(features.dtype)
        # A bound that float32 does not hold is rounded inwards: what is clamped lies within the bounds as given.
        low = np.where(low < bounds[:, 0], np.nextafter(low, np.inf, dtype=low.dtype), low)
        high = np.where(high > bounds[:, 1], np.nextafter(high, -np.inf, dtype=high.dtype), high)
        with np.errstate(all="ignore"):  # a warning would tell of a value
            return np.where(np.isfinite(features), np.clip(features, low, high), features)

    def quantities(self, records: Any) -> Any:
        """Return X and y: groups are codes."""
        return {name: records[name] for name in ("X", "y")}

    def _predict(self, intercept: Any, coefficients: Any, effects: Any, X: Any, group: Any) -> jax.Array:
        X = jnp.asarray(X, coefficients.dtype)
        eta = jnp.matmul(X, coefficients, precision=jax.lax.Precision.HIGHEST)
        if intercept is not None:
            eta = eta + intercept
        if effects is not None:
            if group is None:
                raise ModelError(f"group is missing; the model has {self.num_groups} groups: pass their codes.")
            group = jnp.asarray(group)
            in_range = (group >= 0) & (group < self.num_groups)
            effect = effects[jnp.clip(group, 0, self.num_groups - 1).astype(jnp.int32)]
            # Multiplied, not selected: a selection would give the derivative zero instead of NaN.
            eta = eta + effect * jnp.where(in_range, 1.0, jnp.nan).astype(eta.dtype)
        return eta

    def _log_likelihood(self, parameters: dict[str, jax.Array], record: Any) -> jax.Array:
        # Of the class, not of the instance: what is set on that is nobody's family.
        eta = type(self)._predict(
            self,
            parameters.get("intercept"),
            parameters["coefficients"],
            parameters.get("group_effects"),
            record["X"],
            record.get("group"),
        )
        extra = None if self.extra_name is None else jnp.log(parameters[self.extra_name])
        return type(self).log_likelihood_at(self, eta, record["y"], extra)

    def _log_prior(self, parameters: dict[str, jax.Array]) -> jax.Array:
        total = dist.Normal(0.0, self.prior_scale).log_prob(parameters["coefficients"]).sum()
        if self.intercept:
            total = total + dist.Normal(0.0, self.prior_scale).log_prob(parameters["intercept"])
        if self.extra_name is not None:
            total = total + dist.HalfNormal(self.prior_scale).log_prob(parameters[self.extra_name])
        if self.num_groups:
            scale = parameters["group_scale"]
            total = total + dist.Normal(0.0, scale).log_prob(parameters["group_effects"]).sum()
            total = total + dist.HalfNormal(self.prior_scale).log_prob(scale)
        return jnp.asarray(total)

    def _sample_prior(self, key: jax.Array) -> dict[str, jax.Array]:
        keys = dict(zip(self.parameters, jax.random.split(key, len(self.parameters)), strict=True))
        normal, half_normal = dist.Normal(0.0, self.prior_scale), dist.HalfNormal(self.prior_scale)
        values = {}
        for name, parameter in self.parameters.items():
            if name != "group_effects":
                prior = half_normal if parameter.support == "positive" else normal
                values[name] = prior.sample(keys[name], parameter.shape)
        if self.num_groups:
            standard = jax.random.normal(keys["group_effects"], (self.num_groups,))
            values["group_effects"] = values["group_scale"] * standard
        return values


class LinearRegression(RegressionModel):
    """Linear regression: y ~ N(η, σ²), with σ = `noise_scale` = exp(s).

    log p = -z²/2 - s - log(2π)/2 with z = (y - η)/σ; ∂/∂η = z/σ and ∂/∂s = z² - 1.

    Examples
    --------
    >>> model = LinearRegression(2, groups=["north", "south"])
    >>> list(model.parameters)
    ['intercept', 'coefficients', 'group_effects', 'noise_scale', 'group_scale']
    >>> model.linear_size, model.extra_size, model.dimension
    (5, 1, 7)
    """

    extra_name = "noise_scale"
    quadratic = True

    def log_likelihood_at(self, eta: Any, y: Any, extra: Any = None) -> jax.Array:
        """Elementwise log N(y; η, σ²); see the class for the formula and the base class for arguments."""
        eta, y, extra = as_floats(eta, y, extra)
        z = (y - eta) * jnp.exp(-extra)
        log_p: jax.Array = -0.5 * z**2 - extra - 0.5 * math.log(2 * math.pi)
        return log_p * one_or_nan(eta, y)

    def score_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """∂/∂η = z/σ and ∂/∂s = z² - 1."""
        eta, y, extra = as_floats(eta, y, extra)
        z = (y - eta) * jnp.exp(-extra)
        validity = one_or_nan(eta, y)
        return z * jnp.exp(-extra) * validity, (z**2 - 1) * validity

    def curvature_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """1/σ², 2z/σ and 2z²."""
        eta, y, extra = as_floats(eta, y, extra)
        precision, validity = jnp.exp(-extra), one_or_nan(eta, y)
        z = (y - eta) * precision
        return precision**2 * validity, 2 * z * precision * validity, 2 * z**2 * validity

    def information_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """1/σ² and 2."""
        eta, y, extra = as_floats(eta, y, extra)
        validity = one_or_nan(eta, y)
        return jnp.exp(-2 * extra) * validity, 2 * validity


class LogisticRegression(RegressionModel):
    """Logistic regression: y ∈ {0, 1}, P(y = 1) = 1 / (1 + exp(-η)).

    With the sign t = 2y - 1: log p = -softplus(-tη), and ∂/∂η = t · sigmoid(-tη), both without overflow.

    Examples
    --------
    >>> LogisticRegression(["age", "hours"]).feature_names
    ('age', 'hours')
    """

    def log_likelihood_at(self, eta: Any, y: Any, extra: Any = None) -> jax.Array:
        """Elementwise -softplus(-tη); see the base class for the arguments."""
        eta, y, _ = as_floats(eta, y, None)
        return -jax.nn.softplus(-(2 * y - 1) * eta) * one_or_nan(eta, y, _is_zero_or_one(y))

    def score_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """∂/∂η = t · sigmoid(-tη), which keeps its relative accuracy in the tails, unlike y - sigmoid(η)."""
        eta, y, _ = as_floats(eta, y, None)
        sign = 2 * y - 1
        return sign * jax.nn.sigmoid(-sign * eta) * one_or_nan(eta, y, _is_zero_or_one(y)), None

    def curvature_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """p(1 - p)."""
        eta, y, _ = as_floats(eta, y, None)
        both = jax.nn.sigmoid(eta) * jax.nn.sigmoid(-eta)
        return both * one_or_nan(eta, y, _is_zero_or_one(y)), None, None

    def information_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """p(1 - p), which does not depend on y."""
        return LogisticRegression.curvature_at(self, eta, y)[0], None


class PoissonRegression(RegressionModel):
    """Poisson regression with log link: y ~ Poisson(exp η).

    log p = yη - exp η - log y!, and ∂/∂η = y - exp η. Where exp η overflows, both are infinite.

    Examples
    --------
    >>> PoissonRegression(3, intercept=False).dimension
    3
    """

    def log_likelihood_at(self, eta: Any, y: Any, extra: Any = None) -> jax.Array:
        """Elementwise yη - exp η - log y!; see the base class for the arguments."""
        eta, y, _ = as_floats(eta, y, None)
        log_p: jax.Array = y * eta - jnp.exp(eta) - gammaln(y + 1)
        return log_p * one_or_nan(eta, y, _is_count(y))

    def score_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """∂/∂η = y - exp η."""
        eta, y, _ = as_floats(eta, y, None)
        return (y - jnp.exp(eta)) * one_or_nan(eta, y, _is_count(y)), None

    def curvature_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """exp η."""
        eta, y, _ = as_floats(eta, y, None)
        return jnp.exp(eta) * one_or_nan(eta, y, _is_count(y)), None, None

    def information_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """exp η, which does not depend on y."""
        return PoissonRegression.curvature_at(self, eta, y)[0], None


class NegativeBinomialRegression(RegressionModel):
    """Negative binomial regression with log link: mean m = exp η, variance m + a m².

    The dispersion is a = exp(s). With r = 1/a and t = η + s, so that a m = exp t,

        log p    = log Γ(y + r) - log Γ(r) - log y! - r softplus(t) - y softplus(-t),
        ∂/∂η     = y sigmoid(-t) - r sigmoid(t)  ( = (y - m) / (1 + a m) ),
        ∂/∂s     = -r (ψ(y + r) - ψ(r)) + r softplus(t) + ∂/∂η.

    The differences of log Γ and of ψ use Stirling's series for large r, where they would lose all digits.
    A dispersion towards zero is the Poisson family.

    Examples
    --------
    >>> NegativeBinomialRegression(1).parameters["dispersion"].support
    'positive'
    """

    extra_name = "dispersion"
    float32_suffices = False  # differences of log Γ

    def log_likelihood_at(self, eta: Any, y: Any, extra: Any = None) -> jax.Array:
        """Elementwise log-probability; see the class for the formula and the base class for arguments."""
        eta, y, extra = as_floats(eta, y, extra)
        r, t = jnp.exp(-extra), eta + extra
        log_p: jax.Array = (
            _log_gamma_difference(r, y) - gammaln(y + 1) - r * jax.nn.softplus(t) - y * jax.nn.softplus(-t)
        )
        return log_p * one_or_nan(eta, y, _is_count(y))

    def score_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """∂/∂η and ∂/∂s; see the class for the formulas."""
        eta, y, extra = as_floats(eta, y, extra)
        r, t = jnp.exp(-extra), eta + extra
        validity = one_or_nan(eta, y, _is_count(y))
        residual = y * jax.nn.sigmoid(-t) - r * jax.nn.sigmoid(t)
        extra_score = -r * _digamma_difference(r, y) + r * jax.nn.softplus(t) + residual
        return residual * validity, extra_score * validity

    def curvature_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        """With a = (y + r) sigmoid(t) sigmoid(-t): a, b = a - r sigmoid(t), and for s the formula

        b - r sigmoid(t) + r softplus(t) - r (ψ(y + r) - ψ(r)) - r² (ψ'(y + r) - ψ'(r)).
        """
        eta, y, extra = as_floats(eta, y, extra)
        r, t = jnp.exp(-extra), eta + extra
        validity = one_or_nan(eta, y, _is_count(y))
        upper = r * jax.nn.sigmoid(t)
        a = (y + r) * jax.nn.sigmoid(t) * jax.nn.sigmoid(-t)
        rest = r * jax.nn.softplus(t) - r * _digamma_difference(r, y) - r**2 * _trigamma_difference(r, y)
        return a * validity, (a - upper) * validity, (a - 2 * upper + rest) * validity

    def information_at(self, eta: Any, y: Any, extra: Any = None) -> tuple[jax.Array, jax.Array | None]:
        """r sigmoid(t) = m / (1 + a m), and (∂/∂s)², whose mean is the information about s."""
        eta, y, extra = as_floats(eta, y, extra)
        _, extra_score = NegativeBinomialRegression.score_at(self, eta, y, extra)
        assert extra_score is not None
        expected = jnp.exp(-extra) * jax.nn.sigmoid(eta + extra)
        return expected * one_or_nan(eta, y, _is_count(y)), extra_score**2


def _names(argument: str, given: int | Sequence[str], prefix: str) -> tuple[str, ...]:
    if isinstance(given, int | np.integer) and not isinstance(given, bool) and given >= 0:
        return tuple(f"{prefix}{index}" for index in range(int(given)))
    if isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(n, str) for n in given):
        if len(set(given)) != len(given):
            raise ModelError(f"{argument} is {list(given)!r}, with a name twice; make the names distinct.")
        return tuple(given)
    raise ModelError(f"{argument} is {given!r}; give a non-negative integer or a list of names.")


def _bounds(given: Any, num_features: int) -> NDArray[np.float64]:
    """Bring bounds to p pairs (low, high)."""
    remedy = (
        f"give a positive number, or for each of the {num_features} features such a number or a pair (low, high) with "
        "low < high, all finite."
    )
    problem = ModelError(f"feature_bounds is {given!r}; {remedy}")
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    entries = list(given) if several else [given] * num_features
    if len(entries) != num_features:
        raise ModelError(f"feature_bounds has {len(entries)} entries for {num_features} features; {remedy}")
    pairs = np.empty((num_features, 2))
    for place, entry in enumerate(entries):
        is_number = isinstance(entry, int | float | np.number) and not isinstance(entry, bool)
        try:
            pairs[place] = [-entry, entry] if is_number else entry
        except (TypeError, ValueError):
            raise problem from None
    if not np.all(np.isfinite(pairs)) or not np.all(pairs[:, 0] < pairs[:, 1]):
        raise problem
    pairs.setflags(write=False)
    return pairs


def _blocks(
    given: Sequence[tuple[Any, Any]], bounds: NDArray[np.float64] | None
) -> tuple[tuple[NDArray[np.int64], NDArray[np.float64]], ...]:
    """Bring blocks to arrays, and check that each column is in one at most and every vertex within the bounds."""
    pairs = tuple((np.asarray(columns, np.int64), np.asarray(states, np.float64)) for columns, states in given)
    if not pairs:
        return ()
    remedy = "give pairs of column numbers, each column once, and vertices (states × these columns)"
    if bounds is None:
        raise ModelError("feature_blocks needs feature_bounds; give both")
    every = np.concatenate([columns for columns, _ in pairs])
    if len(set(every.tolist())) != len(every) or np.any(every < 0) or np.any(every >= len(bounds)):
        raise ModelError(f"feature_blocks has the columns {every.tolist()} for {len(bounds)} features; {remedy}")
    for columns, states in pairs:
        if states.ndim != 2 or states.shape[1] != len(columns) or not len(states) or not np.all(np.isfinite(states)):
            raise ModelError(
                f"feature_blocks has vertices of shape {states.shape} for {len(columns)} columns; {remedy}"
            )
    return pairs


def _without_wide_integers(column: NDArray[Any]) -> NDArray[Any]:
    # Without double precision JAX would wrap 64-bit integers around: an outcome of 2³² would become 0.
    return column.astype(np.float64) if column.dtype.kind in "iu" and column.dtype.itemsize == 8 else column


def _group_codes(column: NDArray[Any], num_groups: int) -> NDArray[np.int32]:
    """Codes 0, …, G - 1 from any dtype (a column with a missing value is floating); −1 for all that is no such code."""
    with np.errstate(all="ignore"):  # a warning would tell of a value
        codes = column.astype(np.float64)
        known = (codes >= 0) & (codes < num_groups) & (codes == np.floor(codes))
        return np.where(known, codes, -1).astype(np.int32)


def as_floats(eta: Any, y: Any, extra: Any) -> tuple[jax.Array, jax.Array, Any]:
    """Bring the outcome and the extra parameter to the predictor's floating dtype."""
    eta = jnp.asarray(eta)
    if not jnp.issubdtype(eta.dtype, jnp.floating):
        eta = eta.astype(jnp.result_type(float))
    return eta, jnp.asarray(y).astype(eta.dtype), None if extra is None else jnp.asarray(extra, eta.dtype)


def one_or_nan(eta: jax.Array, y: jax.Array, possible: Any = True) -> jax.Array:
    """1 for a possible record and NaN for any other, to multiply with: its derivative is then NaN as well."""
    return jnp.where(possible & jnp.isfinite(eta) & jnp.isfinite(y), 1.0, jnp.nan).astype(eta.dtype)


def _is_zero_or_one(y: jax.Array) -> jax.Array:
    return (y == 0) | (y == 1)


def _is_count(y: jax.Array) -> jax.Array:
    return (y >= 0) & (y == jnp.floor(y))


def _log_gamma_difference(r: jax.Array, y: jax.Array) -> jax.Array:
    """log Γ(r + y) - log Γ(r) for r > 0, y ≥ 0, accurate also for large r."""
    large = jnp.maximum(r, _STIRLING_START)  # keeps the unselected branch and its derivative finite
    small = jnp.minimum(r, _STIRLING_START)
    series = (large + y - 0.5) * jnp.log1p(y / large) + y * jnp.log(large) - y
    for k, coefficient in enumerate(_STIRLING):
        power = 2 * k + 1
        series = series + coefficient * ((large + y) ** -power - large**-power)
    return jnp.where(r < _STIRLING_START, gammaln(small + y) - gammaln(small), series)


def _digamma_difference(r: jax.Array, y: jax.Array) -> jax.Array:
    """ψ(r + y) - ψ(r), the derivative of the above in r."""
    large = jnp.maximum(r, _STIRLING_START)
    small = jnp.minimum(r, _STIRLING_START)
    series = jnp.log1p(y / large) - 0.5 * (1 / (large + y) - 1 / large)
    for k, coefficient in enumerate(_STIRLING):
        power = 2 * k + 1
        series = series - coefficient * power * ((large + y) ** -(power + 1) - large ** -(power + 1))
    return jnp.where(r < _STIRLING_START, digamma(small + y) - digamma(small), series)


def _trigamma_difference(r: jax.Array, y: jax.Array) -> jax.Array:
    """ψ'(r + y) - ψ'(r), the derivative of that in r."""
    large = jnp.maximum(r, _STIRLING_START)
    small = jnp.minimum(r, _STIRLING_START)
    series = -y / (large * (large + y)) + 0.5 * ((large + y) ** -2 - large**-2)
    for k, coefficient in enumerate(_STIRLING):
        power = 2 * k + 1
        factor = coefficient * power * (power + 1)
        series = series + factor * ((large + y) ** -(power + 2) - large ** -(power + 2))
    return jnp.where(r < _STIRLING_START, polygamma(1, small + y) - polygamma(1, small), series)
