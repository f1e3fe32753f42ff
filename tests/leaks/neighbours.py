"""Data sets that differ in one record, by every way in: arrays, tables, files, streams, units of several rows."""

import csv
import math

import jax
import numpy as np
import numpyro
import pandas
import polars
import pyarrow
import pyarrow.parquet
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import models
from dpmcmc.data import Units
from dpmcmc.models import UnitModel
from dpmcmc.surrogate import Form, Surrogate

NUM_RECORDS, REPLACED, MAX_ROWS = 300, 123, 3
FORMULA = "income ~ age + hours + C(school)"
FIELDS = [
    dpmcmc.Field("age", "integer", minimum=17, maximum=90),
    dpmcmc.Field("hours", "number", minimum=0, maximum=80, missing="midpoint"),
    dpmcmc.Field("school", "string", levels=["low", "high"], missing="own level"),
    dpmcmc.Field("income", "boolean"),
]
SCHEMA = dpmcmc.Schema(FIELDS, missing_values=["", "NA"])
SCHEMA_OF_UNITS = dpmcmc.Schema([*FIELDS, dpmcmc.Field("person", "string")], unit="person", max_rows=MAX_ROWS)
DIMENSION = 5


def rows():
    """The first data set: plain Python values, a list for each column."""
    generator = np.random.default_rng(3)
    age = generator.integers(17, 91, NUM_RECORDS).tolist()
    return {
        "age": age,
        "hours": (generator.integers(0, 161, NUM_RECORDS) / 2).tolist(),
        "school": generator.choice(["low", "high"], NUM_RECORDS).tolist(),
        "income": (generator.uniform(size=NUM_RECORDS) < 1 / (1 + np.exp((50 - np.array(age)) / 20))).tolist(),
    }


# ------------------------------------------------------------------ what one record may become

# Where a column may hold anything: lists, and frames of pandas (one entry then decides the dtype of its column).
ANYTHING = {
    "ordinary": {"age": 33, "hours": 12.5, "school": "high", "income": True},
    "extreme": {"age": 10**9, "hours": -1.7e308, "income": 1},
    "NaN": {"age": math.nan, "hours": math.nan, "income": math.nan},
    "infinite": {"age": math.inf, "hours": -math.inf},
    "missing": dict.fromkeys(("age", "hours", "school", "income")),
    "text": {"age": "forty", "hours": "full time", "income": "plenty"},
    "unknown level": {"school": "kindergarten, of the old kind"},
    "empty text": dict.fromkeys(("age", "hours", "school", "income"), ""),
    "huge integer": {"age": 10**400, "hours": -(10**5000), "school": 10**5000},
    "of another type": {"age": [1, 2], "hours": {"a": 1}, "school": b"\xff\xfe", "income": 2j},
    "not whole": {"age": 41.5, "income": 0.5},
}
# Where a column has a declared type, which is public.
TYPED = {
    "ordinary": ANYTHING["ordinary"],
    "extreme": {"age": 2**63 - 1, "hours": 1.7e308},
    "NaN": {"hours": math.nan},
    "infinite": {"hours": -math.inf},
    "denormal": {"hours": 5e-324},
    "missing": dict.fromkeys(("age", "hours", "school", "income")),
    "unknown level": ANYTHING["unknown level"],
    "empty text": {"school": ""},
    "long text": {"school": "x" * 100_000},
}
# A line of a CSV file, as bytes.
LINES = {
    "ordinary": b"33,12.5,high,true",
    "extreme": b"1e308,-1e308,low,1",
    "NaN": b"nan,NaN,nan,nan",
    "infinite": b"inf,-inf,low,true",
    "missing": b"NA,NA,NA,NA",
    "text": b"forty,full time,low,plenty",
    "unknown level": b"40,1,kindergarten,true",
    "empty text": b",,,",
    "nothing": b"",
    "too short": b"40",
    "too long": b"40,1,low,true,5,6,7,8,9",
    "carriage return": b"40\r,1\r\r,low,true\r",
    "open quote": b'"40,1,low,true',
    "not UTF-8": b"40,1,\xff\xfe\x00,true",
    "huge integer": b"1" * 6000 + b",2,low,true",
}
# A row of numbers: features and, in a regression, an outcome.
NUMBERS = {
    "ordinary": (0.3, 1.0),
    "zero": (0.0, 0.0),
    "far": (1e6, 1.0),
    "extreme": (1.7e308, 1.0),
    "NaN": (math.nan, 1.0),
    "infinite": (-math.inf, math.inf),
    "denormal": (5e-324, 1.0),
    "impossible outcome": (0.1, -3.5),
}
# All rows of one person.
PERSONS = {
    "one row": [ANYTHING["ordinary"]],
    "1000 rows": [ANYTHING["ordinary"]] * 1000,
    "extreme": [ANYTHING["extreme"]] * 2,
    "NaN": [ANYTHING["NaN"]] * 2,
    "missing": [ANYTHING["missing"]] * 4,
    "text": [ANYTHING["text"], ANYTHING["ordinary"]],
    "huge integer": [ANYTHING["huge integer"]],
    "unknown level": [ANYTHING["unknown level"]] * 3,
}


