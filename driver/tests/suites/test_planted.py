"""The planted suite in the driver: its settings, its concepts in the store, its conclusion."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from driver.tests.run_folders import MadeRun

from poolbench.concepts import CONCEPTS
from poolbench.errors import ConfigError
from poolbench.library.concepts import Library
from poolbench.storage import open_store
from poolbench_corpora.places.passages import TEXTS, planted_passages
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.suites.planted import register as planted
from poolbench_driver.suites.planted.config import PlantedConfig


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Leave the registry of concepts as it was: the suite attaches its store."""
    before = CONCEPTS.find
    yield
    CONCEPTS.find = before


def config(**fields: object) -> PlantedConfig:
    return load_run_config(None, {"preset": "demo", "suite": "planted", **fields})


def test_the_suite_names_its_model_and_concepts(tmp_path: Path) -> None:
    found = config()
    assert (found.model, found.probing.metrics, len(found.probing.concepts)) == ("planted", ("d1",), len(TEXTS))
    file = tmp_path / "run.yaml"
    file.write_text("suite: planted\nstrategies: [A1_mean]\n")
    assert load_run_config(file, {"preset": "demo"}).strategies == ("A1_mean",)


@pytest.mark.parametrize(
    "field", [{"model": "demo"}, {"concepts": ["hedging"]}, {"layers": [0]}, {"steering": {"temperature": 1.0}}]
)
def test_other_models_concepts_and_settings_are_refused(field: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(field))):
        config(**field)


def test_runs_keep_their_names() -> None:
    """Recorded while the suite had the settings of PoolBench."""
    small = config(preset="small", strategies=["A1_mean", "P1_last_token"])
    hashes = [run.config_hash() for run in (config(), config(seed=3), small)]
    assert hashes == ["b29a76dd210b1dca", "4765822428cb92f2", "e8ecd3a3ad08a277"]


def test_concepts_of_an_earlier_version_are_replaced(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    planted.register(store)
    library = Library(store)
    first = library.all()
    assert [concept.id for concept in first] == sorted(f"planted_{name}" for name in TEXTS)
    library.remove("planted_dense")
    stale = planted_passages("dense", seed=1)
    library.add(replace(first[0], id="planted_dense", corpus="0" * 16), stale)
    planted.register(store)
    assert library.all() == first
    assert library.passages(next(c for c in first if c.id == "planted_dense")).equals(planted_passages("dense"))


def test_what_does_not_hold_is_named(tmp_path: Path) -> None:
    planted.register(open_store(str(tmp_path / "store")))
    found = config(strategies=["P1_last_token"])
    row = {"metric": "d1.auroc", "layer": 0, "strategy": "P1_last_token", "status": "ok"}
    rows = [{**row, "concept": "planted_end", "value": 0.7}, {**row, "concept": "planted_edge", "value": 0.5}]
    concluded = SUITES.get("planted").load().conclude(MadeRun("made", found, {"results": pa.Table.from_pylist(rows)}))
    assert "P1_last_token must win on end and has 0.700" in concluded.wrong
    assert not any("on edge" in line for line in concluded.wrong)
    assert "| end | 0 | P1_last_token | win | 0.700 | WRONG |" in concluded.shown
    listed = concluded.files["planted.json"]
    assert {entry["signal"]: entry["holds"] for entry in listed}["edge"]
