"""Text files: JSONL, YAML, and the JSON of manifests and records."""

import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.trials.fuzz.mutate import forged, hostile_name, mutated, mutated_json
from tests.trials.fuzz.worker import Target
from tests.trials.hostile.values import encode

from poolbench.contracts.tasks import Task
from poolbench.contracts.wire import failure_path, run_path, scorers_path
from poolbench.directions.sae_files import architecture_of, k_of, read_config
from poolbench.errors import PoolbenchError
from poolbench.library.concepts import Library
from poolbench.library.scorers import ScorerRecords
from poolbench.settings.access import CLUSTER_FILE, read_cluster
from poolbench.storage import Artifacts
from poolbench.storage.artifacts import FileEntry, Manifest, folder_of, manifest_path, seal
from poolbench.storage.folder import FolderStore
from poolbench_corpora.io import read_concept, read_manifest
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.loop.outcomes import DamagedRecordError, read_failure
from poolbench_driver.models.describe import _local_shape
from poolbench_driver.queries.texts import read_lines
from poolbench_driver.records.record import RunRecords, encode_keys

KEY = "fuzz.0"
MINE = "concepts/mine/concept.json"
_TASK = Task(kind="prober.probe", outputs={"measures": KEY})


@cache
def _lines() -> bytes:
    row = {"text": "It rained, but they went.", "label": 1, "domain": "news", "token_count": 6, "split": "train"}
    spans = {"signal": [{"start": 0, "end": 4}], "doc_id": "d", "matched_pair_id": "m"}
    return "\n".join(json.dumps({"id": f"p{n}", **row, **(spans if n % 2 else {})}) for n in range(4)).encode()


def _make_lines(rng: random.Random) -> bytes:
    lines = _lines().split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = mutated_json(lines[at], rng)
    return b"\n".join(lines)


def _read_corpus(data: bytes, folder: Path) -> None:
    """Read the lines as a corpus of a run, and as texts of an ad-hoc command."""
    concept = folder / "contrast"
    concept.mkdir()
    (concept / "train_pos.jsonl").write_bytes(data)
    for name, label in (("train_neg", 0), ("test_pos", 1), ("test_neg", 0)):
        row = {"id": name, "text": "A plain text.", "label": label}
        (concept / f"{name}.jsonl").write_text(json.dumps(row))
    for read in (lambda: read_concept(folder, "contrast"), lambda: read_lines(concept / "train_pos.jsonl")):
        try:
            read()
        except PoolbenchError as error:
            assert str(error)


_YAML = b"""\
preset: demo
model: demo
layers: [1, 0.5]
concepts: &concepts [contrast, causation]
budget: {name: small, strengths: [0.25, 0.5], num_scorer: 100}
steering: {temperature: 0.7}
corpus:
  source: planted
  seed: 3
limit: 60
"""
#: Fourteen lines whose aliases stand for nine to the fourteenth values.
_ALIASES = b"a: &a [x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in b"bcdefghijklmno"
)
_BOMBS = (
    _ALIASES,
    b"concepts: !!python/object/apply:os.system ['touch ../outside/code']\n",
    b"model: !!python/name:os.system\n",
    b"? [a, b]\n: c\n",
    b"seed: 2001-99-99\n",
    b"seed: 0o777777777777777777777777777777777777\nmodel: 1:2:3:4:5:6\n",
)


def _make_yaml(rng: random.Random) -> bytes:
    if rng.random() < 0.15:
        return rng.choice(_BOMBS) + (_YAML if rng.random() < 0.5 else b"")
    if rng.random() < 0.3:
        name, value = rng.choice(("model", "layers", "budget", "seed", "corpus", "x")), encode_value(rng)
        return _YAML + f"{name}: ".encode() + value + b"\n"
    return mutated(_YAML, rng)


def encode_value(rng: random.Random) -> bytes:
    """Return a hostile JSON value, which is YAML too."""
    from tests.trials.hostile.values import hostile

    return encode(hostile(rng))


def _read_yaml(data: bytes, folder: Path) -> None:
    file = folder / "run.yaml"
    file.write_bytes(data)
    load_run_config(file, {})