def replaced(record):
    """The data set with another record; None: as it was."""
    table = rows()
    for name, entry in (record or {}).items():
        table[name][REPLACED] = entry
    return table


# ------------------------------------------------------------------ ways in
#
# Each has the kinds of record that it can hold, `write(record)`, which makes the source in the current folder, and
# `read(source)`, which is watched and returns model and records.


class Tables:
    """A table of some library, coded by a schema."""

    def __init__(self, kinds, make, *, stream=False, schema=SCHEMA):
        self.kinds, self.write, self._stream, self._schema = kinds, make, stream, schema

    def read(self, source):
        return dpmcmc.regression(FORMULA, dpmcmc.Table(source, self._schema, stream=self._stream))


class Numbers:
    """Arrays: of a regression (named columns, or a frame), or rows of a matrix."""

    kinds = NUMBERS

    def __init__(self, make, model):
        self._make, self._model = make, model

    def write(self, record):
        generator = np.random.default_rng(4)
        features = generator.uniform(-1.0, 1.0, (NUM_RECORDS, DIMENSION - 1))
        outcomes = generator.integers(0, 2, NUM_RECORDS).astype(float)
        if record is not None:
            features[REPLACED], outcomes[REPLACED] = record
        return self._make(features, outcomes)

    def read(self, source):
        return self._model, source


class Numpyro(Numbers):
    """A model of NumPyro's, which checks supports of distributions where it is told to."""

    def read(self, source):
        def model(X, y):
            slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([DIMENSION]).to_event(1))
            with numpyro.plate("records", X.shape[0]):
                numpyro.sample("y", dist.Poisson(jax.numpy.exp(X @ slopes[1:] + slopes[0])), obs=y)

        return dpmcmc.from_numpyro(model, source), source


