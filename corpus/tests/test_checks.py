"""The rules of a corpus: each defect breaks its rules, and findings name passages without quoting them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import UnknownConceptError
from poolbench.texts import count_words
from poolbench.word_rules import seed_pattern
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.near import shingles, token_difference
from poolbench_corpora.planted import build_planted

WINDOW = (90, 140)


def planted_corpus(concept: str) -> list[Row]:
    return build_planted(concept, seed=0, num_train=16, num_test=16, num_scorer=4).to_pylist()


def broken_rules(rows: list[Row]) -> set[str]:
    return {finding.rule for finding in validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)}


def first(rows: list[Row], **values: Any) -> Row:
    return next(row for row in rows if all(row[name] == value for name, value in values.items()))


def drop_a_negative(rows: list[Row]) -> None:
    rows.remove(first(rows, label=0, split="train"))


def drop_the_test_split(rows: list[Row]) -> None:
    rows[:] = [row for row in rows if row["split"] != "test"]


def merge_domains(rows: list[Row]) -> None:
    for row in rows:
        row["domain"] = "one"


def repeat_a_text(rows: list[Row]) -> None:
    first(rows, label=0, split="test")["text"] = first(rows, label=1, split="train")["text"].upper()


def nearly_repeat_a_text(rows: list[Row]) -> None:
    first(rows, label=1, split="test")["text"] = "Then " + first(rows, label=1, split="train")["text"]


def move_a_document(rows: list[Row]) -> None:
    first(rows, split="train")["doc_id"] = first(rows, split="test")["doc_id"]


INDEPENDENT: list[tuple[Callable[[list[Row]], None], set[str]]] = [
    (drop_a_negative, {"balance"}),
    (drop_the_test_split, {"balance", "source_domains"}),
    (merge_domains, {"source_domains"}),
    (repeat_a_text, {"duplicates", "near_duplicates"}),
    (nearly_repeat_a_text, {"near_duplicates"}),
    (move_a_document, {"one_split_per_document", "partition"}),
]


@pytest.mark.parametrize(("spoil", "expected"), INDEPENDENT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_defect_breaks_its_rules(spoil: Callable[[list[Row]], None], expected: set[str]) -> None:
    rows = planted_corpus("narrative")
    assert broken_rules(rows) == set()
    spoil(rows)
    found = broken_rules(rows)
    assert expected <= found
    assert found <= expected | {"pair_members", "balance"}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"token_count": 141}, "token_window"),
        ({"token_count": None}, "token_window"),
        ({"pair_id": "p"}, "pair_members"),
        ({"licence": ""}, "licences"),
    ],
)
def test_a_wrong_value_of_one_passage_breaks_its_rule(change: Row, rule: str) -> None:
    rows = planted_corpus("narrative")
    rows[0] |= change
    assert broken_rules(rows) == {rule}


def test_a_pair_split_in_two_is_found() -> None:
    rows = planted_corpus("causation")
    train, test = first(rows, split="train", label=1), first(rows, split="test", label=1)
    train["pair_id"], test["pair_id"] = test["pair_id"], train["pair_id"]
    assert broken_rules(rows) == {"pair_members", "pair_difference", "near_duplicates"}


def test_a_seed_word_in_a_negative_is_found_at_word_boundaries_only() -> None:
    rows = planted_corpus("planning")
    negative = first(rows, label=0)
    negative["text"] += " Planters met."
    assert broken_rules(rows) == set()
    negative["text"] += " Their Plan held."
    assert broken_rules(rows) == {"seed_words"}


def test_negators_and_numbers_are_counted() -> None:
    rows = planted_corpus("negation_density")
    first(rows, label=0)["text"] += " It isn't."
    marked = next(row for row in rows if row["signal"])
    marked["text"] = first(rows, label=0, split="train")["text"] + " Never."
    assert "negators" in broken_rules(rows)
    findings = validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)
    assert sorted(finding.message for finding in findings if finding.rule == "negators") == [
        "1 negatives contain negators",
        "1 positives have fewer than 3 negators",
    ]
    rows = planted_corpus("numerical_precision")
    first(rows, label=0)["text"] += " It had 4."
    assert broken_rules(rows) == {"numbers"}


def test_findings_name_passages_and_never_quote_them() -> None:
    rows = planted_corpus("toxicity")
    rows[0]["token_count"] = 0
    (finding,) = validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)
    assert finding.passages == (rows[0]["passage_id"],)
    assert rows[0]["text"][:20] not in finding.message


def test_each_concept_has_its_own_window_and_must_be_registered() -> None:
    rows = planted_corpus("narrative")
    table = pa.Table.from_pylist(rows, PASSAGES)
    assert {finding.rule for finding in validate_corpus(table)} == {"token_window"}
    rows[0]["concept"] = "irony"
    with pytest.raises(UnknownConceptError):
        broken_rules(rows)


def test_text_measures() -> None:
    assert count_words("It isn't so: 3 o'clock.") == 7
    assert token_difference("The pump failed because it froze.", "The pump failed. It froze.") == 1
    assert token_difference("a b", "c d e") == 3
    assert len(shingles("one two three four five six seven eight nine")) == 2
    assert shingles("too short") == frozenset()


def test_seed_words_match_either_apostrophe_and_any_space() -> None:
    pattern = seed_pattern(CONCEPTS.get("frustration"))
    assert pattern.search("Why won’t it")
    assert pattern.search("Come\non!")
    assert not pattern.search("welcome onward")
