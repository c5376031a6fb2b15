"""Readers and rewriters of real text on small texts, and whole corpora where the archives are at hand."""

import hashlib
import io
import json
import os
import re
import tarfile
import zipfile
from collections import Counter
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from recipes.passages.build import REAL_REVISION, build_real, real_concepts, real_revision
from recipes.passages.documents import (
    SOURCES,
    archives_folder,
    documents_from,
    get_source,
    read_archive,
    read_documents,
    require_sources,
)
from recipes.passages.markup import detokenise, markdown_to_paragraphs, paragraphs, rst_to_paragraphs
from recipes.passages.rewriting import REWRITES
from recipes.passages.weak_labels import weak_labels
from recipes.passages.windows import ChosenPassages, sentences, windows

from poolbench.errors import CorpusError
from poolbench.texts import count_words
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.partition import SOURCE_SHARES, split_of

pytestmark = pytest.mark.lane(name="recipes")


def jsonl(*records: dict[str, object]) -> bytes:
    """Records as the bytes of a JSONL file."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def zip_of(files: dict[str, str]) -> bytes:
    """A zip file in memory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def documents(source: str, files: dict[str, bytes]) -> list[tuple[str, str]]:
    """(doc_id, text) of a source read from these files."""
    return [(document.doc_id, document.text) for document in documents_from(files, get_source(source))]


def test_every_source_has_declared_shares() -> None:
    assert SOURCES.keys() <= SOURCE_SHARES.keys()


def test_share_alike_sources_never_train_the_language_model() -> None:
    closed = [name for name, source in SOURCES.items() if "SA" in source.licence or not source.permissive]
    assert closed
    assert all(SOURCE_SHARES[name].lm == 0 for name in closed)


def test_novels_are_documents_of_their_author() -> None:
    text = "CHAPTER I\n\nIt was a\nbright day.\n\nShe left."
    (doc_id, read), *_ = documents("novels", {"Hardy_Tess_1891.txt": text.encode()})
    assert doc_id == "novels/hardy/tess"
    assert read == "CHAPTER I\n\nIt was a bright day.\n\nShe left."
    assert split_of(doc_id) == split_of("novels/hardy/madding")


def test_statutes_are_documents_of_their_chapter() -> None:
    rows = [{"id": f"16-831.0{number}", "text": f"Section {number}."} for number in (1, 2)]
    assert [doc_id for doc_id, _ in documents("dc_code", {"sections.jsonl": jsonl(*rows)})] == [
        "dc_code/16-831/16-831.01",
        "dc_code/16-831/16-831.02",
    ]


def test_repeated_and_empty_texts_are_left_out() -> None:
    rows = [{"id": str(n), "product": "", "text": text} for n, text in enumerate(("Same.", "Same.", " "))]
    assert documents("cfpb_complaints", {"a.jsonl": jsonl(*rows)}) == [("cfpb_complaints/0", "Same.")]


@pytest.mark.parametrize("line", ['{"id": "1"', '{"id": "1"}', "[1]"])
def test_bad_record_names_file_and_line(line: str) -> None:
    good = jsonl({"id": "0", "product": "", "text": "Fine."})
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 2"):
        documents("cfpb_complaints", {"a.jsonl": good + line.encode() + b"\n"})


def test_reviews_are_detokenised_and_keep_their_label() -> None:
    review = 'i did n\'t like it . \nbut " fargo " ( 1996 ) is the best , i say !'
    files = {"movie_reviews.zip": zip_of({"movie_reviews/pos/cv1.txt": review})}
    (document,) = documents_from(files, get_source("movie_reviews"))
    assert document.text == 'I didn\'t like it. But "fargo" (1996) is the best, I say!'
    assert document.label("sentiment") == "pos"
    assert document.doc_id == "movie_reviews/cv1"


def test_requests_come_from_two_communities() -> None:
    files = {
        name: jsonl({"id": name[0], "text": f"Could you, {name}?", "score": 0.5})
        for name in ("stack-exchange.jsonl", "wikipedia.jsonl")
    }
    read = list(documents_from(files, get_source("politeness")))
    assert len({document.domain for document in read}) == 2
    assert float(read[0].label("politeness")) == 0.5


def test_paragraphs_unwrap_lines() -> None:
    assert paragraphs("\ufeffOne\ntwo.\r\n\r\n  Three.\n") == ["One two.", "Three."]


def test_rst_keeps_prose_and_drops_code() -> None:
    text = """Title
=====

The :func:`~os.open` call returns *one* descriptor for the given file, like this::

    fd = os.open("x", 0)

.. function:: open(path)

   Such a descriptor must be closed by the caller, or ``ResourceWarning`` is shown.

.. note::

   What stands in a note is left out, since a note interrupts the text around it.

.. code-block:: python

   print("never prose, whatever it says in here, at all, at all.")
"""
    assert rst_to_paragraphs(text) == [
        "The os.open call returns one descriptor for the given file, like this:",
        "Such a descriptor must be closed by the caller, or ResourceWarning is shown.",
    ]


