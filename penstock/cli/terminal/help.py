"""Commands and groups as Typer runs them here: their help is plain text in titled sections, and their plain values are
taken as they are. The coloured help and the conversion that Typer has take more CPU than most commands.

Typer has its own copy of Click and keeps that copy's types private, hence `Any`.
"""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from penstock.cli.terminal.parameters import take_plain_values

Titled = Iterable[tuple[str, tuple[str, str]]]


class Command(TyperCommand):
    """A command whose options stand in help under the title that each names (`rich_help_panel`)."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options. Called by Typer."""
        return take_plain_values(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line. Called by Typer. Our arguments have their brackets already, and Typer
        would add its own: `{TOPIC} [[BODY]]`."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(each.metavar or each.name.upper() for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options. Called by Typer."""
        write_sections(formatter, _options(self, ctx))


class Group(TyperGroup):
    """A group whose commands stand in help under the title that each names, `Commands` if none."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options. Called by Typer."""
        return take_plain_values(super().get_params(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options and the commands. Called by Typer."""
        write_sections(formatter, _options(self, ctx))
        width = max(map(len, self.commands))
        write_sections(
            formatter,
            (
                (getattr(found, "rich_help_panel", None) or "Commands", (name.ljust(width), _first_paragraph(found)))
                for name, found in self.commands.items()
            ),
        )


def write_sections(formatter: Any, rows: Titled) -> None:
    """Write each row under its title, the titles in the order in which they come first."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for title, row in rows:
        sections.setdefault(title, []).append(row)
    for title, found in sections.items():
        with formatter.section(title):
            formatter.write_dl(found)


def _options(command: TyperCommand | TyperGroup, ctx: Any) -> Titled:
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
            yield getattr(parameter, "rich_help_panel", None) or kind, record


def _first_paragraph(command: Any) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())
