"""submit, verify, leaderboard build, push, pull: runs and vectors for others, and from them."""

from __future__ import annotations

import secrets
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from poolbench.contracts.wire import Exit
from poolbench_driver.cli.export import Licence, command_line, in_store, with_progress
from poolbench_driver.cli.runs import RunName, RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data

if TYPE_CHECKING:
    from poolbench_driver.contract.verification import Check

Signers = Annotated[
    Path | None, typer.Option(help="Trusted keys and their owners, in the format of ssh-keygen's allowed signers.")
]
_PLACE = "A folder, s3://bucket/prefix, or hf:OWNER/NAME on the hub."


def _print_schema(wanted: bool) -> None:
    from poolbench_driver.sharing.submission import schema

    if wanted:
        print_data(schema())
        raise typer.Exit


def submit(
    output: Annotated[Path, typer.Option(help="Bundle to write, such as run.zip.")],
    run: RunName = "latest",
    key: Annotated[Path | None, typer.Option(help="Private SSH key that signs the bundle; default: unsigned.")] = None,
    runs: RunsFolder = Path("runs"),
    licence: Licence = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            is_eager=True,
            callback=_print_schema,
            help="Print the JSON schema of a submission without a run.",
        ),
    ] = False,
) -> int:
    """Pack a finished run as one file that others can verify: tables, settings, manifest, versions, signature."""
    from poolbench_driver.sharing import bundle

    artifacts, folder, keys = in_store(run, runs)
    command, licence = f"poolbench-driver submit {folder.id} --output FILE", licence or "unknown"
    write = partial(bundle.submit, folder, artifacts, keys, output, key=key, licence=licence, command=command)
    digest = with_progress(write, output, len(keys))
    typer.echo(f"{output}: run {folder.id}, {'signed' if key else 'not signed'}, digest {digest}")
    return Exit.DONE


def verify(
    bundle: Annotated[
        Path, typer.Argument(help="The bundle that `submit` wrote, its unpacked folder, or a submission.")
    ],
    rerun: Annotated[
        int, typer.Option(min=0, help="Measure as many cells again on the cluster; `--draw` draws them.")
    ] = 0,
    draw: Annotated[
        int | None, typer.Option(min=0, help="Number that draws the cells; default: a random one, which is printed.")
    ] = None,
    signers: Signers = None,
    as_json: AsJson = False,
) -> int:
    """Compute the figures of a bundle again from its scores, without a model; exit code 0 only if everything holds."""
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.sharing import verification
    from poolbench_driver.sharing.rerun import Rerun

    display = partial(open_display, "none" if as_json else "plain")
    # Drawn after the bundle is made, so that its maker cannot choose the cells.
    draw = secrets.randbelow(1_000_000) if draw is None else draw
    again = Rerun(rerun, draw, open_session, display) if rerun else None
    on_check = (lambda check: None) if as_json else _show
    verdict = verification.verify(bundle, signers=signers, rerun=again, say=_progress, on_check=on_check)
    if as_json:
        print_data({**asdict(verdict), "holds": verdict.holds})
    else:
        unchecked = f"; not checked: {', '.join(verdict.unchecked)}" if verdict.unchecked else ""
        typer.echo(f"{bundle.name}: {'all that was checked holds' if verdict.holds else 'it does not hold'}{unchecked}")
    return Exit.DONE if verdict.holds else Exit.FAILURES


def _show(check: Check) -> None:
    typer.echo(f"{check.stage}: {check.state}: {check.note}")


def _progress(line: str) -> None:
    """Show a line in the place of the last one, on a terminal."""
    if sys.stderr.isatty():
        print(f"\x1b[K{line[:78]}", end="\r", file=sys.stderr, flush=True)


def build(
    places: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders of bundles, or bundles.")],
    output: Annotated[Path, typer.Option(help="Folder to write index.html and board.json to.")],
    signers: Signers = None,
) -> int:
    """Verify bundles and write a board of those that hold, as a page that is read without server and script."""
    from poolbench_driver.sharing import board

    page = board.build(places, output, signers=signers, say=partial(typer.echo, err=True))
    typer.echo(f"{output / 'index.html'}: {len(page.board.lines)} lines; {page.answer.sentences[-1]}")
    return Exit.DONE


class LeaderboardCommand(TyperCommand):
    """`leaderboard`, whose first word may be `build`: then it is another command."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Return the context of this command, or of `leaderboard build`."""
        if args[:1] != ["build"]:
            return super().make_context(info_name, args, parent, **extra)
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command("build")(build)
        return get_command(app).make_context(f"{info_name} build", args[1:], parent, **extra)


def push(
    source: Annotated[str, typer.Argument(help="Run id, 'latest', or the folder of a vector.")],
    place: Annotated[str, typer.Argument(help=_PLACE)],
    runs: RunsFolder = Path("runs"),
    licence: Licence = None,
) -> int:
    """Write a run, or a vector, with card and checksums to where others can pull it."""
    from poolbench.directions.vector_files import CARD_FILE
    from poolbench_driver.release.run import export_run
    from poolbench_driver.sharing import exchange

    with tempfile.TemporaryDirectory(prefix="poolbench-push-") as temporary:
        root, kind = Path(temporary, "pushed"), "model" if (Path(source) / CARD_FILE).is_file() else "dataset"
        if kind == "model":
            what = f"vector {exchange.write_vector(Path(source), root, licence)}"
        else:
            artifacts, folder, keys = in_store(source, runs)
            what, command = f"run {folder.id}", command_line("run", folder.id, licence=licence)
            write = partial(export_run, folder, artifacts, keys, root, licence=licence or "unknown", command=command)
            with_progress(write, root, len(keys))
        address = exchange.push(root, place, kind)
    typer.echo(f"{what} is at {address}; `poolbench-driver pull {address}` fetches it")
    return Exit.DONE


def pull(
    place: Annotated[str, typer.Argument(help=_PLACE)],
    output: Annotated[Path, typer.Option(help="Folder that the run or the vector is written into.")] = Path("runs"),
) -> int:
    """Fetch a run or a vector that was pushed, and check each file."""
    from poolbench_driver.sharing import exchange

    typer.echo(f"{exchange.pull(place, output)}: all files are as their checksums say")
    return Exit.DONE
