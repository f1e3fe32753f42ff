"""Formula and schema to design: row by row, bit for bit, what plain formulaic gives, and never a line of code."""

import contextlib
import itertools

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.design import FAMILIES, Design
from dpmcmc.errors import ModelError
from dpmcmc.schema import Field, Schema

FIELDS = [
    Field("age", "integer", minimum=17, maximum=90),
    Field("hours", "number", minimum=0, maximum=99, center=40, scale=20, missing="midpoint"),
    Field("education", "string", levels=["HS", "BA", "MA"], reference="BA"),
    Field("sex", "string", levels=["F", "M"], missing="own level"),
    Field("region", "integer", levels=[1, 2, 3]),
    Field("married", "boolean"),
    Field("rich", "boolean"),
    Field("income", "string", levels=["<=50K", ">50K"]),
    Field("wage", "number", minimum=10, maximum=210),
    Field("visits", "integer", minimum=0, maximum=50),
    Field("change", "integer", minimum=-5, maximum=5),
    Field("person", "string"),
]
SCHEMA = Schema(FIELDS, missing_values=("", "NA"), unit="person", max_rows=3)

FORMULAS = [
    "rich ~ age + C(education) + hours:C(sex)",
    "rich ~ age*hours + I(age**2) + np.log1p(hours)",
    "rich ~ 0 + sex + C(education):hours + married",
    "rich ~ C(sex)*C(education)*hours",
    "rich ~ bs(age, knots=[30, 50]) + bs(hours, knots=[20], degree=2):sex",
    "rich ~ I(age > 65) + C(region) + C(married) + sqrt(hours) + exp(-hours / 50)",
    "rich ~ I(maximum(age - 40, 0)) + minimum(hours, 40) + tanh(age * hours / 1000) + sin(age) + abs(hours - 40)",
    "rich ~ .",
    "rich ~ 1",
]


def clean_of(raw):
    """Code columns of raw entries, given as rows, by the schema."""
    names = [name for name in SCHEMA.names if name != "person"]
    return {
        name: SCHEMA.code_entries(name, np.array([row[place] for row in raw] + [None], dtype=object)[:-1])
        for place, name in enumerate(names)
    }


def entries(*usual):
    odd = st.sampled_from([None, "", "NA", "zzz", float("nan"), float("inf"), -1e300, 1e300, "1e400", True, 3.5])
    return st.one_of(st.sampled_from(usual), odd, st.floats(-1e3, 1e3), st.integers(-200, 200))


ROWS = st.tuples(
    entries(17, 40, 90, "53"),
    entries(0.0, 12.5, 99, "40"),
    entries("HS", "BA", "MA"),
    entries("F", "M"),
    entries(1, 2, 3, "2"),
    entries(True, False, "true", 0),
    entries(True, False),
    entries("<=50K", ">50K"),
    entries(20, 150.5),
    entries(0, 7),
    entries(-5, 0, 3),
)


@pytest.mark.parametrize("formula", FORMULAS)
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(ROWS, min_size=1, max_size=30))
def test_rows_coded_alone_equal_rows_coded_together_bit_for_bit(formula, rows):
    design = Design(formula, SCHEMA)
    together = design.records(clean_of(rows))
    assert together["X"].shape == (len(rows), len(design.columns))
    assert together["X"].dtype == together["y"].dtype == np.float64
    for place, row in enumerate(rows):
        alone = design.records(clean_of([row]))
        assert alone["X"].tobytes() == together["X"][place : place + 1].tobytes()
        assert alone["y"].tobytes() == together["y"][place : place + 1].tobytes()
    low, high = design.bounds.T
    inside = (together["X"] >= low) & (together["X"] <= high)
    assert np.all(inside | np.isnan(together["X"]))


