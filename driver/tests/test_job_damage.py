"""A whole run whose stored results are damaged: the same command makes them again, and the digest is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.conftest import SteeredArtifacts
from driver.tests.loop_bench import Bench, Notes, job_of

from poolbench.contracts.results import results_digest
from poolbench_driver.assemble import assemble
from poolbench_driver.loop import FoundDamageError
from poolbench_driver.records import RunFolder
from poolbench_driver.stages.stage import Plan

RUN = "run"


def flip(artifacts: Any, key: str, name: str = "table.arrow") -> None:
    path = artifacts.manifest(key).files[name].path
    data = bytearray(artifacts.store.get(path))
    data[len(data) // 3] ^= 1
    artifacts.store.put(path, bytes(data))


def digest_of(plan: Plan, artifacts: Any) -> str:
    return results_digest(assemble(plan, artifacts, {}, RUN)["results"])


def test_all_damage_that_rows_meet_is_named_at_once(complete: tuple[SteeredArtifacts, Any]) -> None:
    made, _ = complete
    (cells,), scores = made.plan.probes.concepts.values(), made.plan.steering.scores.concepts["contrast"]
    damaged = [next(iter(cells.measures.values())), scores["A1_mean"], made.plan.steering.unsteered.texts.texts]
    for key in damaged:
        flip(made.artifacts, key)
    with pytest.raises(FoundDamageError) as found:
        assemble(made.plan, made.artifacts, {}, RUN)
    assert {error.key for error in found.value.damages} == set(damaged)


def test_the_same_command_repairs_and_gives_the_same_digest(
    bench: Bench, complete: tuple[SteeredArtifacts, dict[str, pa.Table]], tmp_path: Path
) -> None:
    made, copies = complete
    before = digest_of(made.plan, made.artifacts)
    (cells,) = made.plan.probes.concepts.values()
    damaged = [*cells.measures.values(), *cells.directions.values(), *cells.scores.values()]
    for key in damaged:
        flip(made.artifacts, key)
    unread = next(key for key in made.plan.local if key.startswith("corpus.prompts."))  # rows need no openings
    flip(made.artifacts, unread)
    bench.consume()
    folder = RunFolder.create(tmp_path / "runs", made.plan.scope.config)
    folder.write_table("results", pa.table({"x": [1]}))
    for name in ("results.parquet", "state.json", "manifest.json"):
        folder.file(name).write_bytes(b"garbage \xff")
    notes = Notes()
    assert job_of(bench, made.plan).run(folder, notes).done
    assert folder.read_state()["results_digest"] == before == results_digest(folder.read_table("results"))
    reported = [line.split(":")[1].strip() for line in notes.lines if line.startswith("damaged: ")]
    assert sorted(reported) == sorted(damaged)
    assert all(made.artifacts.read_table(key) == copies[key] for key in damaged)
    assert not (Path(made.artifacts.store.uri) / "damaged" / unread).exists()
