"""A small table about people, as anyone might have it in a file, and the command that samples it."""

import copy
import csv
import json

import numpy as np

SCHEMA = {
    "fields": [
        {"name": "age", "type": "integer", "constraints": {"minimum": 17, "maximum": 90}},
        {
            "name": "hours",
            "type": "number",
            "constraints": {"minimum": 0, "maximum": 80},
            "dpmcmc": {"missing": "midpoint"},
        },
        {
            "name": "education",
            "type": "string",
            "constraints": {"enum": ["school", "college", "university"]},
            "dpmcmc": {"missing": "own level"},
        },
        {"name": "income", "type": "boolean"},
        {"name": "visits", "type": "integer", "constraints": {"minimum": 0, "maximum": 50}},
        {"name": "person_id", "type": "string", "constraints": {"enum": ["a", "b", "c"]}},
    ],
    "missingValues": ["", "NA", "?"],
}
FORMULA = "income ~ age + hours + C(education)"


def schema(**changes):
    """The schema with changed fields: `schema(age={"type": "date"})`; what is None is taken out."""
    changed = copy.deepcopy(SCHEMA)
    for field in changed["fields"]:
        for key, value in changes.pop(field["name"], {}).items():
            field[key] = value
            if value is None:
                del field[key]
    return changed | changes


def columns(num_rows=400, generator_seed=5):
    """Texts as in a CSV file; a few are missing, unknown, out of bounds, or no numbers at all."""
    generator = np.random.default_rng(generator_seed)
    age = generator.integers(17, 91, num_rows)
    hours = generator.integers(0, 161, num_rows) / 2
    education = generator.choice(["school", "college", "university"], num_rows)
    chance = 1 / (1 + np.exp(-(age - 50) / 20 - (education == "university")))
    table = {
        "age": [str(value) for value in age],
        "hours": [str(value) for value in hours],
        "education": [str(value) for value in education],
        "income": [("false", "true")[value] for value in (generator.uniform(size=num_rows) < chance).astype(int)],
        "visits": [str(value) for value in generator.poisson(3, num_rows)],
        "person_id": [str(value) for value in generator.choice(["a", "b", "c"], num_rows)],
    }
    table["age"][:3] = ["NA", "140", "?"]
    table["hours"][3:6] = ["", "-5", "1e300"]
    table["education"][6:8] = ["kindergarten", "NA"]
    table["income"][8] = ""
    return table


def write_csv(path, table):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return path


def typed(table):
    """The same with the types of the schema: what is no number is missing."""

    def number(text):
        try:
            return float(text)
        except ValueError:
            return None

    def whole(text):
        value = number(text)
        return None if value is None else int(value)

    kinds = {"age": whole, "hours": number, "visits": whole, "income": {"true": True, "false": False}.get}
    return {name: [kinds.get(name, lambda text: text)(text) for text in texts] for name, texts in table.items()}


def write_parquet(path, table):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return path


def write_schema(path, descriptor=SCHEMA):
    path.write_text(json.dumps(descriptor), encoding="utf-8")  # which is YAML, too
    return path


def arguments(folder, **changes):
    """The command's arguments, with options changed, added, or (None) taken out; True is an option without value."""
    options = {
        "file": folder / "people.csv",
        "schema": folder / "people.schema.yaml",
        "formula": FORMULA,
        "epsilon": 60,
        "delta": 1e-4,
        "out": folder / "run",
    } | changes
    words = ["sample", options.pop("file")]
    for name, value in options.items():
        if value is None:
            continue
        words.append("--" + name.replace("_", "-"))
        words += [] if value is True else [value]
    return [str(word) for word in words]


def counted(monkeypatch):
    """Count looks at the records: return the list that grows with each."""
    from dpmcmc.curator import Curator

    looks, ask = [], Curator.ask

    def watched(curator, query, *arguments, **options):
        looks.append(query.kind)
        return ask(curator, query, *arguments, **options)

    monkeypatch.setattr(Curator, "ask", watched)
    return looks