@pytest.mark.parametrize("length", [2, 3, 5, 8, 17, 64, 1000])
def test_functions_do_not_depend_on_a_rows_place_in_a_column(length):
    """NumPy has other code for the ends of an array than for its middle: both must give the same bits."""
    formula = (
        "rich ~ "
        + " + ".join(
            f"{name}(hours / 10 + 1)"
            for name in ("log", "log10", "log2", "exp", "expm1", "sin", "cos", "tanh", "arctan")
        )
        + " + I((hours + 1) ** 1.7) + I(hours ** 3)"
    )
    design = Design(formula, SCHEMA)
    hours = np.random.default_rng(3).uniform(0.0, 99.0, length)
    whole = design.matrix({"hours": hours})
    for row in range(length):
        assert design.matrix({"hours": hours[row : row + 1]}).tobytes() == whole[row : row + 1].tobytes()


def test_a_design_that_looks_at_other_rows_is_caught(monkeypatch):
    """Twin: a centre taken from the rows is noticed by the comparison above."""
    design = Design("rich ~ age", SCHEMA)
    learned = Design("rich ~ age", SCHEMA)
    learned.matrix = lambda clean: design.matrix({"age": clean["age"] - clean["age"].mean() + 50.0})
    clean = {"age": np.array([20.0, 60.0])}
    alone = {"age": np.array([20.0])}
    assert design.matrix(alone).tobytes() == design.matrix(clean)[:1].tobytes()
    assert learned.matrix(alone).tobytes() != learned.matrix(clean)[:1].tobytes()


def made_rows(number=200, seed=0):
    generator = np.random.default_rng(seed)
    rows = zip(
        generator.integers(17, 91, number).tolist(),
        generator.uniform(0.0, 99.0, number).tolist(),
        generator.choice(["HS", "BA", "MA"], number).tolist(),
        generator.choice(["F", "M"], number).tolist(),
        generator.integers(1, 4, number).tolist(),
        generator.choice([True, False], number).tolist(),
        generator.choice([True, False], number).tolist(),
        generator.choice(["<=50K", ">50K"], number).tolist(),
        generator.uniform(10.0, 210.0, number).tolist(),
        generator.integers(0, 51, number).tolist(),
        generator.integers(-5, 6, number).tolist(),
        strict=True,
    )
    return list(rows)


@pytest.mark.parametrize(
    "right",
    [
        "age + C(education) + hours:C(sex)",
        "0 + C(sex) + C(education):hours + married",
        "C(sex)*C(education)*hours + age:hours",
        "sex:education",
        "education:hours + education:sex + C(region)",
        "(age + hours + sex)**2 - age:sex",
        "0 + hours:sex",
        "age/sex",
    ],
)
def test_a_design_is_what_formulaic_gives_on_the_coded_columns(right):
    rows = made_rows()
    clean, names = clean_of(rows), [name for name in SCHEMA.names if name != "person"]
    frame = pd.DataFrame({name: [row[place] for row in rows] for place, name in enumerate(names)})
    frame["age"] = (clean["age"] - 53.5) / 36.5
    frame["hours"] = (clean["hours"] - 40.0) / 20.0
    frame["married"] = clean["married"]
    frame["education"] = pd.Categorical(frame["education"], ["BA", "HS", "MA"])
    frame["sex"] = pd.Categorical(frame["sex"], ["F", "M", "missing"])
    frame["region"] = pd.Categorical(frame["region"].astype(str), ["1", "2", "3"])
    expected = model_matrix(right, frame)
    design = Design(f"rich ~ {right}", SCHEMA)
    assert design.intercept == ("Intercept" in expected.columns)
    assert list(design.columns) == [name for name in expected.columns if name != "Intercept"]
    np.testing.assert_allclose(design.matrix(clean), expected[list(design.columns)].to_numpy(float), rtol=0, atol=1e-14)


def test_splines_are_formulaics():
    ages = np.array([17.0, 25.0, 50.0, 90.0])
    design = Design("rich ~ bs(age, knots=[30, 50])", SCHEMA)
    right = "bs(age, knots=[30, 50], lower_bound=17, upper_bound=90)"
    expected = model_matrix(right, pd.DataFrame({"age": ages})).drop(columns="Intercept")
    np.testing.assert_array_equal(design.matrix({"age": ages}), expected.to_numpy())
    assert [name.split("[")[-1] for name in design.columns] == [name.split("[")[-1] for name in expected.columns]


