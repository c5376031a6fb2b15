"""The reader of tables and texts: the same three texts in every file that editors, spreadsheets and databases write."""

import gzip
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from poolbench.errors import CorpusError
from poolbench_corpora import reading
from poolbench_corpora.own import read_labelled, read_texts
from poolbench_corpora.own.definition import Definition, request_of
from poolbench_corpora.reading import (
    SentFile,
    ending,
    is_missing,
    marks_missing,
    name_in,
    read_document,
    read_rows,
    records,
    stem_of,
)

TEXTS = ["The ferry left, because of fog.", "We counted twice.", 'A "second" key.']
RECORDS = [{"id": f"n{number}", "text": text} for number, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
PLAIN = "".join(text + "\n" for text in TEXTS)
BOM = b"\xef\xbb\xbf"


def rows_of(delimiter: str) -> str:
    cells = [["id", "text"], *([record["id"], record["text"].replace('"', '""')] for record in RECORDS)]
    return "".join(f'{first}{delimiter}"{second}"\r\n' for first, second in cells)


ENCODED: Mapping[str, bytes] = {
    "plain.txt": PLAIN.encode(),
    "bom.txt": BOM + PLAIN.encode(),
    "bom-crlf.TXT": BOM + PLAIN.replace("\n", "\r\n").encode(),
    "utf16.txt": PLAIN.encode("utf-16"),
    "utf16-be.txt": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "no-last-end.txt": PLAIN.rstrip("\n").encode(),
    "packed.txt.gz": gzip.compress(PLAIN.encode()),
    "plain.jsonl": LINES.encode(),
    "bom.jsonl": BOM + LINES.encode(),
    "crlf.JSONL": LINES.replace("\n", "\r\n").encode(),
    "plain.ndjson": LINES.encode(),
    "packed.jsonl.gz": gzip.compress(BOM + LINES.encode()),
    "packed-by-content.jsonl": gzip.compress(LINES.encode()),
    "PACKED.JSONL.GZ": gzip.compress(LINES.encode()),
    "list.json": json.dumps(RECORDS, indent=1).encode(),
    "bom.json": BOM + json.dumps(RECORDS).encode(),
    "lines.json": LINES.encode(),
    "plain.csv": rows_of(",").encode(),
    "bom.csv": BOM + rows_of(",").encode(),
    "UPPER.CSV": rows_of(",").encode(),
    "semicolon.csv": rows_of(";").encode(),
    "tabs.csv": rows_of("\t").encode("utf-16"),
    "blank-first.csv": ("\r\n" + rows_of(",")).encode(),
    "table.tsv": rows_of("\t").encode(),
}


@pytest.mark.parametrize("name", ENCODED)
def test_texts_do_not_depend_on_how_a_file_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(ENCODED[name])
    rows = list(read_rows(tmp_path / name))
    assert [row.values["text"] for row in rows] == TEXTS
    if "txt" not in name.lower():
        assert [row.values["id"] for row in rows] == ["n0", "n1", "n2"]
    assert [row.number for row in rows] == [1, 2, 3]
    assert [text.text for text in read_texts(tmp_path / name)] == TEXTS


def columns(**others: pa.Array) -> pa.Table:
    return pa.table({"id": ["n0", "n1", "n2"], "text": TEXTS, **others})


@pytest.mark.parametrize(
    "name", ["a.parquet", "a.pq", "by-content.txt", "a.arrow", "a.feather", "a.ipc", "STREAM.ARROW", "a.parquet.gz"]
)
def test_columns_are_read_from_every_format(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / name, columns()
    if name == "a.feather":
        feather.write_feather(table, path)
    elif name == "STREAM.ARROW":
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    elif name in ("a.arrow", "a.ipc"):
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=2)
    else:
        pq.write_table(table, path)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert [(values["id"], values["text"]) for _, values in records(path)] == [(r["id"], r["text"]) for r in RECORDS]
    assert [where for where, _ in records(path)] == [f"{path}, row {number}" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-719_529] * 3, pa.int32()).cast(pa.date32()),
        pa.array([253_402_300_800] * 3, pa.int64()).cast(pa.timestamp("s")),
        pa.array([2**62] * 3, pa.duration("s")),
        pa.array([0] * 3, pa.timestamp("us", tz="Mars/Olympus")),
        pa.Array.from_buffers(
            pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffb")]
        ),
    ],
    ids=["year 0", "year 10000", "long duration", "unknown zone", "bytes"],
)
def test_columns_that_nobody_uses_may_hold_anything(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(columns(other=column), path)
    assert [text.text for text in read_texts(path)] == TEXTS
    labelled = columns(other=column, label=pa.array([1, 0, 1]))
    pq.write_table(labelled, path)
    assert len(read_labelled(path, {}).positives) == 2
    content = request_of(Definition(id="mine", positives=str(path)))["positives"]["content"]
    assert [json.loads(line)["text"] for line in content.splitlines()] == TEXTS
    with pytest.raises(CorpusError, match=rf"{path}, row \d: 'other' cannot be read"):
        [values["other"] for _, values in records(path)]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_may_be_of_every_type_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    pq.write_table(pa.table({"text": pa.array(TEXTS).cast(kind)}), tmp_path / "a.parquet")
    assert [text.text for text in read_texts(tmp_path / "a.parquet")] == TEXTS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.docx", b"one\n", "no table or text that is read here: expected a file that ends in"),
        ("prompts", b"one\n", "no table or text"),
        ("a.md", b"one\n", "no table or text"),
        ("a.txt", "one\n".encode("utf-16-le"), "line 1: a NUL character"),
        ("a.txt", b"one\ncaf\xe9\n", "not UTF-8 in line 2, byte 4"),
        ("a.txt.gz", gzip.compress(b"one\ncaf\xe9\n", mtime=0), "not UTF-8 in line 2, byte 4"),
        ("a.txt", b"\xff\xfeo\0n", "not whole UTF-16"),
        ("a.txt", b" \n\n", "has no texts"),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-20], "not a whole gzip file"),
        ("a.csv", b"text,text\na,b\n", "the column 'text' is there twice"),
        ("a.csv", b"id;text\na\n", "line 2: another number of fields than the 2 columns: 1"),
        ("a.csv", b"text,id\n", "has no texts"),
        ("a.csv", b'text\n"hello\n', "unexpected end of data"),
        ("a.jsonl", b'{"text": "a", "domain": ["b"]}\n', "line 1: 'domain' is a list"),
        ("a.tsv", b'id\ttext\nn0\t"I went home.\nn1\tThen I slept."\n', "line 3: a field of several lines"),
        ("a.json", b'[{"text": "a"}, 3]', "record 2: a int; expected an object"),
        ("a.json", b'[{"text": "a"},', "not JSON"),
        ("a.json", b'{"text": "a"}\n{"text": \n', "line 2: not JSON"),
        ("a.json", b'{"text": {"0": "a"}}', "'text' is \"{'0': 'a'}\"; it must be a text"),
        ("a.parquet", b"PAR1", "not a whole Parquet file"),
        ("a.parquet", LINES.encode(), "not a whole Parquet file"),
        ("a.arrow", b"ARROW1", "not a whole Arrow file"),
        ("a.arrow", LINES.encode(), "not a whole Arrow file"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=name) as raised:
        read_texts(tmp_path / name)
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "b.arrow"])
def test_damaged_columns_are_refused(tmp_path: Path, name: str) -> None:
    """Arrow itself reads beyond its memory where the offsets of a file are wrong."""
    path, table = tmp_path / name, columns()
    if name == "a.parquet":
        pq.write_table(table, path)
    else:
        make = pa.ipc.new_file if name == "a.arrow" else pa.ipc.new_stream
        with make(path, table.schema) as file:
            file.write_table(table)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + b"\xff\x7f\xff\x7f" + whole[place + 4 :])
        with suppress(CorpusError):
            list(read_texts(path))


