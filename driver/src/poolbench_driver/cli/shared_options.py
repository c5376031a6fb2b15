"""Options that commands share: `--quiet` of all of them, and `--csv` of those that have `--json`."""

from __future__ import annotations

import sys
from contextlib import redirect_stderr
from functools import cache, wraps
from io import StringIO
from typing import Annotated, Any

import typer
from typer.main import get_command

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError
from poolbench_driver.cli.tables import AS_CSV

_JSON, _CSV, _QUIET = "as_json", "as_csv", "quiet"


def share_options(command: Any) -> None:
    """Add the shared options to a command, once, or to the commands of a group."""
    for inner in getattr(command, "commands", {}).values():
        share_options(inner)
    names = {param.name for param in command.params}
    if hasattr(command, "commands") or _QUIET in names:
        return
    options = _options()
    command.params += [options[name] for name in (_CSV, _QUIET) if name == _QUIET or _JSON in names]
    run, own_options = command.callback, [param for param in command.params if param.param_type_name == "option"]
    flags = {flag for option in own_options for flag in (*option.opts, *option.secondary_opts)}

    @wraps(run)
    def with_shared(*, quiet: bool, as_csv: bool = False, **arguments: Any) -> Any:
        for option in own_options:
            value = arguments.get(option.name)
            if flags.intersection(map(str, value if isinstance(value, list) else [value])):
                raise ConfigError(f"{option.opts[0]} has no value: the next word is an option")
        if as_csv:
            arguments[_JSON] = True
        form = AS_CSV.set(as_csv)
        try:
            return _quietly(run, arguments) if quiet else run(**arguments)
        finally:
            AS_CSV.reset(form)

    command.callback = with_shared


def _quietly(run: Any, arguments: dict[str, Any]) -> Any:
    """Call a command and show what it writes to stderr only if it fails."""
    held_back, code = StringIO(), int(Exit.FAILURES)
    try:
        with redirect_stderr(held_back):
            code = run(**arguments)
        return code
    finally:
        if code:
            sys.stderr.write(held_back.getvalue())


@cache
def _options() -> dict[str, Any]:
    """Return the shared options by name, as typer makes them."""

    def command(
        as_csv: Annotated[bool, typer.Option("--csv", help="As CSV: the rows of what --json prints.")] = False,
        quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No notes, no progress, unless it fails.")] = False,
    ) -> None: ...

    app = typer.Typer(add_completion=False)
    app.command()(command)
    return {param.name: param for param in get_command(app).params}
