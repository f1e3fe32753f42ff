"""What is released: the wheel's files, the version, how to cite it, and which tests a wheel is not tested with."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
import yaml

import dpmcmc
from tests.conftest import ABOUT_THE_REPOSITORY

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy without git: a build writes beside the sources."""
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
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dpmcmc"}


def test_the_unpacked_wheel_reads_the_data_and_knows_its_version(wheel, tmp_path):
    """From the unpacked wheel alone, not from the sources."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = "import dpmcmc; print(dpmcmc.data.adult().num_records, dpmcmc.__file__, dpmcmc.__version__)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    without_git = PROJECT["tool"]["setuptools_scm"]["fallback_version"]
    assert done.stdout.split() == ["48842", str(tmp_path / "dpmcmc" / "__init__.py"), without_git], done.stderr


def test_sources_that_were_not_installed_have_a_version_too(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    assert dpmcmc.__version__ == metadata.version("dpmcmc")
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.delitem(vars(dpmcmc), "__version__")  # it is kept once it was asked for
    assert dpmcmc.__version__ == "0+unknown"
    monkeypatch.delitem(vars(dpmcmc), "__version__")


def test_how_to_cite_it():
    """What CFF 1.2.0 asks for; and no version, which the tag alone says."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    citation = yaml.safe_load(text)
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert (citation["cff-version"], citation["type"], citation["title"]) == ("1.2.0", "software", "dpmcmc")
    assert not {"version", "date-released", "commit"} & set(citation)
    assert citation["authors"] == PROJECT["project"]["authors"]
    (paper,) = citation["references"]
    assert paper["title"] == "Differentially Private Hamiltonian Monte Carlo"
    assert [author["family-names"] for author in paper["authors"]] == ["Räisä", "Koskela", "Honkela"]
    assert paper["identifiers"] == [{"type": "other", "value": "arXiv:2106.09376", "description": "arXiv"}]


@pytest.mark.parametrize(("tests", "needed"), ABOUT_THE_REPOSITORY.items(), ids=ABOUT_THE_REPOSITORY)
def test_what_a_wheel_is_not_tested_with_does_need_the_repository(tests, needed):
    """Each imports a folder of the repository, or has a path outside its tests, itself or by a helper beside it."""
    place = ROOT / "tests" / tests
    assert place.exists()
    assert (ROOT / needed).exists()
    for file in [place] if place.is_file() else place.rglob("test_*.py"):
        assert needs_the_repository(file), f"{file} needs only the package: take it off the list, or move it elsewhere"


def needs_the_repository(file):
    source = file.read_text(encoding="utf-8")
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.module}
    helpers = [file.parent / f"{name.split('.')[-1]}.py" for name in imported if name.startswith("tests.")]
    return (
        bool({name.split(".")[0] for name in imported} & {"studies", "benchmarks", "trust"})
        or re.search(rf"parents\[{len(file.relative_to(ROOT).parts) - 1}\]", source) is not None
        or any(needs_the_repository(helper) for helper in helpers if helper.exists())
    )


def test_twin_a_test_of_the_package_alone_would_be_noticed():
    assert not needs_the_repository(ROOT / "tests" / "test_schema.py")
    assert not needs_the_repository(ROOT / "tests" / "results" / "test_quality.py")


def test_extras_and_classifiers():
    """Extras name known extras; each Python that is announced is one that the noxfile tests."""
    extras = PROJECT["project"]["optional-dependencies"]
    for dependencies in extras.values():
        for dependency in dependencies:
            found = re.match(r"dpmcmc\[(.*)\]$", dependency)
            assert found is None or set(found[1].split(",")) <= set(extras)
    announced = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.M)
    tested = re.findall(r'"(3\.\d+)"', (ROOT / "noxfile.py").read_text(encoding="utf-8"))
    assert announced
    assert set(announced) <= set(tested)