def test_texts_that_are_no_texts_are_refused_by_name(tmp_path: Path) -> None:
    for name, array in {"binary": pa.array([b"a"]), "list": pa.array([["a"]]), "number": pa.array([42])}.items():
        pq.write_table(pa.table({"text": array}), tmp_path / f"{name}.parquet")
        with pytest.raises(CorpusError, match=rf"{name}\.parquet, row 1: 'text' is .*; it must be a text"):
            read_texts(tmp_path / f"{name}.parquet")


def test_line_ends_that_only_unicode_knows_end_no_line(tmp_path: Path) -> None:
    text = "one\u2028two\x0bthree\x85four"
    (tmp_path / "a.txt").write_text(text + "\n", "utf-8")
    (tmp_path / "a.csv").write_text(f'text,n\n"{text}",1\n', "utf-8")
    for name in ("a.txt", "a.csv"):
        assert [values["text"] for _, values in records(tmp_path / name)] == [text]


def test_a_quoted_field_of_a_csv_keeps_its_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text\r\n"one\r\ntwo"\r\nthree\r\n')
    rows = list(read_rows(tmp_path / "a.csv"))
    assert [row.values["text"] for row in rows] == ["one\r\ntwo", "three"]
    assert [row.where[-6:] for row in rows] == ["line 3", "line 4"]


def test_blank_lines_are_rows_where_labels_count_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\n two\n")
    found = [(row.number, row.values["text"]) for row in read_rows(tmp_path / "a.txt", blank_lines=True)]
    assert found == [(1, "one"), (2, ""), (3, " two")]
    assert [values["text"] for _, values in records(tmp_path / "a.txt")] == ["one", " two"]


