"""A run's folder: its files, and how the newest is found.

The folder's name is derived from the configuration, so the same command continues the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.errors import ConfigError, IntegrityError, NotFoundError
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
    """`<output>/<run_id>/` with results, tables, report and state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, output: Path, config: RunConfig) -> RunFolder:
        """Return the folder of `config` below `output`; an existing one is continued."""
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
            folder.file("config.resolved.yaml").write_text(note + settings, "utf-8")
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
    def find(cls, output: Path, name: str) -> RunFolder:
        """Return an existing run by id, or `latest`; raise NotFoundError with the runs there are."""
        path = output / name
        if not (path / "config.resolved.yaml").is_file():
            runs = ", ".join(run.path.name for run in list_runs(output)) or "none"
            raise NotFoundError(f"no run {name!r} in {output}; there are: {runs}")
        return cls(path.resolve()).checked()

    def checked(self) -> RunFolder:
        """Return the run; raise ConfigError if another version of PoolBench wrote its state."""
        state = self.read_state()
        if state.get("state", RunState.DAMAGED) != RunState.DAMAGED:
            _require_version(self.file("state.json"), state.get("schema_version"))
        return self

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.path.name

    def file(self, name: str) -> Path:
        """Return a file of the run."""
        return self.path / name

    def write_state(self, state: RunState, **fields: Any) -> dict[str, Any]:
        """Record the state of the run, which `status` and `watch` read; return what was recorded."""
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
        """Return what `write_state` recorded last, or an empty state.

        The state is `died` where the driver is gone, and `damaged` where the file cannot be read: the next run writes
        it again.
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
        """Let this process find the run's own concepts as they were, also where the store has them no longer.

        Raise ConfigError if the file of their definitions is damaged.
        """
        from poolbench.library import recall

        file = self.file(_CONCEPTS_FILE)
        try:
            recall(file.read_bytes() if file.is_file() else b"")
        except ValueError:
            raise ConfigError(f"{file} is damaged; run the command of {self.id} again, which writes it") from None

    def write_model(self, model: ModelInfo) -> None:
        """Record the properties of the model that planning needs."""
        self.file(_MODEL_FILE).write_bytes(model.recorded())

    def model(self) -> ModelInfo | None:
        """Return the model as the run found it; None if the run has not started. Raise ConfigError if it is damaged."""
        from poolbench_driver.models import ModelInfo

        file = self.file(_MODEL_FILE)
        try:
            return ModelInfo.recall(file.read_bytes()) if file.is_file() else None
        except ValueError:
            raise ConfigError(f"{file} is damaged; run the command of {self.id} again, which writes it") from None

    def config(self) -> RunConfig:
        """Return the run's configuration; raise ConfigError if it is damaged or of another version."""
        try:
            return load_run_config(self.file("config.resolved.yaml"), {})
        except ConfigError as error:
            remedy = f"run the command of {self.id} again, which writes it, or remove the folder"
            raise ConfigError(f"{error}; {remedy}") from None

    def write_table(self, name: str, table: pa.Table) -> None:
        """Write `<name>.parquet`, whole or not at all."""
        import pyarrow.parquet as pq

        partial = self.file(f".{name}.parquet")
        notes = {**(table.schema.metadata or {}), _VERSION_NOTE: str(FOLDER_VERSION).encode()}
        pq.write_table(table.replace_schema_metadata(notes), partial, compression="zstd")
        partial.replace(self.file(f"{name}.parquet"))

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Return the rows of a table that have some values in some columns; all without any.

        A table that the run has not, and one without such a column, has no rows. Raise as `read_table`.
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
        """Return a table of the run, or some of its columns, or its rows that meet a condition.

        Raises:
            NotFoundError: It is not written yet.
            IntegrityError: It is damaged.
            ConfigError: Another version of PoolBench wrote it.
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
        """Return the tables by name; each is read when it is asked for, as `read_table` does."""
        return _TablesOfFolder(self)

    def finished(self) -> FinishedRun:
        """Return what a suite reads of the run."""
        return FinishedRun(self.id, self.config(), self.tables)

    def write_manifest(self, **facts: Any) -> None:
        """Write `manifest.json`: the run's facts, and size and hash of every file, so that a copy can be checked."""
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
        self.file("manifest.json").write_text(json.dumps(content, indent=1), "utf-8")

    def write_failures(self, failures: Sequence[Failure]) -> None:
        """Write `failures.parquet`."""
        import pyarrow as pa

        text = [(name, pa.string()) for name in ("task_id", "kind", "status", "reason")]
        schema = pa.schema([*text, ("blocked", pa.bool_())])
        self.write_table("failures", pa.Table.from_pylist([asdict(failure) for failure in failures], schema))


class _TablesOfFolder(Mapping[str, "pa.Table"]):
    """The tables of a run by name, read when they are asked for."""

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
_NOT_LISTED = ("manifest.json", "state.json")


def manifest_files(manifest: bytes, where: Path | str) -> dict[str, str]:
    """Return the SHA-256 of each file of a run by its name, from a manifest.

    Raises:
        IntegrityError: The manifest is damaged.
        ConfigError: Another version of PoolBench wrote it.
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
    """Return budget, data and configuration hash: readable, and the same for the same work.

    A concept of the user may be removed and added again with other passages, so their revisions are part of the hash.
    """
    corpus_by_concept = {name: corpus for name in config.concept_ids if (corpus := CONCEPTS.get(name).corpus)}
    if corpus_by_concept:
        digest = hashlib.sha256(
            json.dumps([config.config_hash(), corpus_by_concept], sort_keys=True).encode()
        ).hexdigest()
        return f"{config.budget.name}-own-{digest[:8]}"
    return f"{config.budget.name}-{config.data_name}-{config.config_hash()[:8]}"


def list_runs(output: Path) -> list[RunFolder]:
    """Return all runs below `output`, newest first."""
    files = [file for file in output.glob("*/config.resolved.yaml") if not file.parent.is_symlink()]
    return [RunFolder(file.parent) for file in sorted(files, key=lambda f: f.stat().st_mtime, reverse=True)]


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_gone(state: dict[str, Any]) -> bool:
    """Return whether the process that wrote a state has ended; one of another machine is assumed to run."""
    if state.get("host") != socket.gethostname():
        return False
    try:
        return not lives(int(state["pid"]))
    except (KeyError, TypeError, ValueError):
        return True
