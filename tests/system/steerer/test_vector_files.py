"""Vectors of files and folders by name, as `vllm serve --steering` takes them."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from poolbench.errors import InputError
from poolbench_driver.vectors.card import Application, Source, Strength, Vector, VectorCard, sha256_of_vectors
from poolbench_steerer.server.files import read_vectors


@pytest.fixture
def vector() -> Vector:
    vectors = {3: np.eye(8, dtype=np.float32)[0]}
    card = VectorCard(
        name="demo+contrast", model="demo", width=8, num_blocks=6, layers=(3,), strength=Strength(recommended=0.5),
        apply=Application(residual_norms={3: 38.0}), source=Source(tool="a test"),
        vectors_sha256=sha256_of_vectors(vectors),
    )  # fmt: skip
    return Vector(card, vectors)


def test_a_folder_with_a_card_says_layer_and_residual_norm(vector: Vector, tmp_path: Path) -> None:
    vector.save(tmp_path / "contrast")
    save_file({"v": np.ones(8, np.float32)}, tmp_path / "plain.safetensors", metadata={"layer": "2"})
    by_folder, by_name = read_vectors([str(tmp_path)]), read_vectors([f"joy={tmp_path / 'contrast'}"])
    assert by_folder.keys() == {"contrast", "plain"} and by_name.keys() == {"joy"}
    for named in (by_folder["contrast"], by_name["joy"], read_vectors([str(tmp_path / "contrast")])["contrast"]):
        assert (named.unit, named.recommended, named.positions) == ("strength", 0.5, "generated")
        assert (named.layer, named.residual_norm) == (3, 38.0) and named.vector.tolist() == [1.0] + [0.0] * 7
    plain = by_folder["plain"]
    assert (plain.layer, plain.residual_norm, plain.unit, plain.recommended) == (2, None, "alpha", None)


@pytest.mark.parametrize("card", ["{", "[]", "{}", '{"apply": {"residual_norms": [1]}}'])
def test_another_card_is_refused_with_its_folder(vector: Vector, tmp_path: Path, card: str) -> None:
    vector.save(tmp_path / "contrast")
    (tmp_path / "contrast" / "card.json").write_text(card)
    with pytest.raises(InputError, match=r"contrast: card\.json is not the card of a steering vector"):
        read_vectors([str(tmp_path)])
