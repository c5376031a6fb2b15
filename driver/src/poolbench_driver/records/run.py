"""A run: its id, its settings, its state and its tables, as they lie in its folder and in the object store."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.contracts import Row
from poolbench.errors import ConfigError, IntegrityError, NotFoundError
from poolbench.statuses import RunState
from poolbench_driver.dataset_folder import lives

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.config import RunConfig
    from poolbench_driver.contract.suite import SuiteInfo
    from poolbench_driver.models import ModelInfo

#: The settings of a run, which make a folder one; its facts, when it has ended; and its state.
CONFIG_FILE, MANIFEST_FILE, STATE_FILE = "config.resolved.yaml", "manifest.json", "state.json"
#: Definitions of the concepts of users that a run measured, and of their neighbours.
CONCEPTS_FILE = "concepts.json"
#: Properties of the model, so that the run can be planned where the model is not.
MODEL_FILE = "model.json"
#: Version of a run's files: of its manifest, its state and its tables.
FOLDER_VERSION = 2
VERSION_NOTE = b"poolbench.folder_version"
#: Table with what the plan of a run left out or does not know.
NOTES = "notes"
_REMEDY = "the same `poolbench-driver run` command writes it again, from the object store"
#: States of a run whose driver is running.
UNFINISHED = (RunState.STARTING, RunState.RUNNING, RunState.ASSEMBLING)


class Run:
    """A run that has a folder here, a record in the object store, or both.

    Attributes:
        path: The folder of the run. It does not exist if only the object store has the run.
        id: The id of the run.
        record: The state of the run in the object store; None if the store has no record or was not asked.
    """

    def __init__(self, path: Path, run_id: str = "", record: dict[str, Any] | None = None) -> None:
        """Take a folder, whose name is the id if no `run_id` is given."""
        self.path, self.id, self.record = path, run_id or path.name, record

    @property
    def is_here(self) -> bool:
        """Return whether the folder of the run is on this machine."""
        return self.file(CONFIG_FILE).is_file()

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder."""
        return self.path / name

    @cached_property
    def config(self) -> RunConfig:
        """Return the configuration. Raise ConfigError if the file is damaged or of another version."""
        from poolbench_driver.contract.load import load_run_config

        try:
            return load_run_config(self.file(CONFIG_FILE), {})
        except ConfigError as error:
            remedy = f"run the command of {self.id} again, which writes it, or remove the folder"
            raise ConfigError(f"{error}; {remedy}") from None

    @property
    def suite(self) -> SuiteInfo:
        """Return the metadata of the suite of the run."""
        from poolbench_driver.contract.registry import SUITES

        return SUITES.get(self.config.suite)

    @property
    def model(self) -> ModelInfo | None:
        """Return the recorded properties of the model, or None before the run starts. Raise ConfigError if damaged."""
        from poolbench_driver.models import ModelInfo

        file = self.file(MODEL_FILE)
        try:
            return ModelInfo.recall(file.read_bytes()) if file.is_file() else None
        except ValueError:
            raise ConfigError(f"{file} is damaged; run the command of {self.id} again, which writes it") from None

    @property
    def state(self) -> RunState | None:
        """Return the state of the run, or None if it has not recorded a state yet."""
        state = self.read_state().get("state")
        return None if state is None else RunState(state)

    @property
    def unfinished(self) -> bool:
        """Return whether the run is starting, running or being assembled."""
        return self.read_state().get("state") in UNFINISHED

    def read_state(self) -> dict[str, Any]:
        """Return the state of the run with its counts of tasks, its machine and its times, or {} without a state.

        Folder and record differ if another machine works on the run, or if the store was away. The folder is right
        about a driver that lives on this machine. Of two states that this machine wrote, the later one is right: they
        have one clock. Otherwise the record is right, because every driver writes one.
        """
        here, record = self._read_state_here(), self.record
        if not record:
            return here
        if here.get("host") != socket.gethostname():
            return record
        if here.get("state") in UNFINISHED:
            return here
        same_clock = record.get("host") == here["host"]
        is_later = str(here.get("updated_at")) >= str(record.get("updated_at"))
        return here if same_clock and is_later else record

    def _read_state_here(self) -> dict[str, Any]:
        """Return the content of the state file, or {} if there is no file.

        The state is `died` if the process of the run has ended, and `damaged` if the file cannot be read. The next run
        writes the file again.
        """
        try:
            state = json.loads(self.file(STATE_FILE).read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, OSError, RecursionError):
            return {"state": RunState.DAMAGED}
        if not isinstance(state, dict) or not isinstance(state.get("state"), str):
            return {"state": RunState.DAMAGED}
        return state | {"state": RunState.DIED} if state["state"] in UNFINISHED and _is_gone(state) else state

    @cached_property
    def tables(self) -> Mapping[str, pa.Table]:
        """Return the tables by name. Each table is read when it is used, and again only after it was written again.

        Using a table raises the errors of `read_table`.
        """
        return _Tables(self)

    def read_table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a table of the run from its file. `tables` has the tables that are used several times.

        Args:
            name: Name of the table, such as `results`.
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
            table = pq.ParquetFile(file).read(columns)  # `read_table` of pyarrow imports pandas if installed, for .7 s
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(f"{file} is damaged ({str(error)[:120]}); {_REMEDY}") from None
        require_version(file, (table.schema.metadata or {}).get(VERSION_NOTE, b"none").decode())
        return table

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Return the rows of a table in which columns have the given values, or all rows without values.

        Return no rows if the run has no such table or the table has no such column. Raise the errors of `read_table`.
        """
        import pyarrow.compute as pc

        if name not in self.tables:
            return []
        table = self.tables[name]
        if not values.keys() <= set(table.column_names):
            return []
        conditions = [
            pc.is_null(pc.field(column)) if value is None else pc.field(column) == value
            for column, value in values.items()
        ]
        return (table.filter(reduce(and_, conditions)) if conditions else table).to_pylist()


class _Tables(Mapping[str, "pa.Table"]):
    """The tables of a run by name, each read when it is used and kept until its file changes."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kept: dict[str, tuple[tuple[int, ...], pa.Table]] = {}  # with what tells the versions of its file apart

    def __getitem__(self, name: str) -> pa.Table:
        version = self._version(name)
        if name not in self._kept or self._kept[name][0] != version:
            self._kept[name] = version, self._run.read_table(name)
        return self._kept[name][1]

    def _version(self, name: str) -> tuple[int, ...]:
        try:
            written = self._run.file(f"{name}.parquet").stat()
        except FileNotFoundError:
            return ()
        return written.st_ino, written.st_mtime_ns, written.st_size

    def __contains__(self, name: object) -> bool:
        return self._run.file(f"{name}.parquet").is_file()

    def __iter__(self) -> Iterator[str]:
        return (file.stem for file in sorted(self._run.path.glob("[!.]*.parquet")))

    def __len__(self) -> int:
        return len(list(iter(self)))


