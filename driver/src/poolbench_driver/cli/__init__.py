"""The command line: a module for each purpose; errors become one line and an exit code."""

from __future__ import annotations

import sys

import click
import typer

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench_driver.cli import adhoc, corpus, listing, runs, upkeep

EXIT_FAILURES, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="poolbench-driver",
    help="Plan, run and report PoolBench on a cluster that `make cluster-up` started.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (runs, listing, adhoc, upkeep):
    module.register(app)
app.add_typer(corpus.app, name="corpus")


def main() -> None:
    """Entry point: 0 done, 1 finished with failures, 2 usage or configuration, 130 interrupted."""
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted; the same command continues where this one stopped", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigError | UnknownNameError) else EXIT_FAILURES)
    sys.exit(code if isinstance(code, int) else 0)
