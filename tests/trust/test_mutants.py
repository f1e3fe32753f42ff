"""The list of planted bugs keeps up with the source, and what plants them tells those that are caught from others."""

import ast
import json
import re
from functools import cache

import pytest

from trust import mutants
from trust.mutants import ROOT, Case, Report, TestRun
from trust.mutations import KINDS, MUTATIONS, Edit, Mutation

BUDGET = "src/dpmcmc/privacy/budget.py"
PLACE = "        left = self._total - self._spent\n        if cost > left:"
TEST = "tests/privacy/test_budget.py::test_refuses_what_does_not_fit_and_changes_nothing"


def mutation(name, new, tests=(TEST,), old=PLACE):
    return Mutation(name, "", "Something else.", (Edit(BUDGET, old, new),), tests)


HARMLESS = mutation("harmless", f"        # A comment.\n{PLACE}")
REAL = mutation("real", PLACE.replace("cost > left", "left < 0"))
NO_PYTHON = mutation("no-python", PLACE.replace("if cost", "if if cost"))
GONE = mutation("gone", "", old="no such text")


@cache
def functions(file):
    """The tests of a file by name, each with its decorators as text."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: [ast.unparse(one) for one in node.decorator_list] for node in found}


# ------------------------------------------------------------------ the list


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_every_bug_can_be_planted_in_the_source_of_today(one):
    """Its old texts stand there once, and what comes out is Python that says something else."""
    for name, text in mutants.edited(one).items():
        before = (ROOT / name).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(before))


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_every_bug_names_fast_tests_that_exist(one):
    assert one.tests or one.audit
    for node in one.tests:
        file, test = node.split("::")
        assert not any("mark.slow" in decorator for decorator in functions(file)[test.partition("[")[0]])


def test_all_kinds_are_there_under_names_of_their_own():
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS) >= 20
    assert {one.kind for one in MUTATIONS} - {""} == set(KINDS)
    for one in MUTATIONS:
        assert re.fullmatch("[a-z-]+", one.name)
        assert one.plants.endswith(".")
        assert all(edit.file.startswith("src/dpmcmc/") for edit in one.edits)


def test_the_page_is_that_of_the_list():
    """docs/mutants.md says of every bug of today that it is caught, and of no other."""
    text = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert text == mutants.page(MUTATIONS, [Report(one.name, "caught") for one in MUTATIONS])


# ------------------------------------------------------------------ what plants them


def test_a_real_bug_is_caught_a_comment_survives_and_no_python_is_invalid(tmp_path, capsys):
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    chosen = (HARMLESS, REAL, NO_PYTHON, GONE)
    assert mutants.main(["-j", "1", "--json", str(results), "--to", str(page)], chosen) == 1
    outcomes = {one["name"]: one["outcome"] for one in json.loads(results.read_text())}
    assert outcomes == {"harmless": "survived", "real": "caught", "no-python": "invalid", "gone": "invalid"}
    assert [line.split("|")[4].strip() for line in page.read_text().splitlines()[-4:]] == [
        "**no**",
        "yes",
        "**no** (invalid)",
        "**no** (invalid)",
    ]
    printed = capsys.readouterr().out
    assert "survived harmless" in printed
    assert f"{TEST} passed" in printed
    assert "1 of 4 planted bugs were caught" in printed


def test_what_counts_as_caught():
    def outcome(code, *cases, tests=("tests/a.py::test_a", "tests/a.py::test_b")):
        return mutants.judge(mutation("x", "", tests), TestRun(code, list(cases), "")).outcome

    first, second = Case("tests/a.py::test_a[1]", "AssertionError: no"), Case("tests/a.py::test_b", "Failed: DID NOT")
    assert outcome(1, first, second) == "caught"
    assert outcome(1, first, Case("tests/a.py::test_a[2]"), second) == "caught"  # one of its parameters
    assert outcome(1, first, Case("tests/a.py::test_b")) == "survived"  # each that is named must fail
    assert outcome(1, first, Case("tests/a.py::test_bb", "AssertionError")) == "survived"  # and no other counts
    assert outcome(0, Case("tests/a.py::test_a[1]"), Case("tests/a.py::test_b")) == "survived"
    assert outcome(1, first, Case("tests/a.py::test_b", "NameError: name 'x' is not defined")) == "invalid"
    assert outcome(1, first, Case("tests/a.py::test_b", error="ImportError: failed on setup")) == "invalid"
    assert outcome(2, first, second) == "invalid"  # pytest was interrupted, or could not collect
    assert outcome(5) == "invalid"  # nothing was run
    assert outcome(None) == "timeout"


def test_what_takes_too_long_is_ended(tmp_path):
    assert mutants.run(("-c", "import time; time.sleep(60)"), tmp_path, 0.3) == (None, "")
    assert mutants.run(("-c", "print(7); raise SystemExit(3)"), tmp_path, 60.0) == (3, "7\n")


def test_bad_arguments_and_the_list(tmp_path, capsys):
    assert mutants.main(["--only", "no-such-bug"]) == 2
    assert mutants.main(["--only", MUTATIONS[0].name, "--to", str(tmp_path / "page.md")]) == 2
    assert mutants.main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(MUTATIONS)
