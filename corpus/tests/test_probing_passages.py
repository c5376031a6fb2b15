"""Probing sets as passages of a concept: labels, groups and splits by hand, and what is refused."""

from collections.abc import Iterable
from typing import Any

import pytest

from poolbench.errors import CorpusError
from poolbench_corpora.probing import ProbingSet, Sample, Span, as_passages, probing_data
from poolbench_corpora.probing.samples import whole

FIELDS = {
    "id": "mine", "type": "syntax", "phenomenon": "p", "input": "text", "source": "s", "revision": "1",
    "licence": "CC0", "citation": "c", "fidelity": "same", "reader": "table",
}  # fmt: skip


def rows_of(samples: Iterable[Sample], seed: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """Return the passages of both splits."""
    definition = ProbingSet.model_validate(FIELDS | fields)
    found = as_passages(definition, probing_data(definition, samples), seed)
    assert list(found) == ["train", "test"]
    for split, table in found.items():
        assert set(table["split"].to_pylist()) == {split}
    return [row for table in found.values() for row in table.to_pylist()]


def sample(number: int, label: str, split: str | None = None, group: str = "") -> Sample:
    return Sample(str(number), whole(f"Text {number}."), label=label, split=split, group=group)


def test_given_splits_stay_and_dev_is_left_out() -> None:
    """Of the labels no and yes, yes is positive; the two texts of a group of both labels are a pair."""
    splits = ("train", "train", "dev", "test")
    rows = rows_of(
        sample(2 * n + side, label, split, f"g{n}")
        for n, split in enumerate(splits)
        for side, label in enumerate(("yes", "no"))
    )
    found = [(row["passage_id"], row["label"], row["split"], row["doc_id"], row["text"]) for row in rows]
    assert found == [
        ("mine/0", 1, "train", "mine/g0", "Text 0."), ("mine/1", 0, "train", "mine/g0", "Text 1."),
        ("mine/2", 1, "train", "mine/g1", "Text 2."), ("mine/3", 0, "train", "mine/g1", "Text 3."),
        ("mine/6", 1, "test", "mine/g3", "Text 6."), ("mine/7", 0, "test", "mine/g3", "Text 7."),
    ]  # fmt: skip
    assert [row["pair_id"] for row in rows] == [row["doc_id"] for row in rows]
    assert {(row["concept"], row["domain"], row["licence"]) for row in rows} == {("mine", "mine", "CC0")}


def test_drawn_splits_keep_groups_whole_in_the_shares_of_a_probing_task() -> None:
    """30 groups of four texts: 70 % of the texts are train and 20 % test; another seed draws others."""
    samples = [sample(n, "ab"[n % 2], group=f"g{n // 4}") for n in range(120)]
    rows = rows_of(samples, seed=3)
    members = {split: {row["doc_id"] for row in rows if row["split"] == split} for split in ("train", "test")}
    assert {split: len(groups) for split, groups in members.items()} == {"train": 21, "test": 6}
    assert not members["train"] & members["test"] and len(rows) == 4 * 27
    assert {row["pair_id"] for row in rows} == {None}  # a group of four is not a pair
    assert rows == rows_of(samples, seed=3) != rows_of(samples, seed=4)


TEN = [sample(n, "ab"[n % 2]) for n in range(10)]


@pytest.mark.parametrize(
    ("samples", "fields", "reason"),
    [
        ([*TEN, sample(10, "c")], {}, r"mine: it has 3 labels \(a, b, c\), and two are read"),
        ([sample(n, str(n)) for n in range(9)], {}, r"9 labels \(0, 1, 2, 3, 4, \.\.\.\)"),
        ([sample(n, "a") for n in range(9)], {}, r"1 labels \(a\)"),
        ([Sample("1", whole("a"), value=1.0)], {"task": "values"}, "asks for values"),
        ([Sample("1", whole("a"), whole("b"), label="a")], {"input": "text_pair"}, "its input is text_pair"),
        ([Sample("1", (Span("a b", 0, 1),), label="a")], {"input": "span"}, "its input is span, and whole texts"),
        ([sample(n, "ab"[n % 2], "train") for n in range(9)], {}, "has no test instances"),
        ([sample(n, "ab"[n % 2], "test") for n in range(9)], {}, "has no train instances"),
        ([*TEN, sample(10, "a", "train")], {}, "no split"),
        ([sample(n, "ab"[n % 2], ("train", "test")[n % 2], "g") for n in range(4)], {}, "a group lies in several"),
    ],
)
def test_other_sets_are_refused_with_the_reason(samples: list[Sample], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(CorpusError, match=reason):
        rows_of(samples, **fields)
