"""Published activations, in any of the common layouts.

| content of a file of one passage | layers |
|---|---|
| numbers `[T, D]` | one, named by the caller |
| numbers `[L, T, D]` | L, named by the caller in their order |
| an object: a dictionary of layer to `[T, D]` (keys `15`, `"15"` or `"layer_15"`) | named in the file |
| an object: a sequence of L arrays `[T, D]` | L, named by the caller in their order |

Files of the reference project are `<model>/layer_<N>/<concept>_<split>_<class>.npy`, an object array of dictionaries.
Each has `hidden` [T, D] of one passage. The passages are in the order of the corpus file of that split and class,
unless the dictionaries have an `id`. `export activations` writes these files, with an `id`.

An object is a pickle. Reading it runs the code in it, so it is read only where the caller trusts the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import ConfigError, InputError
from poolbench.pooling.states import KeptPassage
from poolbench_corpora.io import CLASSES

_LAYER_NAME = re.compile(r"(?:layer|block)?[_. -]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class FileIndex:
    """The files below a folder by the passage they may belong to: file name or path, without `.npy`."""

    root: Path
    files: Mapping[str, Sequence[Path]]

    @classmethod
    def below(cls, folder: Path, concept: str) -> FileIndex:
        """Return the files of a concept, from the subfolder of its name if there is one, or raise InputError."""
        root = folder / concept if (folder / concept).is_dir() else folder
        files_by_name: dict[str, list[Path]] = {}
        for file in sorted(root.rglob("*.npy")):
            for name in {file.stem, file.relative_to(root).with_suffix("").as_posix()}:
                files_by_name.setdefault(name, []).append(file)
        if not files_by_name:
            raise InputError(f"{root} holds no .npy file; expected one a passage, named <passage id>.npy")
        return cls(root, files_by_name)

    def find(self, passage_id: str, split: str) -> Path:
        """Return the only file of a passage, found by name, or by name and split. Raise InputError unless it is one."""
        files = self.files.get(passage_id, ())
        if len(files) > 1:
            files = [file for file in files if self._is_of(file, split)]
        if len(files) == 1:
            return files[0]
        several = ", ".join(str(file) for file in self.files.get(passage_id, ()))
        what = f"several files ({several})" if several else "no file"
        raise InputError(f"passage {passage_id!r} ({split}) has {what} in {self.root}; expected one {passage_id}.npy")

    def _is_of(self, file: Path, split: str) -> bool:
        """Return whether the file lies in a folder such as `train` or `train_pos`."""
        return any(part.split("_")[0] == split for part in file.relative_to(self.root).parent.parts)


@dataclass(frozen=True)
class ActivationReader:
    """Read per-token states from files."""

    # Blocks of a file's arrays, in their order. If the file is a dictionary: the blocks to read, None for all.
    layers: tuple[int, ...] | None = None
    trust_pickle: bool = False  # whether files may hold objects, which can run code

    def read(self, file: Path) -> dict[int, np.ndarray]:
        """Return the states of one passage by layer, [T, D], float16 or float32.

        Raises:
            InputError: The file is unreadable, is an object that is not trusted, or does not have a known layout.
            ConfigError: Neither the file nor `layers` says which layers the file holds.
        """
        values_by_layer = self._by_layer(self.load(file), file)
        return {layer: states_of(values, file) for layer, values in values_by_layer.items()}

    def load(self, file: Path) -> Any:
        """Return the array of a file. Raise InputError if it is unreadable, or an object that is not trusted."""
        try:
            with file.open("rb") as stream:
                return np.lib.format.read_array(stream, allow_pickle=self.trust_pickle)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}") from None
        except Exception as error:  # a pickle may raise anything
            if "allow_pickle=False" in str(error):
                raise InputError(
                    f"{file} holds Python objects (a pickle), and reading it would run any code in it; "
                    "where you trust its origin, say --trust-pickle"
                ) from None
            raise InputError(f"{file} is not a readable .npy file: {error}") from None

    def _by_layer(self, content: np.ndarray, file: Path) -> dict[int, Any]:
        if content.dtype.hasobject:
            item = content.item() if content.ndim == 0 else list(content)
            if isinstance(item, Mapping):
                return self._from_names(item, file)
            if content.ndim == 1 and all(np.ndim(part) == 2 for part in item):
                return self._in_order(item, file)
            content = np.asarray(_numbers(item, file))
        if content.ndim == 2:
            return self._in_order([content], file)
        if content.ndim == 3:
            return self._in_order(list(content), file)
        raise InputError(f"{file} has shape {content.shape}; [T, D] or [layers, T, D] is needed")

    def _from_names(self, item: Mapping, file: Path) -> dict[int, Any]:
        values_by_layer = {_layer_number(name, file): values for name, values in item.items()}
        missing = [layer for layer in self.layers or () if layer not in values_by_layer]
        if missing:
            raise InputError(f"{file} has no layer {missing[0]}; it has {', '.join(map(str, sorted(values_by_layer)))}")
        return {layer: values_by_layer[layer] for layer in self.layers or sorted(values_by_layer)}

    def _in_order(self, parts: Sequence[Any], file: Path) -> dict[int, Any]:
        if self.layers is None:
            raise ConfigError(
                f"{file} holds {len(parts)} layers without names; say which blocks they are, e.g. --layers 7,15,23"
            )
        if len(self.layers) != len(parts):
            raise InputError(f"{file} holds {len(parts)} layers; --layers names {len(self.layers)}")
        return dict(zip(self.layers, parts, strict=True))


def _layer_number(name: Any, file: Path) -> int:
    match = _LAYER_NAME.fullmatch(str(name).strip())
    if match is None:
        raise InputError(f"{file}: {name!r} names no layer; keys such as 15, '15' or 'layer_15' do")
    return int(match.group(1))


def _numbers(values: Any, file: Path) -> np.ndarray:
    try:
        return np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{file} holds {type(values).__name__}, which is not an array of numbers") from None


def states_of(values: Any, file: Path) -> np.ndarray:
    """Return the states of one layer as float16 or float32. Float64 is rounded, because no model computes in it."""
    array = np.asarray(values)
    if array.dtype.hasobject:
        array = _numbers(values, file)
    if array.dtype.kind != "f" or array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{file} has a layer of shape {array.shape} and type {array.dtype}; floats [T, D] are needed")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are reported as such
        return np.ascontiguousarray(array, dtype=np.float16 if array.dtype == np.float16 else np.float32)


def _file_name(concept: str, split: str, class_name: str) -> str:
    return f"{concept}_{split}_{class_name}.npy"


def write_layer_array(
    folder: Path, layer: int, concept: str, split: str, class_name: str, passages: Sequence[Mapping[str, Any]]
) -> Path:
    """Write the file of one layer, split and class below the folder of a model. Return the path of the file."""
    file = folder / f"layer_{layer}" / _file_name(concept, split, class_name)
    file.parent.mkdir(parents=True, exist_ok=True)
    array = np.empty(len(passages), dtype=object)
    array[:] = passages
    np.save(file, array, allow_pickle=True)
    return file


def passage_entry(row: Mapping[str, Any], passage: KeptPassage) -> dict[str, Any]:
    """Return the dictionary of one passage.

    `attn_weights` is None, because the stored attention inflow is corrected for position, unlike the layout's.
    """
    return {
        "id": row["passage_id"],
        "hidden": passage.hidden_TD,
        "offset_mapping": [(int(start), int(end)) for start, end in passage.offsets],
        "text": row["text"],
        "token_ids": None if passage.token_ids is None else passage.token_ids.tolist(),
        "attn_weights": None,
    }


@dataclass(frozen=True)
class LayerArrays:
    """The files of one concept and split, by layer and label."""

    files: Mapping[int, Mapping[int, Path]]

    @classmethod
    def below(cls, folder: Path, concept: str, split: str, layers: Sequence[int] | None) -> LayerArrays | None:
        """Return the files below a folder, at some layers or all, or None if it has no file of this layout.

        Raises:
            InputError: The files of a layer lie in several places, or a layer or one of its classes is missing.
        """
        every_layer: dict[int, dict[int, Path]] = {}
        for name, label in CLASSES.items():
            for file in sorted(folder.rglob(f"layer_*/{_file_name(concept, split, name)}")):
                number = file.parent.name.removeprefix("layer_")
                if not number.isdecimal():
                    continue
                other = every_layer.setdefault(int(number), {}).setdefault(label, file)
                if other != file:
                    raise InputError(f"{other} and {file} are of one layer; name the folder of one model")
        if not every_layer:
            return None
        if missing := [layer for layer in layers or () if layer not in every_layer]:
            raise InputError(
                f"{folder} has no layer {missing[0]} of {concept}; it has {', '.join(map(str, every_layer))}"
            )
        files_by_layer = {layer: every_layer[layer] for layer in sorted(layers or every_layer)}
        for layer, files in files_by_layer.items():
            for name, label in CLASSES.items():
                if label not in files:
                    at = next(iter(files.values())).with_name(_file_name(concept, split, name))
                    raise InputError(f"{at} is missing; layer {layer} needs the files of both classes")
        return cls(files_by_layer)

    def paths(self, layer: int) -> list[Path]:
        """Return the files of a layer."""
        return [self.files[layer][label] for label in CLASSES.values()]

    def first(self, rows: Sequence[Mapping[str, Any]], reader: ActivationReader) -> tuple[np.ndarray, bool | None]:
        """Return the states of the first passage, and whether its first position is a special token.

        A special token has the range (0, 0) in `offset_mapping`. Without an `offset_mapping`, the second value is None.
        """
        file = self.files[next(iter(self.files))][rows[0]["label"]]
        item = _paired([row for row in rows if row["label"] == rows[0]["label"]], file, reader)[0][1]
        offsets = item.get("offset_mapping")
        special = None if offsets is None or not len(offsets) else tuple(offsets[0]) == (0, 0)
        return states_of(item["hidden"], file), special

    def read(
        self, layer: int, rows: Sequence[Mapping[str, Any]], reader: ActivationReader
    ) -> Iterator[tuple[int, Mapping[str, Any], np.ndarray, Path]]:
        """Yield position, passage, states and file of each passage of a split. One file is in memory at a time."""
        places = {row["passage_id"]: place for place, row in enumerate(rows)}
        for label in CLASSES.values():
            class_rows, file = [row for row in rows if row["label"] == label], self.files[layer][label]
            for row, item in _paired(class_rows, file, reader):
                yield places[row["passage_id"]], row, states_of(item["hidden"], file), file


def _paired(
    rows: Sequence[Mapping[str, Any]], file: Path, reader: ActivationReader
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return passages with their dictionaries. Raise InputError if passages and dictionaries do not match."""
    items = [_checked(item, place, file) for place, item in enumerate(np.atleast_1d(reader.load(file)))]
    if all("id" in item for item in items):
        by_id = {str(item["id"]): item for item in items}
        if lost := [row["passage_id"] for row in rows if row["passage_id"] not in by_id]:
            raise InputError(f"{file} has no passage {lost[0]!r}, which the corpus has")
        pairs = [(row, by_id[row["passage_id"]]) for row in rows]
    elif len(items) != len(rows):
        raise InputError(f"{file} holds {len(items)} passages, the corpus {len(rows)}; both must be of one corpus")
    else:
        pairs = list(zip(rows, items, strict=True))
    for row, item in pairs:
        if isinstance(item.get("text"), str) and item["text"] != row["text"]:
            raise InputError(f"{file}: the text of passage {row['passage_id']!r} is not that of the corpus")
    return pairs


def _checked(item: Any, place: int, file: Path) -> Mapping[str, Any]:
    if not isinstance(item, Mapping) or "hidden" not in item:
        raise InputError(f"{file}: entry {place} is not a dictionary with `hidden`")
    return item
