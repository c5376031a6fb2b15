"""Openings and calibration texts are neutral: they carry no concept."""

import re
from collections.abc import Iterable

import pytest

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.tables import PASSAGES, PROMPTS
from poolbench.errors import CorpusError, UnknownNameError
from poolbench.texts import list_openings, load_calibration, load_openings
from poolbench.word_rules import NEGATORS, VAGUE, seed_pattern


def test_neutral_54_has_54_different_short_openings_without_a_hint() -> None:
    texts = load_openings("neutral-54")["text"].to_pylist()
    assert len(texts) == len(set(texts)) == 54
    assert all(6 <= len(text.split()) <= 14 for text in texts)
    assert not any(text[-1] in ".!?, " for text in texts)
    assert load_openings("neutral-54", 12).equals(load_openings("neutral-54").slice(0, 12))
    assert load_openings("neutral-54").schema == PROMPTS
    # Negatives of numerical_precision hold them: they would be a hint.
    assert not [text for text in load_openings("neutral-54")["text"].to_pylist() if VAGUE.search(text)]


def test_calibration_texts_are_passages() -> None:
    table = load_calibration()
    assert table.num_rows == 32
    assert table.schema == PASSAGES
    assert len(set(table["text"].to_pylist())) == 32


def phrases_in(text: str, phrases: Iterable[str]) -> list[str]:
    """The words and phrases that a text holds at word boundaries, whatever their ending: plan, plans, planned."""
    endings = r"(s|es|d|ed|ly|ing)?"
    return [p for p in phrases if re.search(rf"\b{re.escape(p)}{endings}\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("concept", CONCEPTS.all(), ids=lambda concept: concept.id)
def test_no_opening_or_calibration_text_carries_a_concept(concept: Concept) -> None:
    openings, calibration = (table["text"].to_pylist() for table in (load_openings("neutral-54"), load_calibration()))
    triggers = {trigger.lower() for trigger in concept.triggers}
    for text in openings:
        assert not phrases_in(text, concept.seed_words), text
    for text in openings + calibration:
        assert not triggers & set(re.findall(r"\w+", text.lower())), text
        assert not (concept.seed_words and seed_pattern(concept).search(text)), text
        assert not NEGATORS.search(text), text
        assert not re.search(r"\d", text), text


def test_the_published_openings_are_ten_and_one_of_them_carries_a_concept() -> None:
    texts = load_openings("published-10")["text"].to_pylist()
    assert len(texts) == len(set(texts)) == 10
    seeds = {c.id: [text for text in texts if phrases_in(text, c.seed_words)] for c in CONCEPTS.all()}
    assert {name: found for name, found in seeds.items() if found} == {
        "causation": ["The team worked together to complete the project because"]
    }
    assert not set(texts) & set(load_openings("neutral-54")["text"].to_pylist())


def test_unknown_sets_and_too_many_openings_are_refused() -> None:
    assert list_openings() == ["neutral-54", "published-10"]
    with pytest.raises(UnknownNameError, match="did you mean neutral-54"):
        load_openings("neutral-45")
    with pytest.raises(CorpusError, match="has 54 openings; received num_openings=55"):
        load_openings("neutral-54", 55)
