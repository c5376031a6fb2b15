"""`corpus build` and `corpus import`: what they take, failures, interruptions, and the published layout."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from poolbench.errors import ConfigError, CorpusError, RestrictedError, UnknownNameError
from poolbench_corpora.folders import building
from poolbench_corpora.folders.building import BuildOptions, build_folder, parse_window, what_to_build
from poolbench_corpora.folders.importing import import_folder, import_table
from poolbench_corpora.io import CorpusManifest, read_concept, read_manifest, write_corpus
from poolbench_corpora.own import OwnTexts, parse_columns, read_labelled
from poolbench_corpora.planted import build_planted


def small(name: str, **settings: Any) -> pa.Table:
    """The planted passages of a concept, few of them."""
    return build_planted(name, **{**settings, "num_train": 8, "num_test": 4, "num_scorer": 4})


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build_planted", small)


def build(output: Path, *concepts: str, required: bool = False, seed: int = 0) -> int:
    return build_folder(output, "planted", concepts, "demo", seed, required=required)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_a_command_names() -> None:
    assert what_to_build("all", None, None, "real") == (None, Path("corpora/real"))
    assert what_to_build("hedging,contrast", Path("x"), None, "real") == ("hedging,contrast", Path("x"))
    assert what_to_build("corpora/mine", None, "hedging", "real") == ("hedging", Path("corpora/mine"))
    assert what_to_build("mine", None, None, "planted") == (None, Path("mine"))
    with pytest.raises(ConfigError, match="both name concepts"):
        what_to_build("all", None, "hedging", "real")
    with pytest.raises(ConfigError, match="names the folder"):
        what_to_build("corpora/mine", Path("other"), None, "real")
    for wrong in ("hedgin", "contrast,hedgin", "al"):
        with pytest.raises(UnknownNameError, match="did you mean"):
            what_to_build(wrong, None, None, "real")


def test_a_concept_that_fails_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_fails(name: str, **settings: Any) -> pa.Table:
        if name == "frustration":
            raise CorpusError("no source has it")
        return small(name, **settings)

    monkeypatch.setattr(building, "build_planted", one_fails)
    assert build(tmp_path, "hedging", "frustration", "contrast") == 0
    assert build(tmp_path, "hedging", "frustration", required=True) == 1
    said = capsys.readouterr().out
    assert "frustration (2 of 3) ... none: no source has it" in said
    assert f"2 concepts written to {tmp_path}; 1 could not be made" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["contrast", "hedging", "manifest.json", "yields.json"]


def test_an_interrupted_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    build(whole, "hedging", "contrast")

    def interrupted(name: str, **settings: Any) -> pa.Table:
        if name == "contrast":
            raise KeyboardInterrupt
        return small(name, **settings)

    monkeypatch.setattr(building, "build_planted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(broken, "hedging", "contrast")
    assert not (broken / "hedging").exists() and not (broken / "manifest.json").exists()
    monkeypatch.setattr(building, "build_planted", small)
    capsys.readouterr()
    build(broken, "hedging", "contrast")
    assert "hedging (1 of 2) ... there already" in capsys.readouterr().out
    assert files(broken) == files(whole)


def test_an_interruption_while_folders_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    build(whole, "hedging", "contrast")
    real = Path.rename

    def stops(self: Path, target: Path) -> Path:
        if Path(target) == broken / "contrast":
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", stops)
        build(broken, "hedging", "contrast")
    build(broken, "hedging", "contrast")
    assert files(broken) == files(whole)


def test_another_seed_replaces_the_corpus(tmp_path: Path) -> None:
    build(tmp_path, "hedging")
    before = read_concept(tmp_path, "hedging")
    build(tmp_path, "hedging", seed=1)
    assert not read_concept(tmp_path, "hedging").equals(before)
    found = read_manifest(tmp_path)
    assert found is not None and found.recipe.endswith("--seed 1")


def test_a_window_of_tokens_cuts_the_passages(tmp_path: Path) -> None:
    options = BuildOptions(window=parse_window("90-140"))
    build_folder(tmp_path, "planted", ["contrast"], "demo", 0, required=True, options=options)
    manifest = read_manifest(tmp_path)
    assert manifest is not None and 90 <= manifest.window[0] < manifest.window[1] <= 140
    assert "--window 90-140" in manifest.recipe


@pytest.mark.parametrize("text", ["", "90", "0-10", "160-90", "a-b", "90-160-200", "-5-10"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="smallest and the largest number of tokens"):
        parse_window(text)


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
