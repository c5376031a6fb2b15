"""Files of texts that are read, and files of vectors that are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from poolbench.contracts.tables import vector_column
from poolbench.errors import ConfigError, InputError
from poolbench_driver.adhoc.arrays import load_labels, load_names
from poolbench_driver.adhoc.embedding import replacing, write_npy, writer_of
from poolbench_driver.adhoc.texts import TextLine, read_lines, read_texts


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", '{"text": "fine"}\n{"text": }\n', "line 2"),
        ("a.jsonl", '{"text": "fine"}\n\n{"txt": "x"}\n', "line 3"),
        ("a.jsonl", '{"text": null}\n', "line 1"),
        ("a.jsonl", "[1]\n", "line 1"),
        ("a.txt", "\n \n", "empty"),
    ],
)
def test_malformed_texts_are_placed(tmp_path: Path, name: str, content: str, expected: str) -> None:
    file = tmp_path / name
    file.write_text(content, "utf-8")
    with pytest.raises(Exception, match=expected) as caught:
        read_texts(file)
    assert str(file) in str(caught.value)


def test_a_line_separator_inside_a_text_is_no_end_of_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one\u2028two"}\n', "utf-8")
    assert [line.text for line in read_texts(file)] == ["one\u2028two"]


def test_every_line_of_plain_text_is_a_row_and_a_blank_one_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n\n two\n", "utf-8")
    assert read_lines(file) == [TextLine(1, "one"), TextLine(2, ""), TextLine(3, " two")]
    assert [line.invalid for line in read_lines(file)] == [None, "the text is empty", None]
    assert [line.number for line in read_texts(file)] == [1, 3], "a blank line is not a prompt"


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path, suffix: str) -> None:
    file, table = tmp_path / f"a.{suffix}", pa.table({"body": ["one, two", ""], "key": ["a", "b"]})
    (csv.write_csv if suffix == "csv" else pq.write_table)(table, file)
    found = read_lines(file, {"text": "body", "id": "key"})
    assert found == [TextLine(1, "one, two", "a"), TextLine(2, "", "b")]
    with pytest.raises(InputError, match="no 'text'; the record has body, key"):
        read_lines(file)
    with pytest.raises(InputError, match=r"columns have names in files that end in \.csv"):
        read_lines(tmp_path / "a.txt", {"text": "body"})


def test_lines_keep_number_and_id(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one", "id": 7}\n\n{"text": ""}\n', "utf-8")
    assert read_lines(file) == [TextLine(1, "one", "7"), TextLine(3, "")]
    for wrong, expected in (
        ('{"text": "x", "id": 7}', "that of line 1"),
        ('{"text": "x", "id": []}', "name or a number"),
    ):
        file.write_text('{"text": "one", "id": 7}\n' + wrong, "utf-8")
        with pytest.raises(InputError, match=f"line 2: .*{expected}"):
            read_lines(file)


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    file = tmp_path / "v.npy"
    table = pa.table({"vector": vector_column(np.ones((2, 3)), np.array([True, False]))})
    with replacing(file) as partial:
        write_npy(table, partial)
    kept = file.read_bytes()
    assert np.isnan(np.load(file)[1]).all()
    with pytest.raises(KeyboardInterrupt), replacing(file) as partial:
        partial.write_bytes(kept[:10])
        raise KeyboardInterrupt
    assert file.read_bytes() == kept and list(tmp_path.iterdir()) == [file]
    with pytest.raises(ConfigError, match=r"\.npy, \.parquet, \.safetensors"):
        writer_of(tmp_path / "v.txt")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        writer_of(tmp_path / "folder.npy")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.ndjson", '{"id": 1.0, "text": "one"}\n{"id": null, "text": null}\n'),
        ("a.JSONL", '\ufeff{"id": 1, "text": "one"}\n{"text": NaN}\n'),
        ("a.json", '[{"id": "1", "text": "one"}, {"id": NaN, "text": ""}]'),
        ("a.TSV", "id\ttext\n1\tone\n\t\n"),
        ("a.CSV", "id;text\n1;one\nnan;\n"),
    ],
)
def test_a_missing_text_is_a_row_that_fails_and_a_missing_id_is_none(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    lines = read_lines(tmp_path / name)
    assert lines == [TextLine(1, "one", "1"), TextLine(2, "")]
    assert [line.invalid for line in lines] == [None, "the text is empty"]
    with pytest.raises(InputError, match=rf"{name}, \w+ [23]: 'text' is empty or missing"):
        read_texts(tmp_path / name)


def test_numbers_with_a_fraction_and_lists_are_no_texts(tmp_path: Path) -> None:
    for text in ("4.5", "[]", "true"):
        (tmp_path / "a.jsonl").write_text(f'{{"text": "one"}}\n{{"text": {text}}}\n')
        with pytest.raises(InputError, match=r"line 2: 'text' is .*; it must be a text"):
            read_lines(tmp_path / "a.jsonl")


def test_a_file_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    for name in ("prompts.md", "prompts", "prompts.docx"):
        (tmp_path / name).write_text("one\n")
        with pytest.raises(InputError, match=r"expected a file that ends in \.csv"):
            read_lines(tmp_path / name)


def test_entries_that_are_missing_are_no_groups_and_no_classes(tmp_path: Path) -> None:
    def saved(*entries: object) -> Path:
        np.save(tmp_path / "a.npy", np.array(entries))
        return tmp_path / "a.npy"

    assert load_names(saved(1.0, 2.0)) == ["1", "2"]
    assert load_names(saved(1.0, np.nan), may_lack=True) == ["1", ""]
    for entries in ((1.0, np.nan), ("a", ""), ("a", "nan")):
        with pytest.raises(InputError, match="entry 2 is missing"):
            load_names(saved(*entries))
    assert load_labels(saved(1, -1)) == [1, -1] and load_labels(saved("ask", "tell")) == ["ask", "tell"]
    assert load_labels(saved(0, 1, -1), are_classes=False) == [0, 1, -1]
    with pytest.raises(InputError, match="label -1 means missing"):
        load_labels(saved(0, 1, -1))
    with pytest.raises(InputError, match="label 2 is missing"):
        load_labels(saved("ask", "nan"))
