"""Texts of users: files are read line by line, whole documents are split, and limits are named before a run."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from poolbench.concepts import Concept, Neighbours
from poolbench.errors import CorpusError
from poolbench_corpora.own import OwnTexts, Text, build_own, read_pairs, read_texts, review, revision_of

WORDS = [f"word{number}" for number in range(4000)]


def texts(count: int, seed: int, **fields: Any) -> list[Text]:
    rng = random.Random(seed)
    return [Text(" ".join(rng.sample(WORDS, 30)), f"file-{seed}, line {n + 1}", **fields) for n in range(count)]


def concept(**fields: Any) -> Concept:
    required: dict[str, Any] = dict.fromkeys(("summary", "definition", "construction"), "")
    return Concept(id="mine", family="own", matched_pairs=False, neighbours=Neighbours(), **required | fields)


def messages(passages: pa.Table, level: str, **fields: Any) -> str:
    return "\n".join(remark.message for remark in review(concept(**fields), passages) if remark.level == level)


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return path


def test_jsonl_and_csv_hold_the_same(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", {"text": "one, two", "doc_id": "d1", "licence": "MIT"}, {"text": "three"})
    table = tmp_path / "a.csv"
    table.write_text('text,doc_id,licence\r\n"one, two",d1,MIT\nthree,,\n', "utf-8")
    found = [[(text.text, text.document, text.licence) for text in read_texts(path)] for path in (lines, table)]
    assert found[0] == found[1] == [("one, two", "d1", "MIT"), ("three", "", "")]


def test_pairs_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"positive": "It may rain.", "negative": "It will rain.", "domain": "news"})
    ((positive, negative),) = read_pairs(path)
    assert (positive.text, negative.text, negative.domain) == ("It may rain.", "It will rain.", "news")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such file"):
        read_texts(tmp_path / "none.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(CorpusError, match=r"folder\.jsonl: Is a directory"):
        read_texts(tmp_path / "folder.jsonl")


def test_splits_hold_whole_documents_in_the_declared_shares() -> None:
    own = OwnTexts(
        [text for n in range(40) for text in texts(5, n, document=f"p{n}")],
        [text for n in range(40, 80) for text in texts(5, n, document=f"n{n}")],
    )
    rows = build_own("mine", own).to_pylist()
    counts = Counter((row["split"], row["label"]) for row in rows)
    assert counts == {(s, c): n for s, n in (("train", 100), ("test", 50), ("scorer", 50)) for c in (0, 1)}
    assert all(len({row["split"] for row in rows if row["doc_id"] == doc}) == 1 for doc in {r["doc_id"] for r in rows})


def test_pairs_stay_in_one_split_and_unequal_documents_are_balanced() -> None:
    pairs = [(a, b) for a, b in zip(texts(60, 1), texts(60, 2), strict=True)]
    rows = build_own("mine", OwnTexts(pairs=pairs)).to_pylist()
    assert all(len({row["split"] for row in rows if row["pair_id"] == f"pair-{n}"}) == 1 for n in range(60))
    sizes = [30, 20, 10, 10, 5, 5, *[1] * 40]
    uneven = [text for n, size in enumerate(sizes) for text in texts(size, 100 + n, document=f"d{n}")]
    counts = Counter(row["split"] for row in build_own("mine", OwnTexts(uneven, texts(120, 3))).to_pylist())
    assert abs(counts["train"] - 120) <= 5
    assert abs(counts["test"] - counts["scorer"]) <= 5


def test_the_split_depends_on_texts_and_seed_alone() -> None:
    own = OwnTexts(texts(50, 1), texts(50, 2))
    assert build_own("mine", own).equals(build_own("mine", own))
    assert not build_own("mine", own, seed=1).equals(build_own("mine", own))
    assert revision_of(build_own("mine", own)) != revision_of(build_own("mine", own, seed=1))


def test_the_name_of_the_concept_is_in_no_id_that_something_is_drawn_by() -> None:
    own = OwnTexts(texts(50, 1), texts(50, 2), [*zip(texts(20, 3), texts(20, 4), strict=True)])
    one, other = (build_own(name, own).drop_columns(["concept", "doc_id"]) for name in ("mine", "another_name"))
    assert one.equals(other)


def test_repeated_texts_are_left_out_with_their_pair() -> None:
    first, second = texts(2, 1), texts(2, 2)
    own = OwnTexts([*first, first[0]], second[:1], pairs=[(texts(1, 3)[0], second[1]), (first[1], texts(1, 4)[0])])
    table = build_own("mine", own)
    assert own.repeated == ["file-1, line 1", "file-1, line 2"]
    assert Counter(table["label"].to_pylist()) == {1: 3, 0: 2}


def test_a_text_of_both_classes_is_refused_with_both_places() -> None:
    positives = texts(3, 1)
    with pytest.raises(CorpusError, match="file-9, line 7 and file-1, line 2 have the same text"):
        build_own("mine", OwnTexts(positives, [Text(positives[1].text.upper(), "file-9, line 7")]))


def test_a_good_corpus_has_notes_only() -> None:
    passages = build_own("mine", OwnTexts(texts(200, 1, licence="MIT", document=""), texts(200, 2, licence="MIT")))
    assert messages(passages, "error") == messages(passages, "warning") == ""
    assert "not paired" in messages(passages, "note")


def test_limits_are_named_before_a_run() -> None:
    few = build_own("mine", OwnTexts(texts(6, 1), texts(6, 2)))
    assert "D1 needs 5 of each class" in messages(few, "error")
    assert "D2 and D3 will be null" in messages(few, "warning")
    uneven = build_own("mine", OwnTexts(texts(200, 1), texts(60, 2)))
    assert "200 positives and 60 negatives" in messages(uneven, "warning")
    long = [Text(f"{text.text} {text.text[::-1]}", text.where) for text in texts(100, 3)]
    assert "positives are longer" in messages(build_own("mine", OwnTexts(long, texts(100, 2))), "warning")
    assert "hold a seed word" in messages(few, "warning", seed_words=tuple(WORDS))


def test_two_documents_are_too_few_for_folds() -> None:
    own = OwnTexts(texts(100, 1, document="a"), texts(100, 2, document="b"))
    assert "documents or pairs for training" in messages(build_own("mine", own), "error")
