"""Folders of probing sets as tables: the one that ships, and what is refused."""

import csv
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolbench.config.models import asset_path
from poolbench.errors import ConfigError, CorpusError, PoolbenchError
from poolbench_corpora.probing import ProbingSets, suite_sets

SHIPPED = asset_path("probing_sets")
FOLDERS = (SHIPPED, SHIPPED / "share_alike")
#: What may ship beside CC BY-SA, which stands apart.
PERMISSIVE = {"CC BY 4.0", "MIT", "Apache-2.0"}
Change = Callable[[dict[str, Any]], dict[str, Any]]


def manifest_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "MANIFEST.csv").open(encoding="utf-8", newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def sets_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "sets.parquet").to_pylist()
    return rows


def test_the_folder_is_small_and_whole() -> None:
    size = sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file())
    assert size < 12e6
    for folder in FOLDERS:
        manifest = manifest_of(folder)
        names = {"sets.parquet", "passages.parquet", *(f"sets/{row['id']}.parquet" for row in sets_of(folder))}
        assert manifest.keys() == names
        assert {f"sets/{path.name}" for path in (folder / "sets").iterdir()} < names
        for name, row in manifest.items():
            assert row["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
            assert row["source"] and row["commit"] and row["licence"] not in ("", "-")


def test_sets_of_the_public_suite_and_rebuilt_ones() -> None:
    rows = [row for folder in FOLDERS for row in sets_of(folder)]
    assert Counter(row["fidelity"] for row in rows) == {"same": 82, "rebuilt": 26}
    assert all(row["citation"] and row["phenomenon"] and row["licence"] for row in rows)
    assert {row["stands_for"] for row in rows} - {None} <= suite_sets().keys()
    assert {row["licence"] for row in sets_of(SHIPPED)} == PERMISSIVE
    assert all("CC BY-SA" in row["licence"] for row in sets_of(FOLDERS[1]))
    # 59 paradigms of BLiMP, 17 of Zorro, and upos, xpos and dep.
    assert len(ProbingSets().absent()) == 208 - 59 - 17 - 3


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
def test_cards_have_the_figures_of_the_tables(folder: Path) -> None:
    rows, texts = sets_of(folder), pq.read_metadata(folder / "passages.parquet").num_rows
    figures = f"{len(rows)} | {sum(row['instances'] for row in rows):,} | {texts:,}"
    assert figures in (SHIPPED / "card.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["blimp-wh_island", "gum-rst-distance", "ud-dep", "gum-coreference", "ewt-tense"])
def test_a_stranger_reads_a_set_by_the_card_alone(name: str) -> None:
    """Plain pyarrow, by what card.md says, gives the texts, words and labels that a run probes."""
    folder = next(folder for folder in FOLDERS if (folder / "sets" / f"{name}.parquet").is_file())
    texts = pq.read_table(folder / "passages.parquet")["text"].to_pylist()
    rows = pq.read_table(folder / "sets" / f"{name}.parquet").to_pylist()
    (about,) = [row for row in sets_of(folder) if row["id"] == name]

    def words(row: dict[str, Any], end: str) -> list[str]:
        if f"passage{end}" not in row:
            return []
        text = texts[row[f"passage{end}"]]
        ranges = [map(int, piece.split(":")) for piece in row.get(f"span{end}", f"0:{len(text)}").split()]
        return [text[start:stop] for start, stop in ranges]

    data = ProbingSets().read(ProbingSets().get(name))
    passages = {
        row["passage_id"]: row["text"][row["span"]["start"] : row["span"]["end"]] for row in data.passages.to_pylist()
    }
    instances = data.instances.to_pylist()
    assert len(instances) == len(rows) == about["instances"]
    for row, instance in zip(rows, instances, strict=True):
        assert words(row, "") == [passages[one] for one in instance["first"]]
        assert words(row, "_2") == [passages[one] for one in instance["second"]]
        label = instance["label"] if about["task"] == "classes" else repr(instance["value"])
        assert row["label"] == label and row.get("split") == instance["split"]
        assert instance["group"] == f"{name}/{row.get('group') or row['id']}"


def test_without_the_folder_the_planted_sets_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POOLBENCH_ASSETS", str(tmp_path / "nowhere"))
    sets = ProbingSets()
    assert {each.fidelity for each in sets.all()} == {"planted"} and len(sets.absent()) == 208
    for ask in (sets.get, lambda name: sets.choose([name])):
        with pytest.raises(ConfigError, match="POOLBENCH_ASSETS"):
            ask("blimp-wh_island")


def test_a_set_of_a_folder_replaces_the_one_that_ships(folder: Path) -> None:
    rewrite(folder / "sets.parquet", lambda row: row | {"id": "blimp-wh_island"})
    (folder / "sets" / "mine.parquet").rename(folder / "sets" / "blimp-wh_island.parquet")
    manifest(folder)
    sets = ProbingSets(folder)
    assert sets.get("blimp-wh_island").folder == folder and len(sets.all()) == len(ProbingSets().all())
    assert sets.read(sets.get("blimp-wh_island")).instances.num_rows == 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of two instances, made by hand."""
    (tmp_path / "sets").mkdir()
    about = {
        "id": "mine", "type": "syntax", "phenomenon": "order", "input": "span", "task": "classes",
        "fidelity": "rebuilt", "stands_for": None, "instances": 2, "classes": ["noun", "verb"], "source": "me",
        "revision": "1", "licence": "MIT", "citation": "me",
    }  # fmt: skip
    rows = [
        {"id": "a", "passage": 1, "span": "2:5", "label": "noun"},
        {"id": "b", "passage": 0, "span": "0:4", "label": "verb"},
    ]
    pq.write_table(pa.Table.from_pylist([about]), tmp_path / "sets.parquet")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "sets" / "mine.parquet")
    pq.write_table(pa.table({"text": ["Stop it", "A dog"]}), tmp_path / "passages.parquet")
    manifest(tmp_path)
    return tmp_path


def manifest(folder: Path) -> None:
    files = sorted(folder.rglob("*.parquet"))
    lines = [f"{path.relative_to(folder)},{hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]
    (folder / "MANIFEST.csv").write_text("\n".join(["file,sha256", *lines]) + "\n", "utf-8")


def rewrite(path: Path, change: Change) -> None:
    pq.write_table(pa.Table.from_pylist([change(row) for row in pq.read_table(path).to_pylist()]), path)


def without(name: str) -> Change:
    return lambda row: {key: value for key, value in row.items() if key != name}


def test_a_folder_made_by_hand(folder: Path) -> None:
    sets = ProbingSets(folder)
    data = sets.read(sets.get("mine"))
    assert [(row["label"], row["word"]) for row in data.instances.to_pylist()] == [("noun", "dog"), ("verb", "stop")]
    assert not data.notes


@pytest.mark.parametrize(
    ("file", "change", "error", "reason"),
    [
        ("sets.parquet", without("licence"), CorpusError, r"sets.parquet: no column 'licence'; the columns are id, "),
        ("sets.parquet", lambda row: row | {"licence": ""}, ConfigError, r"row 1 \(mine\): licence: String should"),
        ("sets.parquet", lambda row: row | {"licence": " "}, ConfigError, r"row 1 \(mine\): licence: String should"),
        ("sets.parquet", lambda row: row | {"licence": None}, ConfigError, r"row 1 \(mine\): licence: Field required"),
        ("sets.parquet", lambda row: row | {"id": "../mine"}, ConfigError, "id: String should match"),
        ("sets/mine.parquet", without("passage"), CorpusError, "mine.parquet: no column 'passage'; the columns are id"),
        ("sets/mine.parquet", without("label"), CorpusError, "mine.parquet: no column 'label'"),
        ("sets/mine.parquet", without("span"), CorpusError, "mine.parquet: no column 'span'"),
        (
            "sets/mine.parquet", lambda row: row | {"label": "noum" if row["id"] == "b" else "noun"}, CorpusError,
            "row 2: label 'noum' is not a class of mine; these are noun, verb",
        ),
        ("sets/mine.parquet", lambda row: row | {"passage": 2}, CorpusError, "there is no passage '2'; there are 2"),
        ("sets/mine.parquet", lambda row: row | {"passage": -1}, CorpusError, "row 1: there is no passage '-1'"),
        ("sets/mine.parquet", lambda row: row | {"passage": None}, CorpusError, "row 1: no column 'text'"),
        ("sets/mine.parquet", lambda row: row | {"span": "5"}, CorpusError, "row 1: span '5' is not of the form"),
        ("passages.parquet", without("text") , CorpusError, "no 'text'"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_named_and_not_read_in_part(
    folder: Path,
    file: str,
    change: Change,
    error: type[PoolbenchError],
    reason: str,
) -> None:
    rewrite(folder / file, lambda row: change({**row, "other": 1}))
    manifest(folder)
    with pytest.raises(error, match=reason):
        read(folder)


def read(folder: Path) -> None:
    sets = ProbingSets(folder)
    sets.read(sets.get("mine"))


@pytest.mark.parametrize("file", ["sets.parquet", "sets/mine.parquet", "passages.parquet"])
def test_a_damaged_or_replaced_file_is_named(folder: Path, file: str) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorpusError, match=f"{file} is damaged or was replaced: its SHA-256 is"):
        read(folder)
    (folder / file).unlink()
    with pytest.raises(PoolbenchError, match=f"{file}: No such file" if file != "sets.parquet" else "no definitions"):
        read(folder)


def test_a_file_that_the_manifest_lacks_is_named(folder: Path) -> None:
    (folder / "MANIFEST.csv").write_text(f"file,sha256\nsets.parquet,{'0' * 64}\n")
    with pytest.raises(CorpusError, match=r"sets.parquet is damaged or was replaced"):
        read(folder)
    (folder / "MANIFEST.csv").write_text("file,hash\nsets.parquet,0\n")
    with pytest.raises(CorpusError, match=r"MANIFEST.csv: no column 'sha256'"):
        read(folder)
    (folder / "MANIFEST.csv").unlink()
    with pytest.raises(CorpusError, match=r"MANIFEST.csv: no such file"):
        read(folder)
