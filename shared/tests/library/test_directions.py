"""Directions by name: the latest run that has one, the best first, and nothing of sensitive concepts."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.servers.counted import Counted
from tests.waiting import PATIENCE_S

from poolbench.config import ModelRef
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import RUN_FILES, run_path
from poolbench.errors import IntegrityError, NotFoundError
from poolbench.library.directions import TABLE, NamedDirections, table_of
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore

KEY = "prober.probe.0001"
DEMO, SMOLLM = (ModelRef(name, name, "r1", "float32", "") for name in ("demo", "smollm2-135m"))


def row(strategy: str, gain: float | None, d1: float | None = 0.8, **other: Any) -> dict[str, Any]:
    of = {
        "model": "demo",
        "model_revision": "r1",
        "concept": "contrast",
        "layer": 3,
        "construction": "C1",
        "key": KEY,
        "best_strength": 0.3,
        "fluent_strength": 0.5,
    }
    return of | {"strategy": strategy, "gain": gain, "gain_where_chosen": gain, "d1": d1} | other


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    made = Artifacts(FolderStore(tmp_path / "store"))
    rows = [{"direction_id": "C1", "vector": [0.6, 0.8], "raw_norm": 2.0, "status": None},
            {"direction_id": "C2", "vector": None, "raw_norm": None, "status": "collapsed"}]  # fmt: skip
    made.write_table(KEY, table_from_rows(rows, directions_schema(2)))
    return made


def publish(artifacts: Artifacts, run: str, modified_s: float, *rows: dict[str, Any]) -> None:
    """Write the table of a run that ended at a time."""
    path, sink = run_path(run, f"{RUN_FILES}{TABLE}.parquet"), pa.BufferOutputStream()
    pq.write_table(table_of(rows), sink)
    artifacts.store.put(path, sink.getvalue().to_pybytes())
    os.utime(Path(artifacts.store.uri.removeprefix("file://")) / path, (modified_s, modified_s))


def test_a_concept_means_the_best_direction_of_the_latest_run(artifacts: Artifacts) -> None:
    publish(artifacts, "old", 100, row("A1_mean", 0.9), row("S1_attention", 0.1))
    lucky = row("P1_last_token", 0.6, gain_where_chosen=0.1)
    publish(artifacts, "new", 200, lucky, row("A2_max", None, 0.99), row("A1_mean", 0.4))
    publish(artifacts, "other", 300, row("A1_mean", 0.9, model="smollm2-135m"), row("A1_mean", 0.9, concept="hedging"))
    known = NamedDirections(artifacts)
    found = known.find(DEMO, "contrast")
    assert (found.run, found.strategy, found.gain) == ("new", "A1_mean", 0.4)
    assert str(found) == "contrast by A1_mean at layer 3, of run new"
    np.testing.assert_array_equal(known.vector(found), np.array([0.6, 0.8], np.float32))
    assert known.find(DEMO, "contrast", "S1_attention").run == "old"
    assert known.find(DEMO, "contrast", run="old").strategy == "A1_mean"
    assert known.find(SMOLLM, "contrast").run == "other"


def test_a_direction_of_other_weights_does_not_fit(artifacts: Artifacts) -> None:
    publish(artifacts, "run", 100, row("A1_mean", 0.9))
    known = NamedDirections(artifacts)
    with pytest.raises(NotFoundError, match="for model demo; a run that measures"):
        known.find(replace(DEMO, revision="r2"), "contrast")
    assert known.find(replace(DEMO, revision=None), "contrast").run == "run"  # of a hub model, not known beforehand


def test_without_gains_the_best_probe_comes_first(artifacts: Artifacts) -> None:
    publish(artifacts, "run", 100, row("A1_mean", None, 0.8), row("A2_max", None, 0.9), row("A3_last", None, None))
    known = [one.strategy for one in NamedDirections(artifacts).all()]
    assert known == ["A2_max", "A1_mean", "A3_last"]


def test_what_there_is_not_comes_with_what_there_is(artifacts: Artifacts) -> None:
    known = NamedDirections(artifacts)
    with pytest.raises(NotFoundError, match="no run has a direction of contrast for model demo; a run that measures"):
        known.find(DEMO, "contrast")
    publish(artifacts, "run", 100, row("A1_mean", 0.9))
    with pytest.raises(NotFoundError, match=r"of hedging for model demo; there are those of contrast$"):
        known.find(DEMO, "hedging")
    with pytest.raises(NotFoundError, match=r"contrast by A2_max at layer 9 for .*; there are A1_mean at layer 3"):
        known.find(DEMO, "contrast", "A2_max", 9)
    with pytest.raises(NotFoundError, match=r"for model demo \(gone\)"):
        known.find(DEMO, "contrast", run="gone")
    known = NamedDirections(artifacts)
    publish(artifacts, "later", 200, row("A1_mean", 0.9, construction="C2"))
    with pytest.raises(NotFoundError, match="could not be computed"):
        known.vector(known.find(DEMO, "contrast"))


def test_a_damaged_table_says_what_repairs_it(artifacts: Artifacts) -> None:
    artifacts.store.put(run_path("run", f"{RUN_FILES}{TABLE}.parquet"), b"PAR1 is not enough")
    known = NamedDirections(artifacts)
    with pytest.raises(IntegrityError, match="the command of run run writes it again"):
        known.find(DEMO, "contrast")
    publish(artifacts, "sound", 100, row("A1_mean", 0.9))  # the damaged one is later
    assert known.find(DEMO, "contrast").run == "sound"
    with pytest.raises(IntegrityError, match="the command of run run writes it again"):
        known.find(DEMO, "hedging")


def test_a_burst_of_requests_lists_the_runs_once_and_reads_each_table_once(artifacts: Artifacts) -> None:
    for number in range(5):
        publish(artifacts, f"run{number}", 100 + number, row("A1_mean", 0.9), row("A1_mean", 0.5, concept="hedging"))
    store = artifacts.store = Counted(artifacts.store)  # type: ignore[assignment]
    known, fresh = NamedDirections(artifacts, listed_s=PATIENCE_S), NamedDirections(artifacts, listed_s=0)
    assert [known.find(DEMO, concept).run for concept in ("contrast", "hedging") * 3] == ["run4"] * 6
    assert store.requests == {"list": 1, "get": 1}
    publish(artifacts, "later", 200, row("A1_mean", 0.9), row("A2_max", 0.9))
    assert fresh.find(DEMO, "contrast").run == "later"
    assert known.find(DEMO, "contrast", "A2_max").run == "later"  # what a listing lacks may have been made since
    assert known.find(DEMO, "contrast").run == "later"
