"""Find runs: by name, in a folder of runs, in the object store, and by the address of a run in another store.

A run keeps its id in a folder that was renamed, and its copies are one run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import ConfigError, IntegrityError, NotFoundError, PoolbenchError, shown
from poolbench.statuses import RunState
from poolbench_driver.dataset_folder import replacing
from poolbench_driver.records.run import (
    CONFIG_FILE,
    MANIFEST_FILE,
    STATE_FILE,
    Run,
    is_published,
    manifest_files,
    require_version,
    run_id,
)

if TYPE_CHECKING:  # what reads an object store is imported when a store is read
    from poolbench.settings import ClusterSettings
    from poolbench.storage.base import ObjectStore
    from poolbench_driver.records.record import RunRecords

#: The name of the run that was started last.
LATEST = "latest"


@dataclass(frozen=True)
class Runs:
    """The runs below a folder and, if the records of an object store are given, the runs of this store.

    Attributes:
        output: The folder.
        records: The records of the object store, or None for the folder alone.
        ids: Ids of the runs to include. If empty, all runs are included.
    """

    output: Path
    records: RunRecords | None = None
    ids: Sequence[str] = ()

    def all(self) -> list[Run]:
        """Return all runs, newest first: first the runs of the store, then the runs that have a folder only."""
        here = {run.id: run for run in self._here()}
        recorded = [_with_record(here.pop(name, None), self.output / name, state) for name, state in self._records()]
        return [run for run in (*recorded, *here.values()) if not self.ids or run.id in self.ids]

    def find(self, name: str) -> Run:
        """Return a run by its id, the name of its folder, or `latest`.

        `latest` is the run that was started last in the folder, or the newest of the store if the folder has none.

        Raises:
            NotFoundError: There is no such run; the message lists the runs that exist.
            ConfigError: Another version of PoolBench wrote the run.
        """
        if self.ids and name not in self.ids:
            raise NotFoundError(f"run {shown(name)} is not among those that are shown")
        if (run := self._find_here(name)) is not None:
            return self.look_again(run)
        for record_id, state in self._records():
            if name in (LATEST, record_id):
                return _with_record(self._find_here(record_id), self.output / record_id, state)
        places = f"{self.output} or the object store" if self.records else self.output
        raise NotFoundError(
            f"no run {shown(name)} in {places}; there are: {', '.join(run.id for run in self.all()) or 'none'}"
        )

    def look_again(self, run: Run) -> Run:
        """Return a run with the current state of its record."""
        return Run(run.path, run.id, self.records.get(run.id) if self.records else None)

    def fetch(self, run: Run, *, renew: bool = False) -> Run:
        """Return a run with its files. Copy the files from the object store if they are not on this machine.

        Args:
            run: A run of these.
            renew: Copy the files again if the run has been written since.

        Raises:
            NotFoundError: The run has not ended.
        """
        if self.records is None or (run.is_here and not renew):
            return run
        state, state_here = run.read_state(), Run(run.path).read_state()
        if run.is_here and state_here.get("updated_at") == state.get("updated_at"):
            return run
        return _fetched(self.records.store, run.id, state, self.output)

    def finished(self) -> tuple[list[Run], dict[str, str]]:
        """Return the runs that have results, newest first, and by run id the errors of runs that cannot be read."""
        runs, unread = [], {}
        for run in self.all():
            try:
                fetched = self.fetch(run, renew=True)
            except NotFoundError:  # it has not ended
                continue
            except PoolbenchError as error:
                unread[run.id] = str(error)
                continue
            if "results" in fetched.tables:
                runs.append(fetched)
        return runs, unread

    def _here(self) -> list[Run]:
        """Return the runs that have a folder, newest first. Copies of a run count once."""
        return without_copies(run_at(run.path) for run in _folders(self.output))

    def _find_here(self, name: str) -> Run | None:
        """Return a run that has a folder, or None. Raise ConfigError if another version of PoolBench wrote the run."""
        path = self.output / name
        if not Run(path).is_here:
            run_name = path.readlink().name if path.is_symlink() else name  # `latest`, where the folder was renamed
            path_by_id = {run.id: run.path for run in self._here()}
            if run_name not in path_by_id:
                return None
            path = path_by_id[run_name]
        return _checked(run_at(path.resolve()))

    def _records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self.records.all().items() if self.records else ()


def open_runs(output: Path, settings: ClusterSettings | None = None) -> Runs:
    """Return the runs below a folder and in the object store of a cluster. Raise ConfigError if there is none."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records.record import RunRecords

    return Runs(output, RunRecords(open_artifacts(settings).store))


def find_run(output: Path, name: str) -> Run:
    """Return a run with its files, by its folder, by its id or `latest`, or by `<store>/runs/<id>`.

    A run of another machine is copied into `output` first. Raise NotFoundError if no run has this name, or if the run
    has not ended.
    """
    if Run(Path(name)).is_here:
        return _checked(run_at(Path(name).resolve()))
    place, _, run_name = name.rstrip("/").rpartition("/runs/") if "://" in name else ("", "", name)
    try:
        return Runs(output).find(run_name)
    except NotFoundError as error:
        try:
            runs = _runs_of_store(output, place) if place else open_runs(output)
        except ConfigError:
            if place:
                raise
            raise error from None  # without a store, the folder alone was asked
    return runs.fetch(runs.find(run_name))


