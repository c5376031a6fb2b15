"""`vectors serve`: what the steerer is sent for a file, and the offset of a run's probe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from poolbench.config import resolve_model
from poolbench.contracts import tables as t
from poolbench.errors import NotFoundError, RestrictedError
from poolbench.steps.roles import Cell, SplitCell
from poolbench_driver.assemble import assemble
from poolbench_driver.models import describe
from poolbench_driver.records import RunFolder
from poolbench_driver.suites.poolbench.release.probes import offset_of, probe_of_run
from poolbench_driver.suites.poolbench.release.source import Export
from poolbench_driver.vectors.card import Application, Source, Strength, Vector, VectorCard, sha256_of_vectors
from poolbench_driver.vectors.serving import served_body
from poolbench_prober.solver.fits import fit_probes

WIDTH = 256


def folder_of(path: Path, layers: tuple[int, ...] = (3,), **fields: Any) -> Path:
    random = np.random.default_rng(5)
    vectors = {layer: random.normal(size=WIDTH) for layer in layers}
    vectors = {layer: (vector / np.linalg.norm(vector)).astype(np.float32) for layer, vector in vectors.items()}
    model = describe(resolve_model("demo"), None)
    facts: dict[str, Any] = {
        "name": "demo+contrast", "concept": "contrast", "model": "demo", "model_revision": model.ref.revision,
        "strength": Strength(recommended=0.6), "apply": Application(residual_norms=dict.fromkeys(layers, 12.0)),
    }  # fmt: skip
    card = VectorCard(
        **facts | fields, width=WIDTH, num_blocks=6, layers=layers, source=Source(tool="a test"),
        vectors_sha256=sha256_of_vectors(vectors),
    )  # fmt: skip
    Vector(card, vectors).save(path / "v")
    return path / "v"


def test_a_card_says_name_model_strength_and_size(tmp_path: Path) -> None:
    vector = Vector.load(folder_of(tmp_path, (2, 4)))
    body = served_body(vector, None, None, None)
    assert (body["name"], body["model"], body["strength"]) == ("contrast", "demo", 0.6)
    assert body["model_revision"] == resolve_model("demo").revision
    assert [(edit["layer"], edit["strength"], edit["residual_norm"]) for edit in body["steering"]["edits"]] == [
        (2, 1.0, 12.0), (4, 1.0, 12.0),
    ]  # fmt: skip
    one = served_body(vector.at(4), "mine", -1.5, "all")
    assert (one["name"], one["strength"], len(one["steering"]["edits"])) == ("mine", -1.5, 1)
    assert (body["steering"]["positions"], one["steering"]["positions"]) == ("generated", "all")
    forced = served_body(vector, None, None, None, force=True)
    assert forced["model_revision"] is None and forced["steering"]["edits"][0]["residual_norm"] is None


def test_a_card_in_coefficients_is_served_in_coefficients(tmp_path: Path) -> None:
    vector = Vector.load(folder_of(tmp_path, apply=Application(alpha_unit="absolute", positions="all")))
    body = served_body(vector, None, None, None)
    (edit,) = body["steering"]["edits"]
    assert (edit["alpha"], edit["residual_norm"], body["steering"]["positions"]) == (1.0, None, "all")
    assert "strength" not in edit


def test_what_says_too_little_or_is_sensitive_is_refused(
    driver: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    save_file({"v": 3 * np.eye(WIDTH, dtype=np.float32)[0]}, tmp_path / "my.safetensors")
    for options, reason in (
        (("--strength", ".5"), "vectors import` makes one"),
        (("--strength", ".5", "--model", "demo"), "give --layer"),
        (("--model", "demo", "--layer", "3"), "give --strength"),
        (("--model", "demo", "--layer", "9"), "out of range"),
    ):
        refused = driver(environment, "vectors", "serve", str(tmp_path / "my.safetensors"), *options)
        assert (refused.returncode, reason in refused.stderr) == (2, True), refused.stderr
    other = folder_of(tmp_path, model_revision="local-0")
    refused = driver(environment, "vectors", "serve", str(other), "--model", "demo")
    assert refused.returncode == 2 and "revision local-0" in refused.stderr and "--force" in refused.stderr
    assert driver(environment, "vectors", "serve", "--layer", "2").returncode == 2
    (tmp_path / "s").mkdir()
    with pytest.raises(RestrictedError):
        served_body(Vector.load(folder_of(tmp_path / "s", concept="toxicity")), None, None, None)


@pytest.mark.parametrize(("num_rows", "width", "share"), [(60, 8, 0.5), (200, 40, 0.2), (30, 64, 0.5)])
def test_the_offset_of_a_probe_is_its_intercept(num_rows: int, width: int, share: float) -> None:
    """Independent implementation: scikit-learn's logistic regression on standardised vectors."""
    random = np.random.default_rng(num_rows)
    labels = (random.random(num_rows) < share).astype(int)
    vectors = random.normal(size=(num_rows, width)) * np.linspace(0.5, 20, width) + 3.0 * labels[:, None] + 7.0
    scaler = StandardScaler().fit(vectors)
    probe = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000).fit(scaler.transform(vectors), labels)
    weights = probe.coef_[0] / scaler.scale_
    intercept = probe.intercept_[0] - weights @ scaler.mean_
    assert offset_of(vectors @ weights, labels) == pytest.approx(intercept, abs=1e-6)


