"""export: the parts of a run that may be published."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from poolbench.contracts.wire import Exit

app = typer.Typer(help="Write what others may have of a run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Write what others may have of a run."""


@app.command("steered-outputs")
def steered_outputs(
    output: Annotated[Path, typer.Option(help="Folder of the release; an earlier release there is replaced.")],
    run: Annotated[str, typer.Argument(help="Run id, or 'latest'.")] = "latest",
    runs: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    concepts: Annotated[
        str | None, typer.Option(help="Comma-separated concept ids; default: all measured ones that may go out.")
    ] = None,
    licence: Annotated[str | None, typer.Option(help="Identifier; default: the preset model's, else unknown.")] = None,
) -> int:
    """Write steered texts with settings, scores and receipts as a dataset; sensitive concepts are refused."""
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.job import prepare
    from poolbench_driver.records import find_run
    from poolbench_driver.release import export_steered_outputs, releasable_concepts
    from poolbench_driver.release.card import model_licence

    folder = find_run(runs, run)
    config = folder.config()
    asked = [name.strip() for name in concepts.split(",") if name.strip()] if concepts else None
    chosen = releasable_concepts(config.concepts, asked)
    session = open_session()
    plan = prepare(config, session).plan
    parts = len(chosen) * (len(plan.scope.strategies) + 2)
    try:
        with typer.progressbar(length=parts, label="exporting", file=sys.stderr) as bar:
            manifest = export_steered_outputs(
                folder,
                plan,
                session.artifacts,
                output,
                concepts=chosen,
                licence=licence or model_licence(config.model),
                on_part=bar.update,
            )
    except KeyboardInterrupt:
        typer.echo(f"interrupted; {output} is as it was", err=True)
        raise SystemExit(Exit.INTERRUPTED) from None
    num = sum(entry.get("num_rows", 0) for entry in manifest["files"].values())
    typer.echo(f"{output}: {num} texts of {len(chosen)} concepts, licence {manifest['licence']}")
    for gap in manifest["missing"]:
        typer.echo(f"missing: {gap['concept']}, {gap['strategy']}: {gap['reason']}", err=True)
    return Exit.FAILURES if manifest["missing"] else Exit.DONE
