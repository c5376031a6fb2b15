"""Releases of directions: NumPy and safetensors alone read them, and restricted ones stay."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from driver.tests.releases import content_of, export_of
from safetensors.numpy import load_file

from poolbench.errors import InputError, NotFoundError, RestrictedError
from poolbench.steps.roles import Cell
from poolbench_driver.suites.poolbench.release.commands import of_concepts
from poolbench_driver.suites.poolbench.release.directions import export_directions
from poolbench_driver.suites.poolbench.release.source import model_folder


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


def test_the_reading_code_of_the_card_runs(steered: Any, tmp_path: Path) -> None:
    export_directions(export_of(written(steered()), tmp_path, ["contrast"]), tmp_path / "out")
    code = (tmp_path / "out/README.md").read_text().split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "out", check=True)


def test_checksums_are_those_of_the_files(steered: Any, tmp_path: Path) -> None:
    export_directions(export_of(written(steered()), tmp_path, ["contrast"]), tmp_path / "out")
    files = content_of(tmp_path / "out")
    lines = files.pop("SHA256SUMS").decode().splitlines()
    assert sorted(lines) == sorted(f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in files.items())


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


def test_models_have_the_names_of_the_published_layout() -> None:
    names = {"llama-3.1-8b": "llama3_8b", "demo": "demo", "owner/model-1": "owner_model-1", "/models/mine": "mine"}
    assert {name: model_folder(name) for name in names} == names


def test_the_command_says_what_it_leaves_out(
    steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = written(steered(concepts=["contrast", "toxicity"]))
    folder = export_of(made, tmp_path, []).folder
    monkeypatch.setattr("poolbench_driver.cluster.session.open_session", lambda: made)  # has the store
    monkeypatch.setattr("poolbench_driver.job.prepare", lambda config, session, model: made)  # and the plan
    where = {"output": tmp_path / "out", "run": folder.id, "runs": tmp_path / "runs"}
    assert of_concepts("directions")(**where) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "left out, because they are sensitive: toxicity"
    assert said[-1].endswith("directions, 1 concepts, licence apache-2.0")
    command = f"`poolbench-driver export directions {folder.id} --output FOLDER`"
    assert command in (tmp_path / "out/README.md").read_text()
    with pytest.raises(RestrictedError, match="toxicity"):
        of_concepts("directions")(**{**where, "output": tmp_path / "other"}, concepts="contrast,toxicity")
    assert not (tmp_path / "other").exists()
