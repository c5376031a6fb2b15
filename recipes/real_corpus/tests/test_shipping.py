"""The recipe gives the same bytes each time: those that ship."""

import hashlib

import pyarrow.parquet as pq
import pytest
from recipes.passages.documents import has_archive
from recipes.real_corpus.rules import rules
from recipes.real_corpus.shipping import choose, table_bytes

from poolbench.config import asset_path
from poolbench.word_rules import word_rules
from poolbench_corpora.io import read_manifest

pytestmark = pytest.mark.lane(name="recipes")

#: The concept that is built fastest: its source is one small file.
CONCEPT = "frustration"


@pytest.mark.skipif(not has_archive(None, "passages"), reason="no real-text archives (POOLBENCH_REAL_TEXT)")
def test_the_same_archives_give_the_table_that_ships() -> None:
    first, second = (table_bytes(choose(CONCEPT, rules()[CONCEPT])) for _ in range(2))
    assert first == second
    manifest = read_manifest(asset_path("real_corpus"))
    assert manifest is not None
    assert hashlib.sha256(first).hexdigest() == manifest.tables[f"{CONCEPT}/passages.parquet"].sha256


def test_the_word_rules_label_each_passage_that_ships_as_its_table_does() -> None:
    manifest = read_manifest(asset_path("real_corpus"))
    assert manifest is not None
    for concept, rule in word_rules().items():
        name = f"{concept}/passages.parquet"
        assert manifest.tables[name].labels == rule.summary
        table = pq.read_table(asset_path("real_corpus") / name, columns=["text", "label"])
        assert [rule.label(text) for text in table["text"].to_pylist()] == table["label"].to_pylist()