def test_the_probe_of_a_run_gives_the_log_odds_of_the_prober(steered: Any, tmp_path: Path) -> None:
    made, cell, random = steered(), Cell("A1_mean", 4), np.random.default_rng(3)
    of_concept = made.plan.vectors.concepts["contrast"]
    labels = np.arange(40) % 2
    matrix = (random.normal(size=(40, 4)) + labels[:, None] * [1.0, 0.5, 0.0, -1.0] + 5.0).astype(np.float32)
    fit = fit_probes(matrix, labels[:, None], np.ones(1))
    weights, ids = fit.weights_DK[:, 0], [f"p{number}" for number in range(40)]
    norm = float(np.linalg.norm(weights))
    rows = [{"direction_id": name, "vector": (weights / norm).tolist(), "raw_norm": norm} for name in ("C1", "C3")]
    made.artifacts.write_table(
        made.plan.probes.concepts["contrast"].directions[cell], t.table_from_rows(rows, t.directions_schema(4))
    )
    passages = [{"passage_id": name, "label": label} for name, label in zip(ids, labels.tolist(), strict=True)]
    made.artifacts.write_table(of_concept.passages["train"], t.table_from_rows(passages, t.PASSAGES))
    pooled = [{"passage_id": name, "vector": row} for name, row in zip(ids[::-1], matrix[::-1].tolist(), strict=True)]
    pooled.append({"passage_id": "lost", "vector": None})
    key = of_concept.vectors[SplitCell("train", *cell)]
    made.artifacts.write_table(key, t.table_from_rows(pooled, t.vectors_schema(4)))
    made.write(lambda *_: 0.5)
    folder = RunFolder.create(tmp_path / "runs", made.plan.scope.config)
    for name, table in assemble(made.plan, made.artifacts, {}, folder.id).items():
        folder.write_table(name, table)
    export = Export(folder, made.plan, made.artifacts, ["contrast"], "unknown")
    body = probe_of_run(export, "contrast", "A1_mean", 4)
    np.testing.assert_allclose(matrix @ np.array(body["weights"]) + body["offset"], fit.scores(matrix)[:, 0], atol=1e-4)
    assert (body["strategy"], body["layer"], body["run"], body["model"]) == ("A1_mean", 4, folder.id, "demo")
    with pytest.raises(NotFoundError, match="has no probe: the run did not make it"):
        probe_of_run(export, "contrast", "A1_mean", 2)
    with pytest.raises(NotFoundError, match="it has A1_mean at layer"):
        probe_of_run(export, "contrast", "A2_max", None)
