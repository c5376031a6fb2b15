"""Upkeep: gc and doctor."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import DAMAGED_FOLDER, RESTRICTED_FOLDER, Exit, scorers_path
from poolbench.errors import ConfigError, IntegrityError, PoolbenchError, RestrictedError

if TYPE_CHECKING:
    from poolbench.storage import Artifacts, ObjectInfo
    from poolbench_driver.cluster.session import Session
    from poolbench_driver.records import Run
    from poolbench_driver.run.erasure import Erasure


def gc(
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    delete: Annotated[bool, typer.Option("--delete", help="Delete; without it, only say what would go.")] = False,
    min_age_h: Annotated[float, typer.Option(help="Spare what is younger than this.")] = 24.0,
) -> None:
    """Remove artifacts that no run needs, and texts of sensitive concepts that are scored."""
    from poolbench.storage import older_than
    from poolbench.storage.damage import objects_set_aside
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.imports.record import imported_keys
    from poolbench_driver.records import RunRecords, Runs
    from poolbench_driver.run import committed_keys
    from poolbench_driver.run.erasure import scored_texts

    session = open_session()
    runs = Runs(output, RunRecords(session.artifacts.store)).all()
    if not runs and delete:
        raise ConfigError(
            f"no run lies in {output} or has a record in the object store, so nothing says what is needed; "
            "nothing was deleted"
        )
    needs = needs_of(runs, session)
    keep = needs.keys | scorer_keys(session.artifacts) | imported_keys(session.artifacts)
    is_old = older_than(session.artifacts.store, min_age_h * 3600)
    doomed = unneeded(session.artifacts, keep, is_old)
    scored = scored_texts(committed_keys(session.artifacts), needs.idle, needs.busy)
    torn = [path for erasure in needs.idle for path in erasure.torn(is_old)]
    aside = [info for info in objects_set_aside(session.artifacts.store) if is_old(info)]
    if delete:
        _delete(session.artifacts, doomed, scored, [*torn, *(info.path for info in aside)])
    verb = "deleted" if delete else "could go (--delete)"
    size = sum(doomed.values()) / 1e6
    typer.echo(f"{len(doomed)} artifacts, {size:.1f} MB, {verb}; {len(runs)} runs need {len(keep)} others")
    if scored or torn:
        typer.echo(f"texts of sensitive concepts: {len(scored)} sets that are scored, {len(torn)} torn files, {verb}")
    if aside:
        size = sum(info.size for info in aside) / 1e6
        typer.echo(f"set aside as damaged: {len(aside)} files, {size:.1f} MB, {verb}")


@dataclass(frozen=True)
class Needs:
    """What runs need of the object store."""

    keys: set[str]  # of all runs
    busy: set[str]  # keys of runs on which a driver works
    idle: list[Erasure]  # texts of the other runs that have a folder here


def needs_of(runs: Iterable[Run], session: Session) -> Needs:
    """Return what runs need. A run with a folder here is planned; the record of a run names the keys that it needs.

    A run that cannot be planned, or whose record is damaged, raises an error: its artifacts are unknown.
    """
    from poolbench_driver.job import prepare
    from poolbench_driver.records import RunRecords
    from poolbench_driver.run.erasure import Erasure

    records, needs = RunRecords(session.artifacts.store), Needs(set(), set(), [])
    for run in runs:
        own = set(records.keys(run.id)) if run.record else set()
        if run.folder:
            plan = prepare(run.folder.config(), session).plan
            own |= plan.keys
            if not run.unfinished:
                needs.idle.append(Erasure(plan, session.artifacts))
        needs.keys.update(own)
        if run.unfinished:
            needs.busy.update(own)
    return needs


def _delete(artifacts: Artifacts, keys: Iterable[str], scored: Iterable[str], torn: Iterable[str]) -> None:
    from poolbench.storage.erasure import erase_texts

    for key in keys:
        artifacts.delete(key)
    for key in scored:
        erase_texts(artifacts, key)
    for path in torn:
        artifacts.store.delete(path)


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
    """Return the scorers that ad-hoc requests find by the name of their concept."""
    return {scorer_pointer(artifacts, info.path)["scorer"] for info in artifacts.store.list(scorers_path())}


def scorer_pointer(artifacts: Artifacts, path: str) -> dict[str, str]:
    """Return the content of `scorers/<concept>/<base>.json`; raise IntegrityError if it is damaged."""
    try:
        pointer = json.loads(artifacts.store.get(path))
        return {"scorer": str(pointer["scorer"]), "base": str(pointer.get("base", Path(path).stem))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        remedy = "import or train that scorer again (`poolbench-driver import scorers`, a run), or remove the file"
        raise IntegrityError(f"{path} in {artifacts.store.uri} is damaged; {remedy}") from None


def doctor() -> int:
    """Check assets, object store, broker, token and every service; exit code 1 when something is wrong."""
    from poolbench.config import asset_path
    from poolbench.contracts.wire import SERVICES
    from poolbench.storage import require_conditional_writes
    from poolbench_driver.cluster.session import open_session

    results = [_check(name, partial(asset_path, name)) for name in ("demo_lm", "annotator")]
    try:
        session = open_session()
    except PoolbenchError as error:
        typer.echo(f"FAIL  cluster: {error}")
        return Exit.FAILURES
    results.append(_check(f"object store {session.artifacts.store.uri}", partial(_write_once, session.artifacts)))
    results.append(_check("conditional writes", partial(require_conditional_writes, session.artifacts.store)))
    results.append(_check_restricted(session.artifacts))
    if lines := describe_set_aside(session.artifacts):
        typer.echo(f"note  {lines}")
    results.append(_check(f"broker {session.queue.broker.shown}", session.queue.ping))
    results += [_check(name, partial(session.services.health, name)) for name in SERVICES]
    return Exit.DONE if all(results) else Exit.FAILURES


def describe_set_aside(artifacts: Artifacts) -> str:
    """Return one line on what was set aside as damaged; empty when there is nothing."""
    from poolbench.storage.damage import objects_set_aside

    found = list(objects_set_aside(artifacts.store))
    size = sum(info.size for info in found) / 1e6
    hint = "`poolbench-driver gc --delete` removes those that are older than a day"
    return f"{len(found)} damaged files ({size:.1f} MB) are set aside below {DAMAGED_FOLDER}/; {hint}" if found else ""


def _check_restricted(artifacts: Artifacts) -> bool:
    """Return whether restricted artifacts can be written; a process without access to them passes."""
    try:
        artifacts.require_restricted()
    except RestrictedError as error:
        typer.echo(f"note  sensitive concepts cannot be run from here: {error}")
        return True
    return _check("restricted artifacts", partial(_write_once, artifacts, f"{RESTRICTED_FOLDER}/doctor"))


def _write_once(artifacts: Artifacts, folder: str = "doctor") -> None:
    path = f"{folder}/{uuid.uuid4().hex}"
    artifacts.store.put(path, bytes(1 << 16))
    artifacts.store.get(path)
    artifacts.store.delete(path)


def _check(what: str, check: Callable[[], object]) -> bool:
    try:
        check()
    except PoolbenchError as error:
        typer.echo(f"FAIL  {what}: {error}")
        return False
    typer.echo(f"ok    {what}")
    return True


COMMANDS = (gc, doctor)
