"""Runs of a folder and runs of the object store, each once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.errors import NotFoundError, shown
from poolbench_driver.records.folder import UNFINISHED, RunFolder, list_runs
from poolbench_driver.records.record import RunRecord, RunRecords

LATEST = "latest"


@dataclass(frozen=True)
class Run:
    """A run that has a folder here, a record in the object store, or both."""

    id: str
    folder: RunFolder | None
    record: RunRecord | None

    @property
    def state(self) -> dict[str, Any]:
        """Return the state of the run.

        Folder and record differ if another machine works on the run, or if the store was away. The folder is right
        about a driver that lives on this machine. Of two states that this machine wrote, the later one is right: they
        have one clock. Otherwise the record is right, because every driver writes one.
        """
        if self.folder is None:
            return self.record.state if self.record else {}
        here = self.folder.read_state()
        if self.record is None or not self.record.state:
            return here
        record_state = self.record.state
        if here.get("host") != socket.gethostname():
            return record_state
        if here.get("state") in UNFINISHED:
            return here
        same_clock = record_state.get("host") == here["host"]
        is_later = str(here.get("updated_at")) >= str(record_state.get("updated_at"))
        return here if same_clock and is_later else record_state

    @property
    def unfinished(self) -> bool:
        """Return whether a driver works on the run."""
        return self.state.get("state") in UNFINISHED


class Runs:
    """The runs below a folder, and those in an object store if one is given."""

    def __init__(self, output: Path, records: RunRecords | None) -> None:
        self.output, self.records = output, records

    def all(self) -> list[Run]:
        """Return all runs, newest first: those of the store, then those that have a folder only."""
        folders = {folder.id: folder for folder in list_runs(self.output)}
        stored = [Run(record.id, folders.pop(record.id, None), record) for record in self._records()]
        return [*stored, *(Run(folder.id, folder, None) for folder in folders.values())]

    def find(self, name: str) -> Run:
        """Return a run by id. `latest` is the one of the folder, or the newest of the store if there is none.

        Raise NotFoundError with the runs there are.
        """
        try:
            folder = RunFolder.find(self.output, name)
        except NotFoundError:
            folder = None
        if folder is not None:
            return Run(folder.id, folder, self.records.get(folder.id) if self.records else None)
        for record in self._records():
            if name in (LATEST, record.id):
                return Run(record.id, None, record)
        places = f"{self.output} or the object store" if self.records else self.output
        run_ids = ", ".join(run.id for run in self.all()) or "none"
        raise NotFoundError(f"no run {shown(name)} in {places}; there are: {run_ids}")

    def _records(self) -> Iterator[RunRecord]:
        yield from self.records.all() if self.records else ()
