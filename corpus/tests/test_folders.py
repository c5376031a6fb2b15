"""`corpus import`: the published layout, and tables."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from poolbench.errors import ConfigError, CorpusError, RestrictedError, UnknownNameError
from poolbench_corpora.folders.importing import import_folder, import_table
from poolbench_corpora.io import CorpusManifest, read_concept, read_manifest, write_corpus
from poolbench_corpora.own import OwnTexts, parse_columns, read_labelled
from poolbench_corpora.planted import build_planted

COLUMNS = {"text": "body", "label": "stars", "doc_id": "thread"}


def table(num: int = 40, **columns: Sequence[object]) -> pa.Table:
    texts = [f"The {word} of number {n} was seen by many people." for n in range(num // 2) for word in ("tide", "road")]
    content = {"body": texts, "stars": [5, 1] * (num // 2), "thread": [f"t{n // 4}" for n in range(num)]}
    return pa.table({**content, **columns})


def imported(source: Path, output: Path, **read: str) -> pa.Table:
    import_table(output, "frustration", read_labelled(source, COLUMNS, **({"positive": "5"} | read)))
    return read_concept(output, "frustration")


def written(folder: Path, kind: str, content: pa.Table) -> Path:
    path = folder / f"reviews.{kind}"
    if kind == "parquet":
        pq.write_table(content, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema) as stream:
            stream.write_table(content, max_chunksize=7)
    return path


def test_a_table_becomes_a_corpus(tmp_path: Path) -> None:
    found = imported(written(tmp_path, "parquet", table()), tmp_path / "out", licence="CC0-1.0")
    rows = found.to_pylist()
    assert len(rows) == 40 and sum(row["label"] for row in rows) == 20
    assert all(("tide" in row["text"]) == bool(row["label"]) for row in rows)
    assert {row["licence"] for row in rows} == {"CC0-1.0"}
    assert {row["split"] for row in rows} == {"train", "test", "scorer"}
    by_document: dict[str, set[str]] = {}
    for row in rows:
        by_document.setdefault(row["doc_id"], set()).add(row["split"])
    assert len(by_document) == 10 and all(len(splits) == 1 for splits in by_document.values())
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and not manifest.inferred_documents and manifest.partition_version == 0


def test_splits_come_from_a_column_or_the_names_of_files(tmp_path: Path) -> None:
    wanted = (["train"] * 5 + ["test"] * 2 + ["validation"]) * 5
    named = imported(written(tmp_path, "parquet", table(split=wanted)), tmp_path / "one")
    saved = tmp_path / "saved"
    for split in ("train", "test", "validation"):
        (saved / split).mkdir(parents=True)
        part = table().filter([each == split for each in wanted])
        written(saved / split, "arrow", part).rename(saved / split / "data-00000-of-00001.arrow")
    (saved / "dataset_dict.json").write_text("{}")
    folder = imported(saved, tmp_path / "two")
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    for split in ("train", "test", "validation"):
        part = table().filter([each == split for each in wanted])
        pq.write_table(part, hub / f"{split}-00000-of-00001.parquet")
    other = imported(tmp_path / "hub", tmp_path / "three")
    expected = sorted(zip(table()["body"].to_pylist(), wanted, strict=True))
    for found in (named, folder, other):
        splits = ("scorer" if split == "validation" else split for _, split in expected)
        rows = sorted(found.to_pylist(), key=lambda row: row["text"])
        assert [row["split"] for row in rows] == list(splits)


@pytest.mark.parametrize(
    ("content", "read", "message"),
    [
        (table().rename_columns(["text", "stars", "thread"]), {}, r"row 1: no column 'body' for text; there are text,"),
        (table(), {"positive": None}, "row 1: label 5 is neither 1 nor 0; say which label is positive"),
        (table(split=["train"] * 39 + [""]), {}, "row 40 names no split"),
        (table(split=["training"] * 40), {}, "row 1: split 'training'; expected one of train, test, validation"),
        (table(), {"positive": "9"}, "has no positives"),
        (table(body=["", *["text"] * 39]), {}, "row 1: 'text' is empty"),
        (table(body=["same"] * 40), {}, "have the same text, one as a positive and one as a negative"),
        (table(body=["<p>Hello</p>"] * 40), {}, "row 1: 'text' holds HTML"),
    ],
)
def test_bad_tables_name_the_row_and_write_nothing(
    content: pa.Table, read: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=message):
        imported(written(tmp_path, "parquet", content), tmp_path / "out", **read)
    assert not (tmp_path / "out").exists()


def test_what_columns_say() -> None:
    assert parse_columns("text=body, label = stars") == {"text": "body", "label": "stars"}
    for wrong in ("text", "text=", "=body", "text=a,text=b"):
        with pytest.raises(ConfigError, match="write name=column"):
            parse_columns(wrong)
    with pytest.raises(UnknownNameError, match="did you mean label"):
        parse_columns("labels=stars")


def test_sensitive_concepts_are_left_out_or_refused_unless_the_operator_allows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = [build_planted(name, seed=0, num_train=8, num_test=4, num_scorer=4) for name in ("hedging", "toxicity")]
    manifest = CorpusManifest(revision="1", tokenizer="words", window=(1, 500))
    with monkeypatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        write_corpus(pa.concat_tables(tables), tmp_path / "in", manifest)
        import_folder(tmp_path / "in", tmp_path / "all", None, "words")
    assert read_concept(tmp_path / "all", "toxicity").num_rows == tables[1].num_rows
    import_folder(tmp_path / "in", tmp_path / "out", None, "words")
    assert "they are sensitive (POOLBENCH_SENSITIVE=true takes them): toxicity" in capsys.readouterr().out
    assert not (tmp_path / "out" / "toxicity").exists()
    with pytest.raises(RestrictedError, match="toxicity"):
        import_folder(tmp_path / "in", tmp_path / "other", "toxicity", "words")
    with pytest.raises(RestrictedError, match="toxicity"):
        import_table(tmp_path / "other", "toxicity", OwnTexts())


def test_a_second_import_adds_to_the_folder(tmp_path: Path) -> None:
    source, out = written(tmp_path, "parquet", table()), tmp_path / "out"
    imported(source, out)
    first = read_manifest(out)
    import_table(out, "planning", read_labelled(source, COLUMNS, positive="5"))
    both = read_manifest(out)
    assert first is not None and both is not None
    assert both.revision.startswith(f"{first.revision}, ") and both.recipe == first.recipe
    imported(source, out)
    assert read_manifest(out) is not None and read_concept(out, "planning").num_rows == 40
    planted = build_planted("hedging", seed=0, num_train=8, num_test=4, num_scorer=4)
    write_corpus(planted, tmp_path / "in", CorpusManifest(revision="1", tokenizer="words", window=(1, 500)))
    with pytest.raises(CorpusError, match="measured with words, and these texts were measured with llama"):
        import_folder(tmp_path / "in", out, "hedging", "llama")
    assert not (out / "hedging").exists()
