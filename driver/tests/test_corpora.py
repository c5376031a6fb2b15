"""Passages that the driver puts into the store."""

from __future__ import annotations

from poolbench.corpora.planted import build_planted
from poolbench_driver.corpora import at_most


def test_at_most_keeps_pairs_whole_and_classes_equal() -> None:
    passages = build_planted("contrast", seed=0, num_train=60, num_test=2, num_scorer=2)
    kept = at_most(passages.filter([split == "train" for split in passages["split"].to_pylist()]), 20)
    labels, pairs = kept["label"].to_pylist(), kept["pair_id"].to_pylist()
    assert (labels.count(1), labels.count(0)) == (10, 10)
    assert all(pairs.count(pair) == 2 for pair in pairs)


def test_at_most_does_not_depend_on_the_order_of_the_passages() -> None:
    passages = build_planted("narrative", seed=0, num_train=40, num_test=2, num_scorer=2)
    backwards = passages.take(list(range(passages.num_rows))[::-1])
    first, second = (set(at_most(table, 12)["passage_id"].to_pylist()) for table in (passages, backwards))
    assert first == second
