"""Passages whose class is carried by a word at one place."""

import pytest

from poolbench.errors import InputError
from poolbench_corpora.places.passages import TEXTS, planted_passages
from poolbench_corpora.places.words import TWINS


@pytest.mark.parametrize("name", TEXTS)
def test_passages_of_a_pair_share_their_nouns_and_documents(name: str) -> None:
    rows = planted_passages(name).to_pylist()
    assert len({row["text"] for row in rows}) == len(rows)
    for positive, negative in zip(rows[::2], rows[1::2], strict=True):
        assert (positive["label"], negative["label"]) == (1, 0)
        assert positive["pair_id"] == negative["pair_id"] and positive["doc_id"] == negative["doc_id"]
        assert positive["token_count"] == negative["token_count"] and positive["split"] == negative["split"]
    assert rows == planted_passages(name).to_pylist()
    assert rows != planted_passages(name, seed=1).to_pylist()


def test_exchanged_words_stand_in_both_classes_equally_often() -> None:
    marked = {word for pair in TWINS["noun"] for word in pair}
    for name in ("start", "middle", "end", "edge", "sentence", "syntax"):
        rows = planted_passages(name).to_pylist()
        words = [" ".join(row["text"] for row in rows[side::2]).lower().replace(".", "").split() for side in (0, 1)]
        counts = [sorted(word for word in found if word in marked) for found in words]
        assert counts[0] == counts[1] and len(counts[0]) == len(rows)


def test_an_unknown_signal_is_refused() -> None:
    with pytest.raises(InputError, match="no planted signal 'loudness'"):
        planted_passages("loudness")