@cache
def _manifest() -> dict[str, Any]:
    entry = FileEntry(path=f"{folder_of(KEY)}/a/table.arrow", num_bytes=3, sha256="0" * 64)
    made = Manifest(key=KEY, attempt="a", files={"table.arrow": entry}, num_rows=1, created_at="2026-01-01T00:00:00")
    return dict(json.loads(made.model_dump_json()))


def _make_manifest(rng: random.Random) -> bytes:
    """Manifests with a right checksum too, so that their fields are read."""
    fields = _manifest()
    way = rng.random()
    if way < 0.3:
        fields = forged(fields, rng)
    elif way < 0.6:
        path = rng.choice((f"{folder_of(KEY)}/../../../outside/canary", f"{folder_of(KEY)}/{hostile_name(rng)}"))
        fields = {**fields, "files": {"table.arrow": forged(fields["files"]["table.arrow"], rng) | {"path": path}}}
    else:
        return mutated_json(seal(json.dumps(fields)), rng)
    try:
        return seal(json.dumps(fields))
    except ValueError:  # a lone surrogate
        return encode(fields)


def _read_artifact(data: bytes, folder: Path) -> None:
    (folder / folder_of(KEY)).mkdir(parents=True)
    (folder / manifest_path(KEY)).write_bytes(data)
    Artifacts(FolderStore(folder)).verify(KEY)


#: Further JSON files of the project, by where they lie: content, and reader.
_CORPUS = {"revision": "r", "tokenizer": "words", "window": [1, 9]}
_STATE = {"state": "running", "host": "h", "pid": 7, "folder": "/f", "updated_at": "x", "tasks": 3}
_FAILURE = {"status": "failed", "reason": "no", "code": "input", "damaged": ""}
_SAE = {"architecture": "topk", "k": 3, "activation_fn_kwargs": {"k": 3}, "normalize_activations": "none"}
_SHAPE = {"num_hidden_layers": 6, "hidden_size": 256, "text_config": {}}
_POINTER = {"concept": "contrast", "base": "minilm", "scorer": KEY}
_CONCEPT = {
    **{"id": "mine", "family": "own", "summary": "Mine.", "definition": "It is mine.", "construction": "By hand."},
    **{"neighbours": {"linguistically_close": "hedging", "linguistically_distant": "narrative"}, "corpus": "0" * 16},
}
_JSON = (_CORPUS, _STATE, _FAILURE, _SAE, _SHAPE, _POINTER, _CONCEPT)


def _read_records(data: bytes, folder: Path) -> None:
    """Read the same bytes as each record; those that are none of it must be refused."""
    store = FolderStore(folder)
    places = ("manifest.json", "config.json", "tokenizer.json", CLUSTER_FILE, failure_path(_TASK.task_id), MINE)
    for place in (*places, run_path("run", "state.json"), f"{scorers_path('contrast')}minilm.json"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(data)
    (folder / run_path("run", "keys.json.gz")).write_bytes(data)
    readers = (
        lambda: read_manifest(folder),
        lambda: _local_shape(folder),
        lambda: read_cluster(folder),
        lambda: RunRecords(store).all(),
        lambda: RunRecords(store).keys("run"),
        lambda: ScorerRecords(store).scorers(damaged=lambda path: None),
        lambda: _read_sae(data),
        lambda: read_failure(Artifacts(store), _TASK),
        lambda: Library(store).all(),
        lambda: Library(store).remove("mine"),
    )
    for read in readers:
        try:
            read()
        except (PoolbenchError, DamagedRecordError) as error:
            assert str(error)


def _read_sae(data: bytes) -> None:
    settings = read_config(data)
    if architecture_of(settings) == "topk":
        k_of(settings)


def _make_record(rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        packed = encode_keys(["a.0", "b.1"])
        return rng.choice((mutated(packed, rng), gzip.compress(mutated_json(b'["a", "b"]', rng), mtime=0)))
    return mutated_json(json.dumps(rng.choice(_JSON)).encode(), rng)


TARGETS = (
    Target("JSONL", _make_lines, _read_corpus),
    Target("YAML", _make_yaml, _read_yaml),
    Target("manifest", _make_manifest, _read_artifact),
    Target("JSON record", _make_record, _read_records),
)
