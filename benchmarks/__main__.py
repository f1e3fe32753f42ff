"""The command ``python -m benchmarks``: measure, print the table, write JSON, Markdown and the plot.

Modules that take long to load are imported inside the command, so that the help text comes at once.
"""

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from studies.exits import Command
except KeyboardInterrupt:  # Ctrl-C may well come before there is a command to handle it
    print("Interrupted; nothing was spent.", file=sys.stderr)
    raise SystemExit(130) from None

if TYPE_CHECKING:
    from benchmarks.measure import Results

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


class _JsonMayStandAlone(Command):
    """A command whose --json may come without a value: then it is `-`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the value that was left out."""
        complete = []
        for argument, following in zip(args, [*args[1:], "--"], strict=False):
            complete.append(argument)
            if argument == "--json" and following.startswith("--"):
                complete.append("-")
        return super().parse_args(ctx, complete)


@app.command(
    cls=_JsonMayStandAlone,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="**Examples**\n\n"
    "`python -m benchmarks`   then look at benchmark/benchmark.png\n\n"
    "`python -m benchmarks --fast --json -`   figures only, for a script that follows them over time",
)
def benchmark(
    out: Annotated[
        Path, typer.Option(help="Folder for the table and the plot; files of an earlier benchmark are replaced.")
    ] = Path("benchmark"),
    json_to: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the JSON to this file too; `-` or nothing: print only JSON, no table.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Smaller sizes, fewer rounds: within two minutes.")] = False,
) -> None:
    """Measure speed and memory against plain JAX, BlackJAX and the machine's floor.

    Synthetic records, all contestants in turns, medians. Writes benchmark.json, benchmark.md, benchmark.png and
    benchmark.pdf. The figures are ratios, but a busy machine blurs them all the same: run it alone.

    Takes about ten minutes on two cores. Needs BlackJAX: pip install -e '.[bench]'.
    """
    from benchmarks import measure, report
    from dpmcmc.output import prepare_folder, replace_file

    measure.require_peer()
    prepare_folder(out)
    only_json = json_to == Path("-")
    if json_to is not None and not only_json:
        prepare_folder(json_to.parent)
    console = Console(stderr=True)
    with console.status("benchmark") as status:  # shown on a terminal only
        results = measure.run(
            measure.FAST if fast else measure.FULL,
            lambda title, done, total: status.update(Text(f"{done}/{total}  {title}")),
        )
    files = report.write(results, out)
    if only_json:
        typer.echo(report.as_json(results), nl=False)
        return
    if json_to is not None:
        replace_file(json_to, report.as_json(results).encode())
        files[json_to] = "the same figures"
    console = Console()
    _print_results(console, results)
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)


def _print_results(console: Console, results: "Results") -> None:
    from benchmarks import report

    console.print(Text(f"Benchmark, n = {results.sizes.num_records:,} unless said otherwise", "bold"))
    for group, rows in groupby(report.rows(results), key=lambda row: row.group):
        table = Table(box=box.SIMPLE_HEAD, title=Text(group), title_justify="left", width=min(console.width, 100))
        table.add_column("what", ratio=1)
        for name, width in (("dpmcmc (ms)", 11), ("peer (ms)", 9), ("ratio", 8), ("target", 8)):
            table.add_column(name, justify="right", min_width=width)
        table.add_column("met", min_width=3)
        for row in rows:
            times = (report.as_text(row.ours), report.as_text(row.peer))
            met = Text(report.met_text(row.met), "green" if row.met else "bold red")
            table.add_row(*map(Text, (row.what, *times, row.figure, row.target)), met)
        console.print(table)
    console.print(Text(report.machine_text(results.machine), "dim"))
    if results.sizes.fast:
        console.print(Text("Targets of larger sizes than --fast measures are left open.", "dim"))
    console.print(Text(f"{results.seconds:.0f} seconds.", "dim"))


if __name__ == "__main__":
    app()
