"""The command ``python -m trust.fuzz``: run inputs through readers in processes that may die, and print a table.

Each input is on disk before it is read. If a process dies or hangs, that input is a finding, and another process goes
on behind it. Inputs that are findings are kept in ``--keep``.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

READERS = (
    "parquet",
    "csv",
    "schema-yaml",
    "schema-json",
    "statement",
    "result",
    "result-forged",
    "ledger",
    "checkpoint",
    "resume",
)
_HANGS = 90.0  # seconds without a sign of life, where not even a signal gets through
_SETS_OUT = 900.0  # seconds until the first one: valid files are made by real runs, on a machine that may be busy
_MEMORY = 6 << 30  # bytes that a process may take beyond what it has: a length in a file must not fill the machine
_EXIT_CODES = (0, 1, 2, 3)  # of the command line; 130 is Ctrl-C


def work(name: str, seed: int, start: int, stop: int, commands: int, folder: Path) -> None:
    """Go through inputs of a reader; write down what comes of each. This is the process that may die."""
    faulthandler.enable()
    from dpmcmc.errors import DPMCMCError
    from trust.fuzz.readers import READERS as kinds
    from trust.fuzz.watching import Watch, observe

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    inside = folder / "inside"
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    tempfile.tempdir = str(inside)  # a reader may write there
    reader, watch = kinds[name](inside / name), Watch(inside)
    for content in reader.corpus:  # what is loaded when it is first needed is loaded now
        path = reader.place(content)
        observe(watch, lambda path=path: reader.read(path), ())  # type: ignore[misc]
    for words in reader.commands(reader.place(reader.corpus[0])) if commands else []:
        run_command(watch, words)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + _MEMORY, resource.RLIM_INFINITY))
    every = max(1, (stop - start) // commands) if commands else 0
    with (folder / "outcomes.jsonl").open("a", encoding="utf-8") as told:
        for number in range(start, stop):
            print(json.dumps({"making": number}), file=told, flush=True)
            path = reader.place(reader.input(seed, number))
            print(json.dumps({"begun": number}), file=told, flush=True)
            outcome = observe(watch, lambda path=path: reader.read(path), (DPMCMCError,))  # type: ignore[misc]
            if number < len(reader.corpus) and outcome.kind != "read" and name != "resume":
                raise SystemExit(f"the valid file {number} of {name} is {outcome}")
            print(json.dumps({"number": number, "kind": outcome.kind, "what": outcome.what}), file=told, flush=True)
            if every and number % every == 0:
                for words in reader.commands(reader.place(reader.input(seed, number))):
                    what = run_command(watch, words)
                    kind = "finding" if what else "command"
                    print(json.dumps({"number": number, "kind": kind, "what": what}), file=told, flush=True)


def run_command(watch: Any, words: list[str]) -> str:
    """Run a command of the package in this process; return what is wrong with how it ended, if anything."""
    from typer.testing import CliRunner

    from dpmcmc import cli
    from trust.fuzz.watching import observe

    results: list[Any] = []
    outcome = observe(watch, lambda: results.append(CliRunner().invoke(cli.app, words)), ())
    command = f"dpmcmc {words[0]} {words[1] if words[0] in ('schema', 'ledger') else ''}".strip()
    if outcome.kind == "finding":
        return f"{command}: {outcome.what}"
    (result,) = results
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{command}: a traceback of {type(result.exception).__name__}"
    if result.exit_code not in _EXIT_CODES or "Traceback" in result.output:
        return f"{command}: exit code {result.exit_code}"
    if "which should not be" in result.output:
        return f"{command}: an error that should not be: {' '.join(result.output.split())[:160]}"
    return ""


def fuzz(
    name: str,
    count: int,
    seed: int,
    folder: Path,
    *,
    commands: int = 0,
    until: float = float("inf"),
    keep: Path | None = None,
) -> dict[str, Any]:
    """Run some inputs through a reader, in processes of their own.

    Parameters
    ----------
    name
        Of the reader.
    count
        How many inputs.
    seed
        They follow from it.
    folder
        To work in.
    commands
        How many of them go through the command line as well.
    until
        When to stop, on the clock of `time.monotonic`.
    keep
        Where to keep inputs that are findings.

    Returns
    -------
    dict
        Numbers of inputs, by what came of them, and the findings with the inputs that show them.
    """
    from trust.fuzz.readers import READERS as kinds

    folder.mkdir(parents=True, exist_ok=True)
    told, start, crashes = folder / "outcomes.jsonl", 0, 0
    told.unlink(missing_ok=True)
    died: list[dict[str, Any]] = []
    library = kinds[name].dies_in
    begun = time.monotonic()
    while start < count and time.monotonic() < until and crashes < 200:
        words = [sys.executable, "-m", "trust.fuzz", "--worker", name, str(seed), str(start), str(count)]
        with (folder / "errors.txt").open("wb") as errors:
            process = subprocess.Popen([*words, str(commands), str(folder)], stdout=errors, stderr=errors)
            code = _wait(process, told, until)
        if code in (0, "time"):
            break
        lines = _rows(told)
        text = (folder / "errors.txt").read_text(errors="replace")
        last = next((row["making"] for row in reversed(lines) if "making" in row), -1)
        if last < start or "\nSystemExit" in text:
            raise RuntimeError(f"the worker for {name} ended with {code}: {text[-2000:]}")
        if {"begun": last} in lines:  # else it died of making the input: HDF5 may, and then there is none
            what = "hangs" if code == "hangs" else f"the process died (exit code {code})"
            died.append({"number": last, "kind": f"died in {library}" if library else "finding", "what": what})
        start, crashes = last + 1, crashes + 1
    rows = [row for row in _rows(told) if "number" in row] + died
    counts = Counter(row["kind"] for row in rows)
    findings: dict[str, list[int]] = {}
    for row in rows:
        if row["kind"] == "finding":
            findings.setdefault(row["what"], []).append(row["number"])
    if keep is not None and findings:
        _keep(name, seed, findings, keep, folder)
    return {
        "inputs": len({row["number"] for row in rows}),
        "read": counts["read"],
        "refused": counts["refused"],
        "commands": counts["command"],
        "findings": counts["finding"],
        "died in a library": len(died) if library else 0,
        "seconds": round(time.monotonic() - begun, 1),
        "refusals": dict(Counter(row["what"] for row in rows if row["kind"] == "refused").most_common()),
        "found": {what: {"times": len(numbers), "inputs": numbers[:5]} for what, numbers in findings.items()},
    }


def _wait(process: subprocess.Popen[bytes], told: Path, until: float) -> int | str:
    """Wait for a worker, as long as it shows that it lives; what it was at when it does not is a finding."""
    alive, size, patience = time.monotonic(), _size_of(told), _SETS_OUT
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            pass
        now = _size_of(told)
        if now != size:
            alive, size, patience = time.monotonic(), now, _HANGS
        ended = "time" if time.monotonic() > until else "hangs" if time.monotonic() - alive > patience else ""
        if ended:
            process.kill()
            process.wait()
            return ended


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # cut short by a death
            continue
    return rows


def _keep(name: str, seed: int, findings: dict[str, list[int]], keep: Path, folder: Path) -> None:
    from trust.fuzz.readers import READERS as kinds

    keep.mkdir(parents=True, exist_ok=True)
    reader = kinds[name](folder / "keeping")
    for numbers in findings.values():
        (keep / f"{name}-{seed}-{numbers[0]}{reader.suffix}").write_bytes(reader.input(seed, numbers[0]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, print a table, and return 1 if there are findings."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--worker"]:
        name, *numbers, folder = given[1:]
        work(name, *map(int, numbers), Path(folder))  # type: ignore[arg-type,call-arg]
        return 0
    parser = argparse.ArgumentParser(prog="python -m trust.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="in all (default: 100000)")
    parser.add_argument("--reader", action="append", choices=READERS, help="this one only; may be repeated")
    parser.add_argument("--seed", type=int, help="default: a fresh one, which is printed")
    parser.add_argument("--commands", type=int, default=60, help="inputs of each reader for the command line, too")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep inputs that are findings there")
    options = parser.parse_args(given)
    from trust.fuzz.readers import READERS as kinds

    seed = secrets.randbits(32) if options.seed is None else options.seed
    chosen = options.reader or list(READERS)
    total = sum(kinds[name].share for name in chosen)
    until = time.monotonic() + 60 * options.minutes
    print(f"seed {seed}", flush=True)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="dpmcmc-fuzz-") as folder:
        for name in chosen:
            count = math.ceil(options.inputs * kinds[name].share / total)
            settings = {"commands": options.commands, "until": until, "keep": options.keep}
            results[name] = fuzz(name, count, seed, Path(folder) / name, **settings)
            print(f"{name}: {json.dumps(results[name], ensure_ascii=False)}", flush=True)
    report = {"seed": seed, "inputs": sum(one["inputs"] for one in results.values()), "readers": results}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False), encoding="utf-8")
    print(table_of(results))
    return 1 if any(one["findings"] for one in results.values()) else 0


def table_of(results: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table in Markdown, with a line for each kind of finding below."""
    columns = ("inputs", "read", "refused", "commands", "findings", "died in a library")
    lines = [f"| reader | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name, one in results.items():
        lines.append(f"| {name} | {' | '.join(str(one[column]) for column in columns)} |")
    sums = [sum(one[column] for one in results.values()) for column in columns]
    lines.append(f"| all | {' | '.join(map(str, sums))} |")
    for name, one in results.items():
        lines += [
            f"{name}: {what} ({about['times']} times, input {about['inputs'][0]})"
            for what, about in one["found"].items()
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