class OwnUnits(Numbers):
    """Rows of a matrix that belong to persons, for a model of the user's own."""

    def read(self, source):
        return self._model, Units.of(np.arange(NUM_RECORDS) // 2, 2).stack(source)


def _arrow(record):
    types = {"age": "int64", "hours": "float64", "school": "string", "income": "bool"}
    columns = replaced(record)
    return pyarrow.table({name: pyarrow.array(columns[name], pyarrow.type_for_alias(types[name])) for name in types})


def _polars(record):
    types = {"age": polars.Int64, "hours": polars.Float64, "school": polars.String, "income": polars.Boolean}
    return polars.DataFrame(replaced(record), schema=types)


def _categories(record):
    """A frame whose words are a category of pandas: the levels are those that the rows have."""
    frame = pandas.DataFrame(replaced(record))
    return frame.assign(school=frame["school"].astype("category"))


def _dictionary(record):
    table = _arrow(record)
    return table.set_column(2, "school", table["school"].dictionary_encode())


def _parquet(record):
    pyarrow.parquet.write_table(_arrow(record), "people.parquet", row_group_size=100)
    return "people.parquet"


def _csv(line):
    columns = rows()
    with open("people.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    if line is not None:
        with open("people.csv", "rb") as file:
            lines = file.read().split(b"\n")
        lines[REPLACED + 1] = line
        with open("people.csv", "wb") as file:
            file.write(b"\n".join(lines))
    return "people.csv"


def _persons(own_rows):
    """Rows of a table, two of each person, and others of one of them."""
    columns = rows()
    columns["person"] = [f"p{number // 2}" for number in range(NUM_RECORDS)]
    if own_rows is not None:
        for column in columns.values():
            del column[REPLACED - 1 : REPLACED + 1]
        for own in own_rows:
            for name, column in columns.items():
                column.append(f"p{REPLACED // 2}" if name == "person" else own.get(name, column[0]))
    order = np.random.default_rng(5).permutation(len(columns["age"]))
    # (By first rows, so that persons stand in the same order whoever has more.)
    first = [place for place in order if place < NUM_RECORDS - 2]
    rest = [place for place in order if place >= NUM_RECORDS - 2]
    return pandas.DataFrame({name: [column[place] for place in [*first, *rest]] for name, column in columns.items()})


def _single(features, outcomes):
    with np.errstate(over="ignore"):
        return np.column_stack([features, outcomes]).astype(np.float32)


def _named(features, outcomes):
    return {"X": features, "y": outcomes}


def _log_likelihood(parameters, row):
    return -0.5 * ((row - parameters["mean"]) ** 2).sum()


def _log_prior(parameters):
    return -0.5 * (parameters["mean"] ** 2).sum()


def _sample_prior(key):
    return {"mean": jax.random.normal(key, (DIMENSION,))}


PARAMETERS = {"mean": (DIMENSION,)}
OWN = dpmcmc.Model(_log_likelihood, _log_prior, PARAMETERS, sample_prior=_sample_prior)
SOURCES = {
    "array": Numbers(lambda features, outcomes: np.column_stack([features, outcomes]), OWN),
    "float32 array": Numbers(_single, OWN),
    "dict of arrays": Numbers(_named, models.LogisticRegression(DIMENSION - 1)),
    "frame of numbers": Numbers(
        lambda features, outcomes: pandas.DataFrame(np.column_stack([features, outcomes])).rename(columns=str),
        dpmcmc.Model(
            lambda parameters, row: -0.5 * sum((row[str(k)] - parameters["mean"][k]) ** 2 for k in range(DIMENSION)),
            _log_prior,
            PARAMETERS,
            sample_prior=_sample_prior,
        ),
    ),
    "numpyro": Numpyro(_named, None),
    "lists": Tables(ANYTHING, replaced),
    "pandas": Tables(ANYTHING, lambda record: pandas.DataFrame(replaced(record))),
    "polars": Tables(TYPED, _polars),
    "arrow": Tables(TYPED, _arrow),
    "categories": Tables({name: ANYTHING[name] for name in ("missing", "unknown level", "empty text")}, _categories),
    "dictionary": Tables({name: TYPED[name] for name in ("missing", "unknown level", "empty text")}, _dictionary),
    "csv": Tables(LINES, _csv),
    "parquet": Tables(TYPED, _parquet),
    "stream": Tables(TYPED, _parquet, stream=True),
    "persons": Tables(PERSONS, _persons, schema=SCHEMA_OF_UNITS),
    "own units": OwnUnits(lambda features, outcomes: np.column_stack([features, outcomes]), UnitModel(OWN, 2)),
}
SURROGATE = Surrogate(Form(DIMENSION, 1, 1), np.zeros(DIMENSION), 0.3 * np.eye(DIMENSION), np.eye(DIMENSION, 6, 1))
SAMPLERS = {
    "auto": "auto",
    "DPLaplace": dpmcmc.DPLaplace(),
    "DPHMC": dpmcmc.DPHMC(0.01, 3, 1.0, 1.0, 10.0, 10.0),
    "DPPenalty": dpmcmc.DPPenalty(0.02, 1.0, 10.0),
    "DPSGLD": dpmcmc.DPSGLD(150, 1.0, 1e-5),
    "DPSGNHT": dpmcmc.DPSGNHT(20, 1.0, 1e-3, 10.0, sampling="poisson"),
    "SurrogateHMC": dpmcmc.SurrogateHMC(SURROGATE, 2.0),
}
NOT_STREAMED = ("DPSGLD", "DPSGNHT")  # look up random rows


def sampled(sampler, source, raw, **options):
    """A private run on what was written."""
    model, records = SOURCES[source].read(raw)
    settings = {"sampler": SAMPLERS[sampler], "epsilon": 300.0, "delta": 1e-5, "num_chains": 2, "num_steps": 4}
    return dpmcmc.sample(model, records, **(settings | options))
