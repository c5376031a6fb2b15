"""How commands show their help: as lists, because boxes and columns leave descriptions little room at 80 columns."""

from inspect import cleandoc
from typing import Any

from typer.core import TyperGroup

from poolbench_driver.cli.shared_options import share_options

PROGRAM = "poolbench-driver"
#: Of the whole command line; groups and commands take it over.
CONTEXT_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class CommandGroup(TyperGroup):
    """A group of commands, listed with whole summaries; by default long ones are cut."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        share_options(self)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, by section where they name one."""
        names = self.list_commands(ctx)
        width, sections = max(map(len, names)), dict[str, list[tuple[str, str]]]()
        for name in names:
            command = self.commands[name]
            line = name.ljust(width), cleandoc(command.help or "").partition("\n\n")[0]
            sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(line)
        for section, summaries in sections.items():
            with formatter.section(section):
                formatter.write_dl(summaries)
