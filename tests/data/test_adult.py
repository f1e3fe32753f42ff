"""The Adult data: complete, as published, and in the wheel together with their licence."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow
import pytest

import dpmcmc

ROOT = Path(__file__).resolve().parents[2]


def test_the_table():
    """Counts that the source publishes: 48,842 instances, 11,687 of them above 50,000 dollars."""
    table = dpmcmc.data.adult_arrow()
    assert isinstance(table, pyarrow.Table)
    assert (table.num_rows, table.num_columns) == (48_842, 14)
    assert table["income"].to_pylist().count(True) == 11_687
    assert table["sex"].to_pylist().count("Female") == 16_192
    missing = {name: table[name].null_count for name in table.column_names if table[name].null_count}
    assert missing == {"workclass": 2799, "occupation": 2809, "native_country": 857}
    assert table["age"].to_pylist()[:3] == [39, 50, 38]


def test_the_schema_covers_it():
    """Bounds and levels of the description leave nothing out: no value is clamped, and unknown is what is missing."""
    table, raw = dpmcmc.data.adult(), dpmcmc.data.adult_arrow()
    assert (table.num_records, table.unit) == (48_842, None)
    assert list(table.schema.names) == raw.column_names
    for field in table.schema.fields:
        clean, entries = table.clean([field.name])[field.name], raw[field.name].to_pylist()
        if field.kind == "category":
            assert field.missing == ("own level" if None in entries else "record counts as nothing")
            assert [field.level_names[int(index)] for index in clean] == [entry or "missing" for entry in entries]
        else:
            assert clean.tolist() == entries


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("pip cannot get the build backend without a network")
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_holds_data_and_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        content = archive.read("dpmcmc/data/adult.parquet")
        schema = archive.read("dpmcmc/data/adult.schema.yaml").decode()
        notice = archive.read("dpmcmc/data/adult.NOTICE.txt").decode()
    assert content == (ROOT / "src" / "dpmcmc" / "data" / "adult.parquet").read_bytes()
    assert dpmcmc.Schema.from_yaml(schema) == dpmcmc.data.adult().schema
    assert "CC BY 4.0" in notice
    assert any("licenses" in name and name.endswith("adult.NOTICE.txt") for name in names)


def test_the_installed_wheel_reads_it(wheel, tmp_path):
    """From the unpacked wheel alone, not from the sources."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "import dpmcmc; print(dpmcmc.data.adult().num_records, dpmcmc.__file__)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.split() == ["48842", str(tmp_path / "dpmcmc" / "__init__.py")], done.stderr
