"""Upkeep: gc and doctor."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import DAMAGED_FOLDER, RESTRICTED_FOLDER, Exit, scorers_path
from poolbench.errors import ConfigError, IntegrityError, PoolbenchError, RestrictedError

if TYPE_CHECKING:
    from poolbench.storage import Artifacts


def gc(
    output: Annotated[Path, typer.Option(help="Runs whose artifacts are kept.")] = Path("runs"),
    delete: Annotated[bool, typer.Option("--delete", help="Delete; without it, only say what would go.")] = False,
    min_age_h: Annotated[float, typer.Option(help="Spare what is younger than this.")] = 24.0,
) -> None:
    """Remove artifacts that no run below --output needs, and texts of sensitive concepts that are scored."""
    from poolbench.storage.damage import objects_set_aside
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.imports.record import imported_keys
    from poolbench_driver.job import prepare
    from poolbench_driver.run import committed_keys
    from poolbench_driver.run.erasure import Erasure, scored_texts
    from poolbench_driver.rundir import UNFINISHED, list_runs

    session = open_session()
    runs = list_runs(output)
    if not runs and delete:
        raise ConfigError(f"no run lies in {output}, so nothing says what is needed; nothing was deleted")
    keep = scorer_keys(session.artifacts) | imported_keys(session.artifacts)
    idle: list[Erasure] = []
    busy: list[Erasure] = []
    for folder in runs:  # a run that cannot be planned stops everything: its artifacts are unknown
        plan = prepare(folder.config(), session).plan
        keep |= plan.keys
        at_work = folder.read_state().get("state") in UNFINISHED
        (busy if at_work else idle).append(Erasure(plan, session.artifacts))
    older_than_s = time.time() - min_age_h * 3600
    doomed = unneeded(session.artifacts, keep, older_than_s=older_than_s)
    scored = scored_texts(committed_keys(session.artifacts), idle, busy)
    torn = [path for erasure in idle for path in erasure.torn(older_than_s)]
    aside = [info for info in objects_set_aside(session.artifacts.store) if info.modified_s <= older_than_s]
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


def _delete(artifacts: Artifacts, keys: Iterable[str], scored: Iterable[str], torn: Iterable[str]) -> None:
    from poolbench.storage.erasure import erase_texts

    for key in keys:
        artifacts.delete(key)
    for key in scored:
        erase_texts(artifacts, key)
    for path in torn:
        artifacts.store.delete(path)


def unneeded(artifacts: Artifacts, keep: set[str], *, older_than_s: float) -> dict[str, int]:
    """Return bytes by key of old artifacts that no run needs, uncommitted attempts included."""
    sizes: Counter[str] = Counter()
    newest: dict[str, float] = {}
    for key, info in artifacts.objects():
        sizes[key] += info.size
        newest[key] = max(newest.get(key, 0.0), info.modified_s)
    old = (key for key, modified_s in newest.items() if modified_s <= older_than_s)
    return {key: sizes[key] for key in sorted(old) if key not in keep}


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
    from poolbench_driver.cluster.session import open_session

    results = [_check(name, partial(asset_path, name)) for name in ("demo_lm", "annotator")]
    try:
        session = open_session()
    except PoolbenchError as error:
        typer.echo(f"FAIL  cluster: {error}")
        return Exit.FAILURES
    results.append(_check(f"object store {session.artifacts.store.uri}", partial(_write_once, session.artifacts)))
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
