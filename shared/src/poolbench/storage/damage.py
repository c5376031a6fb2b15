"""Damaged artifacts and records: how they are recognised, and where they go.

They are moved, never deleted: to `damaged/<name>/<time>`.
`poolbench-driver gc` shows them, and removes them with `--delete`.
"""

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from poolbench.contracts.wire import ARTIFACTS_FOLDER, DAMAGED_FOLDER
from poolbench.errors import DamagedError, NotFoundError
from poolbench.storage.artifacts import Artifacts, folder_of, manifest_path
from poolbench.storage.base import ObjectInfo, ObjectStore

_TIME = re.compile(r"/(\d{8}T\d{6}Z)-[0-9a-f]{6}(?:/|$)")


def set_aside_if_damaged(artifacts: Artifacts, key: str) -> tuple[str, str]:
    """Move an artifact away if it is damaged. Return the damage, and the path to which the artifact was moved.

    If the artifact is not damaged, both are "". If nothing was moved, the path is "".
    """
    try:
        artifacts.verify(key)
    except DamagedError as error:
        return error.what, set_object_aside(artifacts.store, folder_of(key))
    except NotFoundError:  # it is not committed
        blocked = artifacts.store.blocked(manifest_path(key))
        # What is in its folder may be moved; another attempt may be writing or committing there.
        aside = set_object_aside(artifacts.store, blocked) if blocked.startswith(folder_of(key)) else ""
        return "something else lies in its place", aside
    return "", ""


def set_object_aside(store: ObjectStore, path: str) -> str:
    """Move a folder or a record of the store away. Return the new place, or "" if there was nothing to move."""
    now = datetime.fromtimestamp(store.now_s(path), UTC)  # the clock by which gc computes ages
    target = f"{_place_of(path)}/{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
    return target if store.move(path, target) else ""


def was_set_aside(store: ObjectStore, key: str) -> bool:
    """Return whether an artifact, or a part of an artifact, was ever moved away as damaged."""
    return next(iter(store.list(f"{_place_of(folder_of(key))}/")), None) is not None


def _place_of(path: str) -> str:
    """Return the folder into which a damaged object at this path is moved."""
    return f"{DAMAGED_FOLDER}/{path.removeprefix(f'{ARTIFACTS_FOLDER}/')}"


def objects_set_aside(store: ObjectStore) -> Iterator[ObjectInfo]:
    """Yield all files that were set aside as damaged, dated by the time of the move.

    The file system keeps the time of writing if a folder is moved, so the date is read from the path.
    """
    for info in store.list(f"{DAMAGED_FOLDER}/"):
        moved = _TIME.search(info.path)
        yield replace(info, modified_s=datetime.strptime(moved[1], "%Y%m%dT%H%M%S%z").timestamp()) if moved else info


def described_damage(artifacts: Artifacts) -> str:
    """Return a line about the files that were set aside as damaged, or "" if there are none."""
    infos = list(objects_set_aside(artifacts.store))
    size = sum(info.size for info in infos) / 1e6
    hint = "`poolbench-driver gc --delete` removes those that are older than a day"
    return f"{len(infos)} damaged files ({size:.1f} MB) are set aside below {DAMAGED_FOLDER}/; {hint}" if infos else ""
