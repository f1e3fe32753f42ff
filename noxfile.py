"""Release and Pythons: `make dist`, `make test-wheel`, `make pythons`. Each session has a fresh environment of its own.

No session takes dpmcmc from the sources: a wheel is built from the source distribution, installed, and run in a
temporary folder outside the repository.
"""

import shutil
import tempfile
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.error_on_missing_interpreters = False  # they are skipped, and named

ROOT = Path(__file__).parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
# Beside tests/: the settings of pytest, and what adds ledgers up without the package.
BESIDE_THE_TESTS = ("pyproject.toml", "trust/__init__.py", "trust/books.py")
NEEDED_IN_THE_WHEEL = (
    "dpmcmc/py.typed",
    "dpmcmc/data/adult.parquet",
    "dpmcmc/data/adult.schema.yaml",
    "dpmcmc/data/adult.NOTICE.txt",
    "licenses/LICENSE",
    "licenses/src/dpmcmc/data/adult.NOTICE.txt",
    "entry_points.txt",
)
IMPORTED_FROM = """
import pathlib, sysconfig, dpmcmc
place = pathlib.Path(dpmcmc.__file__).resolve()
assert place.is_relative_to(pathlib.Path(sysconfig.get_path("purelib")).resolve()), place
print("dpmcmc", dpmcmc.__version__, "from site-packages")
"""
A_RUN = """
import sys, numpy, dpmcmc
posterior = dpmcmc.sample(
    dpmcmc.models.LogisticRegression(1), {"X": numpy.linspace(-1, 1, 5000)[:, None], "y": numpy.arange(5000) % 2},
    epsilon=1.0, delta=1e-6, progress=False,
)
assert posterior.privacy.private and posterior.privacy.versions["dpmcmc"] == dpmcmc.__version__
assert dpmcmc.data.adult().num_records == 48_842
assert not {"typer", "rich", "psycopg"} & set(sys.modules)
print(posterior.summary()[["mean", "sd"]])
"""


def build(session: nox.Session, to: Path) -> Path:
    """Build the source distribution, and from it the wheel, which is returned."""
    session.install("build")
    session.run("python", "-m", "build", "--quiet", "--outdir", str(to), str(ROOT))
    (wheel,) = to.glob("*.whl")
    return wheel


@nox.session(python=False)
def clean(session: nox.Session) -> None:
    """Empty dist/."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)


@nox.session
def dist(session: nox.Session) -> None:
    """Build dist/ and check what is in it."""
    session.install("twine>=6")
    wheel = build(session, ROOT / "dist")
    session.run("twine", "check", "--strict", *map(str, sorted((ROOT / "dist").iterdir())))
    names = zipfile.ZipFile(wheel).namelist()
    missing = [needed for needed in NEEDED_IN_THE_WHEEL if not any(name.endswith(needed) for name in names)]
    others = [name for name in names if not name.startswith(("dpmcmc/", "dpmcmc-"))]
    if missing or others:
        session.error(f"{wheel.name} lacks {missing} and has {others}")
    session.log(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e6:.1f} MB")


@nox.session
def core(session: nox.Session) -> None:
    """Install the wheel in dist/ without extras, and use it; then with the extra cli."""
    (wheel,) = (ROOT / "dist").glob("*.whl")
    session.install(str(wheel))
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        session.run("python", "-c", IMPORTED_FROM)
        session.run("python", "-c", A_RUN)
        said = session.run("dpmcmc", "--version", success_codes=[1], silent=True) or ""
        if said.strip() != "Error: the command line needs Typer and Rich; pip install 'dpmcmc[cli]'":
            session.error(f"without the extra cli, `dpmcmc --version` said: {said}")
        session.install(f"dpmcmc[cli] @ {wheel.as_uri()}")
        session.run("dpmcmc", "--version")
        session.run("dpmcmc", "--help", silent=True)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the fast tests on the installed wheel, without the source tree; what is left out is said in the end.

    Arguments after ``--`` go to pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(session, Path(folder) / "dist")
        session.install(f"dpmcmc[postgres,test] @ {wheel.as_uri()}")
        shutil.copytree(ROOT / "tests", Path(folder) / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for name in BESIDE_THE_TESTS:
            target = Path(folder) / name
            target.parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, target)
        with session.chdir(folder):
            session.run("python", "-c", IMPORTED_FROM)
            given = session.posargs or ["-n", "2", "--dist", "loadfile", "tests", "--pyargs", "dpmcmc"]
            session.run("python", "-m", "pytest", "-m", "not slow", *given)
