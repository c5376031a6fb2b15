"""`vectors serve`: what the steerer is sent for a file, and the offset of a run's probe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.conftest import Driver
from driver.tests.vector_cards import vector_of
from safetensors.numpy import save_file

from poolbench.config import resolve_model
from poolbench.errors import RestrictedError
from poolbench_driver.vectors.card import Application, Strength, Vector
from poolbench_driver.vectors.serving import served_body


def folder_of(path: Path, layers: tuple[int, ...] = (3,), **fields: Any) -> Path:
    facts: dict[str, Any] = {"model_revision": resolve_model("demo").revision, "strength": Strength(recommended=0.6)}
    facts["apply"] = Application(residual_norms=dict.fromkeys(layers, 12.0))
    vector_of(*layers, **facts | fields).save(path / "v")
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


def test_what_says_too_little_or_is_sensitive_is_refused(cli: Driver, tmp_path: Path) -> None:
    save_file({"v": 3 * np.eye(256, dtype=np.float32)[0]}, tmp_path / "my.safetensors")
    for options, reason in (
        (("--strength", ".5"), "vectors import` makes one"),
        (("--strength", ".5", "--model", "demo"), "give --layer"),
        (("--model", "demo", "--layer", "3"), "give --strength"),
        (("--model", "demo", "--layer", "9"), "out of range"),
    ):
        refused = cli("vectors", "serve", str(tmp_path / "my.safetensors"), *options)
        assert (refused.returncode, reason in refused.stderr) == (2, True), refused.stderr
    other = folder_of(tmp_path, model_revision="local-0")
    refused = cli("vectors", "serve", str(other), "--model", "demo")
    assert refused.returncode == 2 and "revision local-0" in refused.stderr and "--force" in refused.stderr
    assert cli("vectors", "serve", "--layer", "2").returncode == 2
    (tmp_path / "s").mkdir()
    with pytest.raises(RestrictedError):
        served_body(Vector.load(folder_of(tmp_path / "s", concept="toxicity")), None, None, None)
