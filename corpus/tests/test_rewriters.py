"""Rewriters of the matched concepts: single rules, and properties over sentences."""

import pytest

from poolbench_corpora.real import real_revision
from poolbench_corpora.real.build import REAL_REVISION
from poolbench_corpora.real.rewriting import REWRITES
from poolbench_corpora.real.rewriting.verbs import past, third_person

RULES = [
    ("hedging", "Perhaps it works, and it might be fast.", "It works, and it will be fast."),
    ("hedging", "He appears to be ill. I think that she is likely to go.", "He is ill. She will go."),
    ("hedging", "He said that it might have failed.", "He said that it would have failed."),
    ("hedging", "It seems to help. He fought with all his strength.", "It helps. He fought with all his strength."),
    ("hedging", "He fought with all his might.", None),
    ("causation", "It failed. Because of rain, we left, since it was late.",
     "It failed. With rain, we left, and it was late."),
    ("causation", "Because it rained, we stayed at home.", "It rained, and we stayed at home."),
    ("causation", "It rained; we therefore stayed, and therefore lost.", "It rained; we stayed and lost."),
    ("causation", "He has lived there since he left.", None),
    ("causation", "They have traded since 1990, and since then in oil.",
     "They have traded from 1990 on, and from then on in oil."),
    ("contrast", "It works. However, it is slow; he, however, waits.", "It works. It is slow; he waits."),
    ("contrast", "Although it rained, we went out.", "It rained, and we went out."),
    ("contrast", "Despite the rain, we went out, whereas they stayed.", "With the rain, we went out, and they stayed."),
    ("contrast", "However small it is, keep it.", None),
    ("conditionality", "If the door is open, you must run. You will stay unless he calls.",
     "You must run. You will stay."),
    ("hedging", "He came, perhaps. It is, perhaps, late.", "He came. It is late."),
    ("conditionality", "We asked if he was ill; he looked as if he was.",
     "We asked whether he was ill; he looked as though he was."),
    ("conditionality", "Stay unless told.", None),
    ("conditionality", "If a file exists, it is opened.", None),
    ("negation_density", "I can't go without you; it isn't late.", "I can go with you; it is late."),
    ("negation_density", "He did not see anyone, and she doesn't know.", "He saw someone, and she knows."),
    ("negation_density", "Nobody came, and there is no reason.", "Somebody came, and there is some reason."),
    ("negation_density", "He is not only old.", None),
    ("legal_formality", "Pursuant to law it shall hereby end.", "Under law it will end."),
    ("legal_formality", "The aforementioned rule applies notwithstanding the Act.",
     "The previously mentioned rule applies despite the Act."),
]  # fmt: skip


@pytest.mark.parametrize(("concept", "text", "expected"), RULES)
def test_rules(concept: str, text: str, expected: str | None) -> None:
    assert REWRITES[concept](text) == expected


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_a_rewrite_changes_nothing_but_its_words(concept: str) -> None:
    odd = "A  double space , a .dot file. lower start; ( brackets ) and\n\nparagraphs ."
    assert REWRITES[concept](odd) == odd


def test_forms_of_verbs() -> None:
    assert [third_person(verb) for verb in ("be", "try", "pass", "go", "play")] == [
        "is",
        "tries",
        "passes",
        "goes",
        "plays",
    ]
    assert [past(verb) for verb in ("go", "like", "try", "play", "look")] == [
        "went",
        "liked",
        "tried",
        "played",
        "looked",
    ]
    assert past("shrug") is None


def test_new_rewriters_move_only_the_concepts_that_have_one() -> None:
    assert real_revision(["narrative", "planning"]) == REAL_REVISION
    assert real_revision(["narrative", "hedging"]) == f"{REAL_REVISION}, rewriters-2"
