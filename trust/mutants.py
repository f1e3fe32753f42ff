"""Planted bugs: each mutation of the package, applied alone to a copy of it, must make its named tests fail.

`python -m trust.mutants` (or `make mutants`) first runs all named tests on a copy without a bug, where they must pass.
Then every bug gets a copy of its own, in a process of its own. A bug that its tests do not notice *survives*; one that
merely breaks the program (it cannot be parsed or imported, a name is missing) is *invalid* and counts as not caught.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trust.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
# All that the package and its tests are made of.
_COPIED = ("src", "tests", "trust", "studies", "benchmarks", "docs", "examples", "pyproject.toml", "README.md")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*")
# Seconds after which the tests of one bug are given up: a bug that only takes long is not caught.
TIME_LIMIT = 300.0
# Of all tests together, without a bug.
_TIME_LIMIT_WITHOUT = 1800.0
# Failures by these say that the program was broken, not that a bug in it was noticed.
_BROKEN = ("SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError")
_TEXTS = {"caught": "yes", "survived": "**no**", "timeout": "**no** (took too long)", "invalid": "**no** (invalid)"}

_HEAD = """\
# Planted bugs

`make mutants` plants the bugs below one at a time in a copy of the package and runs the tests named beside each. A bug
counts as caught only if every test named for it fails, and fails by what it checks: a copy that cannot be parsed or
imported, or that lacks a name, is invalid, and one that takes too long is not caught. On a copy without a bug all these
tests pass, which is seen to first. All are among the fast tests (`make test`), so that a change with such an effect is
noticed at once. `--list` shows them, `--only NAME` plants one, and `trust/mutations.py` has every edit to the letter.

This page was written by `python -m trust.mutants --to docs/mutants.md`.
"""


@dataclass
class Report:
    """What became of one bug.

    Attributes
    ----------
    outcome
        "caught", "survived", "invalid" or "timeout".
    why
        Of a bug that was not caught, what happened; else the first line of a failure.
    seconds
        How long its tests took.
    """

    name: str
    outcome: str
    why: str = ""
    seconds: float = 0.0


@dataclass
class Case:
    """One test of a report of pytest: its node, and the messages of its failure or error, if any."""

    node: str
    failure: str | None = None
    error: str | None = None
    skipped: bool = False


@dataclass
class TestRun:
    """A run of pytest: exit code (None: it took too long), cases, and the last lines that it wrote."""

    __test__ = False

    code: int | None
    cases: list[Case] = field(default_factory=list)
    tail: str = ""

    def of(self, node: str) -> list[Case]:
        """Return the cases of a node: itself, or all of its parameters."""
        return [case for case in self.cases if case.node == node or case.node.startswith(f"{node}[")]


def edited(mutation: Mutation, root: Path = ROOT) -> dict[str, str]:
    """Return the text of each file that a mutation changes.

    Raises
    ------
    ValueError
        An old text does not stand exactly once in its file, or what comes out is no Python.
    """
    texts: dict[str, str] = {}
    for edit in mutation.edits:
        text = texts.get(edit.file) or (root / edit.file).read_text(encoding="utf-8")
        number = text.count(edit.old)
        if number != 1:
            raise ValueError(f"its old text stands {number} times in {edit.file}: {edit.old.strip()[:60]!r}")
        texts[edit.file] = text.replace(edit.old, edit.new)
    for name, text in texts.items():
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"what comes out of it is no Python: {name}, line {error.lineno}") from None
    return texts


def copy_tree(to: Path) -> None:
    """Copy all that the tests need."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=_LEFT_OUT)
        elif source.exists():
            shutil.copy2(source, to / name)


