"""Requests of ``embed``, files of texts that are read, and files of vectors that are written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from poolbench.contracts.tables import vector_column, vector_matrix
from poolbench.errors import ConfigError, EndpointError, InputError
from poolbench_driver.cli.queries import parse_params
from poolbench_driver.cluster.services import ServiceError
from poolbench_driver.queries.arrays import checked_array, labels_in, load_labels, load_names
from poolbench_driver.queries.embedding import Embedder, Reference, replacing, write_npy, writer_of
from poolbench_driver.queries.texts import TextLine, read_lines, read_texts


def test_every_line_of_plain_text_is_a_row_and_a_blank_one_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\n\n two\n", "utf-8")
    assert read_lines(file) == [TextLine(1, "one"), TextLine(2, ""), TextLine(3, " two")]
    assert [line.invalid for line in read_lines(file)] == [None, "the text is empty", None]
    assert [line.number for line in read_texts(file)] == [1, 3], "a blank line is not a prompt"
    file.write_text("\n \n")
    with pytest.raises(InputError, match=r"a\.txt, line 1: .* so are all others"):
        read_texts(file)


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
    for wrong, expected in (("7", "that of line 1"), ("[]", "name or a number")):
        file.write_text('{"text": "one", "id": 7}\n{"text": "x", "id": ' + wrong + "}", "utf-8")
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
        ("a.json", '[{"id": "1", "text": "one"}, {"id": NaN, "text": ""}]'),
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


class Spoiled:
    """Services that refuse a request with a text of theirs in it; a device out of memory is not to be had."""

    def __init__(self, bad: set[str], code: str, revision: Callable[[int], str] = lambda call: "r1") -> None:
        self.bad, self.code, self.revision, self.sizes = bad, code, revision, list[int]()

    def post_table(self, service: str, verb: str, body: dict[str, Any]) -> pa.Table:
        texts: Sequence[str] = body["texts"]
        self.sizes.append(len(texts))
        if self.bad & set(texts):
            raise ServiceError(self.code, "extractor: does not fit", 507)
        num = len(texts)
        columns = {
            "passage_id": pa.array(texts),
            "vector": vector_column(np.array([[float(text), 1.0] for text in texts], dtype=np.float32)),
            "applied": pa.array([True] * num),
            "token_share": pa.array([1.0] * num, pa.float32()),
            "num_sinks": pa.array([1] * num, pa.int32()),
            "num_left_out": pa.array([0] * num, pa.int32()),
            "status": pa.array(["ok"] * num),
            "reason": pa.array([None] * num, pa.string()),
        }
        return pa.table(columns).replace_schema_metadata({"model_revision": self.revision(len(self.sizes))})


def lines_of(num: int) -> list[TextLine]:
    return [TextLine(number, str(number)) for number in range(1, num + 1)]


def run(services: Spoiled, lines: list[TextLine]) -> tuple[pa.Table, list[int]]:
    told: list[int] = []
    return Embedder(services, {"batch_size": None}).run(lines, told.append), told  # type: ignore[arg-type]


def test_one_text_out_of_memory_is_one_row() -> None:
    table, told = run(Spoiled({"70"}, "out_of_memory"), lines_of(100))
    assert sum(told) == 100 and table["line"].to_pylist() == list(range(1, 101))
    failed = [row for row in table.select(["line", "status", "reason"]).to_pylist() if row["status"] != "ok"]
    assert failed == [{"line": 70, "status": "failed", "reason": "extractor: does not fit"}]
    vectors = vector_matrix(table["vector"])
    assert np.isnan(vectors[69]).all() and np.delete(vectors[:, 0], 69).tolist() == [*range(1, 70), *range(71, 101)]


def test_what_is_wrong_with_all_texts_is_asked_once() -> None:
    services = Spoiled({"1"}, "unknown_strategy")
    with pytest.raises(ServiceError, match="does not fit"):
        run(services, lines_of(100))
    assert services.sizes == [64]
    with pytest.raises(InputError, match="not one text could be embedded; line 1: "):
        run(Spoiled({"1", "2"}, "input"), lines_of(2))


def test_a_model_that_changes_between_answers_is_reported() -> None:
    with pytest.raises(EndpointError, match="changed between two answers"):
        run(Spoiled(set(), "", revision=str), lines_of(100))


def test_document_frequencies_do_not_depend_on_the_request() -> None:
    assert Reference.of(lines_of(3), "x.jsonl").source == "3 texts of x.jsonl"
    many = Reference.of([TextLine(0, "\ud800"), *lines_of(1500)], "x.jsonl")
    assert many.source == "the first 1000 of 1500 texts of x.jsonl" and many.texts[0] == "1"


def test_params_are_assignments_or_json() -> None:
    assert parse_params(None) == {}
    assert parse_params("k=4, share=0.5,name=a") == {"k": 4, "share": 0.5, "name": "a"}
    assert parse_params('{"triggers": ["if", "when"]}') == {"triggers": ["if", "when"]}
    for wrong in ("k", "k=4,", "[1]", "{", "=3"):
        with pytest.raises(ConfigError, match="write k=4"):
            parse_params(wrong)


def test_a_missing_vector_of_a_column_is_a_missing_row() -> None:
    assert np.isnan(checked_array(pa.array([[1.0, 2.0], None]), "vectors", 2)[1]).all()
    with pytest.raises(InputError, match="labels that are not finite"):
        labels_in(np.array([1, None], dtype=object), "labels")