def test_files_of_a_request_are_read_as_those_on_disk() -> None:
    rows = [values["text"] for _, values in records(SentFile("a.jsonl", BOM + LINES.encode()))]
    assert rows == TEXTS
    with pytest.raises(CorpusError, match=r"^a\.jsonl is not UTF-8 in line 1, byte 2"):
        list(records(SentFile("a.jsonl", b"{\xff}")))


def test_texts_are_sent_as_they_are_and_columns_as_lines(tmp_path: Path) -> None:
    (tmp_path / "A.CSV").write_bytes(rows_of(";").encode("utf-16"))
    sent = request_of(Definition(id="mine", positives=str(tmp_path / "A.CSV")))["positives"]
    assert sent == {"name": "A.csv", "content": rows_of(";")}
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(BOM + LINES.encode()))
    sent = request_of(Definition(id="mine", positives=str(tmp_path / "a.jsonl.gz")))["positives"]
    assert sent == {"name": "a.jsonl", "content": LINES}


def test_a_document_is_read_whole_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes("a: 1\r\n".encode("utf-16"))
    assert read_document(tmp_path / "a.yaml") == "a: 1\r\n"
    with pytest.raises(CorpusError, match="more than 3 characters"):
        read_document(tmp_path / "a.yaml", 3)


def test_what_is_read_whole_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_WHOLE", 100)
    (tmp_path / "a.json").write_text(json.dumps(RECORDS))
    pq.write_table(columns(), tmp_path / "b.parquet")
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "b.parquet").read_bytes()))
    for name in ("a.json", "b.parquet.gz"):
        with pytest.raises(CorpusError, match=rf"{name} has more than 100"):
            list(records(tmp_path / name))
    assert len(list(records(tmp_path / "b.parquet"))) == 3


def test_names_of_files_are_known_in_any_case() -> None:
    assert [ending(name) for name in ("a.CSV", "a.Jsonl.GZ", "a.txt", "a.gz", "a.docx", "csv")] == [
        ".csv", ".jsonl.gz", ".txt", "", "", "",
    ]  # fmt: skip
    assert [stem_of(Path(name)) for name in ("x/a.b.CSV", "a.jsonl.gz", "a.docx")] == ["a.b", "a", "a.docx"]


@pytest.mark.parametrize("value", [None, math.nan, "", "  ", "nan", "NaN", "NaT", "<NA>"])
def test_missing_values_are_missing(value: Any) -> None:
    assert is_missing(value) and name_in({"group": value}, "group", "here") == ""


@pytest.mark.parametrize(
    ("value", "name"),
    [(1.0, "1"), (7, "7"), (1.5, "1.5"), (True, "True"), (0, "0"), (" a ", "a"), ("None", "None"), ("1.0", "1.0")],
)
def test_names_are_text_and_whole_numbers_have_no_point(value: Any, name: str) -> None:
    assert not is_missing(value) and name_in({"id": value}, "id", "here") == name


def test_lists_are_no_names() -> None:
    for value in (["a"], {"a": 1}, b"a"):
        with pytest.raises(CorpusError, match=r"here: 'id' is a .*; it must be a name or a number"):
            name_in({"id": value}, "id", "here")


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        (["0", "1", "-1"], True),
        (["0", "1.0", "-1.0", "2", ""], True),
        (["1", "-1"], False),  # two classes of their own
        (["-2", "-1", "0", "1"], False),  # a scale
        (["0", "1", "2"], True),
        (["ask", "tell", "-1"], False),
        (["0.5", "1", "-1"], False),
    ],
)
def test_minus_one_is_missing_beside_classes_from_zero(labels: list[str], missing: bool) -> None:
    assert marks_missing(labels) == missing


@pytest.mark.parametrize("label", [None, math.nan, "", "nan"])
def test_a_row_without_label_is_no_negative(tmp_path: Path, label: Any) -> None:
    rows = [{"text": "one", "label": 5.0}, {"text": "two", "label": 1.0}, {"text": "three", "label": label}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    found = read_labelled(tmp_path / "a.jsonl", {}, positive="5")
    assert [len(found.positives), len(found.negatives)] == [1, 1]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match="line 3: the label is missing"):
        read_labelled(tmp_path / "a.jsonl", {}, positive="5")


def test_minus_one_is_no_negative(tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, (0, 1, -1), strict=True)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match="line 3: label -1"):
        read_labelled(tmp_path / "a.jsonl", {}, positive="1")


def test_json_about_tables_is_no_table(tmp_path: Path) -> None:
    """`datasets` writes `dataset_info.json` beside its tables; where there is nothing else, JSON is the table."""
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, (0, 1, 1), strict=True)]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    assert len(read_labelled(tmp_path, {}).positives) == 2
    (tmp_path / "train.json").rename(tmp_path / "dataset_info.json")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.PARQUET")
    assert len(read_labelled(tmp_path, {}).positives) == 2
