"""A schema: what it refuses, what it writes and reads, and that coding looks at one entry only and never complains."""

import json
import math
import pickle
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpmcmc import Field, Schema
from dpmcmc.errors import DataError, SchemaError

AGE = Field("age", "integer", minimum=17, maximum=90, missing="midpoint")
WEIGHT = Field("weight", "number", minimum=-1.5, maximum=2.5, center=0.25, scale=4.0)
DEGREE = Field("degree", "string", levels=["none", "BA", "MA"], reference="BA", missing="own level")
CODE = Field("code", "integer", levels=[3, 1, 2])
ZIP = Field("zip", "string", levels=["00501", "10001"])
MARRIED = Field("married", "boolean", missing="midpoint")
EMPLOYED = Field("employed", "boolean")
FIELDS = [AGE, WEIGHT, DEGREE, CODE, ZIP, MARRIED, EMPLOYED]
SCHEMA = Schema([*FIELDS, Field("person", "string")], missing_values=("", "NA", "-9"), unit="person", max_rows=8)


# ------------------------------------------------------------------ what is refused

BAD_FIELDS = {
    "reversed bounds": ({"type": "number", "minimum": 5, "maximum": 2}, "minimum = 5 .*maximum = 2"),
    "equal bounds": ({"type": "number", "minimum": 5, "maximum": 5}, "minimum = 5"),
    "infinite bound": ({"type": "number", "minimum": 0, "maximum": math.inf}, "maximum = inf .*finite"),
    "bound that is NaN": ({"type": "number", "minimum": math.nan, "maximum": 1}, "minimum = nan .*finite"),
    "huge whole bound": ({"type": "number", "minimum": 0, "maximum": 10**400}, "maximum = .*finite"),
    "bounds too far apart": ({"type": "number", "minimum": -1e308, "maximum": 1e308}, "maximum = .*closer"),
    "bound that is text": ({"type": "number", "minimum": "low", "maximum": 1}, "minimum = 'low' .*number"),
    "bound that is a truth value": ({"type": "number", "minimum": False, "maximum": 1}, "minimum = False .*number"),
    "fractional bound of an integer": ({"type": "integer", "minimum": 0.5, "maximum": 9}, "minimum = 0.5 .*whole"),
    "bounds of text": ({"type": "string", "minimum": 0}, "minimum = 0 .*leave it out"),
    "bounds and levels": ({"type": "integer", "levels": [1, 2], "minimum": 0}, "minimum = 0 .*levels"),
    "unknown type": ({"type": "date"}, "type = 'date' .*number, integer, boolean, string"),
    "type that is no text": ({"type": 3}, "type = 3"),
    "no levels": ({"type": "string", "levels": []}, "levels = .*list"),
    "levels that are one text": ({"type": "string", "levels": "abc"}, "levels = 'abc' .*list"),
    "levels of a number": ({"type": "number", "levels": [1.0]}, "levels .*integer"),
    "levels of a boolean": ({"type": "boolean", "levels": ["no", "yes"]}, "levels .*string"),
    "the same level twice": ({"type": "string", "levels": ["a", "b", "a"]}, "level = 'a' .*once"),
    "levels that read the same": ({"type": "string", "levels": ["1", "1.0"]}, "level = '1.0' .*'1'"),
    "a level that YAML took for a truth value": ({"type": "string", "levels": ["DE", False]}, "level = False .*quotes"),
    "a level that YAML took for a number": ({"type": "string", "levels": ["a", 12]}, "level = 12 .*quotes: '12'"),
    "an empty level": ({"type": "string", "levels": ["a", ""]}, "level = '' .*empty"),
    "a level with spaces": ({"type": "string", "levels": [" a"]}, "level = ' a' .*spaces"),
    "text among whole numbers": ({"type": "integer", "levels": [1, "2"]}, "level = '2' .*whole"),
    "reference that is no level": ({"type": "string", "levels": ["a"], "reference": "b"}, "reference = 'b' .*'a'"),
    "reference without levels": ({"type": "string", "reference": "b"}, "reference = 'b' .*levels"),
    "unknown rule": ({"type": "number", "missing": "mean"}, "missing = 'mean' .*'midpoint'"),
    "own level of a number": ({"type": "number", "missing": "own level"}, "missing = 'own level' .*'midpoint'"),
    "own level of a boolean": ({"type": "boolean", "missing": "own level"}, "missing = 'own level' .*'midpoint'"),
    "midpoint of a category": ({"type": "string", "missing": "midpoint"}, "missing = 'midpoint' .*'own level'"),
    "own level that is one already": (
        {"type": "string", "levels": ["missing"], "missing": "own level"},
        "missing = 'own level' .*rename",
    ),
    "scale of 0": ({"type": "number", "minimum": 0, "maximum": 1, "scale": 0}, "scale = 0.* positive"),
    "negative scale": ({"type": "number", "minimum": 0, "maximum": 1, "scale": -2}, "scale = -2.* positive"),
    "infinite centre": ({"type": "number", "minimum": 0, "maximum": 1, "center": math.inf}, "center = inf .*finite"),
    "centre of a category": ({"type": "string", "levels": ["a"], "center": 1}, "center = 1 .*levels"),
    "scale of a boolean": ({"type": "boolean", "scale": 1}, "scale = 1 .*boolean"),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_bad_fields_are_named(case):
    options, message = BAD_FIELDS[case]
    with pytest.raises(SchemaError, match=f"field 'column': {message}"):
        Field("column", **options)


@pytest.mark.parametrize("name", ["", "  ", None, 3, ["a"]])
def test_a_field_needs_a_name(name):
    with pytest.raises(SchemaError, match="name ="):
        Field(name, "boolean")


BAD_SCHEMAS = {
    "the same name twice": (([AGE, WEIGHT, AGE], {}), "field 'age' is there twice"),
    "no fields": (([], {}), "at least one"),
    "one field": ((AGE, {}), "list"),
    "a dict in place of a field": (([{"name": "age"}], {}), "dict; give dpmcmc.Field"),
    "max_rows without unit": (([AGE], {"max_rows": 3}), "max_rows = 3 needs a unit"),
    "unit without max_rows": (([AGE], {"unit": "age"}), "unit = 'age' needs max_rows"),
    "unit that is no field": (([AGE], {"unit": "who", "max_rows": 3}), "unit = 'who' is no field; choose one of 'age'"),
    "unit that is no text": (([AGE], {"unit": ["age"], "max_rows": 3}), "is no field"),
    "no rows": (([AGE], {"unit": "age", "max_rows": 0}), "max_rows = 0 must be a whole number"),
    "half a row": (([AGE], {"unit": "age", "max_rows": 1.5}), "max_rows = 1.5"),
    "a truth value of rows": (([AGE], {"unit": "age", "max_rows": True}), "max_rows = True"),
    "missing values that are one text": (([AGE], {"missing_values": "NA"}), "missing_values = 'NA'"),
    "missing value that is a number": (([AGE], {"missing_values": [-9]}), "missing_values = .*quotes"),
    "a level that means missing": (([DEGREE], {"missing_values": ["none"]}), "field 'degree': level 'none'"),
    "a level that reads as one": (([CODE], {"missing_values": ["3.0"]}), "field 'code': level 3"),
    "level 0": (([Field("x", "integer", levels=[0, 1])], {"missing_values": ["0"]}), "field 'x': level 0"),
}


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_bad_schemas_are_named(case):
    (fields, options), message = BAD_SCHEMAS[case]
    with pytest.raises(SchemaError, match=message):
        Schema(fields, **options)


BAD_TEXTS = {
    "nothing": ("", "holds no mapping"),
    "a list": ("- name: age", "holds no mapping"),
    "not YAML": ("fields: [name: {", r"not plain YAML \(line 1"),
    "code in YAML": ("fields: !!python/object/apply:os.system ['exit 1']", "not plain YAML .*python"),
    "no fields": ("missingValues: ['']", "no fields"),
    "fields that are no list": ("fields: {name: age}", "no fields"),
    "a field that is text": ("fields: [age]", "an entry of fields is of type str"),
    "a field without name": ("fields: [{type: boolean}]", "name = None"),
    "a misspelt key": ("fields: [{name: a, typ: number}]", "field 'a' has the key 'typ'"),
    "a misspelt constraint": ("fields: [{name: a, constraints: {min: 0}}]", "constraints has the key 'min'"),
    "constraints that are a list": ("fields: [{name: a, constraints: [0, 1]}]", "constraints is of type list"),
    "a misspelt rule": ("fields: [{name: a, type: number, dpmcmc: {mising: x}}]", "dpmcmc has the key 'mising'"),
    "a format": ("fields: [{name: a, type: number, format: percent}]", "format = 'percent'"),
    "a decimal sign": ("fields: [{name: a, type: number, decimalChar: ','}]", "the key 'decimalChar'"),
    "a bound outside constraints": ("fields: [{name: a, type: number, minimum: 0}]", "put it under constraints of a"),
    "a unit in a field": ("fields: [{name: a, dpmcmc: {unit: a}}]", "under dpmcmc at the end of the schema"),
    "words for true": ("fields: [{name: a, type: boolean, trueValues: [y]}]", "a string with both words as its enum"),
    "a misspelt key at the top": ("fields: [{name: a}]\nmissing_values: []", "the key 'missing_values'"),
    "a misspelt key of ours": ("fields: [{name: a}]\ndpmcmc: {units: a}", "dpmcmc has the key 'units'"),
    "Norway": ("fields: [{name: a, type: string, constraints: {enum: [DE, NO]}}]", "level = False .*quotes"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_bad_files_are_named(case, tmp_path):
    text, message = BAD_TEXTS[case]
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message):
        Schema.load(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(SchemaError, match=r"none\.yaml.*cannot be read"):
        Schema.load(tmp_path / "none.yaml")
    with pytest.raises(SchemaError, match="cannot be read"):
        Schema.load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SchemaError, match="not UTF-8"):
        Schema.load(tmp_path / "binary.yaml")
    (tmp_path / "bad.json").write_text("{fields: []}")
    with pytest.raises(SchemaError, match="not JSON"):
        Schema.load(tmp_path / "bad.json")
    with pytest.raises(SchemaError, match="cannot be written"):
        SCHEMA.save(tmp_path / "no" / "schema.yaml")


def test_blanks_are_listed():
    fields = [
        Field("a", "number", minimum=0),
        Field("b", "string"),
        Field("c"),
        Field("d", "boolean"),
        Field("who", "string"),
    ]
    assert Schema(fields).blanks() == [
        "field 'a': maximum", "field 'b': enum", "field 'c': type", "field 'who': enum",
    ]  # fmt: skip
    schema = Schema(fields, unit="who", max_rows=2)
    with pytest.raises(SchemaError, match=r"'a': maximum; field 'b': enum; field 'c': type\. Fill them in") as caught:
        schema.refuse_blanks()
    assert "who" not in str(caught.value)
    for field in fields[:3]:
        with pytest.raises(SchemaError, match=f"field {field.name!r} has blanks"):
            field.code(np.array([1.0]))
    assert SCHEMA.blanks() == []


# ------------------------------------------------------------------ written and read


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
@pytest.mark.parametrize(
    "schema", [SCHEMA, Schema(FIELDS), Schema([Field("a"), Field("b", "integer"), Field("ü: #'", "string")])]
)
def test_what_is_written_is_read(tmp_path, suffix, schema):
    path = tmp_path / f"schema.{suffix}"
    schema.save(path)
    again = Schema.load(path)
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.to_dict() == schema.to_dict() == json.loads(json.dumps(schema.to_dict()))
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_levels_that_yaml_would_take_for_something_else_come_back():
    schema = Schema([Field("a", "string", levels=["No", "yes", "1e3", "2020-01-01", "null", "~", "a: b", "#", "0x1F"])])
    assert Schema.from_yaml(schema.to_yaml()) == schema


def test_a_descriptor_of_the_standard():
    descriptor = {
        "$schema": "https://datapackage.org/profiles/2.0/tableschema.json",
        "fields": [
            {"name": "age", "type": "integer", "title": "Age",
             "constraints": {"minimum": 0, "maximum": "1e2", "required": True}},
            {"name": "sex", "type": "string", "format": "default", "constraints": {"enum": ["f", "m"]}},
        ],
        "missingValues": ["-"],
        "primaryKey": "age",
    }  # fmt: skip
    schema = Schema.from_dict(descriptor)
    assert schema == Schema(
        [Field("age", "integer", minimum=0, maximum=100), Field("sex", "string", levels=["f", "m"])],
        missing_values=["-"],
    )


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError, match="new one"):
        SCHEMA.unit = None
    with pytest.raises(AttributeError):
        AGE.minimum = 0
    with pytest.raises(SchemaError, match="'height' is not in the schema; choose one of 'age'"):
        SCHEMA["height"]


def test_what_follows_from_it():
    assert (AGE.kind, AGE.bounds, AGE.center, AGE.scale) == ("number", (17.0, 90.0), 53.5, 36.5)
    assert (WEIGHT.center, WEIGHT.scale) == (0.25, 4.0)
    assert (DEGREE.kind, DEGREE.level_names, DEGREE.reference) == ("category", ("none", "BA", "MA", "missing"), "BA")
    assert (CODE.kind, CODE.level_names, CODE.reference) == ("category", ("3", "1", "2"), 3)
    assert (MARRIED.kind, MARRIED.bounds) == ("boolean", (0.0, 1.0))


def test_the_draft_has_names_and_types_only(tmp_path):
    table = pyarrow.table({
        "n": [4711.5], "i": [4711], "b": [True], "t": ["secret-4711"], "nothing": pyarrow.nulls(1),
        "c": pyarrow.array(["secret-4711"]).dictionary_encode(), "day": np.array(["2020-01-01"], "datetime64[D]"),
    })  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("n,i\n4711,4711\n")
    draft = Schema.draft(tmp_path / "t.parquet")
    assert [(field.name, field.type) for field in draft.fields] == [
        ("n", "number"), ("i", "integer"), ("b", "boolean"), ("t", "string"), ("nothing", None), ("c", "string"),
        ("day", None),
    ]  # fmt: skip
    assert len(draft.blanks()) == 6
    of_csv = Schema.draft(tmp_path / "t.csv")
    assert [(field.name, field.type) for field in of_csv.fields] == [("n", None), ("i", None)]
    for schema in (draft, of_csv):
        text = schema.to_yaml()
        assert "4711" not in text
        assert "without looking at the data" in text
        assert Schema.from_yaml(text) == schema


def test_no_jax_on_the_way(tmp_path):
    """`dpmcmc schema` answers at once."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    program = (
        "import sys, dpmcmc, dpmcmc.schema; from dpmcmc import Schema, Field; "
        f"Schema.draft({str(tmp_path / 't.csv')!r}).to_yaml(); print('jax' in sys.modules, 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr


# ------------------------------------------------------------------ coding


def code(field, *entries, missing_values=("", "NA", "-9")):
    return field.code(objects(entries), missing_values).tolist()


def objects(entries):
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array


def test_numbers():
    assert code(AGE, 20, "20", "20.0", 2e1, " 20 ", b"20", Decimal(20), np.int8(20)) == [20.0] * 8
    assert code(AGE, 16, "-1e9", "-inf", -math.inf, -(10**400), False, "false", 0) == [17.0] * 8
    assert code(AGE, 91, "1e9", "inf", math.inf, 10**400, "1" * 400) == [90.0] * 6
    odd = (
        None,
        "",
        "NA",
        "-9",
        -9,
        -9.0,
        "-9.0",
        math.nan,
        "nan",
        "twenty",
        "20 years",
        "2_0",
        20.5,
        "20.5",
        2j,
        [20],
        Decimal("sNaN"),
    )
    assert code(AGE, *odd) == [53.5] * len(odd)
    assert code(Field("a", "number", minimum=0, maximum=1, missing="midpoint", center=0.2), None) == [0.2]
    assert code(Field("a", "number", minimum=0, maximum=1, missing="midpoint", center=7), None) == [1.0]
    assert np.isnan(code(WEIGHT, *odd[:7], "x")).all()
    assert code(WEIGHT, 20.5, "0.1", -3) == [2.5, 0.1, -1.5]


def test_booleans():
    assert code(EMPLOYED, True, "true", "TRUE", "True ", 1, 1.0, "1", "1.0", np.bool_(True)) == [1.0] * 9
    assert code(EMPLOYED, False, "false", "FALSE", 0, -0.0, "0", "0.0") == [0.0] * 7
    odd = (None, "", "yes", 2, 0.5, "0.5", math.nan, math.inf, -9)
    assert np.isnan(code(EMPLOYED, *odd)).all()
    assert code(MARRIED, *odd) == [0.5] * len(odd)


def test_categories():
    assert code(DEGREE, "none", " BA", "MA", "ma", "", None, 3, True, "PhD", math.nan, ["BA"]) == [0, 1, 2, *[3] * 8]
    assert code(CODE, 3, "3", 3.0, "3.0", 1, True, "2", b"2") == [0, 0, 0, 0, 1, 1, 2, 2]
    assert np.isnan(code(CODE, None, 4, "", "three", math.inf, math.nan, 2.5)).all()
    assert code(ZIP, "00501", 501, 501.0, "501", "10001") == [0, 0, 0, 0, 1]
    truth = Field("t", "string", levels=["FALSE", "TRUE"])
    assert code(truth, True, "true", "TRUE", False, np.bool_(False)) == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_whole_arrays_are_coded_as_their_entries_are(field):
    """The short ways for arrays of numbers, booleans and text give the bits of the long way, entry by entry."""
    generator = np.random.default_rng(0)
    arrays = [
        np.array([0, 1, 2, 3, 17, 20, 501, -9, 2**62 + 1, -(2**63)]),
        np.array([2**64 - 1, 3], np.uint64),
        np.array([-0.0, 0.0, 0.1, 1.0, 3.0, 501.0, np.nan, -np.nan, np.inf, -np.inf, 1e300, 5e-324, -9.0]),
        np.array([0.1, 3.0, 3.4e38], np.float32),
        np.array([True, False]),
        np.array(["3", "BA", "", "1e5", "true", "00501", "ä"]),
        np.array([b"3", b"BA", b"\xff"]),
        generator.normal(size=1001) * 50,
    ]
    for array in arrays:
        together = field.code(array, ("-9",))
        assert together.dtype == np.float64
        for wide in (array.astype(object), np.repeat(array, 3)[::3]):
            assert field.code(wide, ("-9",)).tobytes() == together.tobytes()
        alone = [field.code(array[place : place + 1], ("-9",)) for place in range(len(array))]
        assert np.concatenate(alone).tobytes() == together.tobytes()


ENTRIES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.binary(max_size=6), st.decimals(),
    st.sampled_from(["BA", "none", "20", "-9", "NA", "true", "1.5", "00501", 3, 1]), st.dates(), st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip


def alone_equals_together(field, array):
    alone = [field.code(array[place : place + 1], ("", "NA", "-9")) for place in range(len(array))]
    return np.concatenate(alone).tobytes() == field.code(array, ("", "NA", "-9")).tobytes()


@given(st.lists(ENTRIES, min_size=1, max_size=8))
def test_rows_alone_are_rows_together(entries):
    """For any entries: no error, no warning (pytest would show it as an error), one dtype, within bounds or NaN."""
    array = objects(entries)
    for field in FIELDS:
        with np.errstate(all="raise"):
            together = field.code(array, ("", "NA", "-9"))
            assert alone_equals_together(field, array)
        assert (together.dtype, together.shape) == (np.float64, (len(entries),))
        low, high = field.bounds
        inside = (low <= together) & (together <= high)
        assert (inside | (np.isnan(together) & (field.missing == "record counts as nothing"))).all()


def test_twin_a_coding_that_learns_from_rows_is_caught():
    """Missing values filled in by the mean of the others."""

    class Learning(Field):
        def code(self, raw, missing_values=()):
            values = super().code(raw, missing_values)
            return np.where(np.isnan(values), np.nansum(values) / len(values), values)

    entries = objects([0.5, None, 2.0])
    assert alone_equals_together(WEIGHT, entries)
    assert not alone_equals_together(Learning("weight", "number", minimum=-1.5, maximum=2.5), entries)


def test_draft_of_what_is_no_table():
    for source in (3, None, np.zeros((3, 2)), [1, 2], "none.parquet"):
        with pytest.raises(DataError, match="source"):
            Schema.draft(source)
    with pytest.raises(SchemaError, match="no columns"):
        Schema.draft({})
