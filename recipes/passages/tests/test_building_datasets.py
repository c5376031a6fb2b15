"""Corpora from copies of datasets: what a concept yields, the window, and what a source does not take."""

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipes.passages.building import BuildOptions, build_folder
from recipes.passages.hub import datasets
from recipes.passages.tokens import token_counter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from poolbench.config import BUDGETS
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.io import read_concept, read_manifest

pytestmark = pytest.mark.lane(name="recipes")

SMALL = {"num_train": 12, "num_test": 6, "num_scorer": 6}


OPTIONS = BuildOptions(tokenizer="words", unknown_licences=True)


WORDS = [f"{first}{last}" for first in ("ra", "ke", "lo", "mi", "su") for last in ("ban", "der", "fin", "gol", "tup")]


@pytest.fixture()
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the datasets of two concepts, and a small budget."""
    monkeypatch.setitem(BUDGETS, "demo", BUDGETS["demo"].model_copy(update=SMALL))
    rng = Random(0)
    marks = ("It might be that {}, perhaps.", "However, {} came.", "Then {} went by.")
    for name in ("arxiv", "cc_news", "billsum"):
        place = tmp_path / "copies" / datasets()[name].id
        place.mkdir(parents=True)
        sentences = [[marks[n % 3].format(" ".join(rng.choices(WORDS, k=11))) for n in range(24)] for _ in range(80)]
        texts = [" ".join(each) for each in sentences]
        pq.write_table(pa.table({datasets()[name].text[0]: texts}), place / "train-0.parquet")
    return tmp_path / "copies"


def build(copies: Path, output: Path, *concepts: str, options: BuildOptions = OPTIONS) -> int:
    return build_folder(output, f"local:{copies}", concepts, "demo", 0, required=False, options=options)


def test_a_concept_without_its_datasets_stops_no_other(
    copies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert build(copies, out, "hedging", "narrative", "contrast") == 0
    said = capsys.readouterr().out
    assert "narrative (2 of 3) ... none: " in said and "no copy of euclaise/writingprompts" in said
    assert all(validate_corpus(read_concept(out, name)) == [] for name in ("hedging", "contrast"))
    found = json.loads((out / "yields.json").read_text("utf-8"))
    assert found.keys() == {"hedging", "contrast"} and found["hedging"]["chosen"] == 24
    assert "concept   passages  documents  dropped by rule" in said and "\nhedging   24 " in said


def test_the_window_is_measured_with_the_tokenizer(copies: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path / "whitespace"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    count = token_counter(str(folder))
    build(copies, tmp_path / "out", "hedging", options=BuildOptions(str(folder), unknown_licences=True))
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest.tokenizer == "whitespace"
    assert str(tmp_path) not in manifest.model_dump_json()
    rows = read_concept(tmp_path / "out", "hedging").to_pylist()
    assert all(row["token_count"] == count(row["text"]) and 300 <= row["token_count"] <= 500 for row in rows)
