"""Readers of the real-text archives on small texts made here, and on the archives where they are at hand."""

import io
import json
import os
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from poolbench.errors import CorpusError, UnknownNameError
from poolbench_corpora.partition import SOURCE_SHARES, split_of
from poolbench_corpora.real import SOURCES, archives_folder, get_source, read_documents
from poolbench_corpora.real.documents import documents_from, read_archive
from poolbench_corpora.real.markup import detokenise, markdown_to_paragraphs, paragraphs, rst_to_paragraphs


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


def test_unknown_source_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="novels"):
        get_source("novel")


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
    folder = Path(os.environ.get("POOLBENCH_REAL_TEXT", "../shared/data"))
    if not (folder / "passages.tar.xz").exists() and not (folder / "passages").is_dir():
        pytest.skip(f"no real-text archives at {folder}; set POOLBENCH_REAL_TEXT")
    for name in SOURCES:
        found = read_documents(name, folder)
        assert len(found) >= 30
        assert all(document.doc_id.startswith(f"{name}/") and document.text for document in found)
        characters = Counter("".join(document.text for document in found[:50]))
        letters = sum(number for character, number in characters.items() if character.isalpha())
        assert letters > 0.65 * characters.total()