def _runs_of_store(output: Path, uri: str) -> Runs:
    from poolbench.storage import open_store
    from poolbench_driver.records.record import RunRecords

    return Runs(output, RunRecords(open_store(uri)))


def find_runs(output: Path, names: Iterable[str]) -> list[Run]:
    """Return the runs of these names, as `find_run` does. Copies are left out, so that no run counts twice."""
    return without_copies(find_run(output, name) for name in names)


def local_runs(output: Path, names: Sequence[str] = ()) -> Runs:
    """Return local runs: those of a folder, or some of them by id, `latest` or path.

    Raise NotFoundError for a run that is not there.
    """
    if len(names) == 1 and Path(names[0]).is_dir() and not Run(Path(names[0])).is_here:
        return Runs(Path(names[0]))
    here = Runs(output)
    runs = [run_at(Path(name).resolve()) if Run(Path(name)).is_here else here.find(name) for name in names]
    places = {run.path.parent for run in runs} or {output}
    if len(places) > 1:
        raise NotFoundError("the runs lie in several folders; name runs of one folder, or the folder alone")
    if not runs and not here.all():
        raise NotFoundError(f"no run in {output}; `poolbench-driver run` makes one, and --output names another folder")
    return Runs(places.pop(), ids=tuple(run.id for run in runs))


def run_at(path: Path) -> Run:
    """Return the run of a folder.

    A renamed folder keeps the id that its manifest records, unless another run beside it has this id.
    """
    run, recorded = Run(path), _recorded_id(path)
    try:
        if recorded == path.name or recorded != run_id(run.config):
            return run
    except PoolbenchError:
        return run
    beside = (other for other in _folders(path.parent) if recorded in (_recorded_id(other.path), other.id))
    has_namesake = not all(_is_copy(other, run) for other in beside)  # it is a copy of itself
    return run if has_namesake else Run(path, recorded)


def without_copies(runs: Iterable[Run]) -> list[Run]:
    """Return the runs without copies. Of equal folders, prefer the folder named by its run id, then the first."""
    runs = list(runs)
    runs_by_settings = dict[bytes, list[Run]]()  # few results are then compared
    for run in sorted(runs, key=lambda one: one.id != one.path.name):
        of_settings = runs_by_settings.setdefault(run.file(CONFIG_FILE).read_bytes(), [])
        if not any(_is_copy(run, other) for other in of_settings):
            of_settings.append(run)
    return [run for run in runs if any(run is one for of_settings in runs_by_settings.values() for one in of_settings)]


def _with_record(run: Run | None, path: Path, state: dict[str, Any]) -> Run:
    """Return a run with a record. If `run` is None, the run has no folder yet, and its folder will be `path`."""
    return Run(path, record=state) if run is None else Run(run.path, run.id, state)


def _folders(output: Path) -> list[Run]:
    """Return the runs that have a folder below `output`, newest first, with the names of the folders as ids."""
    files = [file for file in output.glob(f"*/{CONFIG_FILE}") if not file.parent.is_symlink()]
    return [Run(file.parent) for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]


def _recorded_id(path: Path) -> str:
    """Return the id that the manifest in a folder records, or the name of the folder if there is no manifest."""
    try:
        return str(json.loads((path / MANIFEST_FILE).read_text("utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return path.name


def _is_copy(run: Run, other: Run) -> bool:
    """Return whether two folders hold the same settings and the same results."""
    return all(_is_same(run.file(name), other.file(name)) for name in (CONFIG_FILE, "results.parquet"))


def _is_same(first: Path, second: Path) -> bool:
    if first.is_file() and second.is_file():
        return cmp(first, second, shallow=False)
    return not first.is_file() and not second.is_file()


def _checked(run: Run) -> Run:
    """Return a run. Raise ConfigError if another version of PoolBench wrote its state."""
    state = run.read_state()
    if state.get("state", RunState.DAMAGED) != RunState.DAMAGED:
        require_version(run.file(STATE_FILE), state.get("schema_version"))
    return run


def _fetched(store: ObjectStore, name: str, state: dict[str, Any], output: Path) -> Run:
    """Copy the files of a run, and check each file against the manifest. The folder appears whole or not at all."""
    place = output / name
    with replacing(place) as partial:
        manifest = _get(store, name, MANIFEST_FILE, state)
        for file, sha256 in manifest_files(manifest, run_path(name, f"{RUN_FILES}{MANIFEST_FILE}")).items():
            if is_published(file):
                data = _get(store, name, file, state)
                if hashlib.sha256(data).hexdigest() != sha256:
                    path = run_path(name, f"{RUN_FILES}{file}")
                    raise IntegrityError(f"{path} is damaged; the same `poolbench-driver run` command writes it again")
                (partial / file).write_bytes(data)
        (partial / MANIFEST_FILE).write_bytes(manifest)
        (partial / STATE_FILE).write_text(json.dumps(state, indent=1), "utf-8")
    return Run(place.resolve())


def _get(store: ObjectStore, name: str, file: str, state: dict[str, Any]) -> bytes:
    try:
        return store.get(run_path(name, f"{RUN_FILES}{file}"))
    except NotFoundError:
        where = f"{state.get('host', 'another machine')}, folder {state.get('folder', '?')}"
        raise NotFoundError(
            f"the object store has no {file} of run {name} (state: {state.get('state', 'unknown')}; {where}): tables "
            "are there when a run has ended; the same `poolbench-driver run` command writes them"
        ) from None