def test_other_expressions_are_coded_by_their_range_within_the_bounds():
    design = Design("rich ~ np.log1p(hours) + I(age**2) + I(age > 65) + married", SCHEMA)
    assert design.bounds.tolist() == [[-1, 1], [-1, 1], [0, 1], [0, 1]]
    clean = {"hours": np.array([0.0, 99.0]), "age": np.array([17.0, 90.0]), "married": np.array([0.0, 1.0])}
    np.testing.assert_allclose(design.matrix(clean), [[-1, -1, 0, 0], [1, 1, 1, 1]], atol=1e-15)


@pytest.mark.parametrize("formula", FORMULAS[:-1])
def test_every_row_is_within_the_polytope_of_its_block(formula):
    """Linear programming: a row is a convex combination of the vertices."""
    from scipy.optimize import linprog

    design = Design(formula, SCHEMA)
    matrix = design.matrix(clean_of(made_rows(25, seed=5)))
    assert sorted(itertools.chain(*(block.columns.tolist() for block in design.blocks))) == list(
        range(len(design.columns))
    )
    for block in design.blocks:
        for row in matrix[:, block.columns]:
            equalities = np.vstack([block.vertices.T, np.ones(len(block.vertices))])
            found = linprog(np.zeros(len(block.vertices)), A_eq=equalities, b_eq=[*row, 1.0])
            assert found.status == 0


def test_blocks_of_a_category_hold_one_indicator_at_a_time():
    (block,) = Design("rich ~ C(education)", SCHEMA).blocks
    assert sorted(block.vertices.tolist()) == [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    "right",
    [
        "age + C(education) + hours:C(sex)",
        "0 + age",
        "age*hours*C(sex)",
        "age + I(age**2) + np.log1p(hours)",
        "0 + C(sex) + hours:C(sex)",
        "hours:sex:education",
        "0 + hours:sex:education + age:married",
        "bs(age, knots=[40]) : hours",
        "1",
    ],
)
@pytest.mark.parametrize("left", ["rich", "wage"])
def test_original_coefficients_predict_what_coded_ones_do(right, left):
    """Induced terms are named after factors of the data: formulaic evaluates these names on raw columns."""
    family = "linear" if left == "wage" else "logistic"
    design = Design(f"{left} ~ {right}", SCHEMA, family)
    rows = made_rows(50, seed=2)
    clean = clean_of(rows)
    generator = np.random.default_rng(1)
    coefficients = np.concatenate(
        [generator.normal(size=1) * design.intercept, generator.normal(size=len(design.columns))]
    )
    coded = coefficients[0] + design.matrix(clean) @ coefficients[1:]
    original = design.original()
    mapped = original.scale * (original.matrix @ coefficients)
    total = np.full(50, mapped[0] + original.center)
    for name, coefficient in zip(original.columns, mapped[1:], strict=True):
        total += coefficient * raw_column(name, clean)
    np.testing.assert_allclose(total, original.center + original.scale * coded, rtol=1e-9, atol=1e-9)
    assert original.columns[: len(design.columns)] == design.columns
    assert original.intercept or mapped[0] + original.center == 0.0
    assert (original.center, original.scale) == ((110.0, 100.0) if left == "wage" else (0.0, 1.0))


def raw_column(name, clean):
    """Evaluate the name of a coefficient on the data as they are."""
    from formulaic.transforms import basis_spline

    value = np.ones(len(clean["age"]))
    for part in name.split(":"):
        if part.startswith("bs("):
            basis = basis_spline(clean["age"], knots=[40], lower_bound=17, upper_bound=90, _state={})
            value = value * basis[int(part.split("[")[-1][:-1])]
        elif part.endswith("]"):
            column, level = part[:-1].split("[")
            column = column.removeprefix("C(").removesuffix(")")
            value = value * (clean[column] == SCHEMA[column].level_names.index(level.removeprefix("T.")))
        else:
            value = value * eval(part, {"np": np, "I": lambda x: x}, dict(clean))
    return value


