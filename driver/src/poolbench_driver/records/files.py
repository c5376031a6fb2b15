"""The files of a finished run in the object store, so that other machines can report and compare it."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import ConfigError, IntegrityError, NotFoundError, PoolbenchError
from poolbench.storage import open_store
from poolbench.storage.base import ObjectStore
from poolbench_driver.records.folder import RunFolder, manifest_files
from poolbench_driver.records.record import RunRecords
from poolbench_driver.records.runs import Runs

_MANIFEST, _STATE = "manifest.json", "state.json"


def publish_files(store: ObjectStore, folder: RunFolder) -> None:
    """Write the files of a run's manifest into the store, and the manifest last."""
    for name in manifest_files(folder.file(_MANIFEST).read_bytes(), folder.file(_MANIFEST)):
        if _is_published(name):
            store.put(run_path(folder.id, f"{RUN_FILES}{name}"), folder.file(name).read_bytes())
    store.put(run_path(folder.id, f"{RUN_FILES}{_MANIFEST}"), folder.file(_MANIFEST).read_bytes())


def find_run(output: Path, name: str) -> RunFolder:
    """Return a run by its folder, its id or `latest`, or by `<store>/runs/<id>` with the URI of an object store.

    A run of another machine is fetched into `output` first. Raise NotFoundError if no run has this name, or if it has
    not ended.
    """
    if (Path(name) / "config.resolved.yaml").is_file():
        return RunFolder(Path(name).resolve()).checked()
    place, _, run_name = name.rstrip("/").rpartition("/runs/") if "://" in name else ("", "", name)
    try:
        return RunFolder.find(output, run_name)
    except NotFoundError as error:
        store = open_store(place) if place else _store(error)
        run = Runs(output, RunRecords(store)).find(run_name)
        with suppress(NotFoundError):  # `latest` of the store may have been fetched before
            return RunFolder.find(output, run.id)
        return _fetched(store, run.id, run.state, output)


def _is_published(name: str) -> bool:
    """Return whether other machines need a file; they write the report themselves."""
    return "/" not in name and name.endswith((".parquet", ".yaml", ".json"))


def _store(error: NotFoundError) -> ObjectStore:
    """Return the object store; without one, the error that the run is not in the folder stands."""
    from poolbench_driver.cluster.session import open_artifacts

    try:
        return open_artifacts().store
    except ConfigError:
        raise error from None


def _fetched(store: ObjectStore, run_id: str, state: dict[str, Any], output: Path) -> RunFolder:
    """Copy the files of a run, each checked against the manifest. The folder appears whole or not at all."""
    partial = output / f".{run_id}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        manifest = _get(store, run_id, _MANIFEST, state)
        for name, sha256 in manifest_files(manifest, run_path(run_id, f"{RUN_FILES}{_MANIFEST}")).items():
            if _is_published(name):
                data = _get(store, run_id, name, state)
                if hashlib.sha256(data).hexdigest() != sha256:
                    path = run_path(run_id, f"{RUN_FILES}{name}")
                    raise IntegrityError(f"{path} is damaged; the same `poolbench-driver run` command writes it again")
                (partial / name).write_bytes(data)
        (partial / _MANIFEST).write_bytes(manifest)
        (partial / _STATE).write_text(json.dumps(state, indent=1), "utf-8")
        partial.rename(output / run_id)
    except (OSError, PoolbenchError):
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return RunFolder((output / run_id).resolve())


def _get(store: ObjectStore, run_id: str, name: str, state: dict[str, Any]) -> bytes:
    try:
        return store.get(run_path(run_id, f"{RUN_FILES}{name}"))
    except NotFoundError:
        where = f"{state.get('host', 'another machine')}, folder {state.get('folder', '?')}"
        raise NotFoundError(
            f"the object store has no {name} of run {run_id} (state: {state.get('state', 'unknown')}; {where}): tables "
            "are there when a run has ended; the same `poolbench-driver run` command writes them"
        ) from None
