"""Published activations of the reference project: one row of dictionaries per layer, split and class."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.test_import_activations import LENGTHS, SPLIT, STATES, WIDTH, importer, kept, layers_in_a_row

from poolbench.errors import InputError
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.imports.activation_files import ActivationReader


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def published(folder: Path, layer: int, **more: Any) -> Path:
    """Files of one layer as the reference project publishes them: a row of dictionaries per split and class."""
    (folder / f"m/layer_{layer}").mkdir(parents=True, exist_ok=True)
    for name, (split, label) in SPLIT.items():
        states = STATES[name][(3, 7).index(layer)].astype(np.float16)
        bounds = [(0, 0), *((n, n + 1) for n in range(1, len(states)))]
        item = {"hidden": states, "offset_mapping": bounds, "text": f"Text number {name}.", "token_ids": None}
        file = folder / f"m/layer_{layer}/contrast_{split}_{'pos' if label else 'neg'}.npy"
        np.save(file, layers_in_a_row([item | {"attn_weights": None} | more]), allow_pickle=True)
    return folder


@pytest.mark.parametrize("layers", [None, (7,)])
def test_the_published_layout_gives_the_states(
    artifacts: Artifacts, tmp_path: Path, layers: tuple[int, ...] | None
) -> None:
    for layer in (3, 7):
        published(tmp_path / "files", layer)
    said: list[str] = []
    record = importer(artifacts, tmp_path, ActivationReader(layers, True), say=said.append).run("mine", ["contrast"])
    assert (record.width, record.bos, record.layers) == (WIDTH, True, list(layers or (3, 7)))
    assert said[0] == "position 0 is a BOS, and no real token (by offset_mapping)"
    for entry in record.states:
        for name, passage in kept(artifacts, entry.key).items():
            expected = STATES[name][(3, 7).index(entry.layer)].astype(np.float16)
            assert np.array_equal(passage.hidden_TD, expected.astype(np.float32))
            assert passage.special.tolist() == [True] + [False] * (LENGTHS[name] - 1)


def test_the_published_layout_is_a_pickle_and_not_read_untrusted(artifacts: Artifacts, tmp_path: Path) -> None:
    published(tmp_path / "files", 3)
    with pytest.raises(InputError, match=r"contrast_train_pos\.npy holds Python objects .*--trust-pickle"):
        importer(artifacts, tmp_path, ActivationReader()).run("mine", ["contrast"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: published(folder, 3, text="Another."), "the text of passage 'a0' is not that of the corpus"),
        (lambda folder: published(folder, 3, id="x"), "has no passage 'a0', which the corpus has"),
        (lambda folder: published(folder, 3, hidden="x"), "layer of shape|not an array of numbers"),
        (lambda folder: np.save(folder / "m/layer_3/contrast_train_pos.npy", np.zeros((2, 3))), "is not a dictionary"),
        (lambda folder: (folder / "m/layer_3/contrast_train_neg.npy").unlink(), "layer 3 needs the files of both"),
        (lambda folder: published(folder / "other", 3), "are of one layer; name the folder of one model"),
        (
            lambda folder: np.save(folder / "m/layer_3/contrast_train_pos.npy", layers_in_a_row([{"hidden": 1}] * 2)),
            "holds 2 passages, the corpus 1",
        ),
    ],
)
def test_malformed_files_of_the_published_layout_are_named(
    artifacts: Artifacts, tmp_path: Path, change: Callable[[Path], Any], message: str
) -> None:
    change(published(tmp_path / "files", 3))
    with pytest.raises(InputError, match=message):
        importer(artifacts, tmp_path, ActivationReader(None, True)).run("mine", ["contrast"])