def test_induced_terms_have_names():
    design = Design("rich ~ age + C(education) + hours:C(sex)", SCHEMA)
    assert design.original().columns[len(design.columns) :] == ("C(sex)[T.M]", "C(sex)[T.missing]")
    assert Design("rich ~ 0 + age", SCHEMA).original().intercept
    assert not Design("rich ~ 0 + married", SCHEMA).original().intercept
    assert Design("rich ~ 0 + age:hours", SCHEMA).original().columns == ("age:hours", "hours", "age")


@pytest.mark.parametrize(
    ("formula", "family", "expected"),
    [
        ("rich ~ age", "logistic", [1.0, 0.0, np.nan]),
        ("income ~ age", "logistic", [1.0, 0.0, np.nan]),
        ("C(income) ~ age", "logistic", [1.0, 0.0, np.nan]),
        ("wage ~ age", "linear", [-1.0, 0.0, 1.0]),
        ("visits ~ age", "poisson", [3.0, 0.0, np.nan]),
        ("visits ~ age", "negative_binomial", [3.0, 0.0, np.nan]),
    ],
)
def test_responses(formula, family, expected):
    clean = {
        "rich": np.array([1.0, 0.0, 0.5]),
        "income": np.array([1.0, 0.0, np.nan]),
        "wage": np.array([10.0, 110.0, 210.0]),
        "visits": np.array([3.0, 0.0, 2.5]),
    }
    np.testing.assert_array_equal(Design(formula, SCHEMA, family).outcome(clean), expected)


def test_what_is_predicted_has_a_name():
    assert Design("income ~ age", SCHEMA).predicted == "P(income = >50K)"
    assert Design("rich ~ age", SCHEMA).predicted == "P(rich)"
    assert Design("wage ~ age", SCHEMA, "linear").predicted == "wage"


def test_a_design_goes_through_plain_data():
    design = Design("rich ~ age + C(education)", SCHEMA, "logistic", "sex")
    again = Design.from_dict(design.to_dict())
    assert again.columns == design.columns
    assert again.to_dict() == design.to_dict()
    assert again.level_names == ("F", "M", "missing")
    assert again.variables == ("age", "education", "sex")


def test_groups_come_with_the_records():
    design = Design("rich ~ age", SCHEMA, groups="education")
    records = design.records({"age": np.array([20.0]), "rich": np.array([1.0]), "education": np.array([2.0])})
    assert records["group"].tolist() == [2.0]
    assert Design("rich ~ .", SCHEMA, groups="education").columns[-1] == "change"
    assert not any("education" in name for name in Design("rich ~ .", SCHEMA, groups="education").columns)


def test_names_in_backquotes():
    schema = Schema([Field("hours per week", "number", minimum=0, maximum=99), Field("y", "boolean")])
    design = Design("y ~ `hours per week` + np.log1p(`hours per week`)", schema)
    assert design.variables == ("hours per week",)
    assert design.matrix({"hours per week": np.array([0.0])}).tolist() == [[-1.0, -1.0]]


