"""How commands show their help: as lists, because boxes and columns leave descriptions little room at 80 columns."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from typer.core import TyperGroup

#: Of the whole command line; groups and commands take it over.
CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class Group(TyperGroup):
    """A group of commands that is listed with whole summaries; by default long ones are cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        summaries = [(name, cleandoc(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary.partition("\n\n")[0]) for name, summary in summaries])
