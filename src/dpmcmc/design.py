"""From a formula and a public schema to the columns of a regression: a row of the design is made of its own row alone.

Public code: it holds the formula and the schema, and no record. formulaic reads the formula and decides which columns
keep the design of full rank (from the schema's levels); what stands in a factor is evaluated here, by a small
interpreter that knows arithmetic and a few functions. No text of a formula is ever run as code.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import ModelError
from dpmcmc.schema import Field, Schema

__all__ = ["FAMILIES", "Block", "Design", "OriginalScale"]

Array = NDArray[np.float64]
Columns = Mapping[str, Array]

FAMILIES = ("logistic", "linear", "poisson", "negative_binomial")
"""What the outcome of a regression may be."""

_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "abs": (np.abs, 1),
    "arctan": (np.arctan, 1),
    "clip": (np.clip, 3),
    "cos": (np.cos, 1),
    "exp": (np.exp, 1),
    "expm1": (np.expm1, 1),
    "log": (np.log, 1),
    "log10": (np.log10, 1),
    "log1p": (np.log1p, 1),
    "log2": (np.log2, 1),
    "maximum": (np.maximum, 2),
    "minimum": (np.minimum, 2),
    "sin": (np.sin, 1),
    "sqrt": (np.sqrt, 1),
    "square": (np.square, 1),
    "tanh": (np.tanh, 1),
}
"""The functions that a formula may call, also as ``np.log``, and how many arguments they have. All are elementwise."""

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_LEARNED = {
    "scale": "numbers are already coded by the schema's bounds, or by its center and scale: write the column's name",
    "standardize": "numbers are already coded by the schema's bounds, or by its center and scale",
    "center": "numbers are already centred by the schema: write the column's name",
    "poly": "write the powers: age + I(age**2)",
    "cr": "use bs with knots by hand: bs(age, knots=[30, 50])",
    "cs": "use bs with knots by hand: bs(age, knots=[30, 50])",
    "cc": "use bs with knots by hand: bs(age, knots=[30, 50])",
    "te": "use bs with knots by hand: bs(age, knots=[30, 50])",
    "lag": "a row may use its own values only: add a column that holds the earlier value",
    "hashed": "name the levels in the schema, and write C(column)",
}
"""Functions of formulaic that learn from the data, or look at other rows, and what to write instead."""

_GRID = {1: 4097, 2: 257, 3: 41, 4: 17}
"""Points of an axis of the public grid on which the range of a function of so many columns is found."""
_MOST_STATES = 256
"""Terms that share a factor are bounded together up to so many vertices."""


class Block(NamedTuple):
    """Some columns of the design, and vertices whose convex hull holds what any row has there."""

    columns: NDArray[np.int64]
    vertices: Array


class OriginalScale(NamedTuple):
    """The linear map from coefficients of coded columns to those in the data's units.

    Attributes
    ----------
    columns
        Names of the coefficients: those of the design, then the induced ones.
    matrix
        Shape (1 + columns, 1 + coded columns); the first of each is the intercept.
    intercept
        Whether there is one: that of the formula, or an induced one.
    center, scale
        The response in the data's units is center + scale × the coded one.
    """

    columns: tuple[str, ...]
    matrix: Array
    intercept: bool
    center: float
    scale: float


@dataclass(frozen=True)
class _Factor:
    """One factor of a formula: a category, or numbers with a public range."""

    expression: str
    names: tuple[str, ...]  # of a category: its levels, the reference first; of a number: "", of a spline: "[1]", …
    is_category: bool
    variables: tuple[str, ...]
    values: Callable[[Columns], Array]  # clean columns → rows × names, in the data's units, within the range
    range: Array  # (names, 2)
    center: float = 0.0
    scale: float = 1.0

    def coded(self, clean: Columns) -> Array:
        return np.asarray((self.values(clean) - self.center) / self.scale)

    @property
    def bounds(self) -> Array:
        return np.asarray((self.range - self.center) / self.scale)

    @property
    def vertices(self) -> Array:
        """Vertices of a polytope that holds all coded values: states × names."""
        if self.is_category:
            return np.eye(len(self.names))
        if len(self.names) > 1:  # a spline's basis is not negative, and its sum is at most 1
            return np.vstack([np.zeros(len(self.names)), np.eye(len(self.names))])
        return self.bounds.T.copy()

    def name(self, place: int, reduced: bool) -> str:
        if self.is_category:
            return f"{self.expression}[{'T.' if reduced else ''}{self.names[place]}]"
        return f"{self.expression}{self.names[place]}"


class _Piece(NamedTuple):
    """One column of a factor, as a part of a column of the design."""

    factor: str
    place: int
    reduced: bool

    @property
    def key(self) -> tuple[str, int]:
        return self.factor, self.place


_Key = frozenset[tuple[str, int]]


class Design:
    """The columns that a formula makes of a table with a schema, row by row.

    A factor of the formula is evaluated on the clean values of a row (clamped to the schema's bounds), and numbers are
    then coded as (x − centre)/scale: a column by its field, any other expression by its range over the columns'
    bounds. Categories have a column for each level but the reference where the design would not be of full rank
    otherwise. Terms are products of coded factors.

    Parameters
    ----------
    formula
        Such as ``"income ~ age + C(education) + hours:C(sex)"``. Operators: ``+ - : * / ** ()``, ``1`` and ``0``, ``.``
        for all columns. In a factor: columns, numbers, arithmetic within ``I(…)``, ``C(column)``, the functions
        :data:`_FUNCTIONS` (``log``, ``np.log``, …), and splines with knots by hand, ``bs(age, knots=[30, 50])``.
    schema
        What is known about the columns.
    family
        One of :data:`FAMILIES`: decides what the response may be.
    groups
        Name of a category whose levels have effects of their own.

    Attributes
    ----------
    columns
        Names of the design's columns, without the intercept.
    intercept
        Whether the formula has one.
    bounds
        Public bounds of the coded columns, (columns, 2).
    blocks
        Polytopes that hold the rows of the design: much smaller than the box of the bounds where there are categories.
    variables
        The columns of the table that are needed, without the response.
    response
        The left side, as it is written.

    Raises
    ------
    ModelError
        The formula cannot be used; the message says why, and what to write instead.

    Examples
    --------
    >>> from dpmcmc.schema import Field, Schema
    >>> schema = Schema([
    ...     Field("age", "integer", minimum=20, maximum=80),
    ...     Field("sex", "string", levels=["female", "male"]),
    ...     Field("smoker", "boolean"),
    ... ])
    >>> design = Design("smoker ~ age + C(sex)", schema)
    >>> design.columns
    ('age', 'C(sex)[T.male]')
    >>> design.matrix({"age": np.array([20.0, 50.0]), "sex": np.array([1.0, np.nan])})
    array([[-1.,  1.],
           [nan, nan]])
    """

    def __init__(self, formula: str, schema: Schema, family: str = "logistic", groups: str | None = None) -> None:
        if not isinstance(schema, Schema):
            raise ModelError(f"schema is a {type(schema).__name__}; give a dpmcmc.Schema")
        if not isinstance(family, str) or family not in FAMILIES:
            raise ModelError(f"family = {family!r} is unknown; choose one of {', '.join(map(repr, FAMILIES))}")
        left, right = _sides(formula)
        self.formula, self.schema, self.family, self.groups = formula, schema, family, groups
        self._read = _Reader(formula, schema)
        self._group = None if groups is None else self._group_field(groups)
        self._response = self._find_response(left)
        self.response = self._response.expression
        available = [
            name
            for name in schema.names
            if name not in {*self._response.variables, groups, schema.unit} and _has_values(schema[name])
        ]
        terms = _right_terms(formula, right, available)
        self._factors = {factor.expression: factor for term in terms for factor in map(self._read.factor, term)}
        for factor in self._factors.values():
            both = [name for name in factor.variables if name in self._response.variables]
            if both:
                raise ModelError(
                    f"formula = {formula!r} has {both[0]!r} on both sides; a response cannot explain itself: leave it "
                    f"out on the right"
                )
        self.intercept, self._pieces = _structure(terms, self._factors)
        if not self._pieces and not self.intercept and groups is None:
            raise ModelError(f"formula = {formula!r} has nothing on its right side; name a column, or 1 for a constant")
        self.columns = tuple(self._name(pieces) for pieces in self._pieces)
        self.variables = tuple(
            dict.fromkeys(
                itertools.chain(
                    *(factor.variables for factor in self._factors.values()), () if groups is None else (groups,)
                )
            )
        )
        for name in (*self.variables, *self._response.variables):
            if name == schema.unit:
                raise ModelError(
                    f"formula = {formula!r} uses {name!r}, which says whose row it is; leave it out of the formula"
                )

    def __repr__(self) -> str:
        return f"Design({self.formula!r}, {self.family}, {len(self.columns)} columns)"

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the groups; empty without groups."""
        return () if self._group is None else tuple(self._group.level_names)

    @property
    def predicted(self) -> str:
        """What is predicted, in words: the response, or the probability of which of its levels."""
        if self.family != "logistic":
            return self.response
        return (
            f"P({self.response} = {self._response.names[-1]})" if self._response.is_category else f"P({self.response})"
        )

    @property
    def response_variables(self) -> tuple[str, ...]:
        """The columns of the table that the response is made of."""
        return self._response.variables

    @cached_property
    def bounds(self) -> Array:
        """Public bounds of the coded columns."""
        result = np.empty((len(self._pieces), 2))
        for row, pieces in enumerate(self._pieces):
            ends = [self._factors[piece.factor].bounds[piece.place] for piece in pieces]
            corners = [math.prod(corner) for corner in itertools.product(*ends)]
            result[row] = min(corners), max(corners)
        return result

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Polytopes that hold the rows of the design, a few columns each.

        A row of a term is multilinear in its factors, so that it lies in the convex hull of what the vertices of the
        factors give. Terms that share a factor are put together, as far as that does not make too many vertices.
        """
        sets: list[tuple[list[str], list[int]]] = []
        by_size = sorted(range(len(self._pieces)), key=lambda column: -self._num_states(self._names_in(column)))
        for column in by_size:
            own = self._names_in(column)
            for names, columns in sets:
                joined = list(dict.fromkeys([*names, *own]))
                if set(own) & set(names) and (len(joined) == len(names) or self._num_states(joined) <= _MOST_STATES):
                    names[:] = joined
                    columns.append(column)
                    break
            else:
                sets.append((own, [column]))
        return tuple(self._block(names, sorted(columns)) for names, columns in sets)

    def matrix(self, clean: Columns) -> Array:
        """Return the design of clean columns (`Field.code`): rows × columns, without the intercept.

        Every row is computed from its own values, and is the same bit for bit whatever the other rows are. A row with a
        missing value in a column of the formula is NaN in all columns.
        """
        rows = len(next(iter(clean.values()))) if clean else 0
        with np.errstate(all="ignore"):  # a warning would tell of a value
            coded = {name: factor.coded(clean) for name, factor in self._factors.items()}
            result = np.empty((rows, len(self._pieces)))
            for column, pieces in enumerate(self._pieces):
                value = np.ones(rows)
                for piece in pieces:
                    value = value * coded[piece.factor][:, piece.place]
                result[:, column] = value
            missing = np.zeros(rows, bool)
            for values in coded.values():
                missing |= np.isnan(values).any(axis=1)
        result[missing] = np.nan
        return result

    def outcome(self, clean: Columns) -> Array:
        """Return the coded response; NaN where it is missing or the family cannot have produced it."""
        with np.errstate(all="ignore"):
            coded = self._response.coded(clean)[:, -1]
            if self.family == "logistic":
                possible = (coded == 0.0) | (coded == 1.0)
            elif self.family == "linear":
                possible = np.isfinite(coded)
            else:
                possible = (coded >= 0.0) & (coded == np.floor(coded))
            return np.where(possible, coded, np.nan)

    def records(self, clean: Columns) -> dict[str, Array]:
        """Return the records of the regression's model: X, y and, with groups, the codes of the group."""
        columns = {"X": self.matrix(clean), "y": self.outcome(clean)}
        if self.groups is not None:
            columns["group"] = clean[self.groups]
        return columns

    def original(self) -> OriginalScale:
        """Return how coefficients of coded columns become those in the data's units.

        With z = (x − c)/s the coefficient β of a product of coded numbers is Π 1/s · Σ_S Π_{k∉S} (−c_k) · Π_{k∈S} x_k
        for the subsets S of its factors: what a term without one of its factors gets is added to that term, and if the
        formula has none it is an induced one. An indicator of a reference level is 1 minus those of the other levels.
        """
        places: dict[_Key, int] = {frozenset(): 0}
        for column, pieces in enumerate(self._pieces):
            places[frozenset(piece.key for piece in pieces)] = column + 1
        names = ["", *self.columns]
        entries: dict[tuple[int, int], float] = {}
        known = set(places) if self.intercept else set(places) - {frozenset()}
        needs_intercept = self.intercept

        def add(pieces: tuple[_Piece, ...], column: int, value: float) -> None:
            nonlocal needs_intercept
            key: _Key = frozenset(piece.key for piece in pieces)
            if key not in known:
                for piece in pieces:
                    factor = self._factors[piece.factor]
                    if factor.is_category and piece.place == 0:  # 1 − the other levels
                        others = tuple(other for other in pieces if other != piece)
                        add(others, column, value)
                        for place in range(1, len(factor.names)):
                            new = _Piece(piece.factor, place, True)
                            add(tuple(new if own == piece else own for own in pieces), column, -value)
                        return
            if not key:
                needs_intercept = True
            elif key not in places:
                places[key] = len(names)
                names.append(self._name(tuple(piece._replace(reduced=True) for piece in pieces)))
            entries[places[key], column] = entries.get((places[key], column), 0.0) + value

        if self.intercept:
            add((), 0, 1.0)
        for column, pieces in enumerate(self._pieces):
            numbers = [piece for piece in pieces if self._factors[piece.factor].center != 0.0]
            size = math.prod(self._factors[piece.factor].scale for piece in pieces)
            for number in range(len(numbers) + 1):
                for left_out in itertools.combinations(numbers, number):
                    shift = math.prod(-self._factors[piece.factor].center for piece in left_out)
                    add(tuple(piece for piece in pieces if piece not in left_out), column + 1, shift / size)
        matrix = np.zeros((len(names), 1 + len(self.columns)))
        for place, value in entries.items():
            matrix[place] = value
        center, scale = self.response_scale
        if center != 0.0 and self.family == "linear":
            needs_intercept = True
        return OriginalScale(tuple(names[1:]), matrix, needs_intercept, center, scale)

    @property
    def response_scale(self) -> tuple[float, float]:
        """Centre and scale of the coded response: 0 and 1 but for linear regressions."""
        return (self._response.center, self._response.scale) if self.family == "linear" else (0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return formula, schema, family and groups: all that :meth:`from_dict` needs."""
        return {"formula": self.formula, "family": self.family, "groups": self.groups, "schema": self.schema.to_dict()}

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Design:
        """Return the design that :meth:`to_dict` wrote."""
        return cls(entries["formula"], Schema.from_dict(entries["schema"]), entries["family"], entries["groups"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Let processes hand it on, by the formula."""
        return Design.from_dict, (self.to_dict(),)

    # ------------------------------------------------------------------------------------------------------ parts

    def _name(self, pieces: tuple[_Piece, ...]) -> str:
        return ":".join(self._factors[piece.factor].name(piece.place, piece.reduced) for piece in pieces)

    def _names_in(self, column: int) -> list[str]:
        return [piece.factor for piece in self._pieces[column]]

    def _num_states(self, names: list[str]) -> int:
        return math.prod(len(self._factors[name].vertices) for name in names)

    def _block(self, names: list[str], columns: list[int]) -> Block:
        of_factors = {name: self._factors[name].vertices for name in names}
        states = np.indices([len(of_factors[name]) for name in names]).reshape(len(names), -1)
        vertices = np.ones((states.shape[1], len(columns)))
        for place, column in enumerate(columns):
            for piece in self._pieces[column]:
                vertices[:, place] *= of_factors[piece.factor][states[names.index(piece.factor)], piece.place]
        return Block(np.array(columns, np.int64), np.unique(vertices, axis=0))

    def _group_field(self, groups: Any) -> Field:
        if not isinstance(groups, str) or groups not in self.schema.names:
            raise ModelError(
                f"groups = {groups!r} is no column of the schema; its columns are {_listed(self.schema.names)}: choose "
                "one, or add the field"
            )
        field = self.schema[groups]
        if field.kind != "category":
            raise ModelError(
                f"groups = {groups!r} is a {field.kind} in the schema, not a category; give a column with levels, or "
                f"name the levels of {groups!r} in the schema"
            )
        return field

    def _find_response(self, left: str) -> _Factor:
        factors = _left_factors(self.formula, left)
        response = self._read.factor(factors)
        if response.variables == (self.groups,):
            raise ModelError(f"groups = {self.groups!r} is the response; give another column")
        problem = self._why_no_response(response)
        if problem is not None:
            raise ModelError(f"family = {self.family!r} cannot have the response {response.expression!r}: {problem}")
        if self.family == "linear":
            return response
        return _replace(response, center=0.0, scale=1.0)

    def _why_no_response(self, response: _Factor) -> str | None:
        """Say what is wrong with the response, and the remedy; None if nothing is."""
        field = self.schema[response.variables[0]] if len(response.variables) == 1 else None
        if self.family == "logistic":
            if response.is_category:
                number = len(response.names)
                if number == 2:
                    return None
                own = field is not None and "missing" in response.names and field.missing == "own level"
                return f"it has {number} levels; name the two levels in the schema" + (
                    ", and let missing be 'record counts as nothing' instead of 'own level'" if own else ""
                )
            if len(response.names) == 1 and response.range.tolist() == [[0.0, 1.0]] and self._only_whole(response):
                return None
            return (
                "it is neither a boolean, nor has two levels, nor is an integer from 0 to 1; choose another family "
                "(linear for numbers, poisson for counts), or change the schema"
            )
        if response.is_category:
            return f"it is a category; give a number, or use family='logistic' for {len(response.names)} levels"
        if len(response.names) > 1:
            return "it has several columns; give one number"
        if field is not None and field.kind == "boolean":
            return "it is a boolean; use family='logistic'"
        if self.family == "linear":
            return None
        if not self._only_whole(response):
            return "it is not an integer; counts are: change its type in the schema, or use family='linear'"
        if response.range[0, 0] < 0.0:
            return f"its minimum is {response.range[0, 0]:g}; counts are not negative: raise the minimum to 0"
        return None

    def _only_whole(self, response: _Factor) -> bool:
        """Whether a response is a column of whole numbers, or a comparison."""
        if response.expression not in self.schema.names:
            return bool(self._read.is_comparison(response.expression))
        field = self.schema[response.expression]
        return field.kind == "boolean" or field.type == "integer"


# ------------------------------------------------------------------------------------------------ reading the formula


def _replace(factor: _Factor, **changes: Any) -> _Factor:
    return _Factor(**{**factor.__dict__, **changes})


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))


