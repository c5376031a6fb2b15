"""`vectors serve`: what the steerer is sent for a file, and the offset of a run's probe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from poolbench.config import resolve_model
from poolbench.errors import RestrictedError
from poolbench_driver.models import describe
from poolbench_driver.vectors.card import Application, Source, Strength, Vector, VectorCard, sha256_of_vectors
from poolbench_driver.vectors.serving import served_body

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
