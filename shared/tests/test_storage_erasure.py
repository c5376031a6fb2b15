"""Texts are deleted once scored: nothing of them is left, their receipts are, and an interruption loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from poolbench.contracts.tables import TEXT_CONTENT, TEXTS, table_from_rows
from poolbench.errors import ErasedError, NotFoundError
from poolbench.storage import Artifacts
from poolbench.storage.base import ObjectInfo
from poolbench.storage.erasure import erase_texts, receipts_path
from poolbench.storage.folder import FolderStore
from poolbench.storage.manifest import manifest_path

KEY, SECRET = "restricted.steerer.generate.1", "SECRET-STEERED-TEXT"
ROWS = [
    {"text_id": f"C1|{s}|p", "strength": s, "prompt": SECRET, "text": f"{SECRET} {s}", "token_ids": [7, 8],
     "num_tokens": 2, "vector_hash": "v", "positions_changed": 2, "positions_expected": 2}
    for s in (0.1, 0.2)
]  # fmt: skip
TABLE = table_from_rows(ROWS, TEXTS)


class Breaking(FolderStore):
    """Ends the process, as far as the caller can tell, before its n-th change."""

    def __init__(self, root: Path, changes: int) -> None:
        super().__init__(root)
        self.left = changes

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        self._count()
        return super().put(path, data, if_absent=if_absent)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    made = Artifacts(FolderStore(tmp_path))
    made.write_table(KEY, TABLE, meta={"model": "demo"}, producer={"wall_s": 3.0})
    return made


def paths(artifacts: Artifacts) -> set[str]:
    return {info.path for info in artifacts.store.list()}


def assert_erased(artifacts: Artifacts) -> None:
    assert paths(artifacts) == {manifest_path(KEY), receipts_path(KEY)}
    receipts = artifacts.read_receipts(KEY)
    assert receipts == TABLE.drop_columns(list(TEXT_CONTENT))
    manifest = artifacts.manifest(KEY)
    assert (manifest.num_rows, manifest.meta["model"], manifest.producer["wall_s"]) == (2, "demo", 3.0)
    with pytest.raises(ErasedError, match="after they had been scored"):
        artifacts.read_table(KEY)


def test_receipts_name_the_settings_and_contain_no_text(artifacts: Artifacts) -> None:
    whole = artifacts.read_receipts(KEY)
    erase_texts(artifacts, KEY)
    assert_erased(artifacts)
    assert artifacts.read_receipts(KEY) == whole
    for info in artifacts.store.list():
        assert SECRET.encode() not in artifacts.store.get(info.path)


def test_a_second_erasure_changes_nothing(artifacts: Artifacts) -> None:
    erase_texts(artifacts, KEY)
    before = {path: artifacts.store.get(path) for path in paths(artifacts)}
    erase_texts(artifacts, KEY)
    assert {path: artifacts.store.get(path) for path in paths(artifacts)} == before


@pytest.mark.parametrize("changes", range(4))
def test_an_interruption_at_any_point_leaves_it_whole_or_erased(
    artifacts: Artifacts, tmp_path: Path, changes: int
) -> None:
    artifacts.store.put(f"restricted/{KEY}/killed-attempt/table.arrow", b"torn")
    with pytest.raises(KeyboardInterrupt):
        erase_texts(Artifacts(Breaking(tmp_path, changes)), KEY)
    if artifacts.manifest(KEY).erased:
        assert artifacts.read_receipts(KEY).num_rows == 2
    else:
        assert artifacts.read_table(KEY) == TABLE
    erase_texts(artifacts, KEY)
    assert_erased(artifacts)


def test_texts_of_a_later_attempt_are_not_touched(artifacts: Artifacts, tmp_path: Path) -> None:
    """Another driver made the texts missing, and generates them again, while this one still deletes."""
    with pytest.raises(KeyboardInterrupt):
        erase_texts(Artifacts(Breaking(tmp_path, 2)), KEY)
    late = artifacts.writer(KEY)
    late.put("table.arrow", b"new")
    erase_texts(artifacts, KEY)
    assert [path for path in paths(artifacts) if "table.arrow" in path] == [
        entry.path for entry in late._files.values()
    ]


def test_two_drivers_may_erase_at_once(artifacts: Artifacts, tmp_path: Path) -> None:
    class Overtaken(FolderStore):
        """Another driver erases everything just when this one has listed it."""

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            found = list(super().list(prefix))
            erase_texts(artifacts, KEY)
            yield from found

    erase_texts(Artifacts(Overtaken(tmp_path)), KEY)
    assert_erased(artifacts)


def test_erased_and_generated_again(artifacts: Artifacts) -> None:
    erase_texts(artifacts, KEY)
    artifacts.delete(KEY)
    assert paths(artifacts) == set()
    artifacts.write_table(KEY, TABLE)
    erase_texts(artifacts, KEY)
    assert artifacts.read_receipts(KEY).num_rows == 2


def test_what_was_never_committed_is_not_erased(artifacts: Artifacts) -> None:
    with pytest.raises(NotFoundError):
        erase_texts(artifacts, "restricted.steerer.generate.none")


def test_every_column_of_a_text_is_a_number_an_id_or_deleted() -> None:
    """A column that is added to TEXTS must say here whether it can hold text."""
    ids = {"text_id", "prompt_id", "direction_key", "vector_hash"}
    words = {field.name for field in TEXTS if not (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))}
    assert words == ids | set(TEXT_CONTENT)
