"""Releases of texts, activations, directions and runs: whole or absent, and without what is restricted."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from driver.tests.releases import content_of, export_of
from driver.tests.run_folders import assembled
from safetensors.numpy import load_file

from poolbench.contracts.keys import is_restricted
from poolbench.errors import CellError, InputError, IntegrityError, NotFoundError, ReceiptError, RestrictedError
from poolbench.pooling.states import KeptPassage, ShardWriter, read_states
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_corpora.io import read_concept
from poolbench_driver.cli.export import concept_export
from poolbench_driver.imports.activation_files import ActivationReader
from poolbench_driver.imports.activations import Importer
from poolbench_driver.suites.poolbench.release.activations import export_activations
from poolbench_driver.suites.poolbench.release.directions import export_directions
from poolbench_driver.suites.poolbench.release.source import model_folder, releasable_concepts
from poolbench_driver.suites.poolbench.release.steered import RELEASE, export_steered_outputs


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    return 0.1 + 0.01 * opening + (0.8 if scorer == "contrast" and "null" not in key else 0.1) * strength


def export(made: Any, tmp_path: Path, output: Path, concepts: Sequence[str] = ("contrast",), **how: Any) -> Any:
    """Export the texts of the run below `tmp_path`; return the manifest."""
    return export_steered_outputs(export_of(made, tmp_path, list(concepts), **how), output)


def finished(made: Any, tmp_path: Path) -> Any:
    """Write the tables of the run below `tmp_path`; return what it was made of."""
    assembled(made, tmp_path / "runs")
    return made


@pytest.fixture
def made(steered: Any) -> Any:
    return steered().write(rising)


def test_a_release_holds_every_text_with_its_settings_scores_and_receipt(made: Any, tmp_path: Path) -> None:
    manifest = export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    table = pq.read_table(tmp_path / "out/data/contrast.parquet")
    assert table.schema.equals(RELEASE)
    # 6 openings: unsteered, 2 strategies x 4 strengths, 20 null directions x 3 strengths.
    assert table.num_rows == manifest["files"]["data/contrast.parquet"]["num_rows"] == 6 + 48 + 360
    rows = {row["text_id"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    row = rows["A1_mean/C1|0.25|2|0"]
    assert row["score"] == pytest.approx(rising("A1_mean/C1", 2, 0.25, "contrast"))
    assert [entry["scorer"] for entry in row["neighbour_scores"]] == ["causation", "negation_density"]
    expected = {
        "concept": "contrast", "model": "demo", "model_revision": "local-0", "strategy": "A1_mean", "direction": "C1",
        "strength": 0.25, "alpha": 12.5, "alpha_unit": "residual_norm", "positions": "generated", "temperature": 0.0,
        "opening_id": "neutral-54-02", "opening": "Opening 2", "mean_nll": 2.0, "vector_hash": "0" * 16,
        "positions_changed": 20, "positions_expected": 20, "sample": None,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    null, unsteered = rows["nulls/null_007|0.06|0|0"], rows["unsteered|0.0|3|0"]
    assert (null["strategy"], null["direction"], null["strategy_version"]) == ("nulls", "null_007", None)
    assert (unsteered["direction"], unsteered["vector_hash"], unsteered["strength"]) == (None, None, 0.0)
    assert unsteered["score"] == pytest.approx(0.13)


def test_texts_along_further_directions_are_released_too(steered: Any, tmp_path: Path) -> None:
    made = steered(steering={"further": ["C2"]}).write(rising)
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    table = pq.read_table(tmp_path / "out/data/contrast.parquet")
    assert table.num_rows == 6 + 2 * 48 + 360
    versions = dict(zip(table["strategy"].to_pylist(), table["strategy_version"].to_pylist(), strict=True))
    assert versions["A1_mean:direction=C2"] == versions["A1_mean"] == 1
    assert "C1, C2, and 20 null directions a concept" in (tmp_path / "out/README.md").read_text()


def test_every_file_is_in_the_manifest_with_its_hash(made: Any, tmp_path: Path) -> None:
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    files = content_of(tmp_path / "out")
    sums = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = json.loads(files.pop("manifest.json"))
    del sums["manifest.json"]
    assert sums == {name: entry["sha256"] for name, entry in manifest["files"].items()}
    assert manifest["missing"] == []
    header = files["README.md"].decode().split("---")[1]
    assert yaml.safe_load(header) == {
        "license": "apache-2.0",
        "language": "en",
        "configs": [{"config_name": "contrast", "data_files": "data/contrast.parquet"}],
    }
    card = files["README.md"].decode()
    facts = ("local-0", "passed its gate", "6 of neutral-54", "residual_norm", made.plan.scope.config.config_hash())
    assert all(fact in card for fact in facts)


def test_nothing_of_a_sensitive_concept_is_read_or_written(
    steered: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = steered(concepts=["contrast", "toxicity"]).write(rising)
    finished(made, tmp_path)
    read = list[str]()
    plain = Artifacts.read_table
    monkeypatch.setattr(Artifacts, "read_table", lambda self, key: (read.append(key), plain(self, key))[1])
    export(made, tmp_path, tmp_path / "out", releasable_concepts(made.plan.scope.config.concepts, None))
    assert read and not any(map(is_restricted, read))
    assert set(content_of(tmp_path / "out")) == {"README.md", "manifest.json", "SHA256SUMS", "data/contrast.parquet"}
    for name, data in content_of(tmp_path / "out").items():
        assert b"toxicity" not in data, name
    with pytest.raises(RestrictedError, match="stay in the store"):
        export(made, tmp_path, tmp_path / "other", ["toxicity"])  # past the check of names: the keys say so too
    assert not (tmp_path / "other").exists()


def test_concepts_are_checked_by_name() -> None:
    measured = ["contrast", "toxicity", "depression"]
    assert releasable_concepts(measured, None) == ["contrast"]
    with pytest.raises(RestrictedError, match=r"toxicity: .* of sensitive concepts stay in the store"):
        releasable_concepts(measured, ["contrast", "toxicity"])
    with pytest.raises(RestrictedError, match=r"^toxicity: "):
        releasable_concepts(["toxicity"], None)
    with pytest.raises(NotFoundError, match="did not measure hedging; it has contrast"):
        releasable_concepts(["contrast"], ["hedging"])


def test_the_same_run_gives_the_same_bytes_and_replaces_only_a_release(made: Any, tmp_path: Path) -> None:
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    first = content_of(tmp_path / "out")
    (tmp_path / "out/data/old.parquet").write_bytes(b"of an earlier release")
    export(made, tmp_path, tmp_path / "out")
    assert content_of(tmp_path / "out") == first
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="holds other files"):
        export(made, tmp_path, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_an_interrupted_export_leaves_what_was_there(made: Any, tmp_path: Path) -> None:
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    before = content_of(tmp_path / "out")

    def interrupt(parts: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(made, tmp_path, tmp_path / "out", on_part=interrupt)
    assert content_of(tmp_path / "out") == before
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_text_without_a_valid_receipt_is_never_released(made: Any, tmp_path: Path) -> None:
    key = finished(made, tmp_path).plan.steering.texts.concepts["contrast"].texts["A1_mean"].texts
    table = made.artifacts.read_table(key)
    made.artifacts.delete(key)
    short = pa.array([19, *[20] * (table.num_rows - 1)], pa.int32())
    made.artifacts.write_table(
        key, table.set_column(table.schema.get_field_index("positions_changed"), "positions_changed", short)
    )
    with pytest.raises(ReceiptError, match="19 of 20 positions"):
        export(made, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_run_lacks_is_named_and_the_rest_is_released(made: Any, tmp_path: Path) -> None:
    finished(made, tmp_path)
    made.artifacts.delete(made.plan.steering.texts.concepts["contrast"].texts["L5_keyword"].texts)
    manifest = export(made, tmp_path, tmp_path / "out")
    assert [(gap["concept"], gap["strategy"]) for gap in manifest["missing"]] == [("contrast", "L5_keyword")]
    assert pq.read_metadata(tmp_path / "out/data/contrast.parquet").num_rows == 6 + 24 + 360


def test_an_unfinished_run_and_a_damaged_artifact_are_errors(made: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no text_scores\.parquet yet"):
        export(made, tmp_path, tmp_path / "out")
    key = finished(made, tmp_path).plan.steering.texts.concepts["contrast"].texts["A1_mean"].texts
    entry = next(iter(made.artifacts.manifest(key).files.values()))
    made.artifacts.store.put(entry.path, b"damaged")
    with pytest.raises(IntegrityError):
        export(made, tmp_path, tmp_path / "out")


def test_a_run_that_did_not_steer_has_nothing_to_release(steered: Any, tmp_path: Path) -> None:
    made = steered(metrics=["d1"])
    with pytest.raises(NotFoundError, match="measured d1 alone: it has no steered texts"):
        export(made, tmp_path, tmp_path / "out")


def test_sampled_texts_carry_their_seeds(steered: Any, tmp_path: Path) -> None:
    made = steered(steering={"temperature": 0.7, "num_samples": 2}).write(rising)
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    rows = pq.read_table(tmp_path / "out/data/contrast.parquet").to_pylist()
    assert {(row["temperature"], row["sample"], row["sample_seed"]) for row in rows} == {(0.7, 0, 7), (0.7, 1, 8)}
    assert "2 samples at temperature 0.7, seed 0" in (tmp_path / "out/README.md").read_text()


def test_the_command_refuses_sensitive_concepts_and_says_what_it_wrote(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = assembled(made, tmp_path / "runs")
    monkeypatch.setattr("poolbench_driver.cluster.session.open_session", lambda: made)  # has the store
    monkeypatch.setattr("poolbench_driver.job.prepare", lambda config, session, model: made)  # and the plan
    where: dict[str, Any] = {"output": tmp_path / "out", "run": folder.id, "runs": tmp_path / "runs", "licence": None}
    with pytest.raises(RestrictedError):
        concept_export("steered-outputs")(**where, concepts="toxicity")
    assert not (tmp_path / "out").exists()
    assert concept_export("steered-outputs")(**where, concepts=None) == 0
    assert "414 texts of 1 concepts, licence apache-2.0" in capsys.readouterr().out
    made.artifacts.delete(made.plan.steering.texts.concepts["contrast"].texts["L5_keyword"].texts)
    assert concept_export("steered-outputs")(**where, concepts="contrast") == 1
    assert "missing: contrast, L5_keyword" in capsys.readouterr().err


WIDTH = 4


def keep(made: Any, concept: str, dtype: Any = np.float32, lost: str | None = None) -> dict[tuple[str, int, str], Any]:
    """Write passages and states of a concept as the services do; return the states by split, layer and passage."""
    vectors, states = made.plan.vectors.concepts[concept], {}
    for split in ("train", "test"):
        passages = made.plan.local[vectors.passages[split]].build()
        made.artifacts.write_table(vectors.passages[split], passages)
        names = passages["passage_id"].to_pylist()
        for layer in made.plan.scope.layers_with_steering:
            writer = made.artifacts.writer(vectors.states[split, layer])
            shards = ShardWriter(writer.add_shard, WIDTH, shard_bytes=2_000)
            for place in reversed(range(len(names))):  # shards come in order of completion
                hidden = np.random.default_rng([place, layer]).normal(size=(3 + place % 4, WIDTH)).astype(dtype)
                states[split, layer, names[place]] = hidden
                shards.add(passage(place, names[place], hidden, failed=names[place] == lost))
            shards.close()
            writer.commit()
    return states


def passage(place: int, name: str, hidden: np.ndarray, *, failed: bool) -> KeptPassage:
    if failed:
        return KeptPassage(place, name, error=CellError(Status.FAILED, "too long"))
    bounds = np.arange(len(hidden))
    offsets = np.stack([bounds, bounds + 1], axis=1) * (bounds > 0)[:, None]
    return KeptPassage(place, name, hidden, bounds == 0, token_ids=bounds + 10, offsets=offsets)


@pytest.fixture
def small(steered: Any) -> Any:
    """A plan of few planted passages."""

    def make(**settings: Any) -> Any:
        sizes = {"num_train": 6, "num_test": 4}
        return steered(metrics=["d1"], keep_activations=True, budget=sizes, **settings)

    return make


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_an_export_is_imported_as_it_was(small: Any, tmp_path: Path, dtype: Any) -> None:
    made = small()
    states = keep(made, "contrast", dtype)
    manifest = export_activations(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    assert manifest["missing"] == [] and len(states) == 10 * len(made.plan.scope.layers_with_steering)
    artifacts, said = Artifacts(FolderStore(tmp_path / "other")), list[str]()

    def imported(name: str) -> Any:
        files, reader = tmp_path / "out", ActivationReader(None, True)
        return Importer(artifacts, files, files / "corpus", reader, say=said.append).run(name, ["contrast"])

    record = imported("mine")
    assert "position 0 is a BOS, and no real token (by offset_mapping)" in said and record.bos
    found = {
        (entry.split, entry.layer, one.passage_id): one
        for entry in record.states
        for shard in artifacts.read_shards(entry.key)
        for one in read_states(shard)
    }
    assert set(found) == set(states)
    for place, one in found.items():
        assert np.array_equal(one.hidden_TD, states[place].astype(np.float32)), place
        assert one.special.tolist() == [True] + [False] * (len(one.hidden_TD) - 1)
    assert imported("again").states == record.states
    assert said[-1].endswith("there already")


def test_files_have_the_published_layout(small: Any, tmp_path: Path) -> None:
    made = small()
    states = keep(made, "contrast")
    export_activations(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    rows = read_concept(tmp_path / "out/corpus", "contrast").to_pylist()
    for name, label in (("pos", 1), ("neg", 0)):
        items = np.load(tmp_path / f"out/demo/layer_2/contrast_train_{name}.npy", allow_pickle=True)
        own = [row for row in rows if row["split"] == "train" and row["label"] == label]
        assert items.dtype == object and len(items) == len(own) == 3
        for item, row in zip(items, own, strict=True):
            assert set(item) == {"id", "hidden", "offset_mapping", "text", "token_ids", "attn_weights"}
            assert (item["id"], item["text"]) == (row["passage_id"], row["text"])
            assert np.array_equal(item["hidden"], states["train", 2, row["passage_id"]])
            assert item["offset_mapping"][:2] == [(0, 0), (1, 2)] and item["token_ids"][0] == 10


def test_no_activation_of_a_sensitive_concept_is_read_or_written(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small(concepts=["contrast", "toxicity"])
    keep(made, "contrast")
    keep(made, "toxicity")
    read: list[str] = []
    plain = Artifacts.manifest
    monkeypatch.setattr(Artifacts, "manifest", lambda self, key: (read.append(key), plain(self, key))[1])
    export_activations(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    assert read and not any(map(is_restricted, read))
    key = made.plan.vectors.concepts["toxicity"].passages["train"]
    texts = [text.encode() for text in made.artifacts.read_table(key)["text"].to_pylist()]
    for name, data in content_of(tmp_path / "out").items():
        assert "toxicity" not in name and b"toxicity" not in data, name
        assert not any(text in data for text in texts), name
    with pytest.raises(RestrictedError, match=r"activations: .* stay in the store"):
        export_activations(export_of(made, tmp_path, ["toxicity"]), tmp_path / "past the names")
    assert not (tmp_path / "past the names").exists()


def test_what_a_run_lacks_is_named(small: Any, tmp_path: Path) -> None:
    made = small()
    with pytest.raises(NotFoundError, match="kept no states; run its command again with --keep-activations"):
        export_activations(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")
    vectors = made.plan.vectors.concepts["contrast"]
    first = made.plan.local[vectors.passages["train"]].build()["passage_id"][0].as_py()
    keep(made, "contrast", lost=first)
    made.artifacts.delete(vectors.states["test", 2])
    missing = export_activations(export_of(made, tmp_path, ["contrast"]), tmp_path / "out")["missing"]
    lost = [gap for gap in missing if gap.get("passage") == first]
    assert lost and all("too long" in gap["reason"] for gap in lost)
    assert [(gap["split"], gap["layer"]) for gap in missing if gap not in lost] == [("test", "2")]


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
    assert concept_export("directions")(**where) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "left out, because they are sensitive: toxicity"
    assert said[-1].endswith("directions, 1 concepts, licence apache-2.0")
    command = f"`poolbench-driver export directions {folder.id} --output FOLDER`"
    assert command in (tmp_path / "out/README.md").read_text()
    with pytest.raises(RestrictedError, match="toxicity"):
        concept_export("directions")(**{**where, "output": tmp_path / "other"}, concepts="contrast,toxicity")
    assert not (tmp_path / "other").exists()
