"""Write the folder of a run: its settings, tables, state and manifest.

The folder's name is derived from the configuration, so the same command continues the same run.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.errors import ConfigError
from poolbench.statuses import RunState
from poolbench_driver.config import RunConfig
from poolbench_driver.records.run import (
    CONCEPTS_FILE,
    CONFIG_FILE,
    FOLDER_VERSION,
    MANIFEST_FILE,
    MODEL_FILE,
    STATE_FILE,
    VERSION_NOTE,
    Run,
    run_id,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.models import ModelInfo
    from poolbench_driver.stages.failure import Failure

#: Files that change after the manifest is written.
_NOT_LISTED = (MANIFEST_FILE, STATE_FILE)


def create_run(output: Path, config: RunConfig) -> Run:
    """Create the folder of a configuration's run below `output`, or reuse the existing one."""
    run = Run(output / run_id(config))
    try:
        (run.path / "report").mkdir(parents=True, exist_ok=True)
        settings = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        user_concepts = [name for name in config.concept_ids if CONCEPTS.get(name).corpus]
        note = (
            f"# The texts of {', '.join(user_concepts)} are the user's; corpus.source is for other concepts.\n"
            if user_concepts
            else ""
        )
        run.file(CONFIG_FILE).write_text(note + settings, "utf-8")
        if user_concepts:
            from poolbench.library.concepts import definitions_of

            run.file(CONCEPTS_FILE).write_bytes(definitions_of(config.concept_ids))
        link = output / "latest"
        partial = link.with_name(f".latest-{os.getpid()}")
        partial.unlink(missing_ok=True)
        partial.symlink_to(run.path.name)
        partial.replace(link)
    except OSError as error:
        raise ConfigError(f"run folder {run.path}: {error.strerror or error}") from None
    return run


def write_state(run: Run, state: RunState, **fields: Any) -> dict[str, Any]:
    """Write the state of a run, which `status` and `watch` read. Return the content of the file."""
    content = {
        "state": state,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "updated_at": now(),
        "code_version": __version__,
        "schema_version": FOLDER_VERSION,
        **fields,
    }
    partial = run.file(f".{STATE_FILE}")
    partial.write_text(json.dumps(content, indent=1), "utf-8")
    partial.replace(run.file(STATE_FILE))
    return content


def write_model(run: Run, model: ModelInfo) -> None:
    """Write the properties of the model that planning needs."""
    run.file(MODEL_FILE).write_bytes(model.recorded())


def write_table(run: Run, name: str, table: pa.Table) -> None:
    """Write `<name>.parquet` completely or not at all."""
    import pyarrow.parquet as pq

    partial = run.file(f".{name}.parquet")
    notes = {**(table.schema.metadata or {}), VERSION_NOTE: str(FOLDER_VERSION).encode()}
    pq.write_table(table.replace_schema_metadata(notes), partial, compression="zstd")
    partial.replace(run.file(f"{name}.parquet"))


def write_failures(run: Run, failures: Sequence[Failure]) -> None:
    """Write `failures.parquet`."""
    import pyarrow as pa

    text = [(name, pa.string()) for name in ("task_id", "kind", "status", "reason")]
    schema = pa.schema([*text, ("blocked", pa.bool_())])
    write_table(run, "failures", pa.Table.from_pylist([asdict(failure) for failure in failures], schema))


def write_manifest(run: Run, **facts: Any) -> None:
    """Write `manifest.json` with facts of a run, and the size and hash of each file, so that copies can be checked."""
    files = sorted(file for file in run.path.rglob("*") if file.is_file() and file.name not in _NOT_LISTED)
    content = {
        "run_id": run.id,
        "schema_version": FOLDER_VERSION,
        "code_version": __version__,
        "created_at": now(),
        **facts,
        "files": {
            file.relative_to(run.path).as_posix(): {
                "bytes": file.stat().st_size,
                "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            }
            for file in files
        },
    }
    run.file(MANIFEST_FILE).write_text(json.dumps(content, indent=1), "utf-8")


def now() -> str:
    """Return the current UTC time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
