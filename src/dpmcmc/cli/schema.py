"""`dpmcmc schema`: write the draft of a schema for a file, and see whether file and schema fit. No value is read."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = (
    "**Examples**\n\n"
    "Names and types, with blanks:  `dpmcmc schema draft people.parquet > people.schema.yaml`\n\n"
    "After they are filled in:  `dpmcmc schema check people.parquet --schema people.schema.yaml`"
)

commands = typer.Typer(name="schema", no_args_is_help=True, rich_markup_mode="markdown", epilog=EXAMPLES)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A .parquet or .csv file.", show_default=False)]
SchemaOption = Annotated[Path, typer.Option("--schema", help="A schema in YAML or JSON.", show_default=False)]


@commands.callback()
def schema() -> None:
    """Say what is known about a table without looking at it.

    A schema (Frictionless Table Schema, YAML or JSON) has the bounds of numbers and the levels of categories, from
    common knowledge and never from the data. All coding follows from it.
    """


@commands.command(epilog=EXAMPLES)
def draft(file: FileArgument) -> None:
    """Write a schema with names and types of a file, and blanks to fill in, to stdout.

    It reads metadata only (of a CSV file the first line, which holds no types), never a value.
    """
    from dpmcmc.schema import Schema

    typer.echo(Schema.draft(file).to_yaml(), nl=False)


@commands.command(epilog=EXAMPLES)
def check(file: FileArgument, schema: SchemaOption) -> None:
    """Say whether a file and a schema without blanks fit in names and types. No value is read.

    Exit code 0 if they do, 2 if not.
    """
    from dpmcmc.schema import Schema

    known = Schema.load(schema)
    known.refuse_blanks()
    known.check(file)
    unit = "one row is one person" if known.unit is None else f"{known.unit!r} tells persons apart"
    typer.echo(f"{file.name} fits {schema.name}: {len(known.names)} columns; {unit}.")
