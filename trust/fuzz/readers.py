"""The readers: valid files of each kind, changes that know the format, and the public function that reads the file.

A change that is covered by a hash (ledger, checkpoint) is hashed again, so that it gets as far as the rules behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
import sqlite3
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trust.fuzz.mutations import (
    CANARY,
    CODE,
    NUMBERS,
    PICKLE,
    WORDS,
    as_json,
    change_bytes,
    change_text,
    change_tree,
    value,
)

SCHEMA = {
    "fields": [
        {"name": "age", "type": "integer", "constraints": {"minimum": 17, "maximum": 90}},
        {"name": "hours", "type": "number", "constraints": {"minimum": 0, "maximum": 80}},
        {
            "name": "school",
            "type": "string",
            "constraints": {"enum": ["low", "high"]},
            "dpmcmc": {"missing": "own level"},
        },
        {"name": "rich", "type": "boolean"},
    ],
    "missingValues": ["", "NA"],
}
COLUMNS: dict[str, list[Any]] = {
    "age": [34, 51, 17, 90, 23, 44, 61, 38],
    "hours": [40.0, 38.5, 0.0, 80.0, 20.25, 12.0, 41.0, 39.0],
    "school": ["low", "high", "high", "low", "", "NA", "low", "high"],
    "rich": [True, False, False, True, True, False, True, False],
}


class Reader(ABC):
    """A kind of file.

    Attributes
    ----------
    name
        What it is called on the command line.
    share
        Its part of all inputs.
    suffix
        Of the file's name.
    dies_in
        A library that is known to bring the process down on such inputs; "" if there is none.
    """

    name: ClassVar[str]
    share: ClassVar[float]
    suffix: ClassVar[str]
    dies_in: ClassVar[str] = ""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.corpus = self.make()

    @abstractmethod
    def make(self) -> list[bytes]:
        """Make valid files."""

    @abstractmethod
    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Return an input made from a valid file."""

    @abstractmethod
    def read(self, path: Path) -> None:
        """Read it by the public function, as far as a user would."""

    def commands(self, path: Path) -> list[list[str]]:
        """Return the commands that read such a file."""
        return []

    def input(self, seed: int, number: int) -> bytes:
        """Return the input of a number. The first ones are the valid files themselves."""
        if number < len(self.corpus):
            return self.corpus[number]
        rng = random.Random(f"{seed}/{self.name}/{number}")
        return self.change(rng.choice(self.corpus), rng.choice(self.corpus), rng)

    def path(self) -> Path:
        """Where the input of the moment lies."""
        return self.folder / f"input{self.suffix}"

    def place(self, content: bytes) -> Path:
        """Put an input where it is read, alone."""
        path = self.path()
        for left in path.parent.glob("input*"):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path


def _schema() -> Any:
    import dpmcmc

    return dpmcmc.Schema.from_dict(SCHEMA)


