"""A run's folder: its files, and how the newest is found.

The folder's name is derived from the configuration, so the same command continues the same run. A run keeps its id in
a folder that was renamed, and its copies are one run.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from filecmp import cmp
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import yaml

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.errors import ConfigError, IntegrityError, NotFoundError, PoolbenchError
from poolbench.statuses import RunState
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.dataset_folder import lives

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.failure import Failure

#: The settings of a run, which make a folder one, and its facts, when it has ended.
_CONFIG_FILE, _MANIFEST_FILE = "config.resolved.yaml", "manifest.json"
#: Definitions of the concepts of users that a run measured, and of their neighbours.
_CONCEPTS_FILE = "concepts.json"
#: Properties of the model, so that the run can be planned where the model is not.
_MODEL_FILE = "model.json"
#: Version of a run's files: of its manifest, its state and its tables.
FOLDER_VERSION = 2
_VERSION_NOTE = b"poolbench.folder_version"
_REMEDY = "the same `poolbench-driver run` command writes it again, from the object store"
#: States of a run whose driver is running.
UNFINISHED = (RunState.STARTING, RunState.RUNNING, RunState.ASSEMBLING)


class RunFolder:
    """The folder of a run, `<output>/<run_id>/`, with its tables, report and state."""

    def __init__(self, path: Path, run_id: str = "") -> None:
        """Take the folder of a run. Without `run_id`, the name of the folder is the id."""
        self.path, self._id = path, run_id

    @classmethod
    def at(cls, path: Path) -> Self:
        """Return the run of a folder.

        A renamed folder keeps the id that its manifest records, unless another run beside it has this id.
        """
        folder = cls(path)
        recorded = folder._recorded_id
        try:
            if recorded == path.name or recorded != run_id(folder.config()):
                return folder
        except PoolbenchError:
            return folder
        beside = (other for other in _folders(path.parent) if recorded in (other._recorded_id, other.id))
        has_namesake = not all(other.is_copy_of(folder) for other in beside)  # it is a copy of itself
        return folder if has_namesake else cls(path, recorded)

    @classmethod
    def create(cls, output: Path, config: RunConfig) -> RunFolder:
        """Create the folder of a configuration's run below `output`, or reuse the existing one."""
        folder = cls(output / run_id(config))
        try:
            (folder.path / "report").mkdir(parents=True, exist_ok=True)
            settings = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
            user_concepts = [name for name in config.concept_ids if CONCEPTS.get(name).corpus]
            note = (
                f"# The texts of {', '.join(user_concepts)} are the user's; corpus.source is for other concepts.\n"
                if user_concepts
                else ""
            )
            folder.file(_CONFIG_FILE).write_text(note + settings, "utf-8")
            if user_concepts:
                from poolbench.library import definitions_of

                folder.file(_CONCEPTS_FILE).write_bytes(definitions_of(config.concept_ids))
            link = output / "latest"
            partial = link.with_name(f".latest-{os.getpid()}")
            partial.unlink(missing_ok=True)
            partial.symlink_to(folder.path.name)
            partial.replace(link)
        except OSError as error:
            raise ConfigError(f"run folder {folder.path}: {error.strerror or error}") from None
        return folder

    @classmethod
    def find(cls, output: Path, name: str) -> Self:
        """Return an existing run.

        Args:
            output: Folder of the runs.
            name: Id of the run, name of its folder, or `latest`.

        Raises:
            NotFoundError: There is no such run; the message lists the runs that exist.
            ConfigError: Another version of PoolBench wrote the run.
        """
        path = output / name
        if not (path / _CONFIG_FILE).is_file():
            runs = {run.id: run.path for run in list_runs(output)}
            run_name = path.readlink().name if path.is_symlink() else name  # `latest`, where the folder was renamed
            if run_name not in runs:
                raise NotFoundError(f"no run {name!r} in {output}; there are: {', '.join(runs) or 'none'}")
            path = runs[run_name]
        return cls.at(path.resolve()).checked()

    def checked(self) -> Self:
        """Return this run. Raise ConfigError if another version of PoolBench wrote its state."""
        state = self.read_state()
        if state.get("state", RunState.DAMAGED) != RunState.DAMAGED:
            _require_version(self.file("state.json"), state.get("schema_version"))
        return self

    @property
    def id(self) -> str:
        """Return the id of the run."""
        return self._id or self.path.name

    @property
    def _recorded_id(self) -> str:
        """Return the id that the manifest records, or the name of the folder if there is no manifest."""
        try:
            return str(json.loads(self.file(_MANIFEST_FILE).read_text("utf-8"))["run_id"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return self.path.name

    def is_copy_of(self, other: RunFolder) -> bool:
        """Return whether both folders hold the same settings and the same results."""
        return all(_is_same(self.file(name), other.file(name)) for name in (_CONFIG_FILE, "results.parquet"))

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    def write_state(self, state: RunState, **fields: Any) -> dict[str, Any]:
        """Write the state of the run, which `status` and `watch` read. Return the content of the file."""
        content = {
            "state": state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "updated_at": now(),
            "code_version": __version__,
            "schema_version": FOLDER_VERSION,
            **fields,
        }
        partial = self.file(".state.json")
        partial.write_text(json.dumps(content, indent=1), "utf-8")
        partial.replace(self.file("state.json"))
        return content

    def read_state(self) -> dict[str, Any]:
        """Return the content of the state file, or {} if there is no file.

        The state is `died` if the process of the run has ended, and `damaged` if the file cannot be read. The next run
        writes the file again.
        """
        try:
            state = json.loads(self.file("state.json").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, OSError, RecursionError):
            return {"state": RunState.DAMAGED}
        if not isinstance(state, dict) or not isinstance(state.get("state"), str):
            return {"state": RunState.DAMAGED}
        return state | {"state": RunState.DIED} if state["state"] in UNFINISHED and _is_gone(state) else state

    def recall_concepts(self) -> None:
        """Register the user's concepts that the run measured, even if they have been removed from the store.

        Raise ConfigError if the file with their definitions is damaged.
        """
        from poolbench.library import recall

        file = self.file(_CONCEPTS_FILE)
        try:
            recall(file.read_bytes() if file.is_file() else b"")
        except ValueError:
            raise ConfigError(f"{file} is damaged; run the command of {self.id} again, which writes it") from None

    def write_model(self, model: ModelInfo) -> None:
        """Write the properties of the model that planning needs."""
        self.file(_MODEL_FILE).write_bytes(model.recorded())

    def model(self) -> ModelInfo | None:
        """Return the recorded properties of the model, or None before the run starts. Raise ConfigError if damaged."""
        from poolbench_driver.models import ModelInfo

        file = self.file(_MODEL_FILE)
        try:
            return ModelInfo.recall(file.read_bytes()) if file.is_file() else None
        except ValueError:
            raise ConfigError(f"{file} is damaged; run the command of {self.id} again, which writes it") from None

    def config(self) -> RunConfig:
        """Return the configuration. Raise ConfigError if the file is damaged or of another version."""
        try:
            return load_run_config(self.file(_CONFIG_FILE), {})
        except ConfigError as error:
            remedy = f"run the command of {self.id} again, which writes it, or remove the folder"
            raise ConfigError(f"{error}; {remedy}") from None

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write `<name>.parquet` completely or not at all."""
        import pyarrow.parquet as pq

        partial = self.file(f".{name}.parquet")
        notes = {**(table.schema.metadata or {}), _VERSION_NOTE: str(FOLDER_VERSION).encode()}
        pq.write_table(table.replace_schema_metadata(notes), partial, compression="zstd")
        partial.replace(self.file(f"{name}.parquet"))

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Return the rows of a table in which columns have the given values, or all rows without values.

        Return no rows if the run has no such table or the table has no such column. Raise the errors of `read_table`.
        """
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        file = self.file(f"{name}.parquet")
        if not file.is_file() or not values.keys() <= set(pq.read_schema(file).names):
            return []
        conditions = [
            pc.is_null(pc.field(column)) if value is None else pc.field(column) == value
            for column, value in values.items()
        ]
        return self.read_table(name, reduce(and_, conditions) if conditions else None).to_pylist()

    def read_table(
        self, name: str, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Read a table of the run.

        Args:
            name: Name of the table, such as `results`.
            where: Condition on the rows; by default all rows are read.
            columns: Columns to read; by default all.

        Raises:
            NotFoundError: The run has not written the table yet.
            IntegrityError: The table is damaged.
            ConfigError: Another version of PoolBench wrote the table.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        file = self.file(f"{name}.parquet")
        if not file.is_file():
            raise NotFoundError(f"run {self.id} has no {name}.parquet yet; `poolbench-driver run` finishes it")
        try:
            if where is None:  # `read_table` of pyarrow imports pandas where it is installed, for .7 s
                table = pq.ParquetFile(file).read(columns)
            else:
                table = pq.read_table(file, columns=columns, filters=where)
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(f"{file} is damaged ({str(error)[:120]}); {_REMEDY}") from None
        _require_version(file, (table.schema.metadata or {}).get(_VERSION_NOTE, b"none").decode())
        return table

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """Return the tables by name. Each table is read when it is accessed, by `read_table`."""
        return _TablesOfFolder(self)

    def finished(self) -> FinishedRun:
        """Return the id, configuration and tables of the run, for its suite."""
        return FinishedRun(self.id, self.config(), self.tables)

    def write_manifest(self, **facts: Any) -> None:
        """Write `manifest.json` with facts of the run, and with the size and hash of each file for checks of copies."""
        files = sorted(file for file in self.path.rglob("*") if file.is_file() and file.name not in _NOT_LISTED)
        content = {
            "run_id": self.id,
            "schema_version": FOLDER_VERSION,
            "code_version": __version__,
            "created_at": now(),
            **facts,
            "files": {
                file.relative_to(self.path).as_posix(): {
                    "bytes": file.stat().st_size,
                    "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
                }
                for file in files
            },
        }
        self.file(_MANIFEST_FILE).write_text(json.dumps(content, indent=1), "utf-8")

    def write_failures(self, failures: Sequence[Failure]) -> None:
        """Write `failures.parquet`."""
        import pyarrow as pa

        text = [(name, pa.string()) for name in ("task_id", "kind", "status", "reason")]
        schema = pa.schema([*text, ("blocked", pa.bool_())])
        self.write_table("failures", pa.Table.from_pylist([asdict(failure) for failure in failures], schema))


class _TablesOfFolder(Mapping[str, "pa.Table"]):
    """The tables of a run by name, each read when it is accessed."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> pa.Table:
        return self._folder.read_table(name)

    def __contains__(self, name: object) -> bool:
        return self._folder.file(f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        return (file.stem for file in sorted(self._folder.path.glob("[!.]*.parquet")))

    def __len__(self) -> int:
        return len(list(iter(self)))


#: Files that change after the manifest is written.
_NOT_LISTED = (_MANIFEST_FILE, "state.json")


def manifest_files(manifest: bytes, where: Path | str) -> dict[str, str]:
    """Return the SHA-256 of each file of a run by its name, from a manifest.

    Raises:
        IntegrityError: The manifest is damaged.
        ConfigError: Another version of PoolBench wrote the manifest.
    """
    try:
        content = json.loads(manifest)
        files = {str(name): str(facts["sha256"]) for name, facts in content["files"].items()}
        version = content["schema_version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise IntegrityError(f"{where} is damaged; {_REMEDY}") from None
    _require_version(where, version)
    return files


def _require_version(where: Path | str, version: Any) -> None:
    if str(version) != str(FOLDER_VERSION):
        raise ConfigError(f"{where} has version {version}, and this PoolBench reads {FOLDER_VERSION}; {_REMEDY}")


def run_id(config: RunConfig) -> str:
    """Return the id of a configuration's run: its budget, its data and its hash.

    A user may remove a concept and add it again with other passages, so the hash contains the revisions of passages.
    """
    corpus_by_concept = {name: corpus for name in config.concept_ids if (corpus := CONCEPTS.get(name).corpus)}
    if corpus_by_concept:
        digest = hashlib.sha256(
            json.dumps([config.config_hash(), corpus_by_concept], sort_keys=True).encode()
        ).hexdigest()
        return f"{config.budget.name}-own-{digest[:8]}"
    return f"{config.budget.name}-{config.data_name}-{config.config_hash()[:8]}"


def list_runs(output: Path) -> list[RunFolder]:
    """Return all runs below `output`, newest first. Copies of a run count once."""
    return without_copies(RunFolder.at(folder.path) for folder in _folders(output))


def _folders(output: Path) -> list[RunFolder]:
    """Return the folders of runs below `output`, newest first, with their names as ids."""
    files = [file for file in output.glob(f"*/{_CONFIG_FILE}") if not file.parent.is_symlink()]
    return [RunFolder(file.parent) for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]


def without_copies(folders: Iterable[RunFolder]) -> list[RunFolder]:
    """Return the folders without copies. Of equal folders, the one named by its id is kept, or else the first."""
    folders = list(folders)
    runs_by_settings = dict[bytes, list[RunFolder]]()  # few results are then compared
    for folder in sorted(folders, key=lambda one: one.id != one.path.name):
        of_settings = runs_by_settings.setdefault(folder.file(_CONFIG_FILE).read_bytes(), [])
        if not any(folder.is_copy_of(other) for other in of_settings):
            of_settings.append(folder)
    return [folder for folder in folders if any(folder is one for runs in runs_by_settings.values() for one in runs)]


def _is_same(first: Path, second: Path) -> bool:
    if first.is_file() and second.is_file():
        return cmp(first, second, shallow=False)
    return not first.is_file() and not second.is_file()


def now() -> str:
    """Return the current UTC time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_gone(state: dict[str, Any]) -> bool:
    """Return whether the process that wrote a state has ended. A process of another machine counts as running."""
    if state.get("host") != socket.gethostname():
        return False
    try:
        return not lives(int(state["pid"]))
    except (KeyError, TypeError, ValueError):
        return True
