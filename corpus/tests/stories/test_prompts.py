"""Prompts for stories, and what an answer must hold."""

import pytest

from poolbench.errors import CorpusError
from poolbench_corpora.stories.prompts import ALIKE, EMPTY, NO_TAGS, TOO_LONG, WRONG_TAGS, prompts_of, stories_of

GOOD = """Here they are:
<high>It was <subject>very {0}</subject> on the way to {1}.</high>
<low>It was <subject>not {0}</subject> on the way to {1}.</low>
"""


def test_each_prompt_has_its_subject_and_a_scene_of_its_own() -> None:
    prompts = prompts_of("{scene} & cold")
    assert list(prompts) == ["neighbours", "journey", "work"] and len(set(prompts.values())) == 3
    assert all("very much of this: {scene} & cold." in text and "<subject>" in text for text in prompts.values())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", EMPTY),
        (GOOD.replace("low>", "second>"), NO_TAGS),
        (GOOD + GOOD, WRONG_TAGS),
        (GOOD.replace("very", "<subject>very"), WRONG_TAGS),
        (GOOD.replace("not", "very"), ALIKE),
        (GOOD.replace("very", "very " * 5000), TOO_LONG),
    ],
)
def test_answers_are_told_apart(answer: str, kind: str) -> None:
    with pytest.raises(CorpusError) as caught:
        stories_of(answer)
    assert str(caught.value) == kind


def test_tags_may_be_in_capitals_and_over_several_lines() -> None:
    high, low = stories_of(GOOD.replace("high>", "HIGH>").replace(" on the way", "\n\non the way"))
    assert high.startswith("It was <subject>very") and "\n\n" in low
