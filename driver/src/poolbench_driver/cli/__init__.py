"""The command line: one module per purpose; errors become one line and an exit code."""

import io
import logging
import os
import sys
from copy import copy
from functools import cache
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException
from typer.main import get_command, get_command_name

from poolbench import __version__
from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, InputError, NotFoundError, PoolbenchError, RestrictedError
from poolbench.settings import refuse_unknown
from poolbench.statuses import Code
from poolbench.telemetry.logs import as_json, configure_logging
from poolbench_driver.cli import (
    concept,
    corpus,
    dead_letters,
    export,
    features,
    find,
    help,
    importing,
    listing,
    login,
    persona,
    planning,
    queries,
    reproduce,
    run,
    runs,
    settings_file,
    sharing,
    show,
    status,
    steer,
    stories,
    upkeep,
    vectors,
    view,
)
from poolbench_driver.cli.completion import complete_names

USAGE_ERRORS = (ConfigError, InputError, NotFoundError, RestrictedError)

#: What installs a package that is absent: an extra of the driver, by the name of the package's module.
EXTRAS = {
    **dict.fromkeys(("minio", "redis", "urllib3"), "queue"),
    **dict.fromkeys(("scipy", "sklearn", "threadpoolctl", "vl_convert"), "statistics"),
    **dict.fromkeys(("starlette", "uvicorn"), "console"),
    **dict.fromkeys(("httpx2", "huggingface_hub"), "hub"),
    **dict.fromkeys(("gguf", "peft", "tokenizers", "transformers"), "models"),
    "torch": "torch",
}

app = typer.Typer(
    name=help.PROGRAM,
    cls=help.CommandGroup,
    context_settings=help.CONTEXT_SETTINGS,
    rich_markup_mode=None,  # its tables leave descriptions no room, and its markup takes [rows] for a style
    help="Plan, run and report PoolBench on a cluster: of `make cluster-up`, or of `poolbench-driver login URL`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"poolbench-driver {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version)] = False,
) -> None:
    """Take the options that stand before a command."""


#: The commands as help lists them.
SECTIONS: dict[str, tuple[Any, ...]] = {
    "First steps": (run.run, view.view, runs.leaderboard, steer.steer, status.status),
    "Measure": (settings_file.init, runs.watch, runs.cancel, planning.plan_data, find.find),
    "Results": (
        *(view.open_page, show.show, runs.compare, runs.ranks, features.features, runs.report),
        *(sharing.submit, sharing.verify, sharing.push, sharing.pull, reproduce.reproduce),
    ),
    "Ask a service": (queries.embed, queries.explain, queries.probe, queries.direction, queries.score),
    "Data": (listing.ls,),
    "Operate": (login.login, login.logout, upkeep.doctor, upkeep.model, upkeep.gc, upkeep.copy_store),
}
GROUPS = {
    "Measure": {"config": settings_file.app},
    "Results": {"export": export.app},
    "Ask a service": {"vectors": vectors.app},
    "Data": {
        **{"concept": concept.app, "corpus": corpus.app, "import": importing.app, "stories": stories.app},
        "persona": persona.app,
    },
    "Operate": {"dead-letters": dead_letters.app},
}
NAMES = {view.open_page: "open"}
CLASSES = {run.run: run.RunCommand, runs.leaderboard: sharing.LeaderboardCommand}
for section, commands in SECTIONS.items():
    for command in commands:
        app.command(NAMES.get(command), cls=CLASSES.get(command), rich_help_panel=section)(command)
for section, groups in GROUPS.items():
    for name, group in groups.items():
        app.add_typer(group, name=name, cls=help.CommandGroup, rich_help_panel=section)
complete_names(app)


@cache
def command_line(name: str | None = None) -> Any:
    """Return the command line as Click knows it, with the one command or group of this name if there is one.

    Building all of them takes a tenth of the time of a short command.
    """
    narrowed = copy(app)
    narrowed.registered_commands = [
        command
        for command in app.registered_commands
        if command.callback and name == (command.name or get_command_name(command.callback.__name__))
    ]
    narrowed.registered_groups = [group for group in app.registered_groups if name == group.name]
    return get_command(narrowed if narrowed.registered_commands or narrowed.registered_groups else app)


def main() -> None:
    """Run the command line; exit with 0 done, 1 finished with failures, 2 usage or configuration, 130 interrupted."""
    _open_outputs()
    try:
        refuse_unknown()
        if as_json():
            configure_logging("driver", level=logging.WARNING)
        code = command_line(next(iter(sys.argv[1:]), None))(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except TyperException as error:  # a wrong command line, or none at all: then it shows the help
        error.show()  # type: ignore[attr-defined]
        sys.exit(error.exit_code)
    except PoolbenchError as error:
        sys.exit(_refuse(str(error), Exit.USAGE if _is_usage(error) else Exit.FAILURES))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if (extra := EXTRAS.get(package)) is None:
            raise
        remedy = f"pip install 'poolbench-driver[{extra}]'"
        sys.exit(_refuse(f"this needs {package}, which is not installed here: {remedy}", Exit.USAGE))
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(Exit.FAILURES)
    except OSError as error:  # a full disk, a file that cannot be read
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(_refuse(f"{where}{error.strerror or error}", Exit.FAILURES))
    if code == Exit.INTERRUPTED:  # typer turns Ctrl-C into this code
        print("interrupted; the same command continues where this one stopped", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _open_outputs() -> None:
    """Let every text be written: what an encoding lacks as its escape, and nothing where an output is closed."""
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open
        elif isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def _is_usage(error: PoolbenchError) -> bool:
    """Return whether another command line would help: wrong names, files and requests, but no service that is down."""
    return isinstance(error, USAGE_ERRORS) or (error.code != Code.FAILED and 400 <= error.http_status < 500)


def _refuse(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