class Parquet(Reader):
    """Tables in Parquet: whole, and in pieces."""

    name, share, suffix = "parquet", 0.22, ".parquet"

    def make(self) -> list[bytes]:
        """Several types, encodings and compressions."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = []
        plain = pa.table(COLUMNS)
        coded = plain.set_column(2, "school", plain.column("school").dictionary_encode())
        more = plain.append_column("id", pa.array([str(k) for k in range(8)])).append_column(
            "day", pa.array([None] * 8, pa.date32())
        )
        for table, options in (
            (plain, {}),
            (plain, {"compression": "none", "row_group_size": 3}),
            (coded, {"compression": "gzip", "use_dictionary": False}),
            (more, {"data_page_version": "2.0", "write_page_index": True}),
            (plain, {"version": "1.0", "store_schema": False}),
        ):
            content = io.BytesIO()
            pq.write_table(table, content, **options)
            files.append(content.getvalue())
        return files

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Bytes; the footer; or a sound file whose columns are odd."""
        kind = rng.random()
        if kind < 0.5:
            return change_bytes(content, other, rng)
        if kind < 0.8:  # the footer, which is where lengths, types and offsets are
            length = int.from_bytes(content[-8:-4], "little")
            start = len(content) - 8 - length
            footer = change_bytes(content[start:-8], other, rng)
            length = len(footer) if rng.random() < 0.8 else rng.choice((0, 2**31 - 1, 2**32 - 1, length))
            return content[:start] + footer + length.to_bytes(4, "little") + b"PAR1"
        return self._odd(rng)

    def _odd(self, rng: random.Random) -> bytes:
        import pyarrow as pa
        import pyarrow.parquet as pq

        makers: list[Callable[[], Any]] = [
            lambda: pa.array([None] * 8),
            lambda: pa.array([rng.choice(WORDS)[:300] for _ in range(8)]),
            lambda: pa.array([rng.randbytes(9) for _ in range(8)], pa.binary()),
            lambda: pa.array([[1, 2]] * 8),
            lambda: pa.array([{"a": 1}] * 8),
            lambda: pa.array([rng.choice((1e308, float("nan"), -float("inf"), None)) for _ in range(8)], pa.float64()),
            lambda: pa.array([2**63 - 1, -(2**63), None, 0, 1, 2, 3, 4]),
            lambda: pa.array([2**64 - 1] * 8, pa.uint64()),
            lambda: pa.array([0] * 8, pa.timestamp("ns")),
            lambda: pa.array([0] * 8, pa.date32()),
            lambda: pa.array([1] * 8, pa.duration("s")),
            lambda: pa.array([None] * 8, pa.decimal128(38, 3)),
            lambda: (
                pa.array([b"\xff\xfe"] * 8, pa.binary()).cast(pa.string(), safe=False)
                if rng.random() < 0.0
                else pa.Array.from_buffers(
                    pa.string(),
                    8,
                    [None, pa.py_buffer(np.arange(0, 18, 2, dtype=np.int32)), pa.py_buffer(b"\xff\xfe" * 8)],
                )
            ),
            lambda: pa.array(["x", "y"] * 4).dictionary_encode(),
            lambda: pa.array([True, None] * 4),
            lambda: pa.array([float(k) for k in range(8)], pa.float32()),
            lambda: pa.array([1] * 8, pa.int8()),
        ]
        names = list(COLUMNS) if rng.random() < 0.7 else [rng.choice([*COLUMNS, *WORDS])[:500] for _ in range(4)]
        if rng.random() < 0.1:
            names.append(names[0])
        arrays = [
            pa.array(COLUMNS[name]) if name in COLUMNS and rng.random() < 0.6 else rng.choice(makers)()
            for name in names
        ]
        table = pa.Table.from_arrays(arrays, names=names)
        if rng.random() < 0.2:
            words = {rng.choice(("pandas", "ARROW:schema", "PARQUET:field_id")): rng.choice(WORDS)}
            table = table.replace_schema_metadata(words)
        content = io.BytesIO()
        try:
            pq.write_table(table.slice(0, rng.choice((8, 8, 8, 1, 0))), content)
        except Exception:  # what cannot be written is no input
            return b"PAR1" + rng.randbytes(40) + b"PAR1"
        return content.getvalue()

    def read(self, path: Path) -> None:
        """As a table, as a stream, and for a ledger."""
        import dpmcmc

        schema = _schema()
        table = dpmcmc.Table(path, schema)
        table.marks(b"k" * 32)
        streamed = dpmcmc.Table(path, schema, stream=True)
        for _ in streamed.clean_chunks(None, 5):
            pass
        dpmcmc.Schema.draft(path).to_yaml()

    def commands(self, path: Path) -> list[list[str]]:
        """Draft, check, and a run that is refused at the latest by its formula."""
        return table_commands(path)


