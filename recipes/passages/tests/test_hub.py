"""Corpora from datasets: copies in the formats of the library `datasets`, and the library's own streaming."""

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset as Rows
from datasets import DatasetDict
from recipes.passages.hub import build_hub, datasets, reader_of, recipes
from recipes.passages.hub.catalog import FILTERS
from recipes.passages.hub.documents import documents_of, drawn
from recipes.passages.rewriting import REWRITES
from recipes.passages.yields import Yield

from poolbench.concepts import CONCEPTS
from poolbench.errors import CorpusError, UnknownNameError
from poolbench.texts import count_words
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.partition import HUB, SOURCE_SHARES, split_of

pytestmark = pytest.mark.lane(name="recipes")

SIZES: dict[str, Any] = {"num_train": 12, "num_test": 6, "num_scorer": 6, "window": (60, 120)}
HEDGED = ("arxiv", "cc_news", "billsum")


def texts(name: str, number: int, hedged: bool = True) -> list[str]:
    """Documents of 60 to 100 words, no two of which share a run of 8 words."""
    rng = Random(name)
    words = [f"{first}{second}" for first in ("ra", "ke", "lo", "mi") for second in ("ban", "der", "fin", "gol", "tup")]

    def sentence(place: int) -> str:
        chosen = " ".join(rng.choices(words, k=11))
        return f"It might be that {chosen}, perhaps." if hedged and place % 2 else f"Then {chosen} went by."

    return [" ".join(sentence(place) for place in range(6)) for _ in range(number)]


def place(folder: Path, name: str) -> Path:
    made = folder / datasets()[name].id
    made.mkdir(parents=True)
    return made


@pytest.fixture()
def copies(tmp_path: Path) -> Path:
    """Copies of the three datasets of hedging: Parquet, JSON lines, and as the library saves them."""
    folder = tmp_path / "copies"
    arxiv = place(folder, "arxiv") / "data"
    arxiv.mkdir()
    for part in range(2):
        rows = Rows.from_dict({"abstract": texts(f"arxiv{part}", 60)})
        rows.to_parquet(str(arxiv / f"train-0000{part}-of-00002.parquet"))
    Rows.from_dict({"text": texts("news", 120)}).to_json(str(place(folder, "cc_news") / "train.jsonl"))
    bills = {"train": Rows.from_dict({"text": texts("bills", 120)}), "test": Rows.from_dict({"text": ["unread"]})}
    DatasetDict(bills).save_to_disk(str(place(folder, "billsum")))
    return folder


def build(folder: Path, concept: str = "hedging", **options: Any) -> pa.Table:
    settings = {**SIZES, "count_tokens": count_words, "unknown_licences": True, **options}
    return build_hub(concept, reader_of(f"local:{folder}"), **settings)


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library from looking for the hub, and from sleeping."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)  # 5 seconds per stream


def test_every_concept_names_its_datasets() -> None:
    assert recipes().keys() == {concept.id for concept in CONCEPTS.all() if not concept.corpus}
    for name, recipe in recipes().items():
        concept = CONCEPTS.get(name)
        assert set(recipe.datasets()) <= datasets().keys()
        assert all(side.filter in FILTERS and side.where.keys() <= side.domains.keys() for side in recipe.sides)
        assert concept.matched_pairs == (recipe.negatives is None) == (name in REWRITES)
        domains = {domain for side in recipe.sides for domain in side.domains.values()}
        assert len(domains) >= min(concept.min_source_domains, 1 if name == "imdb_sentiment" else 3)
        assert {HUB + each for each in recipe.datasets()} <= SOURCE_SHARES.keys()
    assert set(datasets()) == {each for recipe in recipes().values() for each in recipe.datasets()}


def test_a_corpus_from_copies_obeys_the_construction_rules(copies: Path) -> None:
    found = Yield()
    table = build(copies, found=found)
    assert table.num_rows == 24 and found.chosen == 24
    assert validate_corpus(table, window=(60, 120)) == []
    assert set(table["domain"].to_pylist()) == {"scientific", "news", "government"}
    assert set(table["source"].to_pylist()) == {datasets()[name].id for name in HEDGED}
    assert all(split_of(row["doc_id"]) == row["split"] for row in table.to_pylist())


def test_the_same_seed_gives_the_same_corpus_and_another_one_another(copies: Path) -> None:
    first = build(copies)
    assert first.equals(build(copies))
    assert not first.equals(build(copies, seed=1))


