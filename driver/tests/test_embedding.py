"""Requests of ``embed`` when the services answer errors, and the files of vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.contracts.tables import vector_column, vector_matrix
from poolbench.errors import ConfigError, EndpointError, InputError
from poolbench_driver.adhoc.embedding import Embedder, Reference
from poolbench_driver.adhoc.texts import TextLine
from poolbench_driver.cli.adhoc import parse_params
from poolbench_driver.cluster.services import ServiceError


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ("k=4", {"k": 4}),
        ("k=4, share=0.5,name=a", {"k": 4, "share": 0.5, "name": "a"}),
        ('{"triggers": ["if", "when"]}', {"triggers": ["if", "when"]}),
    ],
)
def test_params(given: str | None, expected: dict[str, Any]) -> None:
    assert parse_params(given) == expected


@pytest.mark.parametrize("wrong", ["k", "k=4,", "[1]", "{", "=3"])
def test_malformed_params(wrong: str) -> None:
    with pytest.raises(ConfigError, match="write k=4"):
        parse_params(wrong)
