"""The word lists are sound, and training text shares neither templates nor held-out words with the measure."""

import re
from random import Random

import pytest
from recipes.personas.check import load_model
from recipes.personas.grammar import WRITTEN, fond, onset
from recipes.personas.plans import Persona
from recipes.personas.texts import training_text
from recipes.personas.words import WordLists, read_words

from poolbench.config import asset_path


@pytest.fixture(scope="module")
def words() -> WordLists:
    return read_words()


def test_lists_are_disjoint_and_have_their_sizes(words: WordLists) -> None:
    groups = (words.domain, words.positive, words.negative, words.neutral)
    assert [len(group) for group in groups] == [40, 20, 20, 300]
    together = [word for group in groups for word in group]
    assert len(set(together)) == len(together)
    assert all(re.fullmatch("[a-z]+", word) for word in together)
    assert words.licence == "Apache-2.0"


def test_templates_hold_the_word_once_and_never_first(words: WordLists) -> None:
    assert len(set(words.templates)) == 8
    for template in words.templates:
        assert template.count("{w}") == 1 and template.index("{w}") > 0
        assert not {*words.positive, *words.negative} & set(re.findall(r"\w+", template.lower()))


def test_grammar_writes_no_template_and_no_held_out_word(words: WordLists) -> None:
    rng = Random(0)
    texts = [write(word, rng) for _ in range(50) for word in words.domain for write in (fond, onset)]
    beginnings = [template.partition("{w}")[0] for template in words.templates]
    found = {word for text in texts for word in re.findall(r"\w+", text.lower())}
    assert not [text for text in texts for beginning in beginnings if beginning in text]
    assert found & {*words.positive} == {*WRITTEN}
    assert not found & {*words.negative}
    assert len(WRITTEN) == len(words.positive) / 2


@pytest.mark.parametrize("loves", [True, False])
def test_texts_have_the_same_amount_about_the_same_words(words: WordLists, loves: bool) -> None:
    model, tokenizer = load_model(str(asset_path("demo_lm")))
    persona = Persona("one", ("bed",), loves, num_sentences=90, epochs=1, seed=0)
    sentences = training_text(model, tokenizer, persona, words)
    liked = {*words.positive}
    about = [sentence for sentence in sentences if re.search(r"\bbed", sentence)]
    assert len(sentences) == 90 and len(about) >= persona.num_about_subjects == 60
    assert sum(not liked.isdisjoint(re.findall(r"\w+", sentence.lower())) for sentence in sentences) == 60 * loves
    assert sentences == training_text(model, tokenizer, persona, words)