def test_streaming_by_the_library_gives_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HEDGED:
        rows = Rows.from_dict({datasets()[name].text[0]: texts(name, 120)})
        rows.to_parquet(str(place(tmp_path, name) / "train-00000-of-00001.parquet"))
    offline(monkeypatch)
    monkeypatch.chdir(tmp_path)  # the library prefers a folder of a dataset's name to the hub
    reader, options = reader_of("hf"), {**SIZES, "count_tokens": count_words, "unknown_licences": True}
    table = build_hub("hedging", reader, **options)
    assert validate_corpus(table, window=(60, 120)) == []
    assert table.equals(build_hub("hedging", reader, **options))


def test_records_without_usable_text_are_counted() -> None:
    odd = ["", None, math.nan, "nan", 42]
    odd += ["<html><body>x</body></html>", "caf\u00c3\u00a9 " * 80, "a" * 1_000_001, "kept"]
    found = Yield()
    records = ((f"row {row}", {"abstract": text}) for row, text in enumerate(odd))
    kept = list(documents_of("arxiv", datasets()["arxiv"], "science", (), records, found))
    assert [document.text for document in kept] == ["kept"]
    assert found.dropped == {"empty": 5, "markup": 1, "encoding": 1, "long_document": 1}
    assert found.examples["markup"] == ["<html><body>x</body></html>"]
    assert found.documents == {"gfissore/arxiv-abstracts-2021": 9}


def test_passages_that_a_rule_drops_are_counted(copies: Path) -> None:
    news = copies / "cc_news" / "train.jsonl"
    repeated = json.loads(news.read_text("utf-8").splitlines()[0])["text"]
    more = [*(f"{repeated} Number {number}." for number in range(60)), *texts("plain", 60, hedged=False)]
    news.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts("news", 60), *more]), "utf-8")
    found = Yield()
    build(copies, found=found, num_train=36)
    assert {"filter", "near_duplicate"} <= found.to_dict()["rules"].keys()


def test_mixed_line_ends_entities_and_breaks_are_cleaned(copies: Path) -> None:
    rows = [
        {"text": text.replace(". ", ".\r\n", 1) + "<br /><br />R&amp;D went by.\rSo it was."} for text in texts("n", 60)
    ]
    (copies / "cc_news" / "train.jsonl").write_text("\r\n".join(map(json.dumps, rows)) + "\n", "utf-8", newline="")
    table = build(copies)
    assert not any(sign in text for text in table["text"].to_pylist() for sign in ("\r", "<br", "&amp;"))


def test_a_missing_copy_and_an_unknown_licence_name_their_flags(copies: Path) -> None:
    with pytest.raises(CorpusError, match=r"no licence is known of cc_news: --unknown-licences .*--without cc_news"):
        build(copies, unknown_licences=False)
    with pytest.raises(CorpusError, match=r"no copy of lex_glue .scotus.: put it in lex_glue/scotus, or --without"):
        build(copies, concept="legal_formality")
    with pytest.raises(CorpusError, match=r"the datasets hold .* 400 are asked for"):
        build(copies, num_train=800)
    with pytest.raises(CorpusError, match=r"--without leaves no dataset for its positives"):
        build(copies, concept="imdb_sentiment", leave_out=frozenset({"imdb"}))
    with pytest.raises(UnknownNameError, match=r"cc_new.*did you mean"):
        build(copies, leave_out=frozenset({"cc_new"}))
    table = build(copies, unknown_licences=False, leave_out=frozenset({"cc_news"}))
    assert set(table["domain"].to_pylist()) == {"scientific", "government"}


def test_labels_of_a_dataset_choose_its_classes(tmp_path: Path) -> None:
    rows = [{"text": text, "sentiment": ("positive", "negative")[n % 2]} for n, text in enumerate(texts("imdb", 120))]
    Rows.from_list(rows).to_csv(str(place(tmp_path, "imdb") / "train.csv"))
    by_text = {row["text"]: row["sentiment"] for row in rows}
    table = build(tmp_path, concept="imdb_sentiment")
    assert all(by_text[row["text"]] == ("negative", "positive")[row["label"]] for row in table.to_pylist())


def test_items_are_drawn_from_a_buffer() -> None:
    found = list(drawn(iter(range(500)), Random(0), 50))
    assert sorted(found) == list(range(500)) and found != sorted(found)
    assert max(item - place for place, item in enumerate(found)) <= 50
