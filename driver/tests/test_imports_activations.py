"""Published activations: every layout, the guard before pickles, and what is malformed is named."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolbench.errors import ConfigError, InputError, LayerError, NotFoundError, UnknownNameError
from poolbench.pooling.states import KeptPassage, read_states
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.imports.activation_files import ActivationReader
from poolbench_driver.imports.activations import Importer
from poolbench_driver.imports.states import imported_keys, imported_model, load_import

WIDTH, LENGTHS = 4, {"a0": 7, "a1": 5, "b0": 6, "b1": 3}
STATES = {
    name: np.random.default_rng(n).normal(size=(2, length, WIDTH)).astype(np.float32)
    for n, (name, length) in enumerate(LENGTHS.items())
}
SPLIT = {"a0": ("train", 1), "a1": ("train", 0), "b0": ("test", 1), "b1": ("test", 0)}


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    return Artifacts(FolderStore(tmp_path / "store"))


def write_corpus(folder: Path, concept: str = "contrast", count: Callable[[int], int | None] = int) -> Path:
    (folder / concept).mkdir(parents=True, exist_ok=True)
    for name, (split, label) in SPLIT.items():
        record = {
            "id": name,
            "text": f"Text number {name}.",
            "label": label,
            "domain": "web",
            "token_count": count(LENGTHS[name]),
            "matched_pair_id": None,
            "split": split,
        }
        file = folder / concept / f"{split}_{'pos' if label else 'neg'}.jsonl"
        file.write_text(json.dumps(record) + "\n", "utf-8")
    return folder


def as_objects(values: Any) -> np.ndarray:
    holder = np.empty((), dtype=object)
    holder[()] = values
    return holder


def layers_in_a_row(states: Any) -> np.ndarray:
    row = np.empty(len(states), dtype=object)
    row[:] = list(states)
    return row


#: What a file holds for states [2, T, D] of the blocks 3 and 7, and what must be said to read it.
LAYOUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[int, ...] | None, bool]] = {
    "one layer": (lambda s: s[0], (3,), False),
    "layers stacked": (lambda s: s, (3, 7), False),
    "dictionary of numbers": (lambda s: as_objects({3: s[0], 7: s[1]}), None, True),
    "dictionary of names": (lambda s: as_objects({"layer_3": s[0], "layer_7": s[1]}), None, True),
    "part of a dictionary": (lambda s: as_objects({"3": s[0], "7": s[1], "9": s[1]}), (3, 7), True),
    "list of layers": (lambda s: as_objects([s[0], s[1]]), (3, 7), True),
    "row of layers": (layers_in_a_row, (3, 7), True),
    "numbers as objects": (lambda s: s[0].astype(object), (3,), True),
    "row of tokens": (lambda s: layers_in_a_row(s[0]), (3,), True),
}


def write_files(folder: Path, layout: Callable[[np.ndarray], np.ndarray], concept: str = "contrast") -> Path:
    (folder / concept).mkdir(parents=True, exist_ok=True)
    for name, states in STATES.items():
        np.save(folder / concept / f"{name}.npy", layout(states), allow_pickle=True)
    return folder


def importer(artifacts: Artifacts, tmp_path: Path, reader: ActivationReader, **settings: Any) -> Importer:
    corpus = tmp_path / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    return Importer(artifacts, tmp_path / "files", corpus, reader, **{"say": lambda _line: None, **settings})


def kept(artifacts: Artifacts, key: str) -> dict[str, KeptPassage]:
    found = [passage for shard in artifacts.read_shards(key) for passage in read_states(shard)]
    return {passage.passage_id: passage for passage in found}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_states(artifacts: Artifacts, tmp_path: Path, layout: str) -> None:
    content, layers, pickled = LAYOUTS[layout]
    write_files(tmp_path / "files", content)
    record = importer(artifacts, tmp_path, ActivationReader(layers, pickled)).run("mine", ["contrast"])
    assert record == load_import(artifacts, "mine").model_copy(update={"created_at": ""})
    assert (record.width, record.concepts, record.layers) == (WIDTH, ["contrast"], list(layers or (3, 7)))
    for entry in record.states:
        passages = kept(artifacts, entry.key)
        assert list(passages) == [name for name, (split, _) in SPLIT.items() if split == entry.split]
        for name, passage in passages.items():
            expected = STATES[name][(3, 7).index(entry.layer)]
            np.testing.assert_allclose(passage.hidden_TD, expected, rtol=1e-6)
            assert not passage.special.any() and len(passage.offsets) == 0 and passage.token_ids is None


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("layout", ["dictionary of names", "row of tokens"])
def test_objects_are_not_read_untrusted(artifacts: Artifacts, tmp_path: Path, layout: str) -> None:
    content, layers, _ = LAYOUTS[layout]
    write_files(tmp_path / "files", content)
    with pytest.raises(InputError, match=r"b|a\d\.npy holds Python objects .*--trust-pickle"):
        importer(artifacts, tmp_path, ActivationReader(layers)).run("mine", ["contrast"])
    assert not list(artifacts.store.list())


def test_no_code_runs_without_trust(tmp_path: Path) -> None:
    file, trace = tmp_path / "x.npy", tmp_path / "trace"
    np.save(file, as_objects(Bomb(trace)), allow_pickle=True)
    with pytest.raises(InputError, match="--trust-pickle"):
        ActivationReader((0,)).read(file)
    bare = tmp_path / "bare.npy"  # np.load would take this for a pickle
    bare.write_bytes(pickle.dumps(Bomb(trace)))
    for trust in (False, True):
        with pytest.raises(InputError, match=r"not a readable \.npy"):
            ActivationReader((0,), trust).read(bare)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "layers", "error", "message"),
    [
        (np.zeros(3, np.float32), (0,), InputError, "shape \\(3,\\)"),
        (np.zeros((2, 3, 4, 5), np.float32), (0,), InputError, "\\[layers, T, D\\]"),
        (np.zeros((3, 4), np.int64), (0,), InputError, "type int64"),
        (np.zeros((0, 4), np.float32), (0,), InputError, "shape \\(0, 4\\)"),
        (np.zeros((2, 3, 4), np.float32), (0,), InputError, "holds 2 layers; --layers names 1"),
        (np.zeros((3, 4), np.float32), None, ConfigError, "--layers 7,15,23"),
        (as_objects({"embedding": np.zeros((3, 4))}), None, InputError, "names no layer"),
        (as_objects({1: np.zeros((3, 4))}), (2,), InputError, "no layer 2; it has 1"),
        (as_objects({1: "text"}), None, InputError, "layer of shape|not an array of numbers"),
        (as_objects("text"), (0,), InputError, "not an array of numbers"),
        (as_objects([np.zeros((3, 4)), np.zeros((2, 5))]), (0, 1), InputError, "not an array of numbers"),
    ],
)
def test_malformed_files_are_named(
    tmp_path: Path, content: np.ndarray, layers: tuple[int, ...] | None, error: type[Exception], message: str
) -> None:
    file = tmp_path / "passage-17.npy"
    np.save(file, content, allow_pickle=True)
    with pytest.raises(error, match=message) as caught:
        ActivationReader(layers, trust_pickle=True).read(file)
    assert "passage-17.npy" in str(caught.value)


ONE = ActivationReader((3,))


def test_a_missing_passage_is_named(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    (tmp_path / "files" / "contrast" / "b1.npy").unlink()
    with pytest.raises(InputError, match=r"passage 'b1' \(test\) has no file in .*contrast; expected one b1\.npy"):
        importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    with pytest.raises(UnknownNameError):
        load_import(artifacts, "mine")


def test_a_wrong_width_is_named_and_leaves_nothing(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    np.save(tmp_path / "files" / "contrast" / "a1.npy", np.zeros((5, 5), np.float32))
    with pytest.raises(InputError, match=r"a1\.npy has states of width 5; the first file has width 4"):
        importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    assert not list(artifacts.store.list())


def test_nan_is_a_row_that_names_its_file(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    broken = STATES["b0"][0].copy()
    broken[2, 1] = np.nan
    np.save(tmp_path / "files" / "contrast" / "b0.npy", broken)
    said: list[str] = []
    record = importer(artifacts, tmp_path, ONE, say=said.append).run("mine", ["contrast"])
    passages = kept(artifacts, next(entry.key for entry in record.states if entry.split == "test"))
    assert passages["b0"].error.status == "non_finite" and "b0.npy" in str(passages["b0"].error)
    assert passages["b1"].error is None
    assert any("warning" in line and "1 files" in line for line in said)


def test_half_precision_stays_half(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", lambda s: s[0].astype(np.float16))
    record = importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    (shard,) = artifacts.read_shards(record.states[0].key)
    assert shard.schema.metadata[b"hidden_dtype"] == b"float16"
    found = kept(artifacts, record.states[0].key)["a0"].hidden_TD
    assert np.array_equal(found, STATES["a0"][0].astype(np.float16).astype(np.float32))


@pytest.mark.parametrize(
    ("count", "bos", "special"), [(lambda n: n - 1, None, 1), (lambda n: None, True, 1), (lambda n: n - 9, False, 0)]
)
def test_a_bos_is_found_by_the_count_or_named_by_the_user(
    artifacts: Artifacts, tmp_path: Path, count: Callable[[int], int | None], bos: bool | None, special: int
) -> None:
    write_corpus(tmp_path / "corpus", count=count)
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    record = importer(artifacts, tmp_path, ONE, bos=bos).run("mine", ["contrast"])
    for entry in record.states:
        for passage in kept(artifacts, entry.key).values():
            assert passage.special.sum() == special and passage.special[:special].all()


@pytest.mark.parametrize("count", [lambda n: None, lambda n: n - 2, lambda n: n + 1])
def test_a_bos_is_never_guessed(artifacts: Artifacts, tmp_path: Path, count: Callable[[int], int | None]) -> None:
    write_corpus(tmp_path / "corpus", count=count)
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    with pytest.raises(ConfigError, match="say --bos or --no-bos"):
        importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])


def test_the_same_files_are_not_read_into_the_store_again(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    first = importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    manifests = [artifacts.manifest(entry.key) for entry in first.states]
    artifacts.delete(first.states[1].key)  # as an interrupted import would have left it
    again = importer(artifacts, tmp_path, ONE).run("again", ["contrast"])
    assert again.states == first.states and again.revision == first.revision
    assert artifacts.manifest(again.states[0].key) == manifests[0]
    assert artifacts.manifest(again.states[1].key).attempt != manifests[1].attempt
    np.save(tmp_path / "files" / "contrast" / "b0.npy", STATES["b0"][1])
    changed = importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    assert changed.states[0] == first.states[0] and changed.states[1] != first.states[1]
    assert changed.revision != first.revision
    assert imported_keys(artifacts) == {entry.key for entry in (*changed.states, *first.states)}


def test_sensitive_states_are_restricted(artifacts: Artifacts, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", "toxicity")
    write_files(tmp_path / "files", LAYOUTS["one layer"][0], "toxicity")
    record = importer(artifacts, tmp_path, ONE).run("mine", ["toxicity"])
    assert all(entry.key.startswith("restricted.") for entry in record.states)


def test_files_may_lie_in_folders_of_their_split(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    folder = tmp_path / "files" / "contrast"
    for name, (split, _) in SPLIT.items():
        (folder / split).mkdir(exist_ok=True)
        (folder / f"{name}.npy").rename(folder / split / f"{name}.npy")
    np.save(folder / "train" / "b0.npy", np.zeros((1, 1), np.float32))  # another passage of the same name
    record = importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    assert kept(artifacts, record.states[1].key)["b0"].hidden_TD.shape == (6, WIDTH)


def test_a_run_may_ask_only_for_what_an_import_gives(artifacts: Artifacts, tmp_path: Path) -> None:
    write_files(tmp_path / "files", LAYOUTS["one layer"][0])
    record = importer(artifacts, tmp_path, ONE).run("mine", ["contrast"])
    settings = record.settings()
    model = imported_model(load_run_config(None, settings), artifacts)
    assert (model.width, model.layers(None), model.ref.revision) == (WIDTH, [3], record.revision)
    assert model.imported["contrast", "train", 3] == record.states[0].key
    for wrong, error, message in (
        ({"metrics": ["d1", "d2"]}, ConfigError, "--metrics d1"),
        ({"include_bos": True}, ConfigError, "--no-bos"),
        ({"concepts": ["causation"]}, ConfigError, "it has contrast"),
        ({"model": "import:mnie"}, UnknownNameError, "did you mean mine"),
        ({"model": "import:../mine"}, ConfigError, "letters"),
    ):
        with pytest.raises(error, match=message):
            imported_model(load_run_config(None, {**settings, **wrong}), artifacts)
    for layers in ([4], [0.5]):
        with pytest.raises(LayerError, match="--layers may name 3"):
            model.layers(layers)
    artifacts.delete(record.states[0].key)
    with pytest.raises(NotFoundError, match="import the activations again"):
        imported_model(load_run_config(None, settings), artifacts)


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