def table_commands(path: Path) -> list[list[str]]:
    """Return the commands that take a table."""
    schema = path.with_name("known.json")
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    budget = ["--epsilon", "1", "--delta", "1e-6", "--out", str(path.with_name("input-run"))]
    return [
        ["schema", "draft", str(path)],
        ["schema", "check", str(path), "--schema", str(schema)],
        ["sample", str(path), "--schema", str(schema), "--formula", "rich ~ nothing", *budget],
    ]


class Csv(Reader):
    """Tables in CSV."""

    name, share, suffix = "csv", 0.23, ".csv"

    def make(self) -> list[bytes]:
        """Commas, semicolons, quotes, a BOM."""
        rows = [list(COLUMNS), *zip(*COLUMNS.values(), strict=True)]
        plain = "\n".join(",".join(map(str, row)) for row in rows)
        quoted = "\r\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
        return [plain.encode(), quoted.encode(), plain.replace(",", ";").encode(), b"\xef\xbb\xbf" + plain.encode()]

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Text; and names in the first line that come twice, or are odd."""
        content = content.removeprefix(b"\xef\xbb\xbf")
        if rng.random() < 0.15:
            first, _, rest = content.decode().partition("\n")
            names = first.split(",")
            names[rng.randrange(len(names))] = rng.choice((names[0], *WORDS))
            return f"{','.join(names)}\n{rest}".encode("utf-8", "replace")
        return change_text(content, other.removeprefix(b"\xef\xbb\xbf"), rng)

    def read(self, path: Path) -> None:
        """As a table, and for a ledger."""
        import dpmcmc

        table = dpmcmc.Table(path, _schema())
        table.marks(b"k" * 32)
        dpmcmc.Schema.draft(path).to_yaml()

    def commands(self, path: Path) -> list[list[str]]:
        """As for Parquet."""
        return table_commands(path)


class SchemaFile(Reader):
    """Schemas in YAML; those in JSON have a reader of their own, since the file's name decides."""

    name, share, suffix = "schema-yaml", 0.08, ".yaml"

    def make(self) -> list[bytes]:
        """With and without a unit, and a draft."""
        import dpmcmc

        with_unit = {**SCHEMA, "dpmcmc": {"unit": "school", "max_rows": 3}}
        files = [dpmcmc.Schema.from_dict(one).to_yaml().encode() for one in (SCHEMA, with_unit)]
        return [*files, json.dumps(with_unit).encode()]

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Text, or the tree behind it."""
        if rng.random() < 0.6:
            return change_text(content, other, rng)
        tree = change_tree({**SCHEMA, "dpmcmc": {"unit": "school", "max_rows": 3}}, rng)
        return as_json(tree, rng).encode("utf-8", "surrogatepass")

    def read(self, path: Path) -> None:
        """Read it, write it again, and use it on a table."""
        import dpmcmc

        schema = dpmcmc.Schema.load(path)
        again = dpmcmc.Schema.from_yaml(schema.to_yaml())
        if again != schema:
            raise AssertionError("what is written is not what was read")
        dpmcmc.Table({name: list(column) for name, column in COLUMNS.items()}, schema)

    def commands(self, path: Path) -> list[list[str]]:
        """Checked against a sound table."""
        table = path.with_name("sound.csv")
        rows = [list(COLUMNS), *zip(*COLUMNS.values(), strict=True)]
        table.write_text("\n".join(",".join(map(str, row)) for row in rows), encoding="utf-8")
        return [["schema", "check", str(table), "--schema", str(path)]]


class JsonSchema(SchemaFile):
    """Schemas in JSON."""

    name, share, suffix = "schema-json", 0.08, ".json"

    def make(self) -> list[bytes]:
        """With and without a unit."""
        return [json.dumps(SCHEMA).encode(), json.dumps({**SCHEMA, "dpmcmc": {"unit": "age", "max_rows": 2}}).encode()]


def _posteriors() -> list[Any]:
    """Small posteriors: of a regression with everything, and of a chain with odd names."""
    import dpmcmc
    from dpmcmc.design import Design
    from dpmcmc.privacy.statement import PRIVATE_MODE, SEEDED_MODE, PrivacyStatement

    rng = np.random.default_rng(4)
    design = Design("rich ~ age + C(school)", _schema(), "logistic", None)

    def statement(private: bool) -> Any:
        return PrivacyStatement(
            private=private,
            mode=PRIVATE_MODE if private else SEEDED_MODE,
            epsilon=1.0,
            delta=1e-6,
            mu=1200 / (2 * 312.5**2),
            lattice_epsilon=1e-9,
            lattice_delta=1e-25,
            num_records=1000,
            queries={"gradient": 1200},
            noise_multipliers={"gradient": 312.5},
            accountant="Gaussian composition (exact)",
        )

    width = len(design.columns)
    of_regression = dpmcmc.Posterior(
        draws={"intercept": rng.normal(size=(2, 12)), "coefficients": rng.normal(size=(2, 12, width))},
        privacy=statement(True),
        sampler="DP-Laplace",
        model="made up",
        dims={"coefficients": ("feature",)},
        coords={"feature": design.columns},
        design=design,
        schema=_schema(),
    )
    of_chain = dpmcmc.Posterior(
        draws={"chain": rng.normal(size=(2, 12)), "β": rng.normal(size=(2, 12, 2, 2))},
        warmup_draws={"chain": rng.normal(size=(2, 5)), "β": rng.normal(size=(2, 5, 2, 2))},
        sample_stats={"acceptance_rate": rng.random((2, 12)) < 0.5},
        warmup_stats={"acceptance_rate": rng.random((2, 5)) < 0.5},
        privacy=statement(False),
        sampler="DP-penalty",
        model="made up",
    )
    return [of_regression, of_chain]


class Statement(Reader):
    """`privacy.json`."""

    name, share, suffix = "statement", 0.12, ".json"

    def make(self) -> list[bytes]:
        """Private and not, long and short."""
        texts = [posterior.privacy.to_json(derived=derived) for posterior in _posteriors() for derived in (False, True)]
        return [text.encode() for text in texts]

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Text, or the tree."""
        if rng.random() < 0.3:
            return change_text(content, other, rng)
        return as_json(change_tree(json.loads(content), rng), rng).encode("utf-8", "surrogatepass")

    def read(self, path: Path) -> None:
        """Read it, check it, and say it in sentences."""
        from dpmcmc.privacy.statement import PrivacyStatement

        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a caller's own
            return
        statement = PrivacyStatement.from_json(text)
        statement.check()
        statement.to_text()
        statement.to_json()
        str(statement)


