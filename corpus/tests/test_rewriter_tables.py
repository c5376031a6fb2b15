"""Rewrites of real sentences, as they were read by people, and what holds of every rewrite."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from poolbench_corpora.real.documents import SOURCES
from poolbench_corpora.real.rewriting import REWRITES

TABLES = Path(__file__).parent / "data" / "rewriters"
_END = re.compile(r"[.!?]['\"”’)]*$")
_DOUBLED = re.compile(r"(?i)\b(\w+) \1\b|,\s*[,.;:!?]|  ")


@cache
def table(concept: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((TABLES / f"{concept}.yaml").read_text("utf-8"))
    return found


def pairs(concept: str) -> list[tuple[str, str]]:
    return [(case["text"], case["rewritten"]) for case in table(concept)["cases"] if case["rewritten"]]


def test_every_rewriter_has_a_table() -> None:
    assert {file.stem for file in TABLES.glob("*.yaml")} == REWRITES.keys()


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_rewrites_are_those_that_were_read(concept: str) -> None:
    cases = table(concept)["cases"]
    assert len(pairs(concept)) >= 40
    changed = {case["text"]: new for case in cases if (new := REWRITES[concept](case["text"])) != case["rewritten"]}
    assert not changed, "read them, correct the table and raise REWRITERS_REVISION"


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_rewrites_hold_no_marker_and_are_whole_sentences(concept: str) -> None:
    rewriter = REWRITES[concept]
    for old, new in pairs(concept):
        assert rewriter.markers.search(old) and not rewriter.markers.search(new), new
        assert rewriter(new) == new, "a rewrite is rewritten again"
        ends = [match[0] if (match := _END.search(text)) else "" for text in (old, new)]
        assert ends[0] == ends[1], new
        letters = [next(letter for letter in text if letter.isalpha()) for text in (old, new)]
        assert letters[1].isupper() or not letters[0].isupper(), new
        assert len(_DOUBLED.findall(new)) <= len(_DOUBLED.findall(old)), new


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_sentences_name_a_source_whose_licence_permits_shipping_them(concept: str) -> None:
    sources = table(concept)["sources"]
    assert {case["document"].partition("/")[0] for case in table(concept)["cases"]} == sources.keys()
    for name, facts in sources.items():
        assert SOURCES[name].permissive
        assert facts == {"origin": SOURCES[name].origin, "licence": SOURCES[name].licence}