BAD_FORMULAS = [
    (5, "formula is a int; give a text"),
    ("age", "has no response; write one column"),
    ("~ age", "has no response"),
    ("rich ~ age ~ sex", "more than one ~"),
    ("rich ~", "nothing on its right side; name a column"),
    ("rich ~ 0", "nothing on its right side"),
    ("rich + married ~ age", "'rich \\+ married' on its left side; give one response"),
    ("rich:married ~ age", "on its left side; give one response"),
    ("1 ~ age", "on its left side"),
    ("rich ~ agee", "names 'agee', which is no column of the schema; its columns are 'age', 'hours'"),
    ("weight ~ age", "names 'weight', which is no column"),
    ("rich ~ I(agee + 1)", "names 'agee', which is no column"),
    ("rich ~ rich:age", "has 'rich' on both sides; .* leave it out"),
    ("rich ~ C(rich)", "has 'rich' on both sides"),
    ("rich ~ person", "'person', which has neither levels nor bounds"),
    ("rich ~ scale(age)", "'scale\\(age\\)', which learns from the data.*already coded"),
    ("rich ~ center(age)", "learns from the data.*already centred"),
    ("rich ~ poly(age, 2)", r"learns from the data.*age \+ I\(age\*\*2\)"),
    ("rich ~ I(scale(age))", "learns from the data"),
    ("rich ~ cr(age, df=3)", r"learns from the data.*bs\(age, knots=\[30, 50\]\)"),
    ("rich ~ lag(age)", "looks at other rows"),
    ("rich ~ hashed(sex, levels=3)", r"name the levels in the schema"),
    ("rich ~ bs(age, df=4)", r"quantiles of the data.*bs\(age, knots=\[30, 50\]\)"),
    ("rich ~ bs(age, 4)", "without knots; give them by hand"),
    ("rich ~ bs(age)", "without knots"),
    ("rich ~ bs(age, knots=[50, 30])", "give increasing knots between 17 and 90"),
    ("rich ~ bs(age, knots=[5])", "give increasing knots"),
    ("rich ~ bs(age, knots=hours)", "give increasing knots"),
    ("rich ~ bs(age, knots=[30], degree=-1)", "a degree from 0 to 10"),
    ("rich ~ bs(age, knots=[30], degree=True)", "a degree from 0 to 10"),
    ("rich ~ bs(age, knots=[30], extrapolation='na')", "with 'extrapolation'; bs takes 'knots'"),
    ("rich ~ bs(4, knots=[30])", "names no column"),
    ("rich ~ bs(sex, knots=[30])", "'sex', which is a category"),
    ("rich ~ I(3)", "which names no column"),
    ("rich ~ C(age)", r"'age' is a number without levels; state the levels"),
    ("rich ~ C(education, contr.sum)", r"write C\(column\): levels and their reference are stated in the schema"),
    ("rich ~ I(C(education) + 1)", r"C\(…\) within"),
    ("rich ~ np.log(hours)", "not finite for hours = 0, within the schema's bounds; change the bounds"),
    ("rich ~ np.log(sex)", r"computes with 'sex', which is a category; write C\(sex\)"),
    ("rich ~ I(hours - hours)", "the same everywhere within the bounds; leave it out"),
    ("rich ~ I(age + hours + wage + visits + change)", "a function of 5 columns; use at most 4"),
    ("rich ~ 2:age", "multiplies a term by 2; leave the number out"),
    ("rich ~ 'abc'", "cannot be read: String literals"),
    ("rich ~ age | sex", "cannot be read: .* an effect of each group by groups="),
    ("very rich ~ age", "cannot be read: Missing operator.* a name with spaces as `name`"),
    ("age > 30 ~ hours", r"cannot be read: .* comparisons as I\(age > 30\)"),
    ("rich ~ (age", "cannot be read"),
    ("rich ~ age ** hours", "cannot be read"),
    ("rich ~ np.median(age)", "may not be called; the functions are"),
    ("rich ~ log(age, 3)", "may not be called"),
    ("rich ~ clip(age, a_min=3)", "leave out the named arguments"),
    ("rich ~ I(9**9**9**9*age)", "not finite for age = 17"),
    ("rich ~ I(" + "-" * 3000 + "age)", "."),
]


@pytest.mark.parametrize(("formula", "message"), BAD_FORMULAS)
def test_bad_formulas(formula, message):
    with pytest.raises(ModelError, match=message):
        Design(formula, SCHEMA)