_UNSEALED = -len(b"\ndpmcmc sha256 ") - 64


# Attributes that point to other parts of the file. HDF5 follows them, whatever they point to.
_REFERENCES = ("DIMENSION_LIST", "REFERENCE_LIST")


class Result(Reader):
    """`posterior.nc`, and the page made of it."""

    name, share, suffix = "result", 0.05, ".nc"
    references: ClassVar[bool] = False

    def make(self) -> list[bytes]:
        """As they are saved."""
        files = []
        for number, posterior in enumerate(_posteriors()):
            path = self.folder / f"valid{number}.nc"
            files.append(posterior.save(path, overwrite=path.exists()).read_bytes())
        return files

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Bytes, or (with a hash that fits) groups, variables and attributes by HDF5 itself."""
        if rng.random() < 0.4:
            return change_bytes(content, other, rng)
        import h5py  # type: ignore[import-untyped]

        from dpmcmc.results.files import sealed

        making = self.folder / "making.nc"
        making.write_bytes(content[:_UNSEALED])
        with contextlib.suppress(Exception), h5py.File(making, "r+") as file:  # what HDF5 cannot do is not done
            for _ in range(rng.choice((1, 1, 2))):
                nodes: list[Any] = [file]
                file.visititems(lambda name, node, nodes=nodes: nodes.append(node))
                if rng.random() < 0.75:
                    self._change_attribute(rng.choice([node for node in nodes if node.attrs] or nodes), rng)
                else:
                    self._change_node(file, rng.choice(nodes[1:]), rng)
        return sealed(making.read_bytes())

    def _change_attribute(self, node: Any, rng: random.Random) -> None:
        import h5py

        names = [one for one in node.attrs if self.references or one not in _REFERENCES]
        if not names:
            return
        # (Those that begin with _ or are in capitals are netCDF's own.)
        name = (
            rng.choice([one for one in names if one[0].islower()] or names) if rng.random() < 0.9 else rng.choice(names)
        )
        kind, old = rng.randrange(6), node.attrs[name]
        if kind == 0:
            del node.attrs[name]
        elif kind == 1:
            node.attrs[name] = rng.choice(
                (rng.choice(NUMBERS[:8]), 1.5, np.arange(3), np.zeros((2, 2)), h5py.Empty("f"))
            )
        elif kind == 2:
            node.attrs[name] = rng.choice([word for word in WORDS if "\x00" not in word])
        elif kind == 3:
            node.attrs[rng.choice(CODE)] = rng.choice(CODE)
        elif isinstance(old, str) and old[:1] in "{[":
            node.attrs[name] = as_json(change_tree(json.loads(old), rng), rng)
        else:
            node.attrs[name] = np.void(PICKLE)

    def _change_node(self, file: Any, node: Any, rng: random.Random) -> None:
        import h5py

        name, kind = node.name, rng.randrange(5)
        if kind == 0:
            del file[name]
        elif kind == 1:
            file.move(name, rng.choice(("/posterior/x", "/x", "/prior/x", "/posterior_predictive")))
        elif isinstance(node, h5py.Dataset):
            shape = rng.choice((node.shape, node.shape[:-1], (*node.shape, 2), (0,), ()))
            kinds: tuple[Any, ...] = (
                "i8",
                "f4",
                "S5",
                h5py.string_dtype(),
                [("a", "i4"), ("b", "f8")],
                "V7",
                "?",
                "c16",
            )
            attributes = dict(node.attrs)
            del file[name]
            made = file.create_dataset(name, shape, rng.choice(kinds))
            for key, one in attributes.items():
                if kind != 2 and (self.references or key not in _REFERENCES):
                    made.attrs[key] = one
        else:
            file.create_group(f"{name}/{rng.choice(('x', 'posterior', 'observed_data'))}")

    def read(self, path: Path) -> None:
        """Load it; now and then make all that is made of it."""
        import dpmcmc
        from dpmcmc.results.report import html_report

        posterior = dpmcmc.Posterior.load(path)
        str(posterior)
        if hashlib.sha256(path.read_bytes()).digest()[0] < 40:
            posterior.summary()
            html_report(posterior)
            if posterior.design is not None:
                posterior.predict({"age": [30], "school": ["low"]})
                posterior.on_original_scale()

    def commands(self, path: Path) -> list[list[str]]:
        """The page of a run, and the run itself, from a folder."""
        run = path.with_name("input-run")
        run.mkdir(exist_ok=True)
        shutil.copy(path, run / "posterior.nc")
        return [["report", str(run)], ["resume", str(run)]]


class ForgedResult(Result):
    """The same with bytes or references changed and a hash that fits, as one makes it who wants HDF5 to fail.

    HDF5 corrupts its memory on some of these, and the process dies. Nothing in Python can keep it from that: how often
    it happens is told, and is no finding in this package.
    """

    name, share, dies_in, references = "result-forged", 0.01, "HDF5", True

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Bytes, hashed again; or as above."""
        from dpmcmc.results.files import sealed

        if rng.random() < 0.5:
            return super().change(content, other, rng)
        return sealed(change_bytes(content[:_UNSEALED], other, rng))


