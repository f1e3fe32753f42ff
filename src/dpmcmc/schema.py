"""What is known about a table without looking at it: names, types, bounds, levels, and the unit of privacy.

A schema is public. It reads and writes the Frictionless Table Schema (https://datapackage.org/standard/table-schema/),
with what that lacks under one key of ours, ``dpmcmc``. Coding follows from it alone: the number that an entry becomes
depends on that entry and its field, never on another row, and no entry raises an error or a warning. Nothing here
imports JAX.
"""

from __future__ import annotations

import functools
import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.entries import number_of, number_of_text, plain, word_of
from dpmcmc.errors import SchemaError
from dpmcmc.sources import Column, CsvFile, Source, code_entries, num_entries, open_table

__all__ = ["MISSING_LEVEL", "Field", "Schema"]

TYPES = ("number", "integer", "boolean", "string")
OWN_LEVEL, MIDPOINT, NOTHING = "own level", "midpoint", "record counts as nothing"
MISSING_LEVEL = "missing"

# Keys of the standard that change nothing here; they are read over, and not written again.
_FIELD_KEYS = {"title", "description", "example", "examples", "rdfType", "format"}
_CONSTRAINT_KEYS = {"required", "unique", "minLength", "maxLength", "pattern"}
_MOST_NODES = 200_000  # of a schema, as it is written: thousands of fields
_SCHEMA_KEYS = {"$schema", "name", "title", "description", "fieldsMatch", "primaryKey", "uniqueKeys", "foreignKeys"}
# Keys that are known, but not where they stand.
_ELSEWHERE = {
    **dict.fromkeys(("minimum", "maximum", "enum"), "put it under constraints of a field"),
    **dict.fromkeys(("missing", "reference", "center", "scale"), "put it under dpmcmc of a field"),
    **dict.fromkeys(("unit", "max_rows"), "put it under dpmcmc at the end of the schema, beside fields"),
    **dict.fromkeys(("trueValues", "falseValues"), "make the field a string with both words as its enum"),
}

_HOW_TO_FILL_IN = """\
# Fill in every null from what is known without looking at the data: a questionnaire, a law, common knowledge. What is
# taken from the data (their smallest value, the levels that occur) is itself a secret. Delete fields that are not used;
# their columns are then never read.
#
#     type: number, integer    constraints: {minimum: 0, maximum: 100}    what is outside is clamped
#     type: string             constraints: {enum: [low, high]}           all possible levels, the reference first
#     type: integer            constraints: {enum: [1, 2, 3]}             codes of categories
#     type: boolean            true and false, 1 and 0; yes and no are a string with {enum: ["no", "yes"]}, in quotes
#
# A rule for values that are missing, malformed or unknown levels may stand in each field:
#     dpmcmc: {missing: midpoint}     of numbers and booleans
#     dpmcmc: {missing: own level}    of fields with enum
# Without one such a record counts as nothing.
#
# If a person may have several rows, say in a line at the end which column tells persons apart (it needs no enum) and
# how many rows of a person are used at most:
# dpmcmc: {unit: person_id, max_rows: 8}"""
_BLANKS = {
    None: "number, integer, boolean or string; then a line `constraints: {…}`, see above",
    "number": "for example {minimum: 0, maximum: 100}; what is outside is clamped",
    "integer": "for example {minimum: 0, maximum: 100}, or {enum: [1, 2, 3]} for codes",
    "string": "for example {enum: [low, high]}: all levels that are possible",
}