def test_markdown_keeps_prose_and_drops_lists_of_boxes() -> None:
    text = """# Heading of many words that is not a sentence.

- [x] (R) Production readiness review approved by everyone who was asked to do so.

The [signal](https://example.org) is **sent** to every container when `kubelet` stops it.

```go
type Signal string // this is code, with quite a lot of words in it, it is.
```
"""
    assert markdown_to_paragraphs(text) == ["The signal is sent to every container when kubelet stops it."]


def test_detokenise_is_idempotent_on_ordinary_text() -> None:
    text = 'He said, "I will." Then (at 3:30) he left.'
    assert detokenise(text) == text


def test_archive_is_read_packed_and_unpacked(tmp_path: Path) -> None:
    packed, unpacked = tmp_path / "packed", tmp_path / "unpacked"
    (unpacked / "probing" / "a").mkdir(parents=True)
    (unpacked / "probing" / "a" / "x.txt").write_text("hello")
    packed.mkdir()
    with tarfile.open(packed / "probing.tar.xz", "w:xz") as archive:
        archive.add(unpacked / "probing", "probing")
    expected = {"a/x.txt": b"hello"}
    assert read_archive(packed, "probing") == expected
    assert read_archive(unpacked, "probing") == expected


def test_missing_and_broken_archives_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CorpusError, match="none of the real-text archives"):
        archives_folder(tmp_path)
    (tmp_path / "passages.tar.xz").write_bytes(b"not a tar")
    with pytest.raises(CorpusError, match=r"passages\.tar\.xz cannot be read"):
        read_archive(tmp_path, "passages")
    monkeypatch.delenv("POOLBENCH_REAL_TEXT", raising=False)
    with pytest.raises(CorpusError, match="POOLBENCH_REAL_TEXT"):
        archives_folder()


def test_real_archives_read_as_prose() -> None:
    for name in SOURCES:
        found = read_documents(name, archives())
        assert len(found) >= 30
        assert all(document.doc_id.startswith(f"{name}/") and document.text for document in found)
        characters = Counter("".join(document.text for document in found[:50]))
        letters = sum(number for character, number in characters.items() if character.isalpha())
        assert letters > 0.65 * characters.total()


SMALL = {"num_train": 12, "num_test": 6, "num_scorer": 6, "window": (60, 160), "seed": 3}


def test_sentences_cover_the_text_in_order() -> None:
    text = 'Mr. A. Smith came. "Why?" he asked. It cost 3.5 pounds.\n\nNew paragraph'
    found = [text[start:end] for start, end in sentences(text)]
    assert found == ["Mr. A. Smith came.", '"Why?" he asked.', "It cost 3.5 pounds.", "New paragraph"]


def test_windows_are_whole_disjoint_sentences_within_bounds() -> None:
    text = " ".join(f"Sentence number {number} says something new." for number in range(200))
    found = list(windows(text, (30, 50), count_words, Random(1)))
    assert len(found) > 20
    assert all(30 <= count_words(passage) <= 50 and passage in text for passage in found)
    assert len({word for passage in found for word in passage.split() if word.isdigit()}) == sum(
        passage.count("Sentence") for passage in found
    )


def test_a_text_that_fits_is_one_passage() -> None:
    assert list(windows("One. Two. Three.", (2, 10), count_words, Random(0))) == ["One. Two. Three."]


def test_unknown_concept_and_odd_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="depression"):
        build_real("depression", archives=tmp_path, num_train=2, num_test=2, num_scorer=0)
    with pytest.raises(CorpusError, match="even number"):
        build_real("hedging", archives=tmp_path, num_train=3, num_test=2, num_scorer=0)


def test_every_rule_reads_registered_sources() -> None:
    for labels in weak_labels().values():
        pools = [labels.positives, *([labels.negatives] if labels.negatives else [])]
        assert all(set(pool.sources) <= SOURCES.keys() for pool in pools)
        assert (labels.rewrite is None) == (labels.negatives is not None)


def archives() -> Path:
    """The folder of archives, or a skip that says where it was looked for."""
    folder = Path(os.environ.get("POOLBENCH_REAL_TEXT", "../shared/data"))
    if not (folder / "passages.tar.xz").exists() and not (folder / "passages").is_dir():
        pytest.skip(f"no real-text archives at {folder}; set POOLBENCH_REAL_TEXT")
    return folder