def _changed_rows(
    content: bytes, folder: Path, table: str, rng: random.Random, change: Callable[[list[list[Any]]], None]
) -> bytes:
    """Change the rows of a table in an SQLite file; or what the table is."""
    path = folder / "making.db"
    path.write_bytes(content)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("BEGIN")
        rows = [list(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY number")]
        change(rows)
        marks = ", ".join("?" * len(rows[0])) if rows else ""
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        if rng.random() < 0.1:  # without the rules of the table
            kind = rng.randrange(3)
            connection.execute(f"DROP TABLE {table}")
            if kind == 0:
                connection.execute(f"CREATE TABLE {table} ({', '.join(rng.sample(names, len(names)))})")
            elif kind == 1:
                connection.execute(f"CREATE TABLE hidden ({', '.join(names)})")
                other = rng.choice(
                    (f"load_extension('{CANARY}')", f"writefile('{CANARY}', 'x')", "randomblob(9)", names[-1])
                )
                listed = ", ".join([*names[:-1], f"{other} AS {names[-1]}"])
                connection.execute(f"CREATE VIEW {table} AS SELECT {listed} FROM hidden")
            else:
                connection.execute(f"CREATE TABLE {table} ({', '.join(names)})")
            into = "hidden" if kind == 1 else table
        else:
            into = table
            connection.execute(f"DELETE FROM {table}")
        for row in rows:
            with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                connection.execute(f"INSERT INTO {into} VALUES ({marks})", row)
        if rng.random() < 0.03:
            connection.execute(
                f"CREATE TRIGGER surprise AFTER INSERT ON {into} BEGIN UPDATE {into} SET kind = 'x'; END"
            )
        connection.execute("COMMIT")
    return path.read_bytes()


class LedgerFile(Reader):
    """Ledgers in SQLite: opened, shown, verified."""

    name, share, suffix = "ledger", 0.12, ".ledger"

    def make(self) -> list[bytes]:
        """A new one, and one with runs of both kinds."""
        import dpmcmc

        rows = np.random.default_rng(1).normal(size=(500, 2))
        model = dpmcmc.models.GaussianMean(np.eye(2), prior_scale=2.0)
        samplers: list[Any] = [dpmcmc.DPSGLD(50, 3.0, 1e-5), dpmcmc.DPPenalty(0.05, 3.0, 40.0)]
        files = []
        for number in range(2):
            path = self.folder / f"valid{number}.ledger"
            path.unlink(missing_ok=True)
            ledger = dpmcmc.Ledger.create(path, epsilon=4.0, delta=1e-5)
            ledger.reserve(0.5, 1e-7, note="a table")
            for sampler in samplers if number else []:
                run: dict[str, Any] = {
                    "epsilon": 1.0,
                    "delta": 1e-6,
                    "num_steps": 3,
                    "init": np.zeros((4, 2)),
                    "progress": False,
                }
                dpmcmc.sample(model, rows, sampler=sampler, ledger=ledger, **run)
            ledger.close()
            files.append(_settled(path))
        return files

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Bytes; or entries, hashed again."""
        if rng.random() < 0.4:
            return change_bytes(content, other, rng)

        def change(rows: list[list[Any]]) -> None:
            row = rng.choice(rows)
            kind = rng.randrange(8)
            if kind < 5:
                row[3] = as_json(change_tree(json.loads(row[3]), rng), rng)
            elif kind == 5:
                row[rng.randrange(6)] = rng.choice((value(rng), None, b"\xff\x00", 2**62, -1, rng.choice(WORDS)))
            elif kind == 6:
                rows.remove(row)
            else:
                rows.insert(rng.randrange(len(rows)), list(row))
            if rng.random() < 0.9:
                _hash_entries(rows, renumber=rng.random() < 0.8)
            for place, one in enumerate(rows):
                rows[place] = [
                    cell if isinstance(cell, str | int | float | bytes | None) else str(cell) for cell in one
                ]

        return _changed_rows(content, self.folder, "dpmcmc_ledger", rng, change)

    def read(self, path: Path) -> None:
        """Open, show, verify."""
        import dpmcmc

        ledger = dpmcmc.Ledger(path)
        try:
            ledger.status().to_dict()
            ledger.verify()
        finally:
            ledger.close()

    def commands(self, path: Path) -> list[list[str]]:
        """Show and verify."""
        return [["ledger", "show", str(path)], ["ledger", "verify", str(path)], ["ledger", "show", str(path), "--json"]]


def _settled(path: Path) -> bytes:
    """The whole of an SQLite file, without a log beside it."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path.read_bytes()


def _hash_entries(rows: list[list[Any]], renumber: bool) -> None:
    previous = "0" * 64
    for place, row in enumerate(rows, 1):
        row[0] = place if renumber else row[0]
        row[4] = previous
        with contextlib.suppress(TypeError, ValueError):
            text = json.dumps([row[0], row[1], row[2], row[3], previous], ensure_ascii=False, separators=(",", ":"))
            row[5] = hashlib.sha256(text.encode()).hexdigest()
        previous = row[5]


class CheckpointFile(Reader):
    """The checkpoint of a run: what it holds, and the settings of the run."""

    name, share, suffix = "checkpoint", 0.09, ".db"

    def make(self) -> list[bytes]:
        """Of a chain, of a search, and of a chain that pays as it goes, each stopped on its way."""
        self.model, self.data, self.runs = stopped_runs(self.folder / "runs")
        return [_settled(run / "checkpoint.db") for run in self.runs]

    def path(self) -> Path:
        """In a folder of its own, with the run's own ledger."""
        return self.folder / "input-run" / "checkpoint.db"

    def place(self, content: bytes) -> Path:
        """Put it beside the charges that were its own: those that have its token."""
        run = self.folder / "input-run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        (run / "checkpoint.db").write_bytes(content)
        return run / "checkpoint.db"

    def change(self, content: bytes, other: bytes, rng: random.Random) -> bytes:
        """Bytes; or parts, hashed again: their headers, their arrays."""
        if rng.random() < 0.3:
            return change_bytes(content, other, rng)

        def change(rows: list[list[Any]]) -> None:
            row = rng.choice(rows[:1] if rng.random() < 0.4 else rows)
            kind = rng.randrange(8)
            if kind < 4:
                row[2] = as_json(change_tree(json.loads(row[2]), rng), rng)
            elif kind < 6:
                row[3] = _changed_arrays(row[3], rng)
            elif kind == 6:
                row[rng.randrange(5)] = rng.choice((value(rng), None, b"\xff\x00", 2**62, rng.choice(WORDS)))
            else:
                rows.remove(row)
            if rng.random() < 0.9:
                _hash_parts(rows)
            for place, one in enumerate(rows):
                rows[place] = [
                    cell if isinstance(cell, str | int | float | bytes | None) else str(cell) for cell in one
                ]

        return _changed_rows(content, self.folder, "parts", rng, change)

    def read(self, path: Path) -> None:
        """Open it, and read what the run was asked for."""
        from dpmcmc.inference.books import load_settings
        from dpmcmc.inference.checkpoint import Checkpoint

        checkpoint = Checkpoint(path.parent)
        try:
            load_settings(checkpoint, progress=False, devices=None)
        finally:
            checkpoint.close()

    def commands(self, path: Path) -> list[list[str]]:
        """Go on with it, or begin where it lies."""
        return [["resume", str(path.parent)]]


class Resumed(CheckpointFile):
    """The same, gone on with: the run itself."""

    name, share, suffix = "resume", 0.01, ".db"

    def place(self, content: bytes) -> Path:
        """Put it beside the charges that were its own."""
        path = super().place(content)
        tokens = [run / "charges.ledger" for run in self.runs]
        number = int.from_bytes(hashlib.sha256(content).digest()[:4], "big") % len(tokens)
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
            kinds = str(connection.execute("SELECT header FROM parts").fetchone())
            number = next((k for k, run in enumerate(self.runs) if f'"{run.name}"' in kinds), number)
        shutil.copy(tokens[number], path.with_name("charges.ledger"))
        return path

    def read(self, path: Path) -> None:
        """Go on with the run."""
        import dpmcmc

        dpmcmc.resume(path.parent, self.model, self.data, progress=False)


def stopped_runs(folder: Path) -> tuple[Any, Any, list[Path]]:
    """Return a model, its records, and the folders of runs on them that were interrupted."""
    import dpmcmc
    from dpmcmc.surrogate import Form, Surrogate
    from trust.soak import interrupted

    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    model = dpmcmc.models.GaussianMean(covariance, prior_scale=2.0)
    data = np.random.default_rng(1).multivariate_normal([1.0, -1.0], covariance, 500)
    near = Surrogate(Form(2, 2, 2), np.array([1.0, -1.0]), 0.002 * np.eye(2), np.eye(2, 6, 1))
    samplers: dict[str, tuple[Any, dict[str, Any]]] = {
        "DPPenalty": (dpmcmc.DPPenalty(0.05, 3.0, 20.0), {"num_steps": 12, "init": np.tile([1.0, -1.0], (4, 1))}),
        "DPLaplace": (dpmcmc.DPLaplace(), {}),
        "SurrogateHMC": (dpmcmc.SurrogateHMC(near, 0.5), {"num_steps": 6}),
    }
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, (sampler, options) in samplers.items():

        def begin(name: str = name, sampler: Any = sampler, options: dict[str, Any] = options) -> None:
            run = {"epsilon": 8.0, "delta": 1e-6, "progress": False, "checkpoint": folder / name, **options}
            dpmcmc.sample(model, data, sampler=sampler, **run)

        interrupted(4, begin)
        _settled(folder / name / "charges.ledger")
    return model, data, [folder / name for name in samplers]


def _hash_parts(rows: list[list[Any]]) -> None:
    head = "0" * 64
    for place, row in enumerate(rows, 1):
        row[0] = place
        own = hashlib.sha256()
        try:
            pieces = (head.encode(), row[1].encode(), row[2].encode(), row[3])
            for piece in pieces:
                own.update(len(piece).to_bytes(8, "little"))
                own.update(piece)
        except (AttributeError, TypeError, ValueError):
            continue
        row[4] = head = own.hexdigest()


def _changed_arrays(content: bytes, rng: random.Random) -> bytes:
    """Change an .npz: its bytes, one of its headers, or what is in it."""
    kind = rng.randrange(5)
    if kind == 0:
        return change_bytes(content, content, rng)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        held: dict[str, Any] = {name: arrays[name] for name in arrays.files}
    name = rng.choice(list(held) or ["x"])
    made = io.BytesIO()
    if kind == 1:  # an array of objects, which NumPy pickles
        with zipfile.ZipFile(made, "w") as file:
            array = io.BytesIO()
            np.lib.format.write_array_header_1_0(array, {"descr": "|O", "fortran_order": False, "shape": (1,)})
            file.writestr(f"{name}.npy", array.getvalue() + PICKLE)
        return made.getvalue()
    if kind == 2:  # a header that promises too much, or is code
        shape = rng.choice(("(1099511627776,)", "(2147483647, 2147483647)", "(-1,)", "()", "(3,"))
        descr = rng.choice(("'<f8'", "'|O'", "'<U1000000'", "[('a','<f8')]", CODE[6], "'<M8[ns]'"))
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()
        with zipfile.ZipFile(made, "w") as file:
            file.writestr(
                f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x00" * 64
            )
        return made.getvalue()
    if kind == 3:
        held[name] = rng.choice(
            (
                np.zeros(0),
                np.float64(rng.random()),
                np.full((3, 3), np.nan),
                np.array(["x"]),
                np.arange(5),
                np.array([True]),
            )
        )
    else:
        held.pop(name, None)
    np.savez(made, **held)
    return made.getvalue()


READERS: dict[str, type[Reader]] = {
    kind.name: kind
    for kind in (
        Parquet,
        Csv,
        SchemaFile,
        JsonSchema,
        Statement,
        Result,
        ForgedResult,
        LedgerFile,
        CheckpointFile,
        Resumed,
    )
}
