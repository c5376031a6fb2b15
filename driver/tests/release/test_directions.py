"""Directions of a run as a release."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from driver.tests.releases import content_of, export_of
from safetensors.numpy import load_file

from poolbench.errors import InputError, NotFoundError
from poolbench.steps.roles import Cell
from poolbench_driver.release.directions import export_directions


def written(made: Any) -> Any:
    for probes in made.plan.probes.concepts.values():
        made.directions(probes.directions.values())
    return made


def test_directions_are_the_stored_vectors(steered: Any, tmp_path: Path) -> None:
    made = written(steered())
    manifest = export_directions(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    folder = tmp_path / "out/demo/layer_2"
    tensors = load_file(folder / "directions.safetensors")
    for strategy in ("A1_mean", "L5_keyword"):
        key = made.plan.probes.concepts["contrast"].directions[Cell(strategy, 2)]
        stored = {row["direction_id"]: row["vector"] for row in made.artifacts.read_table(key).to_pylist()}
        vector = np.load(folder / f"contrast__{strategy}.npy")  # as published: no pickle
        assert vector.dtype == np.float32 and vector.tolist() == stored["C1"]
        assert {name: tensors[f"contrast/{strategy}/{name}"].tolist() for name in stored} == stored
    index = pq.read_table(tmp_path / "out/directions.parquet").to_pylist()
    assert len(tensors) == 4 and manifest["num_directions"] == len(index) == 4 * len(
        made.plan.scope.layers_with_steering
    )
    assert {row["file"] is None for row in index if row["direction"] == "C2"} == {True}


def test_the_reading_code_of_the_card_runs(steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_directions(export_of(written(steered()), tmp_path, ["contrast"]), tmp_path / "out")
    code = (tmp_path / "out/README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path / "out")
    exec(compile(code, "the code of the card", "exec"), {})


def test_a_direction_without_a_vector_is_a_row_with_its_reason(
    steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = steered()
    row = {"direction_id": "C1", "vector": None, "raw_norm": None, "status": "collapsed", "reason": "all are equal"}
    monkeypatch.setattr(made, "_direction", lambda name: {**row, "direction_id": name})
    made.directions([made.plan.probes.concepts["contrast"].directions[Cell("A1_mean", 2)]])
    monkeypatch.undo()
    made.directions([made.plan.probes.concepts["contrast"].directions[Cell("L5_keyword", 2)]])
    export_directions(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    assert not (tmp_path / "out/demo/layer_2/contrast__A1_mean.npy").exists()
    found = pq.read_table(tmp_path / "out/directions.parquet").to_pylist()
    assert [(row["status"], row["reason"], row["tensors"]) for row in found if row["strategy"] == "A1_mean"] == [
        ("collapsed", "all are equal", None)
    ] * 2


def test_what_comes_from_sensitive_passages_stays(steered: Any, tmp_path: Path) -> None:
    """A common component of all concepts carries the sensitive one into the directions of the others."""
    made = written(steered(concepts=["contrast", "toxicity"], strategies=("A1_mean", "S4_sif")))
    manifest = export_directions(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    assert {gap["strategy"] for gap in manifest["missing"]} == {"S4_sif"}
    assert all("stay in the store" in gap["reason"] for gap in manifest["missing"])
    files = content_of(tmp_path / "out")
    assert not [name for name, data in files.items() if "toxicity" in name or b"toxicity" in data]
    assert not [name for name in files if "S4_sif" in name]


def test_a_run_without_directions_and_another_export_are_refused(steered: Any, tmp_path: Path) -> None:
    made = steered()
    with pytest.raises(NotFoundError, match="has no direction in the store"):
        export_directions(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    first = export_of(written(made), tmp_path, ["contrast"])
    export_directions(first, tmp_path / "out")
    before = content_of(tmp_path / "out")
    other = steered(seed=1)
    with pytest.raises(InputError, match="holds another export"):
        export_directions(export_of(written(other), tmp_path, ["contrast"]), tmp_path / "out")
    export_directions(first, tmp_path / "out")  # the same one is replaced
    assert content_of(tmp_path / "out") == before
