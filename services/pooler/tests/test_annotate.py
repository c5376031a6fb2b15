"""The shipped pipeline, clauses and TF-IDF: by hand, on awkward texts, and against scikit-learn."""

import dataclasses

import pytest

from poolbench.errors import CellError, ConfigError, InputError, UnknownNameError
from poolbench_pooler.annotate import (
    BATCH_SIZE,
    ParseCache,
    Pipeline,
    annotate_texts,
    dep_scheme,
    load_pipeline,
    parse,
    segment_clauses,
    tokenize,
)
from poolbench_pooler.keywords import DocumentFrequencies

NO_TRAIN = DocumentFrequencies({}, 0)
AWKWARD = {
    "empty": "",
    "spaces": " \n\t ",
    "one word": "Hello",
    "emoji": "Great 👍🏽 work 👨‍👩‍👧!",
    "right to left": "הילדה קראה ספר. هذا نص عربي.",
    "combining": "Cafe\u0301 na\u00efve",
    "control": "a\x00b \u200bc\ufeff",
    "line breaks": "First  line\nsecond\r\n\r\n- third\n\n\n",
    "digits": "1,234.5 + 6 = 99%",
    "no spaces": "a" * 3000,
}
PROSE = "The old company paid its workers late. However, nobody in Boston complained about Mary Jones."


def rows(pipeline: Pipeline, texts: list[str], frequencies: DocumentFrequencies = NO_TRAIN) -> list[dict]:
    return list(annotate_texts(pipeline, [str(i) for i in range(len(texts))], texts, frequencies, 10))


def words(row: dict, text: str) -> list[str]:
    return [text[a:b] for a, b in zip(row["word_start"], row["word_end"], strict=True)]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_texts(pipeline: Pipeline, name: str) -> None:
    text = AWKWARD[name]
    row = rows(pipeline, [text])[0]
    columns = [value for key, value in row.items() if key != "passage_id"]
    assert len({len(column) for column in columns}) == 1
    surface = words(row, text)
    assert all(word and not word.isspace() for word in surface)
    assert "".join(surface) == "".join("".join(surface).split())
    assert len("".join(surface)) == len("".join(text.split())), "every visible character lies in one word"
    assert all(0 <= head < len(surface) for head in row["head"])
    assert row["sentence"] == sorted(row["sentence"])


def test_words_of_prose(pipeline: Pipeline) -> None:
    row = rows(pipeline, [PROSE])[0]
    tagged = dict(zip(words(row, PROSE), row["upos"], strict=True))
    assert tagged["company"] == "NOUN" and tagged["old"] == "ADJ" and tagged["paid"] == "VERB"
    lemmas = dict(zip(words(row, PROSE), row["lemma"], strict=True))
    assert lemmas["workers"] == "worker" and lemmas["paid"] == "pay"
    kinds = dict(zip(words(row, PROSE), row["entity"], strict=True))
    assert kinds["Boston"] == "LOC" and kinds["Jones"] == "PER" and kinds["company"] == ""
    assert max(row["sentence"]) == 1
    roots = [i for i, head in enumerate(row["head"]) if head == i]
    assert [row["dep"][i] for i in roots] == ["root"] * len(roots) and len(roots) == 2
    text = "Summary of the\n\nreport that we sent"
    row = rows(pipeline, [text])[0]
    sentence = dict(zip(words(row, text), row["sentence"], strict=True))
    assert sentence["the"] < sentence["report"]


def test_batching_changes_nothing(pipeline: Pipeline) -> None:
    texts = [PROSE, *AWKWARD.values(), PROSE.upper()]
    alone = [next(parse(pipeline, [text])) for text in texts]
    for batch_size in (1, 3, BATCH_SIZE):
        assert list(parse(pipeline, texts, batch_size=batch_size)) == alone


def test_a_text_met_before_is_not_parsed_again(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = dataclasses.replace(pipeline, cache=ParseCache())
    texts = [PROSE, "One more.", PROSE]
    expected = rows(fresh, texts)
    assert len(fresh.cache) == 2
    monkeypatch.setattr(fresh.nlp, "pipe", lambda docs, batch_size: iter(list(docs) and pytest.fail("parsed again")))
    assert rows(fresh, texts) == expected
    assert rows(fresh, texts[::-1]) == [{**row, "passage_id": str(i)} for i, row in enumerate(expected[::-1])]


def test_the_cache_keeps_what_was_used_last() -> None:
    cache = ParseCache(max_words=6)
    for text in ("a", "b", "c"):
        cache.put(text, {"word_start": [0]})  # counts 2
    assert cache.get("a") is not None
    cache.put("d", {"word_start": [0]})
    assert [cache.get(text) is not None for text in "abcd"] == [True, False, True, True]
    cache.put("long", {"word_start": [0] * 6})
    assert cache.get("long") is None and len(cache) == 3


def test_keywords_follow_the_train_texts_and_are_not_cached(pipeline: Pipeline) -> None:
    text = "the zebra saw the lion"
    common = DocumentFrequencies.of([["the", "saw", "lion"]] * 50)
    row = next(annotate_texts(pipeline, ["0"], [text], common, 1))
    assert [w for w, flag in zip(words(row, text), row["keyword"], strict=True) if flag] == ["zebra"]
    flagged = {}
    for rare in ("company", "workers"):
        frequencies = DocumentFrequencies.of([[w for w in PROSE.lower().split() if w != rare]] * 9)
        row = next(annotate_texts(pipeline, ["0"], [PROSE], frequencies, 1))
        flagged[rare] = [w for w, flag in zip(words(row, PROSE), row["keyword"], strict=True) if flag]
    assert flagged == {"company": ["company"], "workers": ["workers"]}


def test_too_long_and_broken_texts_are_named(pipeline: Pipeline) -> None:
    with pytest.raises(InputError, match=r"passage 'p1'.*1000001 characters.*limit is 1000000"):
        tokenize(pipeline.nlp, "x" * 1_000_001, "passage 'p1'")
    with pytest.raises(InputError, match="valid Unicode"):
        tokenize(pipeline.nlp, "half a pair \ud83d")


def test_schemes() -> None:
    assert dep_scheme(["ROOT", "prep", "pobj", "nsubj", "relcl"]) == "clearnlp"
    assert dep_scheme(["ROOT", "case", "obl", "acl:relcl"]) == "ud"
    with pytest.raises(ConfigError, match="SB"):
        dep_scheme(["ROOT", "SB", "OA"])
    with pytest.raises(ConfigError, match="neither"):
        dep_scheme(["ROOT", "nsubj"])


def test_pipelines_are_found_by_name_and_version(pipeline: Pipeline) -> None:
    with pytest.raises(UnknownNameError, match="annotator"):
        load_pipeline("anotator")
    with pytest.raises(ConfigError, match="not installed"):
        load_pipeline("en_core_web_trf")
    assert pipeline.require_version(pipeline.version) is pipeline
    with pytest.raises(ConfigError, match=r"not 0\.0\.1"):
        pipeline.require_version("0.0.1")


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


def test_other_schemes_empty_texts_and_unknown_labels() -> None:
    assert segment_clauses(*parts(CLEARNLP)) == [0, 0, 0, 1, 1, 1]
    assert segment_clauses([], [], []) == []
    with pytest.raises(CellError, match="SB"):
        segment_clauses([1, 1], ["SB", "root"], ["NOUN", "VERB"])
