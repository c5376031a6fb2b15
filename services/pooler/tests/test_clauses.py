"""Clause segmentation on trees drawn by hand."""

from __future__ import annotations

import pytest

from poolbench.errors import CellError
from poolbench_pooler.annotate import segment_clauses

# (words with UPOS, head, relation) and the clause of each word.
UD_CASES = {
    "main and adverbial clause": (
        "We/PRON/1/nsubj stayed/VERB/1/root because/SCONJ/4/mark it/PRON/4/nsubj rained/VERB/1/advcl ./PUNCT/1/punct",
        [0, 0, 1, 1, 1, 0],
    ),
    "relative clause interrupts": (
        "The/DET/1/det man/NOUN/5/nsubj who/PRON/3/nsubj left/VERB/1/acl:relcl was/AUX/5/cop old/ADJ/5/root",
        [0, 0, 1, 1, 0, 0],
    ),
    "open complement stays": (
        "She/PRON/1/nsubj wants/VERB/1/root to/PART/3/mark leave/VERB/1/xcomp",
        [0, 0, 0, 0],
    ),
    "noun conjunct stays": (
        "Cats/NOUN/3/nsubj and/CCONJ/2/cc dogs/NOUN/0/conj sleep/VERB/3/root",
        [0, 0, 0, 0],
    ),
    "verb conjunct opens": (
        "He/PRON/1/nsubj sat/VERB/1/root and/CCONJ/3/cc wept/VERB/1/conj",
        [0, 0, 1, 1],
    ),
    "predicate without a verb": (
        "He/PRON/2/nsubj is/AUX/2/cop tall/ADJ/2/root but/CCONJ/6/cc she/PRON/6/nsubj is/AUX/6/cop short/ADJ/2/conj",
        [0, 0, 0, 1, 1, 1, 1],
    ),
    "two sentences": ("Go/VERB/0/root Stop/VERB/1/root", [0, 1]),
    "one word": ("Yes/INTJ/0/root", [0]),
}
CLEARNLP = "Go/VERB/0/ROOT to/ADP/0/prep town/NOUN/1/pobj if/SCONJ/5/mark you/PRON/5/nsubj can/AUX/0/advcl"


def parts(case: str) -> tuple[list[int], list[str], list[str]]:
    rows = [word.split("/") for word in case.split()]
    return [int(row[2]) for row in rows], [row[3] for row in rows], [row[1] for row in rows]


@pytest.mark.parametrize("name", UD_CASES)
def test_ud(name: str) -> None:
    case, expected = UD_CASES[name]
    assert segment_clauses(*parts(case)) == expected


def test_clearnlp() -> None:
    assert segment_clauses(*parts(CLEARNLP)) == [0, 0, 0, 1, 1, 1]


def test_empty() -> None:
    assert segment_clauses([], [], []) == []


def test_unknown_label_is_an_error() -> None:
    with pytest.raises(CellError, match="SB"):
        segment_clauses([1, 1], ["SB", "root"], ["NOUN", "VERB"])
