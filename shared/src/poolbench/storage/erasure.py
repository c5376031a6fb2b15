"""Deletion of steered texts once they are scored. The receipts stay, so that the texts are not generated again.

An erased artifact keeps its key, its manifest (with `erased_at`) and `receipts.arrow`: its table without the
columns that hold text. So its scores can be read with strength, opening and receipt of each text.
"""

import hashlib
from datetime import UTC, datetime

from poolbench.contracts.tables import without_texts
from poolbench.errors import ErasedError, IntegrityError
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.manifest import (
    ERASED_AT,
    MANIFEST_VERSION,
    RECEIPTS_FILE,
    FileEntry,
    Manifest,
    folder_of,
    manifest_path,
)
from poolbench.storage.writer import table_to_bytes

_DOOMED = "erased_files"


def erase_texts(artifacts: Artifacts, key: str) -> None:
    """Delete the texts of an artifact for good; a second call completes an interrupted deletion.

    The receipts are written first, then a manifest that names them instead of the texts and lists the files to delete,
    then these are deleted. At every point the artifact is either whole or erased, and the rest of the work is known.
    Files that another attempt writes meanwhile are not touched.

    Raises:
        NotFoundError: The artifact is not committed.
        RestrictedError: This process has no access.
    """
    manifest = artifacts.manifest(key)
    if not manifest.erased:
        manifest = _committed_erasure(artifacts, manifest)
    for path in manifest.meta[_DOOMED]:
        artifacts.store.delete(path)


def receipts_path(key: str) -> str:
    """Return the path of the receipts of an erased artifact."""
    return f"{folder_of(key)}/erased/{RECEIPTS_FILE}"


def _committed_erasure(artifacts: Artifacts, manifest: Manifest) -> Manifest:
    store, key = artifacts.store, manifest.key
    receipts = receipts_path(key)
    doomed = [info.path for info in store.list(f"{folder_of(key)}/")]
    try:
        data = table_to_bytes(without_texts(artifacts.read_table(key)))
    except (ErasedError, IntegrityError):
        if (latest := artifacts.manifest(key)).erased:  # another driver was faster
            return latest
        raise
    if not store.put(receipts, data, if_absent=True) and store.get(receipts) != data:
        store.put(receipts, data)  # left by an interrupted erasure, and damaged since; another driver's are the same
    entry = FileEntry(path=receipts, num_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    notes = {
        ERASED_AT: datetime.now(UTC).isoformat(timespec="seconds"),
        _DOOMED: sorted(set(doomed) - {manifest_path(key), receipts}),
    }
    erased = manifest.model_copy(
        update={"schema_version": MANIFEST_VERSION, "files": {RECEIPTS_FILE: entry}, "meta": {**manifest.meta, **notes}}
    )
    store.put(manifest_path(key), erased.to_bytes())
    return erased
