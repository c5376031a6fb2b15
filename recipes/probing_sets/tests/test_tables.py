"""Tables of probing sets: what is written is read again by the product, and the same sets give the same bytes."""

import csv
import hashlib
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from recipes.probing_sets.__main__ import FOLDER, main
from recipes.probing_sets.tables import write_tables

from poolbench_corpora.probing import ProbingData, ProbingSet, ProbingSets, Sample, Span, probing_data
from poolbench_corpora.probing.samples import whole

pytestmark = pytest.mark.lane(name="recipes")

FIELDS = {
    "type": "syntax", "phenomenon": "order", "source": "a list", "revision": "1", "licence": "MIT",
    "citation": "Nobody", "fidelity": "rebuilt", "stands_for": "senteval-bigram_shift", "reader": "none",
}  # fmt: skip
TEXT = "The cat saw the dog"
CAT, DOG, SAW = Span(TEXT, 4, 7), Span(TEXT, 16, 19), Span(TEXT, 8, 11)
SAMPLES: dict[str, list[Sample]] = {
    "text": [Sample("a", whole(TEXT), label="yes"), Sample("b", whole("A dog"), label="no")],
    "text_pair": [
        Sample("a", whole("A dog"), whole(TEXT), label="yes", group="g"),
        Sample("b", whole("x"), whole("y"), label="no", group="b"),
    ],
    "span": [
        Sample("a", (CAT,), label="noun", split="train", word="cat"),
        Sample("b", (DOG,), label="noun", split="test", word="hound"),
    ],
    "span_pieces": [
        Sample("a", (CAT, DOG), label="animal", word="cat dog"),
        Sample("b", (SAW,), label="act", word="saw"),
    ],
    "span_pair": [Sample("a", (CAT, SAW), (DOG,), label="before"), Sample("b", (DOG,), (CAT,), label="after")],
}  # fmt: skip


def sets() -> list[tuple[ProbingSet, ProbingData]]:
    classes = [ProbingSet.model_validate({**FIELDS, "id": f"of-{kind}", "input": kind}) for kind in SAMPLES]
    written = [(each, probing_data(each, SAMPLES[each.input])) for each in classes]
    values = ProbingSet.model_validate({**FIELDS, "id": "of-values", "input": "text", "task": "values"})
    numbers = [Sample("a", whole(TEXT), value=0.1), Sample("b", whole("A dog"), value=-3.0)]
    return [*written, (values, probing_data(values, numbers))]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_tables(sets(), tmp_path)
    catalogue = ProbingSets(tmp_path)
    for definition, data in sets():
        read = catalogue.get(definition.id)
        kept = {"id", "type", "phenomenon", "input", "task", "source", "revision", "licence", "citation", "stands_for"}
        assert read.model_dump(include=kept) == definition.model_dump(include=kept)
        assert read.classes == tuple(sorted({row or "" for row in data.instances["label"].to_pylist()} - {""}))
        found = catalogue.read(read)
        assert found.instances.equals(data.instances) and found.passages.equals(data.passages) and not found.notes


def test_a_text_of_several_sets_is_stored_once(tmp_path: Path) -> None:
    write_tables(sets(), tmp_path)
    assert pq.read_table(tmp_path / "passages.parquet")["text"].to_pylist() == [TEXT, "A dog", "x", "y"]
    rows = pq.read_table(tmp_path / "sets" / "of-span_pair.parquet").to_pylist()
    assert rows[0] == {
        "id": "a", "passage": 0, "span": "4:7 8:11", "passage_2": 0, "span_2": "16:19", "label": "before",
    }  # fmt: skip
    assert pq.read_schema(tmp_path / "sets" / "of-text.parquet").names == ["id", "passage", "label"]


def test_the_same_sets_give_the_same_bytes_and_their_hashes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tables(sets(), tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == len(SAMPLES) + 1 + 3
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)
    with (tmp_path / "one" / "MANIFEST.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["file"] for row in rows} == {str(name) for name in files} - {"MANIFEST.csv"}
    for row in rows:
        assert row["sha256"] == hashlib.sha256((tmp_path / "one" / row["file"]).read_bytes()).hexdigest()
        assert (row["source"], row["commit"], row["licence"]) == ("a list", "1", "MIT")


@pytest.mark.lane(name="series")
@pytest.mark.skipif(not os.environ.get("POOLBENCH_REAL_TEXT"), reason="POOLBENCH_REAL_TEXT names no folder of archives")
def test_the_archives_give_what_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["probing_sets", "--output", str(tmp_path)])
    assert main() == 0
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    shipped = {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.suffix in (".parquet", ".csv")}
    assert written == shipped
    assert not [name for name in written if (tmp_path / name).read_bytes() != (FOLDER / name).read_bytes()]


def test_without_archives_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("POOLBENCH_REAL_TEXT", raising=False)
    monkeypatch.setattr("sys.argv", ["probing_sets", "--output", str(tmp_path / "to")])
    assert main() == 1 and "POOLBENCH_REAL_TEXT" in capsys.readouterr().err
    assert not (tmp_path / "to").exists()
