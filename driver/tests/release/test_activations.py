"""Kept states of a run as a release, which is imported as it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.releases import content_of, export_of

from poolbench.contracts.keys import is_restricted
from poolbench.errors import CellError, NotFoundError
from poolbench.pooling.states import KeptPassage, ShardWriter, read_states
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_corpora.io import read_concept
from poolbench_driver.imports.activation_files import ActivationReader
from poolbench_driver.imports.activations import Importer
from poolbench_driver.release.activations import export_activations

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
