"""Texts whose words are shuffled: every word stays, and spans follow theirs."""

from collections import Counter

import pyarrow as pa

from poolbench_corpora.probing import PROBING_INSTANCES, PROBING_PASSAGES, ProbingData, Span, passage_id
from poolbench_corpora.probing.word_order import moved_span, without_order

TEXT = "The old ferry didn't wait, and  the pier was empty."


def test_shuffled_texts_keep_their_words_and_spans_follow_them() -> None:
    (whole,) = moved_span(Span(TEXT, 0, len(TEXT)), 0)
    assert whole.text != TEXT and Counter(whole.text.split()) == Counter(TEXT.split())
    assert (whole.start, whole.end) == (0, len(whole.text))
    for words in ("ferry", "old ferry", "n't", "dn't wait", "wait", "wait, and  the"):
        start = TEXT.index(words)
        pieces = moved_span(Span(TEXT, start, start + len(words)), 0)
        assert {piece.text for piece in pieces} == {whole.text}
        assert Counter(word for piece in pieces for word in piece.words.split()) == Counter(words.split())


def test_words_that_stand_together_again_are_one_piece() -> None:
    """Of two words, half of the seeds keep the order: then the span is whole."""
    numbers = Counter(len(moved_span(Span("a b c", 0, 3), seed)) for seed in range(200))
    assert set(numbers) == {1, 2} and numbers[1] > 60 and numbers[2] > 60
    found = {moved_span(Span("a b c", 0, 3), seed)[0].text for seed in range(200)}
    assert len(found) == 6


def test_instances_name_the_pieces_and_keep_the_rest() -> None:
    spans = {"ferry": Span(TEXT, 8, 13), "both": Span(TEXT, 4, 13)}
    passages = [
        {"passage_id": passage_id(each), "text": TEXT, "span": {"start": each.start, "end": each.end}}
        for each in spans.values()
    ]
    row = {"first": [passage_id(spans["ferry"]), passage_id(spans["both"])], "second": [passage_id(spans["ferry"])]}
    row |= {"instance_id": "s/1", "label": "x", "value": None, "split": "train", "group": "s/g", "word": "ferry"}
    data = ProbingData(pa.Table.from_pylist(passages, PROBING_PASSAGES), pa.Table.from_pylist([row], PROBING_INSTANCES))
    found = without_order(data, 0)
    (moved,) = found.instances.to_pylist()
    assert {name: moved[name] for name in row if name not in ("first", "second")} == {
        name: row[name] for name in row if name not in ("first", "second")
    }
    assert len(set(moved["first"])) == len(moved["first"])  # the prober refuses a passage that is named twice
    assert {*moved["first"], *moved["second"]} == set(found.passages["passage_id"].to_pylist())
