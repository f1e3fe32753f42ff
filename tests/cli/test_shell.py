"""What all commands share: help, version, errors in one line, Ctrl-C, and that help loads nothing heavy."""

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import dpmcmc
from dpmcmc import cli
from dpmcmc.cli.shared import with_option_groups
from dpmcmc.demo import banana
from dpmcmc.errors import BudgetExceededError
from tests.cli.running import RUNNER, refusal, run

PLAN = ("plan", "--num-records", 100_000, "--epsilon", 4, "--preset", "paper-banana")


class TestShell:
    def test_version(self):
        assert run("--version").stdout == f"dpmcmc {dpmcmc.__version__}\n"

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ([], ["sample", "account", "plan", "demo", "budget"]),
            (["sample"], ["--schema", "--formula", "This runs the code", "not private", "Exit codes", "Examples"]),
            (["account"], ["--noise-multiplier", "--sampling-prob", "Examples", "safe side"]),
            (["plan"], ["--preset", "--gradient-noise-multiplier", "Examples", "Nothing is spent"]),
            (["demo"], ["--seed", "not private", "index.html", "synthetic", "adult", "banana"]),
        ],
    )
    def test_help(self, command, words):
        output = run(*command, "--help").stdout
        assert all(word in output for word in words)

    @pytest.mark.parametrize(
        ("arguments", "instead"),
        [
            (["benchmark"], "python -m benchmarks"),
            (["benchmark", "--fast", "--json", "-"], "python -m benchmarks"),
            (["reproduce"], "python -m studies"),
            (["reproduce", "comparison", "--help"], "python -m studies"),
        ],
    )
    def test_commands_that_left_say_where_they_are(self, arguments, instead):
        assert f"is now `{instead}` in the repository" in refusal(*arguments)

    def test_an_unknown_option_is_a_usage_error(self):
        assert "Traceback" not in run("account", "--epsilonn", 1, code=2).stderr

    def test_errors_of_the_package_have_no_traceback(self, monkeypatch):
        def refuse(*_, **__):
            raise BudgetExceededError("nothing is left;\nstop here")

        monkeypatch.setattr(dpmcmc, "plan", refuse)
        line = refusal(*PLAN, code=3)
        assert line == "Error: nothing is left; stop here"

    def test_interrupt(self, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(dpmcmc, "plan", interrupt)
        stderr = run(*PLAN, code=130).stderr
        assert stderr == "Interrupted; nothing was spent.\n"

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (
                "interrupted before the first step;\nnothing was spent",
                "Interrupted before the first step; nothing was spent",
            ),
            ("", "Interrupted; no result was written."),
        ],
    )
    def test_an_interrupted_run_says_what_was_spent_if_it_knows(self, text, line, monkeypatch, tmp_path):
        def interrupt(*_, **__):
            raise KeyboardInterrupt(*([text] if text else []))

        monkeypatch.setattr(banana, "planned", lambda settings: SimpleNamespace(num_steps=9))
        monkeypatch.setattr(banana, "run", interrupt)
        result = run("demo", "banana", "--json", "--out", tmp_path, code=130)
        assert (result.stdout, result.stderr) == ("", f"{line}\n")

    def test_interrupted_while_options_are_read(self, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(cli.TyperGroup, "make_context", interrupt)
        assert run("account", code=130).stderr == "Interrupted; nothing was spent.\n"

    @pytest.mark.parametrize("module", ["rich.table", "jax", "dpmcmc.samplers"])
    def test_interrupted_while_importing(self, module):
        """Ctrl-C may come at any time; here it comes when a given module is looked for."""
        program = f"""
import sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["dpmcmc", "plan", "--preset", "paper-banana", "--num-records", "1000", "--epsilon", "1"]
from dpmcmc.cli import main
main()
"""
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert (result.returncode, result.stdout) == (130, "")
        assert result.stderr == "Interrupted; nothing was spent.\n"

    def test_a_bug_is_not_hidden(self, monkeypatch):
        def fail(*_, **__):
            raise RuntimeError("a bug")

        monkeypatch.setattr(dpmcmc, "plan", fail)
        result = RUNNER.invoke(cli.app, list(map(str, [*PLAN])))
        assert isinstance(result.exception, RuntimeError)


HEAVY = (
    "jax",
    "jaxlib",
    "numpyro",
    "dp_accounting",
    "opendp",
    "scipy",
    "matplotlib",
    "arviz",
    "xarray",
    "pandas",
    "pyarrow",
    "formulaic",
    "yaml",
    "numpy",
)
COMMANDS = [[], ["sample"], ["account"], ["plan"], ["demo"]]


# What names that load the real modules do not need: only runs, results, tables or ledgers do.
LATE = (
    *("arviz", "xarray", "pandas", "h5py", "pyarrow", "formulaic", "opendp", "dp_accounting", "matplotlib"),
    *("scipy.stats", "scipy.optimize", "sqlalchemy", "yaml"),
)


def loaded_by(program, names=HEAVY):
    """Which of the heavy packages a program loads; the modules are counted, never the seconds."""
    ending = f"\nimport sys\nprint([name for name in {names!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


class TestLazyImports:
    def test_importing_the_package_loads_nothing_heavy(self):
        assert loaded_by("import dpmcmc; dir(dpmcmc); dpmcmc.__version__") == "[]"

    def test_twin_using_it_does(self):
        assert "jax" in loaded_by("import dpmcmc; dpmcmc.sample")

    def test_names_load_little_beside_jax(self):
        """The seconds beyond JAX's own are measured by ``python -m benchmarks.imports``."""
        assert loaded_by("import dpmcmc; dpmcmc.sample, dpmcmc.regression, dpmcmc.Posterior", LATE) == "[]"

    def test_twin_arviz_loads_more(self):
        program = "from dpmcmc.results import arviz_bridge; arviz_bridge.import_arviz()"
        assert "scipy.stats" in loaded_by(program, LATE)

    def test_help_loads_nothing_heavy(self):
        program = f"""
from dpmcmc.cli import app
for command in {COMMANDS!r}:
    try:
        app([*command, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0, command
"""
        assert loaded_by(program) == "[]"

    def test_gaussian_accounts_need_neither_jax_nor_dp_accounting(self):
        program = (
            "from dpmcmc import cli\ncli.app(['account', '--epsilon', '4', '--delta', '1e-6'], standalone_mode=False)"
        )
        assert loaded_by(program) == "['scipy', 'numpy']"

    def test_public_names_are_all_there(self):
        assert set(dpmcmc.__all__) <= set(dir(dpmcmc))
        for name in dpmcmc.__all__:
            assert getattr(dpmcmc, name) is not None
        with pytest.raises(AttributeError, match="no attribute 'nothing_of_ours'"):
            dpmcmc.nothing_of_ours  # noqa: B018


@dataclass(frozen=True)
class Size:
    """Options of the command below."""

    width: Annotated[int, typer.Option(help="How wide.", min=1)]
    height: Annotated[int | None, typer.Option(help="How high.", rich_help_panel="Others")] = None


class TestOptionGroups:
    """A dataclass of options is to Typer what the options themselves would be."""

    def grouped(self):
        @with_option_groups
        def command(size: Size, loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False) -> None:
            """Say a size."""
            typer.echo(f"{size} {loud}")

        return command

    def plain(self):
        def command(
            width: Annotated[int, typer.Option(help="How wide.", min=1)],
            height: Annotated[int | None, typer.Option(help="How high.", rich_help_panel="Others")] = None,
            loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False,
        ) -> None:
            """Say a size."""
            typer.echo(f"{Size(width, height)} {loud}")

        return command

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["--help"], 0),
            (["--width", "3"], 0),
            (["--loud", "--height", "2", "--width", "3"], 0),
            ([], 2),
            (["--width", "0"], 2),
            (["--width", "3", "--height", "tall"], 2),
        ],
    )
    def test_it_makes_no_difference(self, arguments, code):
        results = []
        for command in (self.grouped(), self.plain()):
            app = typer.Typer()
            app.command()(command)
            results.append(CliRunner().invoke(app, arguments))
        assert results[0].exit_code == results[1].exit_code == code
        assert results[0].output == results[1].output