def _has_values(field: Field) -> bool:
    """Whether a column can stand in a formula: an id without levels cannot."""
    return not field.blanks()


def _sides(formula: Any) -> tuple[str, str]:
    if not isinstance(formula, str):
        raise ModelError(f"formula is a {type(formula).__name__}; give a text such as 'income ~ age + C(education)'")
    parts = formula.split("~")
    if len(parts) != 2 or not parts[0].strip():
        raise ModelError(
            f"formula = {formula!r} has no response; write one column, then ~, then the columns that explain it, as in "
            "'income ~ age + C(education)'"
            if len(parts) < 3
            else f"formula = {formula!r} has more than one ~; write 'response ~ columns'"
        )
    if not parts[1].strip():
        raise ModelError(f"formula = {formula!r} has nothing on its right side; name a column, or 1 for a constant")
    return parts[0], parts[1]


def _parsed(formula: str, side: str, intercept: bool, available: list[str]) -> list[Any]:
    """Let formulaic read one side. Only one side at a time: of a left side it would evaluate parts."""
    from formulaic.errors import FormulaicError
    from formulaic.parser import DefaultFormulaParser

    parser = DefaultFormulaParser(include_intercept=intercept, feature_flags=set())
    context = {"__formulaic_variables_available__": available, "__formulaic_variables_used_lhs__": []}
    try:
        return list(parser.get_terms(side, context=context))
    except (FormulaicError, SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = (
            f"formula = {formula!r} cannot be read: {reason.rstrip('.')}; write it as 'income ~ age + C(education)', a "
            "name with spaces as `name`, arithmetic and comparisons as I(age > 30), an effect of each group by groups="
        )
    raise ModelError(problem)


def _left_factors(formula: str, left: str) -> Any:
    terms = _parsed(formula, left, False, [])
    if len(terms) != 1 or len(terms[0].factors) != 1 or terms[0].factors[0].eval_method.value == "literal":
        raise ModelError(f"formula = {formula!r} has {left.strip()!r} on its left side; give one response, one column")
    return terms[0].factors[0]


def _right_terms(formula: str, right: str, available: list[str]) -> list[tuple[Any, ...]]:
    """Return the terms, each a tuple of factors; the intercept is the empty one."""
    terms = []
    for term in _parsed(formula, right, True, available):
        literals = [factor.expr for factor in term.factors if factor.eval_method.value == "literal"]
        if literals not in ([], ["1"]):
            raise ModelError(
                f"formula = {formula!r} multiplies a term by {literals[0]}; leave the number out: a coefficient has "
                "any size"
            )
        terms.append(tuple(factor for factor in term.factors if factor.eval_method.value != "literal"))
    return terms


def _structure(
    terms: list[tuple[Any, ...]], factors: Mapping[str, _Factor]
) -> tuple[bool, tuple[tuple[_Piece, ...], ...]]:
    """Let formulaic decide which columns there are; it is handed made-up columns that are named like the factors."""
    import pandas
    from formulaic import Formula, model_matrix
    from formulaic.parser.types import Factor, Term

    made_up = {
        name: pandas.Categorical([], categories=list(factor.names)) if factor.is_category else np.zeros(0)
        for name, factor in factors.items()
    }
    looked_up = [
        Term([Factor(factor.expr, eval_method="lookup") for factor in term] or [Factor("1", eval_method="literal")])
        for term in terms
    ]
    if not looked_up:
        return False, ()
    spec = model_matrix(Formula(looked_up), pandas.DataFrame(made_up), na_action="ignore").model_spec
    intercept = False
    columns: list[tuple[_Piece, ...]] = []
    for part in spec.structure:
        for scoped in part.scoped_terms:
            if not scoped.factors:
                intercept = True
                continue
            choices = []
            for own in scoped.factors:
                factor, reduced = factors[own.factor.expr], bool(own.reduced)
                first = int(factor.is_category and reduced)
                choices.append([_Piece(factor.expression, place, reduced) for place in range(first, len(factor.names))])
            # As formulaic has it: the first factor varies fastest.
            columns.extend(pieces[::-1] for pieces in itertools.product(*choices[::-1]))
    return intercept, tuple(columns)


class _Reader:
    """Makes factors of the texts in a formula; every kind of expression that it does not know is refused."""

    def __init__(self, formula: str, schema: Schema) -> None:
        self.formula, self.schema = formula, schema

    def factor(self, parsed: Any) -> _Factor:
        """Return a factor of formulaic's as one of ours."""
        expression = parsed.expr
        if parsed.eval_method.value == "lookup":
            return self._column(expression, expression, as_category=False)
        tree, names = self._tree(expression)
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            if tree.func.id == "C":
                return self._category(expression, tree, names)
            if tree.func.id == "bs":
                return self._spline(expression, tree, names)
        return self._numbers(expression, tree, names)

    def is_comparison(self, expression: str) -> bool:
        """Whether an expression is true or false."""
        tree = self._tree(expression)[0]
        while isinstance(tree, ast.Call) and getattr(tree.func, "id", "") == "I" and len(tree.args) == 1:
            tree = tree.args[0]
        return isinstance(tree, ast.Compare)

    def _refuse(self, what: str, remedy: str) -> ModelError:
        return ModelError(f"formula = {self.formula!r} {what}; {remedy}")

    def _tree(self, expression: str) -> tuple[ast.expr, dict[str, str]]:
        """Parse a factor; names in backquotes become identifiers, and are returned with what they stand for."""
        names: dict[str, str] = {}
        parts = expression.split("`")
        for place in range(1, len(parts), 2):
            alias = f"quoted_{place}"
            while alias in expression:
                alias += "_"
            names[alias] = parts[place]
            parts[place] = alias
        try:
            return ast.parse("".join(parts).strip(), mode="eval").body, names
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        raise self._refuse(f"has {expression!r}, which cannot be read", "write arithmetic with columns")

    def _field(self, name: str) -> Field:
        if name not in self.schema.names:
            raise self._refuse(
                f"names {name!r}, which is no column of the schema",
                f"its columns are {_listed(self.schema.names)}: choose one, or add the field",
            )
        field = self.schema[name]
        if not _has_values(field):
            raise self._refuse(
                f"uses {name!r}, which has neither levels nor bounds in the schema",
                f"state the levels of {name!r} there",
            )
        return field

    def _column(self, expression: str, name: str, as_category: bool) -> _Factor:
        field = self._field(name)
        if field.kind == "category":
            levels = tuple(field.level_names)
            reference = levels.index(str(field.reference))
            order = [reference, *(place for place in range(len(levels)) if place != reference)]

            def indicators(clean: Columns) -> Array:
                code = clean[name]
                return np.where(np.isnan(code)[:, None], np.nan, (code[:, None] == np.array(order)).astype(np.float64))

            box = np.tile([0.0, 1.0], (len(levels), 1))
            return _Factor(expression, tuple(levels[place] for place in order), True, (name,), indicators, box)
        if as_category and field.kind == "boolean":

            def two(clean: Columns) -> Array:
                return np.stack([1.0 - clean[name], clean[name]], axis=1)

            return _Factor(expression, ("False", "True"), True, (name,), two, np.tile([0.0, 1.0], (2, 1)))
        if as_category:
            raise self._refuse(
                f"has C({name}), but {name!r} is a number without levels",
                f"state the levels of {name!r} in the schema (enum), or write {name} for a number",
            )
        center, scale = (0.0, 1.0) if field.center is None or field.scale is None else (field.center, field.scale)
        ends = np.array([field.bounds], np.float64)
        return _Factor(
            expression, ("",), False, (name,), lambda clean: clean[name][:, None], ends, center=center, scale=scale
        )

    def _category(self, expression: str, tree: ast.Call, names: dict[str, str]) -> _Factor:
        if len(tree.args) != 1 or tree.keywords or not isinstance(tree.args[0], ast.Name):
            raise self._refuse(
                f"has {expression!r}",
                "write C(column): levels and their reference are stated in the schema (enum, reference)",
            )
        return self._column(expression, names.get(tree.args[0].id, tree.args[0].id), as_category=True)

    def _numbers(self, expression: str, tree: ast.expr, names: dict[str, str]) -> _Factor:
        function, variables = self._function(expression, tree, names)
        if not variables:
            raise self._refuse(f"has {expression!r}, which names no column", "use a column in it, or leave it out")
        if self.is_comparison(expression):
            return _Factor(
                expression, ("",), False, variables, lambda clean: function(clean)[:, None], np.array([[0.0, 1.0]])
            )
        low, high = self._range(expression, function, variables)

        def values(clean: Columns) -> Array:
            return np.asarray(np.clip(function(clean), low, high) + 0.0)[:, None]

        center, scale = 0.5 * (low + high), 0.5 * (high - low)
        return _Factor(expression, ("",), False, variables, values, np.array([[low, high]]), center=center, scale=scale)

    def _range(
        self, expression: str, function: Callable[[Columns], Array], variables: tuple[str, ...]
    ) -> tuple[float, float]:
        """Return the smallest and the largest value on a public grid over the bounds of the columns."""
        if len(variables) > max(_GRID):
            raise self._refuse(
                f"has {expression!r}, a function of {len(variables)} columns", f"use at most {max(_GRID)} in one"
            )
        axes = []
        for name in variables:
            field = self.schema[name]
            axes.append(np.linspace(*field.bounds, 2 if field.kind == "boolean" else _GRID[len(variables)]))
        mesh = np.meshgrid(*axes, indexing="ij")
        with np.errstate(all="ignore"):
            values = function({name: axis.ravel() for name, axis in zip(variables, mesh, strict=True)})
        bad = ~np.isfinite(values)
        if bad.any():
            where = ", ".join(f"{name} = {axis.ravel()[bad][0]:g}" for name, axis in zip(variables, mesh, strict=True))
            raise self._refuse(
                f"has {expression!r}, which is not finite for {where}, within the schema's bounds",
                "change the bounds, or the function (np.log1p for np.log, say)",
            )
        low, high = float(values.min()), float(values.max())
        if not low < high:
            raise self._refuse(f"has {expression!r}, which is the same everywhere within the bounds", "leave it out")
        return low, high

    def _spline(self, expression: str, tree: ast.Call, names: dict[str, str]) -> _Factor:
        """Return a B-spline basis with knots by hand, by formulaic's own function."""
        from formulaic.transforms import basis_spline

        settings: dict[str, Any] = {}
        known = ("knots", "degree", "include_intercept", "lower_bound", "upper_bound")
        for keyword in tree.keywords:
            if keyword.arg == "df":
                raise self._refuse(
                    f"has {expression!r}, whose knots would be quantiles of the data, which are secret",
                    "give knots by hand: bs(age, knots=[30, 50])",
                )
            if keyword.arg not in known:
                raise self._refuse(f"has {expression!r} with {keyword.arg!r}", f"bs takes {_listed(known)}")
            try:
                settings[keyword.arg] = ast.literal_eval(keyword.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                settings[keyword.arg] = None
        if len(tree.args) != 1 or "knots" not in settings:
            raise self._refuse(f"has {expression!r} without knots", "give them by hand: bs(age, knots=[30, 50])")
        function, variables = self._function(expression, tree.args[0], names)
        if not variables:
            raise self._refuse(f"has {expression!r}, which names no column", "use a column in it")
        if isinstance(tree.args[0], ast.Name) and self._field(variables[0]).kind == "number":
            ends = self.schema[variables[0]].bounds
        else:
            ends = self._range(expression, function, variables)
        low = settings.setdefault("lower_bound", float(ends[0]))
        high = settings.setdefault("upper_bound", float(ends[1]))
        knots, degree = settings["knots"], settings.setdefault("degree", 3)
        numbers = [low, high, *(knots if isinstance(knots, list | tuple) else [None])]
        fits = all(isinstance(entry, int | float) and math.isfinite(entry) for entry in numbers) and (
            all(low < knot < high for knot in knots) and list(knots) == sorted(knots) and low < high
        )
        whole = isinstance(degree, int) and not isinstance(degree, bool) and 0 <= degree <= 10
        whole = whole and isinstance(settings.setdefault("include_intercept", False), bool)
        if not fits or not whole:
            raise self._refuse(
                f"has {expression!r}",
                f"give increasing knots between {ends[0]:g} and {ends[1]:g}, the bounds, and a degree from 0 to 10",
            )
        settings["knots"] = [float(knot) for knot in knots]

        def basis(clean: Columns) -> Array:
            x = np.clip(function(clean), low, high) + 0.0
            columns = basis_spline(x, **settings, extrapolation="clip", _state={})
            # Without a number there is no place between knots, and all indicators would be 0.
            stacked = np.stack([np.asarray(column, np.float64) for column in columns.values()], axis=1)
            return np.where(np.isnan(x)[:, None], np.nan, np.clip(stacked, 0.0, 1.0) + 0.0)

        first = 0 if settings["include_intercept"] else 1
        number = len(knots) + degree + 1 - first
        if number < 1:
            raise self._refuse(f"has {expression!r}, which has no columns", "give a knot, or a degree of at least 1")
        places = tuple(f"[{place + first}]" for place in range(number))
        return _Factor(expression, places, False, variables, basis, np.tile([0.0, 1.0], (number, 1)))

    def _function(
        self, expression: str, tree: ast.expr, names: dict[str, str]
    ) -> tuple[Callable[[Columns], Array], tuple[str, ...]]:
        """Return an expression as a function of clean columns, and the columns that it uses."""
        variables: dict[str, None] = {}

        def build(node: ast.expr) -> Callable[[Columns], Any]:
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                try:
                    constant = np.float64(node.value)
                except OverflowError:
                    constant = np.float64(np.inf)
                return lambda clean: constant
            if isinstance(node, ast.Name):
                name = names.get(node.id, node.id)
                if self._field(name).kind == "category":
                    raise self._refuse(
                        f"computes with {name!r}, which is a category", f"write C({name}) for its levels"
                    )
                variables[name] = None
                return lambda clean: clean[name]
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
                inner, sign = build(node.operand), -1.0 if isinstance(node.op, ast.USub) else 1.0
                return lambda clean: sign * inner(clean)
            if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
                first, second, operator = build(node.left), build(node.right), _OPERATORS[type(node.op)]
                return lambda clean: operator(first(clean), second(clean))
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
                first, second = build(node.left), build(node.comparators[0])
                compare = _COMPARISONS[type(node.ops[0])]

                def compared(clean: Columns) -> Any:
                    left, right = first(clean), second(clean)
                    return np.where(np.isnan(left) | np.isnan(right), np.nan, compare(left, right).astype(np.float64))

                return compared
            if isinstance(node, ast.Call):
                return call(node)
            raise self._refuse(
                f"has {ast.unparse(node)!r}, which is not arithmetic with columns",
                f"use + - * / **, comparisons and the functions {', '.join(_FUNCTIONS)}",
            )

        def call(node: ast.Call) -> Callable[[Columns], Any]:
            name = _called(node.func)
            if name in _LEARNED:
                raise self._refuse(
                    f"has {ast.unparse(node)!r}, which learns from the data, or looks at other rows", _LEARNED[name]
                )
            if name in ("C", "bs"):
                raise self._refuse(f"has {name}(…) within {expression!r}", f"let {name}(…) be a factor of its own")
            if node.keywords:
                raise self._refuse(f"has {ast.unparse(node)!r}", "leave out the named arguments")
            if name == "I" and len(node.args) == 1:
                return build(node.args[0])
            if name not in _FUNCTIONS or len(node.args) != _FUNCTIONS[name][1]:
                raise self._refuse(
                    f"has {ast.unparse(node)!r}, which may not be called",
                    f"the functions are {', '.join(_FUNCTIONS)}, I, C and bs",
                )
            function, arguments = _FUNCTIONS[name][0], [build(argument) for argument in node.args]
            # + 0.0, as the sign that minimum and maximum give a zero may depend on its place in the array.
            return lambda clean: function(*(argument(clean) for argument in arguments)) + 0.0

        try:
            built = build(tree)
        except RecursionError:
            built = None
        if built is None:
            raise self._refuse("is nested too deeply", "write a shorter expression")
        final = built

        def function(clean: Columns) -> Array:
            return np.ascontiguousarray(final(clean), np.float64)

        return function, tuple(variables)


def _called(function: ast.expr) -> str:
    """Return the name of a function, without ``np.``; empty for anything else."""
    if isinstance(function, ast.Name):
        return function.id
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.attr if function.value.id in ("np", "numpy") else ""
    return ""