def test_archives_with_other_contents_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that meets another release reads on, and labels other passages without a word."""
    file = tmp_path / "passages" / "novels" / "Hardy_Tess_1891.txt"
    file.parent.mkdir(parents=True)
    file.write_text("It was perhaps so.")
    novels = SOURCES["novels"]
    monkeypatch.setattr("recipes.passages.documents.SOURCES", {"novels": novels})

    def write(origin: str, content: str) -> None:
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        row = f"passages/novels/{file.name},{origin},public domain,{sha256}"
        (tmp_path / "MANIFEST.csv").write_text(f"path,source,licence,sha256\n{row}\n")

    write(f"{novels.origin}f2cc", "It was perhaps so.")
    require_sources(tmp_path)
    write(novels.origin, "It was so.")
    for read in (require_sources, partial(read_documents, "novels")):
        with pytest.raises(CorpusError, match=r"passages/novels/Hardy_Tess_1891.txt is absent or has another hash"):
            read(tmp_path)
    write("computationalstylistics/100_english_novels@000", "It was perhaps so.")
    with pytest.raises(CorpusError, match=r"source 'novels' is of computationalstylistics.*MANIFEST.csv does not have"):
        require_sources(tmp_path)
    (tmp_path / "MANIFEST.csv").unlink()
    with pytest.raises(CorpusError, match=r"MANIFEST.csv: no such file"):
        require_sources(tmp_path)


def test_the_archives_are_those_that_the_rules_were_written_for() -> None:
    require_sources(archives())


@pytest.mark.parametrize("concept", [name for name in real_concepts() if name not in ("toxicity", "deference")])
def test_real_corpora_obey_the_construction_rules(concept: str) -> None:
    table = build_real(concept, archives=archives(), **SMALL)
    assert table.num_rows == 24
    assert validate_corpus(table, window=(60, 160), min_domains={"imdb_sentiment": 1}) == []  # reviews of films only


def test_real_corpora_are_reproducible_and_depend_on_the_seed() -> None:
    first = build_real("contrast", archives=archives(), **SMALL)
    assert first.equals(build_real("contrast", archives=archives(), **SMALL))
    assert not first.equals(build_real("contrast", archives=archives(), **{**SMALL, "seed": 4}))


def test_near_duplicates_are_refused() -> None:
    shelf = ChosenPassages()
    words = [f"word{number}" for number in range(100)]
    assert shelf.accepts(" ".join(words))
    assert not shelf.accepts(" ".join(words[:70] + ["other"] * 30))
    assert shelf.accepts(" ".join(words[:10] + [f"new{number}" for number in range(90)]))
    assert shelf.accepts("Too short to share anything.")


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_a_rewrite_changes_nothing_but_its_words(concept: str) -> None:
    odd = "A  double space , a .dot file. lower start; ( brackets ) and\n\nparagraphs ."
    assert REWRITES[concept](odd) == odd


def test_new_rewriters_move_only_the_concepts_that_have_one() -> None:
    assert real_revision(["narrative", "planning"]) == REAL_REVISION
    assert real_revision(["narrative", "hedging"]) == f"{REAL_REVISION}, rewriters-2"


TABLES = Path(__file__).with_name("rewriters")
_END = re.compile(r"[.!?]['\"”’)]*$")
_DOUBLED = re.compile(r"(?i)\b(\w+) \1\b|,\s*[,.;:!?]|  ")


@cache
def table(concept: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((TABLES / f"{concept}.yaml").read_text("utf-8"))
    return found


def pairs(concept: str) -> list[tuple[str, str]]:
    return [(case["text"], case["rewritten"]) for case in table(concept)["cases"] if case["rewritten"]]


def test_every_rewriter_has_a_table() -> None:
    assert {file.stem for file in TABLES.glob("*.yaml")} == REWRITES.keys()


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_rewrites_are_those_that_were_read(concept: str) -> None:
    cases = table(concept)["cases"]
    assert len(pairs(concept)) >= 40
    changed = {case["text"]: new for case in cases if (new := REWRITES[concept](case["text"])) != case["rewritten"]}
    assert not changed, "read them, correct the table and raise REWRITERS_REVISION"


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_rewrites_hold_no_marker_and_are_whole_sentences(concept: str) -> None:
    rewriter = REWRITES[concept]
    for old, new in pairs(concept):
        assert rewriter.markers.search(old) and not rewriter.markers.search(new), new
        assert rewriter(new) == new, "a rewrite is rewritten again"
        ends = [match[0] if (match := _END.search(text)) else "" for text in (old, new)]
        assert ends[0] == ends[1], new
        letters = [next(letter for letter in text if letter.isalpha()) for text in (old, new)]
        assert letters[1].isupper() or not letters[0].isupper(), new
        assert len(_DOUBLED.findall(new)) <= len(_DOUBLED.findall(old)), new


@pytest.mark.parametrize("concept", sorted(REWRITES))
def test_sentences_name_a_source_whose_licence_permits_shipping_them(concept: str) -> None:
    sources = table(concept)["sources"]
    assert {case["document"].partition("/")[0] for case in table(concept)["cases"]} == sources.keys()
    for name, facts in sources.items():
        assert SOURCES[name].permissive
        assert facts == {"origin": SOURCES[name].origin, "licence": SOURCES[name].licence}
