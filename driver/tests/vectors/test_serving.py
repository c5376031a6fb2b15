"""`vectors serve`: what the steerer is sent for a file, and the offset of a run's probe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.conftest import Driver
from driver.tests.vector_cards import vector_of
from safetensors.numpy import save_file

from poolbench.config import resolve_model
from poolbench.errors import InputError, RestrictedError
from poolbench_driver.vectors.card import Application, Limit, Strength, Vector
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


LEVELS: dict[str, Any] = {"wrong_way": 0.2, "fall": 0.1, "perplexity_ratio": 1.5, "alpha": 0.05}
LIMIT = Limit(strength=0.35, openings=44, reason="at strength 0.5, it breaks", **LEVELS)


def test_a_strength_outside_the_limit_is_refused_lowered_or_served_on_request(tmp_path: Path) -> None:
    vector = Vector.load(folder_of(tmp_path, limit=LIMIT))
    why = "is outside the limit of the card, 0 to 0.35: at strength 0.5, it breaks; --lower serves the limit, "
    for strength, shown in ((None, "0.6"), (0.36, "0.36"), (-0.1, "-0.1")):
        with pytest.raises(InputError, match=f"strength {shown} {why}--beyond-limit this strength"):
            served_body(vector, None, strength, None)
    assert served_body(vector, None, 0.2, None)["strength"] == 0.2
    assert served_body(vector, None, 0.2, None, beyond="lower")["strength"] == 0.2
    assert served_body(vector, None, None, None, beyond="lower")["strength"] == 0.35
    beyond = served_body(vector, None, None, None, beyond="serve")
    assert (beyond["strength"], beyond["limit"]) == (0.6, LEVELS | {"strength": 0.35})
    with pytest.raises(InputError, match="cannot be lowered to the limit"):
        served_body(vector, None, -0.1, None, beyond="lower")


def test_a_card_whose_limit_is_null_is_served_on_request_alone(tmp_path: Path) -> None:
    limit = Limit(openings=8, reason="too few openings: 8 are complete", **LEVELS)
    vector = Vector.load(folder_of(tmp_path, limit=limit))
    with pytest.raises(InputError, match="which covers no strength: too few openings: 8 are complete"):
        served_body(vector, None, 0.1, None)
    with pytest.raises(InputError, match="--beyond-limit serves this strength"):
        served_body(vector, None, 0.1, None, beyond="lower")
    assert served_body(vector, None, 0.1, None, beyond="serve")["limit"]["strength"] is None


def test_the_limit_is_named_where_it_was_measured(tmp_path: Path) -> None:
    """Not of other weights, and not at other positions; and cards without a limit are served as before."""
    vector = Vector.load(folder_of(tmp_path, limit=LIMIT))
    assert served_body(vector, None, 0.2, "generated")["limit"]["strength"] == 0.35
    assert "limit" not in served_body(vector, None, 0.2, "all")
    assert "limit" not in served_body(vector, None, 0.2, None, force=True)
    (tmp_path / "old").mkdir()
    assert "limit" not in served_body(Vector.load(folder_of(tmp_path / "old")), None, 9.0, None)


def test_the_command_takes_one_of_two_ways_beyond_the_limit(cli: Driver, tmp_path: Path) -> None:
    folder = str(folder_of(tmp_path, limit=LIMIT))
    refused = cli("vectors", "serve", folder)
    assert refused.returncode == 2 and "strength 0.6 is outside the limit of the card" in refused.stderr
    both = cli("vectors", "serve", folder, "--lower", "--beyond-limit")
    assert both.returncode == 2 and "give --lower or --beyond-limit, one of them" in both.stderr
    assert cli("vectors", "serve", "--lower").returncode == 2


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
