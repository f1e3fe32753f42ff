"""Running commands in tests."""

import json

from typer.testing import CliRunner

from dpmcmc import cli

RUNNER = CliRunner()


def run(*arguments, code=0):
    result = RUNNER.invoke(cli.app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def answer(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def refusal(*arguments, code=2):
    """Run a command that must fail; return its one line on stderr."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]
