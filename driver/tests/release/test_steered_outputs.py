"""Steered texts of a run as a release."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from driver.tests.releases import content_of, export_of
from driver.tests.run_folders import assembled

from poolbench.contracts.keys import is_restricted
from poolbench.errors import IntegrityError, NotFoundError, ReceiptError
from poolbench.storage import Artifacts
from poolbench_driver.imports.steered_texts import RELEASE
from poolbench_driver.release.source import releasable_concepts
from poolbench_driver.release.steered_outputs import export_steered_outputs


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    return 0.1 + 0.01 * opening + (0.8 if scorer == "contrast" and "null" not in key else 0.1) * strength


def export(made: Any, tmp_path: Path, output: Path, concepts: Sequence[str] = ("contrast",)) -> Any:
    """Export the texts of the run below `tmp_path`; return the manifest."""
    return export_steered_outputs(export_of(made, tmp_path, list(concepts)), output)


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


def test_the_card_says_how_the_texts_were_made(made: Any, tmp_path: Path) -> None:
    assert export(finished(made, tmp_path), tmp_path, tmp_path / "out")["missing"] == []
    card = (tmp_path / "out/README.md").read_text()
    assert yaml.safe_load(card.split("---")[1]) == {
        "license": "apache-2.0",
        "language": "en",
        "configs": [{"config_name": "contrast", "data_files": "data/contrast.parquet"}],
    }
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


def test_the_same_run_gives_the_same_bytes(made: Any, tmp_path: Path) -> None:
    export(finished(made, tmp_path), tmp_path, tmp_path / "out")
    first = content_of(tmp_path / "out")
    (tmp_path / "out/data/old.parquet").write_bytes(b"of an earlier release")
    export(made, tmp_path, tmp_path / "out")
    assert content_of(tmp_path / "out") == first


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
