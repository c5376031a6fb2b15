"""Concepts of users in an object store: added once, found by every process, removed whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest

from poolbench.concepts import CONCEPTS, Concept, Neighbours
from poolbench.errors import (
    ConceptTakenError,
    ConfigError,
    IntegrityError,
    NotFoundError,
    UnknownConceptError,
)
from poolbench.library.concepts import Library, attach, own_passages
from poolbench.storage import open_store
from poolbench_corpora.own import OwnTexts, Text, build_own, revision_of

TEXTS = OwnTexts([Text(f"passage {n} is good", "") for n in range(20)], [Text(f"number {n}", "") for n in range(20)])
PASSAGES = build_own("mine", TEXTS)
MINE = Concept(
    "mine", "own", "Good passages.", "They are good.", "By hand.", matched_pairs=False, neighbours=Neighbours(),
    corpus=revision_of(PASSAGES),
)  # fmt: skip


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    before = CONCEPTS.find
    yield attach(open_store(str(tmp_path)))
    CONCEPTS.find = before


def test_what_is_added_is_found_by_another_process(library: Library, tmp_path: Path) -> None:
    with pytest.raises(UnknownConceptError):
        CONCEPTS.get("mine")
    library.add(MINE, PASSAGES)
    assert CONCEPTS.get("mine") == MINE
    assert own_passages(MINE).equals(PASSAGES)
    other = Library(open_store(str(tmp_path)))
    assert other.all() == [MINE]
    assert other.passages(MINE).equals(PASSAGES)


def test_a_taken_name_is_refused_and_nothing_changes(library: Library) -> None:
    library.add(MINE, PASSAGES)
    with pytest.raises(ConceptTakenError, match="concept rm mine"):
        library.add(replace(MINE, definition="another"), PASSAGES)
    assert library.find("mine") == MINE
    with pytest.raises(ConceptTakenError, match="hedging is built in"):
        library.add(replace(MINE, id="hedging"), PASSAGES)


def test_of_several_that_add_one_name_at_once_one_wins_and_the_others_leave_nothing(library: Library) -> None:
    tables = [build_own("mine", TEXTS, seed=seed) for seed in range(8)]
    start = Barrier(len(tables))

    def add(table: pa.Table) -> bool:
        start.wait()
        try:
            library.add(replace(MINE, corpus=revision_of(table)), table)
        except ConceptTakenError:
            return False
        return True

    with ThreadPoolExecutor(len(tables)) as pool:
        won = [*pool.map(add, tables)]
    assert sum(won) == 1
    (passages,) = [info for info in library.store.list("concepts/") if info.path.endswith(".arrow")]
    assert passages.path == f"concepts/mine/{revision_of(tables[won.index(True)])}.arrow"


@pytest.mark.parametrize("name", ["", "A", "a b", "../a", "a/b", "a" * 41, "1a", "a\n"])
def test_ids_are_safe_paths(library: Library, name: str) -> None:
    with pytest.raises(ConfigError, match="use 2 to 40"):
        library.add(replace(MINE, id=name), PASSAGES)
    assert library.find(name) is None
    with pytest.raises(NotFoundError):
        library.remove(name)


def test_a_removed_concept_leaves_nothing(library: Library) -> None:
    library.add(MINE, PASSAGES)
    library.remove("mine")
    assert [*library.store.list("concepts/")] == []
    with pytest.raises(NotFoundError, match="the store has no concept 'mine'"):
        library.remove("mine")


def test_passages_of_a_sensitive_concept_have_a_restricted_name(library: Library) -> None:
    sensitive = replace(MINE, sensitive=True)
    library.add(sensitive, PASSAGES)
    names = {info.path.removeprefix("concepts/mine/") for info in library.store.list("concepts/")}
    assert names == {"concept.json", f"restricted.{MINE.corpus}.arrow"}
    assert library.passages(sensitive) == PASSAGES
    library.remove("mine")
    assert [*library.store.list()] == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "other"}', b"\xff"])
def test_a_damaged_definition_is_named_and_can_be_removed(library: Library, content: bytes) -> None:
    library.add(MINE, PASSAGES)
    library.store.put("concepts/mine/concept.json", content)
    with pytest.raises(IntegrityError, match="concept rm mine"):
        CONCEPTS.get("mine")
    library.remove("mine")
    assert library.find("mine") is None


def test_a_definition_cannot_name_another_file(library: Library) -> None:
    library.add(MINE, PASSAGES)
    text = library.store.get("concepts/mine/concept.json").decode()
    library.store.put("concepts/mine/concept.json", text.replace(MINE.corpus, "../../secret").encode())
    with pytest.raises(IntegrityError):
        library.find("mine")


def test_damaged_passages_are_named(library: Library) -> None:
    library.add(MINE, PASSAGES)
    library.store.put(f"concepts/mine/{MINE.corpus}.arrow", b"nothing")
    with pytest.raises(IntegrityError, match="is damaged"):
        own_passages(MINE)
