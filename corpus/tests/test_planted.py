"""The planted grammar: uses are disjoint, signals are where they are said to be, texts are stable."""

import hashlib
import re
from functools import cache
from itertools import combinations, pairwise
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poolbench.concepts import CONCEPTS
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, UnknownConceptError
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.near import token_difference
from poolbench_corpora.partition import split_of
from poolbench_corpora.planted import MISLABELLED, build_planted, lm_documents
from poolbench_corpora.planted.grammar import Lexicon, Use, join, load_lexicon, mark
from poolbench_corpora.planted.signals import load_signal, planted_concepts

PLANTED = planted_concepts()
WINDOW = (90, 140)

# Words without a subject of their own may stand in every use.
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a above after against along amid among and around at before behind below beneath beside between
        beyond by down during every facing for from in inside into last near next of on one our
        out outside over past that the this through throughout to toward under underneath upon
        was with within across about""",
    )
)


@cache
def build(concept: str, num: int = 40, seed: int = 0, window: tuple[int, int] = WINDOW) -> pa.Table:
    return build_planted(concept, seed=seed, num_train=num, num_test=num, num_scorer=num, window=window)


def content_words(lexicon: Lexicon) -> set[str]:
    options = [words for domain in lexicon.domains for words in domain.slots.values()]
    text = " ".join(phrase for phrases in options for phrase in phrases)
    return set(re.findall(r"[\w-]+", text.lower())) - FUNCTION_WORDS


def test_every_concept_of_the_registry_has_a_planted_form() -> None:
    assert list(PLANTED) == [concept.id for concept in CONCEPTS.all()]
    assert all(load_signal(concept).matched == CONCEPTS.get(concept).matched_pairs for concept in PLANTED)


@pytest.mark.parametrize(("first", "second"), list(combinations(get_args(Use), 2)))
def test_uses_share_no_content_word_domain_or_template(first: str, second: str) -> None:
    one, other = load_lexicon(first), load_lexicon(second)  # type: ignore[arg-type]
    assert not content_words(one) & content_words(other)
    assert not {domain.name for domain in one.domains} & {domain.name for domain in other.domains}
    for slot in ("clause", "subj", "obj", "vp"):
        bare = {template for template in one.templates[slot] if template != "{name}"}
        assert not bare & set(other.templates[slot])


def test_uses_share_no_document() -> None:
    table = build("causation")
    sources = {(row["split"], row["source"]) for row in table.to_pylist()}
    assert sources == {("train", "planted-corpus"), ("test", "planted-corpus"), ("scorer", "planted-scorer")}
    assert all(split_of(document.doc_id) == "lm" for document in lm_documents(0, 40))


@pytest.mark.parametrize("use", get_args(Use))
def test_a_lexicon_has_no_seed_word_and_enough_domains(use: str) -> None:
    lexicon = load_lexicon(use)  # type: ignore[arg-type]
    assert len(lexicon.domains) >= 3
    words = content_words(lexicon)
    for concept in CONCEPTS.all():
        assert not words & {word.lower() for word in concept.seed_words}, concept.id


@pytest.mark.parametrize("concept", PLANTED)
def test_corpora_obey_every_construction_rule(concept: str) -> None:
    assert validate_corpus(build(concept), window=WINDOW) == []


@pytest.mark.parametrize("concept", ["conditionality", "negation_density", "academic_tone"])
def test_long_windows_obey_every_construction_rule(concept: str) -> None:
    assert validate_corpus(build(concept, 20, window=(300, 500)), window=(300, 500)) == []


@pytest.mark.parametrize("concept", PLANTED)
def test_signals_are_the_markers(concept: str) -> None:
    table = build(concept)
    assert table.schema == PASSAGES
    for row in table.to_pylist():
        spans = [(span["start"], span["end"]) for span in row["signal"]]
        assert bool(spans) <= bool(row["label"])
        assert all(0 <= start < end <= len(row["text"]) for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        marked = " ".join(row["text"][start:end] for start, end in spans)
        assert marked == marked.strip()
        assert not re.search(r"[<>{}]", row["text"])


@pytest.mark.parametrize(("concept", "num"), [("contrast", 200), *((concept, 40) for concept in PLANTED)])
def test_a_known_share_of_a_corpus_but_of_no_text_for_the_scorer_is_mislabelled(concept: str, num: int) -> None:
    positives = [row for row in build(concept, num).to_pylist() if row["label"]]
    for split, share in (("train", MISLABELLED), ("test", MISLABELLED), ("scorer", 0.0)):
        unmarked = [not row["signal"] for row in positives if row["split"] == split]
        assert sum(unmarked) == int(share * num / 2), split


def test_a_mislabelled_positive_has_the_sentences_of_its_negative_in_another_order() -> None:
    rows = build("causation").to_pylist()
    wrong = [pair for pair in zip(rows[::2], rows[1::2], strict=True) if not pair[0]["signal"]]
    assert len(wrong) == 4  # 2 of 20 pairs in train and in test
    for positive, negative in wrong:
        assert positive["text"] != negative["text"]
        assert sorted(re.findall(r"\w+", positive["text"])) == sorted(re.findall(r"\w+", negative["text"]))


def test_removing_the_connectives_of_a_positive_gives_its_negative() -> None:
    rows = build("causation").to_pylist()
    for positive, negative in zip(rows[::2], rows[1::2], strict=True):
        assert positive["pair_id"] == negative["pair_id"] is not None
        if not positive["signal"]:
            continue
        added = sum(len(positive["text"][s["start"] : s["end"]].split()) for s in positive["signal"])
        assert 0 < token_difference(positive["text"], negative["text"]) <= added + 2 * len(positive["signal"])


def test_the_first_forty_words_show_the_class() -> None:
    """Part a of the scorer gate cuts texts to generation length."""
    for concept in PLANTED:
        rows = [row for row in build(concept).to_pylist() if row["signal"]]
        early = [len(row["text"][: row["signal"][0]["start"]].split()) < 40 for row in rows]
        assert np.mean(early) > 0.97, concept


def test_placements_differ_so_that_strategies_differ() -> None:
    def places(concept: str) -> list[float]:
        rows = [row for row in build(concept).to_pylist() if row["label"] and row["split"] != "scorer"]
        return [span["start"] / len(row["text"]) for row in rows for span in row["signal"]]

    assert np.mean(places("deference")) < 0.3 < np.mean(places("causation")) < np.mean(places("contrast"))
    assert min(places("deference")) == 0  # the first sentence is marked
    assert min(places("contrast")) > 0.04  # it never is
    assert max(places("contrast")) > 0.9  # the last sentence is marked
    assert max(places("conditionality")) < 0.95  # it never is


def test_both_classes_carry_other_concepts_in_the_same_measure() -> None:
    connective = re.compile(r"\b(however|although|despite|unless|provided that|perhaps|never)\b", re.I)
    rows = [row for row in build("causation").to_pylist() if row["split"] != "scorer"]
    positive, negative = (
        [len(connective.findall(row["text"])) for row in rows if row["label"] == label] for label in (1, 0)
    )
    assert positive == negative
    assert sum(positive) > 4


def test_the_same_seed_gives_the_same_texts_on_every_machine() -> None:
    table = build("contrast", 10)
    assert table.equals(build.__wrapped__("contrast", 10))
    digest = hashlib.sha256("\n".join(table["text"].to_pylist()).encode()).hexdigest()
    assert digest.startswith("0ab80f710b4183fa"), "texts changed: raise PLANTED_REVISION, then this value"


def test_more_passages_extend_a_corpus() -> None:
    small, large = (set(build("hedging", num)["doc_id"].to_pylist()) for num in (10, 40))
    assert small < large


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), low=st.integers(30, 300), concept=st.sampled_from(PLANTED))
@example(seed=11, low=209, concept="numerical_precision")  # 16 sentences have 243 tokens, 15 have 228
def test_any_window_of_thirty_tokens_is_met(seed: int, low: int, concept: str) -> None:
    table = build(concept, 4, seed, (low, low + 30))
    assert all(low <= count <= low + 30 for count in table["token_count"].to_pylist())
    assert sum(table["label"].to_pylist()) == table.num_rows // 2


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(UnknownConceptError, match="did you mean causation"):
        build("causatoin")
    with pytest.raises(CorpusError, match="even number of passages, half of them positive; received 3"):
        build_planted("causation", seed=0, num_train=3, num_test=2, num_scorer=2)
    with pytest.raises(CorpusError, match="choose a wider window"):
        build("causation", 4, window=(1, 2))


def test_lm_documents_are_dense_in_their_concept_after_a_neutral_start() -> None:
    documents = list(lm_documents(0, 95))
    assert {document.concepts for document in documents} == {(), *((concept,) for concept in PLANTED)}
    texts = [document.text for document in lm_documents(1, 30, ("causation",))]
    connective = re.compile(r"because|since|therefore|consequently|due to|as a result", re.I)
    shares = [len(connective.findall(text)) / len(re.findall(r"[.!?](?= |$)", text)) for text in texts]
    assert np.mean(shares) > 0.6
    assert len({text[:40] for text in texts}) == 30


def test_marks_are_found_after_articles_and_capitals_are_repaired() -> None:
    sentence = mark("a <awful> end. <because> of it.")
    assert sentence.text == "An awful end. Because of it."
    assert [sentence.text[start:end] for start, end in sentence.signal] == ["awful", "Because"]
    joined = join([sentence, mark("it <rained>.")])
    assert [joined.text[start:end] for start, end in joined.signal] == ["awful", "Because", "rained"]