RUNS_CODE = [
    "__import__('os').mkdir(PATH)",
    "C(__import__('os').mkdir(PATH))",
    "I(__import__('os').mkdir(PATH))",
    "(__import__('os').mkdir(PATH))()",
    "{__import__('os').mkdir(PATH)}",
    "{__import__('os').mkdir(PATH).x()}",
    "np.log(__import__('os').mkdir(PATH))",
    "__import__('os').mkdir(PATH).x(age)",
    "bs(age, knots=[__import__('os').mkdir(PATH)])",
    "bs(__import__('os').mkdir(PATH), knots=[3])",
    "I(open(PATH, 'w'))",
    "open(PATH, 'w')",
    "I(age.__class__.__base__)",
    "I([open(PATH, 'w') for x in age])",
    "I((lambda: open(PATH, 'w'))())",
    "{(x := open(PATH, 'w'))}",
    "I(f'{open(PATH, \"w\")}')",
    "I(np.save(PATH, age))",
    "np.save(PATH, age)",
    "np.load(PATH)",
    "I(age[open(PATH, 'w')])",
    "scale(open(PATH, 'w'))",
    "C(age, contr.treatment(open(PATH, 'w')))",
    "`age` + exec(\"open(PATH, 'w')\")",
    "eval('1')",
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("code", RUNS_CODE)
def test_a_formula_never_runs_code(side, code, tmp_path):
    code = code.replace("PATH", repr(str(tmp_path / "made")))
    with pytest.raises(ModelError, match="formula = "):
        Design(f"{code} ~ age" if side == "left" else f"rich ~ {code}", SCHEMA)
    assert not list(tmp_path.iterdir())


def test_formulaic_by_itself_would_have_run_code(tmp_path):
    """Twin: the texts above are dangerous, already when a formula is read."""
    path = tmp_path / "made"
    with contextlib.suppress(Exception):
        model_matrix(f"{{__import__('os').mkdir({str(path)!r})}} ~ 1", pd.DataFrame({"age": [1.0]}))
    assert path.exists()


@pytest.mark.parametrize(
    ("response", "family", "message"),
    [
        ("education", "logistic", "'education': it has 3 levels; name the two levels in the schema"),
        ("sex", "logistic", "it has 3 levels; .*'record counts as nothing' instead of 'own level'"),
        ("age", "logistic", "neither a boolean, .* an integer from 0 to 1; choose another family"),
        ("education", "linear", "it is a category; give a number"),
        ("rich", "linear", "it is a boolean; use family='logistic'"),
        ("wage", "poisson", "it is not an integer; counts are"),
        ("change", "poisson", "its minimum is -5; counts are not negative: raise the minimum to 0"),
        ("change", "negative_binomial", "its minimum is -5"),
        ("education", "poisson", "it is a category"),
        ("bs(age, knots=[30])", "linear", "it has several columns; give one number"),
        ("I(visits + 0.5)", "poisson", "it is not an integer"),
    ],
)
def test_bad_responses(response, family, message):
    with pytest.raises(ModelError, match=f"family = '{family}' cannot have the response.*{message}"):
        Design(f"{response} ~ hours", SCHEMA, family)


@pytest.mark.parametrize("family", ["logit", None, 3, ["logistic"]])
def test_unknown_families(family):
    with pytest.raises(ModelError, match=r"family = .* is unknown; choose one of 'logistic', 'linear'"):
        Design("rich ~ age", SCHEMA, family)
    assert "logistic" in FAMILIES


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("state", "groups = 'state' is no column of the schema; its columns are 'age'"),
        (3, "groups = 3 is no column"),
        ("age", "groups = 'age' is a number in the schema, not a category"),
        ("married", "groups = 'married' is a boolean"),
        ("income", "groups = 'income' is the response"),
    ],
)
def test_bad_groups(groups, message):
    with pytest.raises(ModelError, match=message):
        Design("income ~ age", SCHEMA, groups=groups)


def test_a_schema_is_needed():
    with pytest.raises(ModelError, match=r"schema is a dict; give a dpmcmc\.Schema"):
        Design("rich ~ age", {"fields": []})
