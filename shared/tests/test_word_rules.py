"""Which words make a text positive or negative, by texts that are labelled by hand."""

import pytest

from poolbench.concepts import CONCEPTS
from poolbench.word_rules import word_rules

#: A positive and a negative of each rule.
TEXTS = {
    "hedging": ("Perhaps it rained.", "It rained, and the seemly guests left."),
    "causation": ("It failed because of rust.", "It failed, and it was rusty."),
    "contrast": ("However, it rained.", "It rained and they went."),
    "conditionality": ("If it rains, they stay.", "It rains and they stay in the cliff house."),
    "legal_formality": ("Paid pursuant to the act.", "Paid under the act."),
    "negation_density": ("No one can't say never.", "Everyone notes the knot."),
    "numerical_precision": ("In 1990, 3 of 12 paid $4.50.", "Many paid."),
    "planning": ("The goal is that we will then move.", "The house is old."),
    "narrative": ("He went out, she looked at him and said so to them.", "The valley is wide."),
    "code_docs": ("The method returns its argument as a string.", "The house is old."),
    "frustration": ("This is ridiculous.", "This is a letter."),
}
#: Texts of no class, however short.
NEITHER = {"numerical_precision": "They paid.", "planning": "It will rain.", "narrative": "He wept, and was “sad”."}


def test_each_rule_has_texts_and_is_of_a_concept() -> None:
    assert TEXTS.keys() == word_rules().keys()
    assert {CONCEPTS.get(name).id for name in TEXTS} == set(TEXTS)


@pytest.mark.parametrize("concept", TEXTS)
def test_labels_by_hand(concept: str) -> None:
    rule = word_rules()[concept]
    positive, negative = TEXTS[concept]
    assert (rule.label(positive), rule.label(negative)) == (1, 0)
    assert concept not in NEITHER or rule.label(NEITHER[concept]) is None


@pytest.mark.parametrize(("num_words", "needed"), [(13, 1), (14, 2), (26, 2), (27, 3), (40, 3), (80, 3)])
def test_a_text_shorter_than_a_passage_needs_markers_as_dense(num_words: int, needed: int) -> None:
    """A passage of 40 words needs 3 negators, so one of 26 needs 1.95, rounded up."""

    def label(num_negators: int) -> int | None:
        words = ["not"] * num_negators + ["house"] * (num_words - num_negators)
        return word_rules()["negation_density"].label(" ".join(words))

    labels = [label(number) for number in range(4)]
    assert labels == [0] + [None] * (needed - 1) + [1] * (4 - needed)