@dataclass(frozen=True)
class Field:
    """One column: its type, its bounds or levels, and what becomes of values that are missing.

    Parameters
    ----------
    name
        The column's name.
    type
        "number", "integer", "boolean" or "string". None is a blank, to be filled in.
    minimum, maximum
        Bounds of a number or an integer. What lies outside is clamped.
    levels
        The levels of a category, in order (``enum`` in a file): texts of a string, whole numbers of an integer.
    reference
        The level that the others are compared with; the first if it is not given.
    missing
        What becomes of an entry that is missing, malformed or an unknown level: "own level" (categories: a last level
        called ``missing``), "midpoint" (numbers: ``center``; booleans: ½) or "record counts as nothing" (the default).
    center, scale
        A number x is coded (x − center) / scale. Without them the bounds go to −1 and 1: the middle of the bounds, and
        half their distance.

    Examples
    --------
    >>> age = Field("age", "integer", minimum=20, maximum=80, missing="midpoint")
    >>> age.center, age.scale
    (50.0, 30.0)
    >>> age.code(np.array(["34", "1e9", "?"]))
    array([34., 80., 50.])
    >>> Field("sex", "string", levels=["Female", "Male"], missing="own level").code(np.array(["Male", "x"]))
    array([1., 2.])
    """

    name: str
    type: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    levels: Sequence[str | int] | None = None
    reference: str | int | None = None
    missing: str = NOTHING
    center: float | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SchemaError(f"name = {self.name!r} of a field is not a name; give the column's name as text")
        if self.type is not None and self.type not in TYPES:
            raise self._error("type", self.type, f"is unknown; choose one of {', '.join(TYPES)}")
        self._set_levels()
        self._set_numbers()
        rules = {"number": (MIDPOINT, NOTHING), "boolean": (MIDPOINT, NOTHING), "category": (OWN_LEVEL, NOTHING)}
        allowed = (OWN_LEVEL, MIDPOINT, NOTHING) if self.type is None else rules[self.kind]
        if self.missing not in allowed:
            what = "a field without type" if self.type is None else f"a {self.kind}"
            raise self._error("missing", self.missing, f"is no rule for {what}; choose one of {_quoted(allowed)}")
        if self.missing == OWN_LEVEL and MISSING_LEVEL in map(str, self.levels or ()):
            remedy = f"cannot be: {MISSING_LEVEL!r} is one of the levels already; rename that level, or state no rule"
            raise self._error("missing", self.missing, remedy)

    def _error(self, argument: str, value: Any, remedy: str) -> SchemaError:
        return SchemaError(f"field {self.name!r}: {argument} = {value!r} {remedy}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _set_levels(self) -> None:
        if self.levels is None:
            if self.reference is not None:
                raise self._error("reference", self.reference, "needs levels; state them, or leave the reference out")
            return
        if self.type not in ("string", "integer"):
            raise self._error("levels", self.levels, 'are for the types "string" and "integer"; change the type')
        if isinstance(self.levels, str) or not isinstance(self.levels, Sequence) or not len(self.levels):
            raise self._error("levels", self.levels, "name no level; give a list of all levels")
        whole = self.type == "integer"
        for level in self.levels:
            if whole and (isinstance(level, bool) or not isinstance(level, numbers.Integral)):
                raise self._error("level", level, "is not a whole number; give whole numbers, or the type string")
            if not whole and not isinstance(level, str):
                # YAML takes 12 for a number, 2020-01-01 for a date, and no for false: which word it was is lost.
                remedy = f"is not text; put it in quotes: {str(level)!r}"
                if isinstance(level, bool):
                    word = "yes" if level else "no"
                    remedy = f"is not text (YAML takes {word} for it); put it in quotes as the table has it: {word!r}"
                raise self._error("level", level, remedy)
            if not whole and (not level.strip() or level != level.strip()):
                raise self._error("level", level, "is empty or has spaces at its ends, which data lose; take them away")
        self._set("levels", tuple(int(level) if whole else str(level) for level in self.levels))
        seen: dict[Any, Any] = {}
        for level in self.levels:
            for key in {str(level), _alike(level)} - {None}:
                if key in seen:
                    remedy = (
                        f"is there already (as {seen[key]!r}, which readers may take for it); name every level once"
                    )
                    raise self._error("level", level, remedy)
            seen |= dict.fromkeys({str(level), _alike(level)} - {None}, level)
        if self.reference is None:
            self._set("reference", self.levels[0])
        elif isinstance(self.reference, bool) or self.reference not in self.levels:
            raise self._error(
                "reference", self.reference, f"is not one of the levels {_quoted(self.levels)}; choose one"
            )

    def _set_numbers(self) -> None:
        given = {name: getattr(self, name) for name in ("minimum", "maximum", "center", "scale")}
        given = {name: value for name, value in given.items() if value is not None}
        is_number = self.type in ("number", "integer") and self.levels is None
        for name, value in given.items():
            if not is_number:
                what = "a field with levels" if self.levels is not None else f"the type {self.type!r}"
                raise self._error(name, value, f"does not go with {what}; leave it out, or make the field a number")
            if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
                raise self._error(name, value, "is not a number; give a finite number")
            number = number_of(plain(value))
            if not math.isfinite(number):
                raise self._error(name, value, "is not finite; give a finite number")
            is_bound = name in ("minimum", "maximum")
            if is_bound and self.type == "integer" and not number.is_integer():
                raise self._error(name, value, "is not whole; give a whole number, or the type number")
            self._set(name, int(number) if is_bound and number.is_integer() else number)
        if self.scale is not None and self.scale <= 0:
            raise self._error("scale", self.scale, "is not positive; give a positive number")
        if self.minimum is None or self.maximum is None:
            return
        low, high = float(self.minimum), float(self.maximum)
        if not low < high:
            raise self._error("minimum", self.minimum, f"is not below maximum = {self.maximum!r}; give the lower first")
        if not math.isfinite(high - low):
            raise self._error("maximum", self.maximum, "is too far from the minimum; give bounds that are closer")
        self._set("center", self._middle if self.center is None else self.center)
        self._set("scale", self._half_width if self.scale is None else self.scale)

    @property
    def _middle(self) -> float:
        low, high = self.bounds
        return low + (high - low) / 2.0

    @property
    def _half_width(self) -> float:
        low, high = self.bounds
        return (high - low) / 2.0

    @property
    def kind(self) -> str:
        """Return "number", "boolean" or "category"."""
        if self.type is None:
            raise SchemaError(f"field {self.name!r} has no type; state one of {', '.join(TYPES)}")
        if self.type == "string" or self.levels is not None:
            return "category"
        return "boolean" if self.type == "boolean" else "number"

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest clean value: of a number its bounds, of a boolean 0 and 1, of a category its indices."""
        if self.kind == "boolean":
            return 0.0, 1.0
        if self.kind == "category":
            return 0.0, float(len(self.level_names) - 1)
        if self.minimum is None or self.maximum is None:
            raise SchemaError(f"field {self.name!r} has no bounds; state {' and '.join(self.blanks())}")
        return float(self.minimum), float(self.maximum)

    @property
    def level_names(self) -> tuple[str, ...]:
        """The levels as texts, with ``missing`` as the last if it is a level of its own."""
        own = (MISSING_LEVEL,) if self.missing == OWN_LEVEL else ()
        return (*map(str, self.levels or ()), *own)

    def blanks(self) -> list[str]:
        """Name what has to be filled in before values can be coded."""
        if self.type is None:
            return ["type"]
        if self.kind == "category":
            return ["enum"] if self.levels is None else []
        if self.kind == "boolean":
            return []
        return [name for name in ("minimum", "maximum") if getattr(self, name) is None]

    def code(self, raw: NDArray[Any], missing_values: Sequence[str] = ()) -> NDArray[np.float64]:
        """Return the clean values of entries: each depends on its own entry and this field, bit for bit.

        Parameters
        ----------
        raw
            Entries in one dimension, of any dtype: numbers, booleans, text or objects. What is missing is None, NaN or
            pandas.NA.
        missing_values
            Texts that mean "missing", :attr:`Schema.missing_values`. (A number that such a text reads as is missing
            too.)

        Returns
        -------
        clean : float64
            Numbers in the data's units within their bounds, booleans as 0 and 1, categories as indices of
            :attr:`level_names`; NaN where the record counts as nothing.

        Notes
        -----
        Text that reads as a number is that number; "true" and "false" in any case are 1 and 0; numbers that are not
        whole are malformed in an integer, as is all but 0 and 1 in a boolean. ±∞ is clamped. Levels are compared as
        text without spaces at the ends, then as numbers, so that 1.0 is the level "1".
        """
        blanks = self.blanks()
        if blanks:
            raise SchemaError(f"field {self.name!r} has blanks: {', '.join(blanks)}; fill them in")
        # NumPy would warn of an overflow or an invalid value, and so tell that some record has one.
        with np.errstate(all="ignore"):
            if self.kind == "category":
                return self._indices(raw)
            values = _numbers(raw)
            for text in missing_values:
                values[values == number_of_text(text)] = np.nan
            low, high = self.bounds
            if self.kind == "boolean":
                values[(values != 0.0) & (values != 1.0)] = np.nan
                filled = 0.5
            else:
                if self.type == "integer":
                    values[np.isfinite(values) & (values != np.floor(values))] = np.nan
                # Comparisons, as the sign that minimum and maximum give a zero may depend on its place in the array.
                values[values < low] = low
                values[values > high] = high
                filled = min(max(self._middle if self.center is None else self.center, low), high)
            if self.missing == MIDPOINT:
                values[np.isnan(values)] = filled
            values[np.isnan(values)] = np.nan  # all NaN alike, to the last bit
            return values + 0.0  # no −0

    def _indices(self, raw: NDArray[Any]) -> NDArray[np.float64]:
        raw = np.asarray(raw)
        if raw.dtype.kind in "biuf":  # few distinct values, if the column is a category at all
            distinct, places = np.unique(raw, return_inverse=True)
            return self._indices(distinct.astype(object))[places.reshape(-1)]
        find = self._finder()
        known: dict[str, float] = {}  # texts repeat
        result = np.empty(len(raw), np.float64)
        for row, entry in enumerate(raw.tolist()):
            if type(entry) is str:
                if entry not in known:
                    known[entry] = find(entry)
                result[row] = known[entry]
            else:
                result[row] = find(entry)
        return result

    def _finder(self) -> Callable[[Any], float]:
        names = {str(level): float(index) for index, level in enumerate(self.levels or ())}
        alike = {_alike(level): float(index) for index, level in enumerate(self.levels or ())}
        alike.pop(None, None)
        unknown = float(len(names)) if self.missing == OWN_LEVEL else math.nan

        def find(entry: Any) -> float:
            value = plain(entry)
            if isinstance(value, str) and value in names:
                return names[value]
            word = word_of(value)
            if word is not None and word in alike:
                return alike[word]
            return alike.get(number_of(value), unknown)

        return find

    def to_dict(self) -> dict[str, Any]:
        """Return the descriptor of the Frictionless standard; blanks are None."""
        constraints: dict[str, Any] = {}
        ours: dict[str, Any] = {}
        if self.type in ("number", "integer") and self.levels is None:
            constraints = {"minimum": self.minimum, "maximum": self.maximum}
            complete = None not in constraints.values()
            if self.center is not None and not (complete and self.center == self._middle):
                ours["center"] = self.center
            if self.scale is not None and not (complete and self.scale == self._half_width):
                ours["scale"] = self.scale
        elif self.type == "string" or self.levels is not None:
            constraints = {"enum": None if self.levels is None else list(self.levels)}
            if self.levels is not None and self.reference != self.levels[0]:
                ours["reference"] = self.reference
        if self.missing != NOTHING:
            ours["missing"] = self.missing
        descriptor: dict[str, Any] = {"name": self.name, "type": self.type}
        if constraints:
            descriptor["constraints"] = constraints
        if ours:
            descriptor["dpmcmc"] = ours
        return descriptor

    @classmethod
    def from_dict(cls, descriptor: Mapping[str, Any]) -> Field:
        """Make a field from its descriptor in the Frictionless standard."""
        descriptor = _mapping("an entry of fields", descriptor)
        name = descriptor.get("name")
        where = f"field {name!r}"
        _refuse_unknown(where, descriptor, {"name", "type", "constraints", "dpmcmc"}, _FIELD_KEYS)
        if descriptor.get("format") not in (None, "default"):
            raise SchemaError(f"{where}: format = {descriptor['format']!r} is not known; leave it out")
        constraints = _mapping(f"{where}: constraints", descriptor.get("constraints") or {})
        _refuse_unknown(f"{where}: constraints", constraints, {"minimum", "maximum", "enum"}, _CONSTRAINT_KEYS)
        ours = _mapping(f"{where}: dpmcmc", descriptor.get("dpmcmc") or {})
        _refuse_unknown(f"{where}: dpmcmc", ours, {"missing", "reference", "center", "scale"}, set())
        return cls(
            name,  # type: ignore[arg-type]
            descriptor.get("type"),
            minimum=_from_text(constraints.get("minimum")),
            maximum=_from_text(constraints.get("maximum")),
            levels=constraints.get("enum"),
            reference=ours.get("reference"),
            missing=NOTHING if ours.get("missing") is None else ours["missing"],
            center=_from_text(ours.get("center")),
            scale=_from_text(ours.get("scale")),
        )


class Schema:
    """What is known about a table without looking at it.

    Parameters
    ----------
    fields
        The columns that are used, in order. A table may have others; they are never read.
    missing_values
        Texts that mean "missing", beside the empty one and NaN. Other text in a number is missing too; this is for
        numbers such as "-9" that stand for it.
    unit
        The column that says whom a row is about. Neighbouring tables then differ in all rows of one unit, which are
        replaced by those of another, any number of them, with an id that no other row has: the number of different ids
        is public. All rows without an id are one unit. (Give long ids as text, above all in pandas: one missing value
        makes floats of whole numbers there, which tell no two apart that agree in 15 digits.) Without a unit one row is
        one person.
    max_rows
        The most rows of a unit that are used; the first ones of the table.

    Examples
    --------
    >>> schema = Schema([Field("age", "integer", minimum=17, maximum=90), Field("employed", "boolean")])
    >>> schema.names
    ('age', 'employed')
    >>> schema["age"].bounds
    (17.0, 90.0)
    >>> Schema.from_dict(schema.to_dict()) == schema
    True
    >>> Schema([Field("age", "integer")]).blanks()
    ["field 'age': minimum, maximum"]
    """

    __slots__ = ("_fields", "max_rows", "missing_values", "unit")

    _fields: dict[str, Field]
    missing_values: tuple[str, ...]
    unit: str | None
    max_rows: int | None

    def __init__(
        self,
        fields: Sequence[Field],
        *,
        missing_values: Sequence[str] = ("",),
        unit: str | None = None,
        max_rows: int | None = None,
    ) -> None:
        if isinstance(fields, Field | str | Mapping) or not isinstance(fields, Sequence) or not len(fields):
            raise SchemaError(f"fields = {fields!r} is no list of fields; give a list with at least one")
        for field in fields:
            if not isinstance(field, Field):
                raise SchemaError(f"fields has an entry of type {type(field).__name__}; give dpmcmc.Field objects")
        by_name = {field.name: field for field in fields}
        if len(by_name) < len(fields):
            names = [field.name for field in fields]
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"field {twice!r} is there twice; give every field a name of its own")
        listed = isinstance(missing_values, Iterable) and not isinstance(missing_values, str)
        if not listed or not all(isinstance(text, str) for text in missing_values):
            raise SchemaError(f"missing_values = {missing_values!r} is no list of texts; put each in quotes")
        missing_values = tuple(text.strip() for text in missing_values)
        meaning_missing = {*missing_values, *map(_alike, missing_values)} - {None}
        for field in fields:
            for level in field.levels or ():
                if str(level) in meaning_missing or _alike(level) in meaning_missing:
                    raise SchemaError(
                        f"field {field.name!r}: level {level!r} is one of missing_values = {list(missing_values)}; "
                        "take it out of one of the two"
                    )
        if unit is not None and (not isinstance(unit, str) or unit not in by_name):
            raise SchemaError(f"unit = {unit!r} is no field; choose one of {_quoted(by_name)}, or add the field")
        if unit is None and max_rows is not None:
            raise SchemaError(f"max_rows = {max_rows!r} needs a unit; name the column that says whom a row is about")
        if unit is not None and max_rows is None:
            raise SchemaError(f"unit = {unit!r} needs max_rows, the most rows of a unit that are used; state it")
        if max_rows is not None:
            if isinstance(max_rows, bool) or not isinstance(max_rows, numbers.Integral) or max_rows < 1:
                raise SchemaError(f"max_rows = {max_rows!r} must be a whole number of at least 1")
            max_rows = int(max_rows)
        values = {"_fields": by_name, "missing_values": missing_values, "unit": unit, "max_rows": max_rows}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Schema cannot be changed; make a new one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Schema cannot be changed; make a new one")

    def _key(self) -> tuple[Any, ...]:
        return tuple(self._fields.values()), self.missing_values, self.unit, self.max_rows

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> Any:
        return Schema.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        unit = "" if self.unit is None else f", unit={self.unit!r}, max_rows={self.max_rows}"
        return f"Schema({', '.join(self._fields)}{unit})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(self._fields)

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(self._fields.values())

    def __getitem__(self, name: str) -> Field:
        if name not in self._fields:
            raise SchemaError(f"field {name!r} is not in the schema; choose one of {_quoted(self._fields)}, or add it")
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def blanks(self) -> list[str]:
        """Say what has to be filled in, one text a field. The unit's column needs a type only."""
        return [
            f"field {field.name!r}: {', '.join(blanks)}"
            for field in self.fields
            if (blanks := field.blanks()) and (field.name != self.unit or field.type is None)
        ]

    def refuse_blanks(self) -> None:
        """Raise a SchemaError with the list of what is missing, if anything is."""
        blanks = self.blanks()
        if blanks:
            raise SchemaError(
                f"the schema has blanks: {'; '.join(blanks)}. Fill them in from what is known without looking at the "
                "data, or delete the fields that are not used"
            )

    @classmethod
    def draft(cls, source: Any) -> Schema:
        """Make a schema of a table's names and types, with blanks for what a person has to fill in. Reads no value.

        Examples
        --------
        >>> Schema.draft({"age": np.array([34, 51]), "sex": ["Male", "Female"]}).blanks()
        ["field 'age': minimum, maximum", "field 'sex': type"]
        """
        columns = open_table(source).columns
        if not columns:
            raise SchemaError("the table has no columns with names; give it some")
        return cls([Field(column.name, column.type) for column in columns])

    def check(self, source: Any) -> None:
        """Raise a SchemaError unless a table has this schema's columns, of types that can be coded. Reads no value."""
        self.open(source)

    def open(self, source: Any, names: Sequence[str] | None = None) -> Source:
        """Look at a table's names and types, and refuse one that lacks a column or whose types cannot be coded."""
        names = self.names if names is None else names
        opened = open_table(source)
        found = [column.name for column in opened.columns]
        missing = [name for name in names if name not in found]
        if len(missing) == len(names) and isinstance(opened, CsvFile):
            # Without what stands there, which may be a record.
            raise SchemaError(
                f"the first line has none of the names {_quoted(names)}, which the schema has; write the names of the "
                "columns there, or mend those in the schema"
            )
        if missing:
            raise SchemaError(
                f"the table has no column {_quoted(missing)}, which the schema names; it has {_quoted(found)}. Mend "
                "the name, or take the field out of the schema"
            )
        problems = []
        for name in names:
            column = opened.columns[found.index(name)]
            problem = column.problem or (None if name == self.unit else _misfit(self[name], column))
            if found.count(name) > 1:
                problem = f"is there {found.count(name)} times; rename all but one"
            if problem:
                problems.append(f"column {name!r} {problem}")
        if problems:
            raise SchemaError(". ".join(problems))
        return opened

    def clean(self, source: Any, names: Sequence[str] | None = None) -> dict[str, NDArray[np.float64]]:
        """Return the clean values of a table's columns (all by default but the unit's): see :meth:`Field.code`.

        What comes back is as secret as the table is.
        """
        names = [name for name in self.names if name != self.unit] if names is None else names
        self.refuse_blanks()
        entries = self.open(source, names).read(names)
        num_entries(entries)
        return {name: self.code_entries(name, entries[name]) for name in names}

    def code_entries(self, name: str, entries: Any) -> NDArray[np.float64]:
        """Return the clean values of a column's entries as a source gives them: a NumPy array or one of Arrow."""
        return code_entries(entries, functools.partial(self[name].code, missing_values=self.missing_values))

    def to_dict(self) -> dict[str, Any]:
        """Return the descriptor of the Frictionless standard: lists, dicts, texts and numbers only."""
        descriptor: dict[str, Any] = {"fields": [field.to_dict() for field in self.fields]}
        if self.unit is not None and "constraints" in descriptor["fields"][self.names.index(self.unit)]:
            of_unit = descriptor["fields"][self.names.index(self.unit)]
            if all(value is None for value in of_unit["constraints"].values()):
                del of_unit["constraints"]  # it needs none, so they are no blanks
        if self.missing_values != ("",):
            descriptor["missingValues"] = list(self.missing_values)
        if self.unit is not None:
            descriptor["dpmcmc"] = {"unit": self.unit, "max_rows": self.max_rows}
        return descriptor

    @classmethod
    def from_dict(cls, descriptor: Mapping[str, Any]) -> Schema:
        """Make a schema from a descriptor of the Frictionless standard."""
        descriptor = _mapping("the schema", descriptor)
        _refuse_unknown("the schema", descriptor, {"fields", "missingValues", "dpmcmc"}, _SCHEMA_KEYS)
        fields = descriptor.get("fields")
        if not isinstance(fields, Sequence) or isinstance(fields, str) or not fields:
            raise SchemaError("the schema has no fields; give a list `fields` with at least one entry")
        ours = _mapping("dpmcmc", descriptor.get("dpmcmc") or {})
        _refuse_unknown("dpmcmc", ours, {"unit", "max_rows"}, set())
        missing_values = descriptor.get("missingValues")
        return cls(
            [Field.from_dict(field) for field in fields],
            missing_values=("",) if missing_values is None else missing_values,
            unit=ours.get("unit"),
            max_rows=ours.get("max_rows"),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a schema from a file: JSON if it is called so (``.json``), else YAML."""
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            reason = "is not UTF-8 text" if isinstance(error, ValueError) else f"cannot be read ({error.strerror})"
            raise SchemaError(f"schema = {str(path)!r} {reason}; give the name of a YAML or JSON file") from None
        where = f"schema = {str(path)!r}"
        return cls._from_text(text, where, is_json=path.suffix.lower() == ".json")

    @classmethod
    def from_yaml(cls, text: str) -> Schema:
        """Make a schema from a text in YAML, as :meth:`to_yaml` writes it."""
        return cls._from_text(text, "the schema", is_json=False)

    @classmethod
    def _from_text(cls, text: str, where: str, *, is_json: bool) -> Schema:
        descriptor = _parsed_json(text, where) if is_json else _parsed_yaml(text, where)
        if not isinstance(descriptor, Mapping):
            raise SchemaError(f"{where} holds no mapping; it has to begin with `fields:`")
        return cls.from_dict(descriptor)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schema to a file: JSON if it is called so (``.json``), else YAML."""
        path = Path(path)
        is_json = path.suffix.lower() == ".json"
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n" if is_json else self.to_yaml()
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SchemaError(f"path = {str(path)!r} cannot be written ({error.strerror}); choose another") from None

    def to_yaml(self) -> str:
        """Return the schema as YAML; blanks are null, with a comment on how to fill them in."""
        descriptor = self.to_dict()
        lines = [_HOW_TO_FILL_IN] if self.blanks() else []
        lines.append("fields:")
        for field in descriptor.pop("fields"):
            first, *others = (f"{key}: {_flow(value)}{_comment(key, value, field)}" for key, value in field.items())
            lines += ["  - " + first, *("    " + line for line in others)]
        return "\n".join([*lines, *(f"{key}: {_flow(value)}" for key, value in descriptor.items()), ""])


def _flow(value: Any) -> str:
    """One value in YAML, in one line."""
    import yaml

    return str(yaml.safe_dump([value], sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf))[
        1:-2
    ]


def _comment(key: str, value: Any, field: Mapping[str, Any]) -> str:
    """How to fill in a blank."""
    if key == "type" and value is None:
        return "  # " + _BLANKS[None]
    blank = key == "constraints" and None in value.values()
    return "  # " + _BLANKS[field["type"]] if blank else ""


def _numbers(raw: NDArray[Any]) -> NDArray[np.float64]:
    """Entry by entry the number it is or reads as, or NaN: a new array."""
    raw = np.asarray(raw)
    if raw.dtype.kind in "biuf":
        return raw.astype(np.float64)
    return np.array([number_of(plain(entry)) for entry in raw.tolist()], np.float64)


def _misfit(field: Field, column: Column) -> str | None:
    """Why the type that a table declares for a column is not the field's.

    Only where the table says so once for the whole column (Arrow, Parquet, Polars). In a CSV file, and in pandas, one
    odd entry makes text of a column: there text is read entry by entry, and what is no number is missing.
    """
    if not column.fixed:
        return None
    if column.type == "string" and field.kind in ("number", "boolean"):
        return (
            f"is declared as text, but is of type {field.type} in the schema; write it with that type, or give the "
            "field the type string with its levels"
        )
    of_numbers = column.type in ("number", "integer", "boolean")
    if not of_numbers or field.levels is None or any(_alike(level) is not None for level in field.levels):
        return None
    return (
        f"has the type {column.type} and the levels {_quoted(field.levels)} in the schema, none of which reads as a "
        "number; mend the levels, or make the field a number with bounds"
    )


def _alike(level: str | int) -> float | str | None:
    """What readers may take a level for: a number or a truth value. None if they leave it as it is."""
    text = str(level)
    word = word_of(text)
    if word is not None:
        return word
    number = number_of_text(text)
    return number if math.isfinite(number) else None


def _from_text(value: Any) -> Any:
    """Return the number that a text is: YAML takes 1e6 for one."""
    if isinstance(value, str) and not math.isnan(number := number_of_text(value)):
        return int(number) if number.is_integer() else number
    return value


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is of type {type(value).__name__}; give a mapping of names to values")
    return value


def _refuse_unknown(where: str, given: Mapping[str, Any], known: set[str], read_over: set[str]) -> None:
    for key in given:
        if key not in known and key not in read_over:
            remedy = _ELSEWHERE.get(key, f"choose from {', '.join(sorted(known))}")
            raise SchemaError(f"{where} has the key {key!r}, which is not known there; {remedy}")


def _parsed_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaError(f"{where} is not JSON ({error}); mend it there") from None
    except RecursionError:
        raise SchemaError(f"{where} is nested too deeply; mend it there") from None


def _parsed_yaml(text: str, where: str) -> Any:
    import yaml

    try:
        parsed = yaml.safe_load(text)  # which runs no code
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" (line {mark.line + 1}: {getattr(error, 'problem', '')})"
        raise SchemaError(f"{where} is not plain YAML{line}; mend it there") from None
    except RecursionError:
        raise SchemaError(f"{where} is nested too deeply; mend it there") from None
    except Exception:  # of what makes a date, a number or a set of a text that is none
        raise SchemaError(f"{where} is not plain YAML; mend it there") from None
    if not _is_small(parsed):
        raise SchemaError(f"{where} repeats itself without end by its anchors; write it out")
    return parsed


def _is_small(tree: Any) -> bool:
    """Whether a tree has at most so many nodes, written out: a few anchors of YAML make billions, or a circle."""
    waiting, count = [tree], 0
    while waiting and count <= _MOST_NODES:
        node = waiting.pop()
        count += 1
        if isinstance(node, Mapping):
            waiting += [*node.keys(), *node.values()]
        elif isinstance(node, list | tuple | set):
            waiting += node
    return count <= _MOST_NODES


def _quoted(names: Any) -> str:
    return ", ".join(map(repr, names))
