"""The runs that the console shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poolbench.errors import NotFoundError, PoolbenchError
from poolbench_driver.records import Run, RunFolder, RunRecords, Runs, fetch_run, list_runs


@dataclass(frozen=True)
class RunSource:
    """Runs below a folder, and those of an object store, whose tables are copied into the folder when they are shown.

    Attributes:
        output: The folder.
        records: Records of the object store; None for files alone.
        names: The runs to show; none for all.
    """

    output: Path
    records: RunRecords | None = None
    names: Sequence[str] = ()

    def all(self) -> list[Run]:
        """Return the runs, newest first."""
        runs = Runs(self.output, self.records).all()
        return [run for run in runs if not self.names or run.id in self.names]

    def folder(self, name: str) -> RunFolder:
        """Return the folder of a run. Raise NotFoundError if there is none, or if it has not ended."""
        if self.names and name not in self.names:
            raise NotFoundError(f"run {name[:100]!r} is not among those that are shown")
        if self.records is None:
            return RunFolder.find(self.output, name)
        return fetch_run(Runs(self.output, self.records).find(name), self.records.store, self.output, renew=True)

    def finished(self) -> tuple[list[RunFolder], dict[str, str]]:
        """Return the runs whose results are there, newest first, and by run why others cannot be read."""
        folders, unread = [], {}
        for run in self.all():
            try:
                folder = fetch_run(run, self.records.store, self.output, renew=True) if self.records else run.folder
            except NotFoundError:  # it has not ended
                continue
            except PoolbenchError as error:
                unread[run.id] = str(error)
                continue
            if folder is not None and folder.file("results.parquet").is_file():
                folders.append(folder)
        return folders, unread


def source_of(output: Path, names: Sequence[str] = ()) -> RunSource:
    """Return local runs: those of a folder, or some of them by id, `latest` or path.

    Raise NotFoundError for a run that is not there.
    """
    if len(names) == 1 and Path(names[0]).is_dir() and not (Path(names[0]) / "config.resolved.yaml").is_file():
        return RunSource(Path(names[0]))
    folders = [
        RunFolder.at(Path(n).resolve()) if (Path(n) / "config.resolved.yaml").is_file() else RunFolder.find(output, n)
        for n in names
    ]
    places = {folder.path.parent for folder in folders} or {output}
    if len(places) > 1:
        raise NotFoundError("the runs lie in several folders; name runs of one folder, or the folder alone")
    if not folders and not list_runs(output):
        raise NotFoundError(f"no run in {output}; `poolbench-driver run` makes one, and --output names another folder")
    return RunSource(places.pop(), names=tuple(folder.id for folder in folders))
