"""Copy what a cluster needs from one store to another: a backup, its restoration, or a move to another service."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from poolbench.concepts import stay
from poolbench.contracts.wire import (
    ACTIVATIONS_FOLDER,
    ARTIFACTS_FOLDER,
    CONCEPTS_FOLDER,
    MANIFEST_FILE,
    RUNS_FOLDER,
    SCORERS_FOLDER,
    SERVED_FOLDER,
)
from poolbench.errors import NotFoundError
from poolbench.storage.base import STORE_ID, ObjectInfo, ObjectStore, store_id

#: Everything else is a mark of work in progress, or is set aside.
COPIED = (ARTIFACTS_FOLDER, ACTIVATIONS_FOLDER, CONCEPTS_FOLDER, SCORERS_FOLDER, SERVED_FOLDER, RUNS_FOLDER)
#: Objects under way at once.
_AT_ONCE = 16


@dataclass(frozen=True)
class Copied:
    """Counts of a copy: copied objects, copied bytes, and objects that the target already had."""

    objects: int
    num_bytes: int
    present: int


def copy_store(source: ObjectStore, target: ObjectStore, report: Callable[[int], object] = lambda done: None) -> Copied:
    """Copy artifacts, run records, the id of the store, and objects that were imported, added or served under a name.

    Objects of sensitive concepts are left out, unless the operator allows them.

    Manifests are copied last, so that an interrupted copy has no incomplete artifact. The same call continues the copy.
    The source may be in use, but `gc` must not run, and objects that are committed during the copy are left out. An
    object that the target has in the same size is not copied again, because objects of artifacts never change. `report`
    receives the number of objects so far.
    """
    store_id(source)  # so that a copy belongs to the same cluster
    committed = [info for info in _copied(source) if _is_last(info)]
    # Listed after them: of an artifact that is committed now, all data is there.
    others = [info for info in _copied(source) if not _is_last(info)]
    size_by_path = {info.path: info.size for folder in COPIED for info in target.list(f"{folder}/")}
    copied = num_bytes = present = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for batch in (*_batches([*others, ObjectInfo(STORE_ID, 0, 0.0)]), *_batches(committed)):
            present_paths = {
                info.path
                for info in batch
                if info.path.startswith(f"{ARTIFACTS_FOLDER}/") and size_by_path.get(info.path) == info.size
            }
            todo = [info.path for info in batch if info.path not in present_paths]
            num_bytes += sum(pool.map(partial(_copy, source, target), todo))
            copied, present = copied + len(todo), present + len(batch) - len(todo)
            report(copied + present)
    return Copied(copied, num_bytes, present)


def _copied(source: ObjectStore) -> Iterator[ObjectInfo]:
    """Yield the objects that are copied."""
    infos = (info for folder in COPIED for info in source.list(f"{folder}/"))
    yield from (info for info in infos if not stay(info.path.split("/")))


def _is_last(info: ObjectInfo) -> bool:
    """Return whether an object must be written last: the manifest of an artifact, or the file of a user's concept."""
    return info.path.endswith((f"/{MANIFEST_FILE}", "/concept.json"))


def _copy(source: ObjectStore, target: ObjectStore, path: str) -> int:
    try:
        data = source.get(path)
    except NotFoundError:  # removed since it was listed: a record of a run, or the remains of an attempt
        return 0
    target.put(path, data)
    return len(data)


def _batches(infos: Sequence[ObjectInfo]) -> Iterator[Sequence[ObjectInfo]]:
    """Yield a few objects at a time, so that progress is seen."""
    for start in range(0, len(infos), 4 * _AT_ONCE):
        yield infos[start : start + 4 * _AT_ONCE]
