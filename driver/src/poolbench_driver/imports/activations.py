"""Turn activation files into STATES artifacts, one concept and split at a time, with one shard per layer in memory."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS
from poolbench.errors import CellError, ConfigError, InputError
from poolbench.pooling.states import KeptPassage, ShardWriter
from poolbench.statuses import Status
from poolbench.steps.local import IMPORT_STATES, TABLE, StatesParams
from poolbench.storage import Artifacts
from poolbench_corpora.io import read_concept
from poolbench_driver.imports.activation_files import ActivationReader, FileIndex, LayerArrays
from poolbench_driver.imports.states import ActivationImport, StatesEntry, checked_name, save_import

SPLITS = ("train", "test")
Say = Callable[[str], None]


@dataclass
class Importer:
    """Import activations of a corpus under a name."""

    artifacts: Artifacts
    # Files per layer as the reference project publishes them, or else `<passage id>.npy`, anywhere below; if a folder
    # has the concept's name, below that.
    folder: Path
    corpus: Path
    reader: ActivationReader
    bos: bool | None = None  # whether position 0 is a special token; None derives it from `token_count` of passages
    say: Say = print
    width: int | None = field(default=None, init=False)  # of the first file; all others must have the same

    def run(self, name: str, concepts: Sequence[str]) -> ActivationImport:
        """Import the train and test passages of some concepts. Existing artifacts are not read again.

        Raises:
            InputError: A passage has no file, or a file is malformed. The message names the file.
            ConfigError: Layers or BOS are not given, and the files do not show them.
        """
        checked_name(name)
        entries = [entry for concept in concepts for entry in self._concept(concept)]
        assert self.width is not None and self.bos is not None
        corpus = str(self.corpus.resolve())
        record = ActivationImport(name=name, corpus=corpus, width=self.width, bos=self.bos, states=tuple(entries))
        save_import(self.artifacts, record)
        return record

    def _concept(self, concept: str) -> Iterator[StatesEntry]:
        passages = read_concept(self.corpus, concept)
        for split in SPLITS:
            rows = passages.filter(pc.equal(passages["split"], split)).to_pylist()
            arrays = LayerArrays.below(self.folder, concept, split, self.reader.layers)
            keys = (
                self._import_files(concept, split, rows)
                if arrays is None
                else self._import_arrays(concept, split, rows, arrays)
            )
            for layer, key in keys.items():
                yield StatesEntry(concept=concept, split=split, layer=layer, key=key)

    def _import_files(self, concept: str, split: str, rows: Sequence[dict]) -> dict[int, str]:
        """Import files of one passage each. The first file determines the layers."""
        files = FileIndex.below(self.folder, concept)
        located = [(row, files.find(row["passage_id"], split)) for row in rows]
        row, file = located[0]
        first = self.reader.read(file)
        self._settle(row, next(iter(first.values())), file)
        digest = _digest(located)
        keys = {layer: self._key(concept, split, layer, digest) for layer in first}
        self._import_split(f"{concept}/{split}", located, keys)
        return keys

    def _import_arrays(self, concept: str, split: str, rows: Sequence[dict], arrays: LayerArrays) -> dict[int, str]:
        """Import files of one layer each, in sequence."""
        states, special = arrays.first(rows, self.reader)
        if self.bos is None and special is not None:
            self.bos = special
            self._say_bos("offset_mapping")
        self._settle(rows[0], states, arrays.paths(next(iter(arrays.files)))[0])
        label, keys = f"{concept}/{split}", dict[int, str]()
        for layer in arrays.files:
            digest = _digest([({"passage_id": f"layer {layer}"}, file) for file in arrays.paths(layer)])
            key = keys[layer] = self._key(concept, split, layer, digest)
            if self.artifacts.exists(key):
                self.say(f"{label}: layer {layer}, there already")
                continue
            with _layer(self.artifacts, key, states.shape[1]) as writer:
                bad = [
                    self._import_passage(place, row, {layer: hidden}, file, {layer: writer})
                    for place, row, hidden, file in arrays.read(layer, rows, self.reader)
                ]
            self._say_imported(label, [layer], bad)
        return keys

    def _settle(self, row: dict, states: np.ndarray, file: Path) -> None:
        """Set the width from the first passage. If it is not known whether passages begin with BOS, set that too."""
        self.width = self.width or states.shape[1]
        if self.bos is None:
            self.bos = _guess_bos(row, len(states), file)
            self._say_bos("token_count")

    def _say_bos(self, source: str) -> None:
        self.say(f"position 0 is {'a BOS, and no real token' if self.bos else 'a real token'} (by {source})")

    def _key(self, concept: str, split: str, layer: int, files_digest: str) -> str:
        params = StatesParams(concept=concept, split=split, bos=bool(self.bos), files=files_digest, layer=layer)
        return IMPORT_STATES.key(TABLE(), params, {}, restricted=CONCEPTS.get(concept).sensitive)

    def _import_split(self, label: str, located: Sequence[tuple[dict, Path]], keys: Mapping[int, str]) -> None:
        missing = {layer: key for layer, key in keys.items() if not self.artifacts.exists(key)}
        if not missing:
            self.say(f"{label}: {len(located)} passages, there already")
            return
        assert self.width is not None
        with ExitStack() as stack:
            writers = {
                layer: stack.enter_context(_layer(self.artifacts, key, self.width)) for layer, key in missing.items()
            }
            bad = [
                self._import_passage(n, row, self.reader.read(file), file, writers)
                for n, (row, file) in enumerate(located)
            ]
        self._say_imported(label, missing, bad)

    def _say_imported(self, label: str, layers: Iterable[int], bad: Sequence[bool]) -> None:
        self.say(f"{label}: {len(bad)} passages, layers {', '.join(map(str, layers))}")
        if any(bad):
            self.say(f"warning: {label}: {sum(bad)} files hold NaN or infinity; their passages are rows that say so")

    def _import_passage(
        self,
        position: int,
        row: Mapping[str, Any],
        states_by_layer: Mapping[int, np.ndarray],
        file: Path,
        writers: Mapping[int, ShardWriter],
    ) -> bool:
        """Add one passage to each layer. Return whether some of its states are not finite."""
        self._check(states_by_layer, file, writers)
        special = np.arange(len(next(iter(states_by_layer.values())))) < int(bool(self.bos))
        bad = False
        for layer, writer in writers.items():
            finite = bool(np.isfinite(states_by_layer[layer]).all())
            error = (
                None if finite else CellError(Status.NON_FINITE, f"{file.name} holds NaN or infinity at layer {layer}")
            )
            bad |= not finite
            writer.add(
                KeptPassage(
                    position, row["passage_id"], states_by_layer[layer] if finite else None, special, error=error
                )
            )
        return bad

    def _check(self, states_by_layer: Mapping[int, np.ndarray], file: Path, layers: Mapping[int, object]) -> None:
        lost = sorted(set(layers) - set(states_by_layer))
        if lost:
            raise InputError(f"{file} has no layer {lost[0]}, which the first file has")
        shapes = {layer: states_by_layer[layer].shape for layer in layers}
        widths = {shape[1] for shape in shapes.values()} - {self.width}
        if widths:
            raise InputError(f"{file} has states of width {widths.pop()}; the first file has width {self.width}")
        lengths = {shape[0] for shape in shapes.values()}
        if len(lengths) > 1:
            raise InputError(f"{file} has layers of {sorted(lengths)} tokens; all layers of a passage have as many")
        if lengths.pop() <= int(bool(self.bos)):
            raise InputError(f"{file} holds no real token, only the BOS; import with --no-bos if it is none")


@contextmanager
def _layer(artifacts: Artifacts, key: str, width: int) -> Iterator[ShardWriter]:
    """Write the states of one layer to an artifact, which is committed at the end, or removed after an error."""
    writer = artifacts.writer(key)
    shards = ShardWriter(writer.add_shard, width)
    try:
        yield shards
    except BaseException:
        writer.discard()
        raise
    shards.close()
    writer.commit(producer={"step": "import activations"})


def _guess_bos(row: dict, num_positions: int, file: Path) -> bool:
    """Return whether a file has one position more than its passage has tokens. Raise ConfigError if neither fits."""
    count = row["token_count"]
    if count is None or num_positions - count not in (0, 1):
        raise ConfigError(
            f"{file} has {num_positions} positions and its passage a token_count of {count}, which does not show "
            "whether position 0 is a BOS token; say --bos or --no-bos"
        )
    return bool(num_positions - count)


def _digest(located: Sequence[tuple[dict, Path]]) -> str:
    """Return a hash of the files' contents with the passages that they belong to, in order."""
    total = hashlib.sha256()
    for row, file in located:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        total.update(row["passage_id"].encode() + b"\0" + content)
    return total.hexdigest()[:32]