def recall_concepts(run: Run) -> None:
    """Register the user's concepts that a run measured, even if they have been removed from the store.

    Raise ConfigError if the file with their definitions is damaged.
    """
    from poolbench.library.concepts import recall

    file = run.file(CONCEPTS_FILE)
    try:
        recall(file.read_bytes() if file.is_file() else b"")
    except ValueError:
        raise ConfigError(f"{file} is damaged; run the command of {run.id} again, which writes it") from None


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
    require_version(where, version)
    return files


def is_published(name: str) -> bool:
    """Return whether other machines need a file. They do not need the report, which they write themselves."""
    return "/" not in name and name.endswith((".parquet", ".yaml", ".json"))


def require_version(where: Path | str, version: Any) -> None:
    """Raise ConfigError if a file of a run has another version than this PoolBench reads."""
    if str(version) != str(FOLDER_VERSION):
        raise ConfigError(f"{where} has version {version}, and this PoolBench reads {FOLDER_VERSION}; {_REMEDY}")


def run_id(config: RunConfig) -> str:
    """Return the id of a configuration's run, which contains the budget, the data and the hash of the configuration.

    A user may remove a concept and add it again with other passages, so the hash contains the revisions of passages.
    """
    from poolbench.concepts import CONCEPTS

    corpus_by_concept = {name: corpus for name in config.concept_ids if (corpus := CONCEPTS.get(name).corpus)}
    if corpus_by_concept:
        digest = hashlib.sha256(
            json.dumps([config.config_hash(), corpus_by_concept], sort_keys=True).encode()
        ).hexdigest()
        return f"{config.budget.name}-own-{digest[:8]}"
    return f"{config.budget.name}-{config.data_name}-{config.config_hash()[:8]}"


def _is_gone(state: dict[str, Any]) -> bool:
    """Return whether the process that wrote a state has ended. A process of another machine counts as running."""
    if state.get("host") != socket.gethostname():
        return False
    try:
        return not lives(int(state["pid"]))
    except (KeyError, TypeError, ValueError):
        return True
