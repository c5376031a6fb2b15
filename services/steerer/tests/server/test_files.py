"""Vectors of files by name: their layers are those that every other reader of the file finds."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from poolbench.directions.vector_files import read_vector_file
from poolbench.errors import InputError
from poolbench_steerer.server.files import read_vectors


@pytest.mark.parametrize(
    ("tensor", "facts", "layer"),
    [
        ("v", {}, None),
        ("v", {"layer": "3"}, 3),
        ("v", {"layer": "4", "hook_name": "blocks.4.hook_resid_pre"}, 3),
        ("v", {"hook_layer": "4", "hook_type": "hook_resid_post"}, 4),
        ("direction.11", {"layer": "3"}, 11),
        ("blocks.4.hook_resid_pre", {}, 3),
    ],
)
def test_a_vector_is_at_the_layer_that_other_readers_find(
    tmp_path: Path, tensor: str, facts: dict[str, str], layer: int | None
) -> None:
    path = tmp_path / "calm.safetensors"
    save_file({tensor: np.full(4, 2.5, np.float32)}, path, facts)
    (vector,) = read_vectors([str(path)]).values()
    assert (vector.name, vector.layer, vector.unit) == ("calm", layer, "alpha")
    (read_layer, numbers) = next(iter(read_vector_file(path).vectors.items()))
    assert read_layer == layer and np.array_equal(vector.vector, numbers)


def test_each_tensor_of_a_file_has_its_own_layer_or_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "several.safetensors"
    save_file({name: np.ones(4, np.float32) for name in ("calm", "tide", "direction.5")}, path, {"layer": "2"})
    assert {name: vector.layer for name, vector in read_vectors([str(path)]).items()} == {
        "calm": 2, "tide": 2, "direction.5": 5,
    }  # fmt: skip


def test_a_place_that_cannot_be_steered_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calm.safetensors"
    for facts, reason in (({"hook_name": "blocks.4.hook_mlp_out"}, "residual stream"), ({"layer": "two"}, "'two'")):
        save_file({"v": np.ones(4, np.float32)}, path, facts)
        with pytest.raises(InputError, match=rf"calm\.safetensors: .*{reason}"):
            read_vectors([str(path)])