def run(command: Sequence[str], folder: Path, limit: float) -> tuple[int | None, str]:
    """Run a command on the package in a folder; return its exit code, None if it took too long, and what it wrote."""
    # (pytest's own are those of a run around this one.)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = f"{folder / 'src'}{os.pathsep}{folder}"
    # No byte code: that of an edited file could be taken for that of the file before.
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        written, _ = process.communicate(timeout=limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # with all that the tests have started
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, ""
        raise
    return process.returncode, written


def run_tests(folder: Path, nodes: Sequence[str], limit: float, workers: int = 1) -> TestRun:
    """Run some tests on the package in a folder."""
    report = folder / "report.xml"
    parallel = ("-n", str(workers), "--dist", "loadfile") if workers > 1 else ()
    options = ("-q", "-p", "no:cacheprovider", "-m", "not slow", "--tb=line", f"--junitxml={report}", *parallel)
    code, written = run(("-m", "pytest", *options, *nodes), folder, limit)
    return TestRun(code, _cases(report) if report.exists() else [], "\n".join(written.splitlines()[-15:]))


def _cases(report: Path) -> list[Case]:
    cases = []
    for element in ElementTree.parse(report).iter("testcase"):  # (written by pytest, just now)
        place = element.get("classname", "").replace(".", "/")
        case = Case(f"{place}.py::{element.get('name')}")
        for child in element:
            message = f"{child.get('message') or ''}\n{child.text or ''}"
            case.failure = message if child.tag == "failure" else case.failure
            case.error = message if child.tag == "error" else case.error
            case.skipped = case.skipped or child.tag == "skipped"
        cases.append(case)
    return cases


def judge(mutation: Mutation, found: TestRun) -> Report:
    """Say what the tests of a bug have said."""
    if found.code is None:
        return Report(mutation.name, "timeout", "its tests took too long")
    errors = [case.error for case in found.cases if case.error is not None]
    if found.code not in (0, 1) or errors:
        return Report(mutation.name, "invalid", _first_line(errors[0]) if errors else found.tail)
    first = ""
    for node in mutation.tests:
        failures = [case.failure for case in found.of(node) if case.failure is not None]
        if not failures:
            return Report(mutation.name, "survived", f"{node} passed")
        broken = [text for text in failures if text.lstrip().startswith(_BROKEN)]
        if len(broken) == len(failures):
            return Report(mutation.name, "invalid", _first_line(broken[0]))
        first = first or _first_line(next(text for text in failures if text not in broken))
    return Report(mutation.name, "caught", first)


def _first_line(text: str) -> str:
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")


def try_one(mutation: Mutation) -> Report:
    """Plant one bug in a copy, and run what must catch it."""
    started = time.monotonic()
    report = _try_one(mutation)
    report.seconds = round(time.monotonic() - started, 1)
    return report


def _try_one(mutation: Mutation) -> Report:
    try:
        texts = edited(mutation)
    except (OSError, ValueError) as error:
        return Report(mutation.name, "invalid", str(error))
    report = Report(mutation.name, "survived", "nothing is named that would catch it")
    with tempfile.TemporaryDirectory(prefix="dpmcmc-mutant-") as place:
        folder = Path(place)
        copy_tree(folder)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        if mutation.tests:
            report = judge(mutation, run_tests(folder, mutation.tests, TIME_LIMIT))
        if mutation.audit and (report.outcome == "caught" or not mutation.tests):
            report = _audited(mutation, folder, report)
    return report


def _audited(mutation: Mutation, folder: Path, before: Report) -> Report:
    """Run the audit, which says so and ends with 1 where it finds more than is claimed."""
    code, written = run(("-m", "dpmcmc.cli", "audit", *mutation.audit), folder, TIME_LIMIT)
    if code is None:
        return Report(mutation.name, "timeout", "the audit took too long")
    if code == 1 and "Refuted:" in written:
        return Report(mutation.name, "caught", before.why if mutation.tests else "the audit found more than is claimed")
    tail = written.splitlines()[-1] if written else ""
    return Report(mutation.name, "survived" if code == 0 else "invalid", f"the audit ended with {code}: {tail}")


def tests_without_a_bug(mutations: Sequence[Mutation], workers: int) -> list[str]:
    """Run all named tests on a copy without a bug; return what is wrong with them."""
    nodes = sorted({node for mutation in mutations for node in mutation.tests})
    with tempfile.TemporaryDirectory(prefix="dpmcmc-mutant-") as place:
        folder = Path(place)
        copy_tree(folder)
        code, written = run(("-c", "import dpmcmc; print(dpmcmc.__file__)"), folder, TIME_LIMIT)
        if code != 0 or not Path(written.strip().splitlines()[-1]).is_relative_to(folder.resolve()):
            return ["the tests do not see the copy of the package, but another one"]
        if not nodes:
            return []
        found = run_tests(folder, nodes, _TIME_LIMIT_WITHOUT, workers)
    problems = [f"{case.node} does not pass" for case in found.cases if case.failure or case.error]
    problems += [
        f"{node} is not run" for node in nodes if all(case.skipped for case in found.of(node)) or not found.of(node)
    ]
    if found.code != 0 and not problems:
        problems.append(f"pytest ended with {found.code}\n{found.tail}")
    return problems


def page(mutations: Sequence[Mutation], reports: Sequence[Report]) -> str:
    """Return the table of what was planted and caught, as Markdown."""
    by_name = {report.name: report for report in reports}
    caught = sum(report.outcome == "caught" for report in reports)
    lines = [_HEAD, f"{len(mutations)} bugs were planted, {caught} were caught.", ""]
    lines += ["| planted | in | caught by | caught |", "|---|---|---|---|"]
    for one in mutations:
        files = "<br>".join(
            f"`{name.removeprefix('src/dpmcmc/')}`" for name in dict.fromkeys(e.file for e in one.edits)
        )
        by = [f"`{node.removeprefix('tests/')}`" for node in one.tests]
        by += [f"`dpmcmc audit {' '.join(one.audit)}`"] if one.audit else []
        planted = f"{one.plants[0].upper()}{one.plants[1:]}".replace("|", r"\|")
        lines.append(f"| {planted} | {files} | {'<br>'.join(by)} | {_TEXTS[by_name[one.name].outcome]} |")
    return "\n".join([*lines, ""])


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trust.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-j", "--jobs", type=int, default=2, help="bugs that are tried at a time (default 2)")
    parser.add_argument("--only", action="append", metavar="NAME", help="try this bug only; may be given several times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what became of each bug")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table, as Markdown")
    parser.add_argument("--list", action="store_true", help="list the bugs, and try none")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, mutations: Sequence[Mutation] = MUTATIONS) -> int:
    """Try all bugs; return 0 if each was caught, 1 if one was not, 2 if nothing could be tried."""
    asked = _arguments(arguments)
    unknown = [name for name in asked.only or [] if name not in {one.name for one in mutations}]
    if unknown or (asked.only and asked.to):
        problem = f"there is no bug {unknown[0]!r}; see --list" if unknown else "--to takes all bugs; leave --only out"
        print(problem, file=sys.stderr)
        return 2
    chosen = [one for one in mutations if not asked.only or one.name in asked.only]
    if asked.list:
        for one in chosen:
            print(f"{one.name}: {one.plants}")
        return 0
    problems = tests_without_a_bug(chosen, asked.jobs)
    if problems:
        print("without a bug:", *problems, sep="\n  ", file=sys.stderr)
        return 2
    reports = []
    with ThreadPoolExecutor(max_workers=max(1, asked.jobs)) as workers:
        for report in workers.map(try_one, chosen):
            reports.append(report)
            print(f"{report.outcome:8} {report.name} ({report.seconds:.0f} s): {report.why}", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n", encoding="utf-8")
    if asked.to is not None:
        asked.to.write_text(page(chosen, reports), encoding="utf-8")
    caught = sum(report.outcome == "caught" for report in reports)
    print(f"{caught} of {len(reports)} planted bugs were caught")
    return 0 if caught == len(reports) else 1


if __name__ == "__main__":
    raise SystemExit(main())
