"""Published activations: one `.npy` file per passage, in any of the common layouts.

| content of a file | layers |
|---|---|
| numbers `[T, D]` | one, named by the caller |
| numbers `[L, T, D]` | L, named by the caller in their order |
| an object: a dictionary of layer to `[T, D]` (keys `15`, `"15"` or `"layer_15"`) | named in the file |
| an object: a sequence of L arrays `[T, D]` | L, named by the caller in their order |

Files per layer, as the reference project publishes them, are read by `layer_arrays`.

An object is a pickle. Reading it runs the code in it, so it is read only where the caller trusts the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import ConfigError, InputError

_LAYER_NAME = re.compile(r"(?:layer|block)?[_. -]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class FileIndex:
    """The files below a folder by the passage they may belong to: file name or path, without `.npy`."""

    root: Path
    files: Mapping[str, Sequence[Path]]

    @classmethod
    def below(cls, folder: Path, concept: str) -> FileIndex:
        """Return the files of a concept, in a folder of its name if there is one; raise InputError if it has none."""
        root = folder / concept if (folder / concept).is_dir() else folder
        files_by_name: dict[str, list[Path]] = {}
        for file in sorted(root.rglob("*.npy")):
            for name in {file.stem, file.relative_to(root).with_suffix("").as_posix()}:
                files_by_name.setdefault(name, []).append(file)
        if not files_by_name:
            raise InputError(f"{root} holds no .npy file; expected one a passage, named <passage id>.npy")
        return cls(root, files_by_name)

    def find(self, passage_id: str, split: str) -> Path:
        """Return the only file of a passage, by name or by name and split in its path; raise InputError otherwise."""
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
            InputError: If the file is unreadable, an object that is not trusted, or of no known layout.
            ConfigError: If neither the file nor `layers` says which layers it holds.
        """
        values_by_layer = self._by_layer(self.load(file), file)
        return {layer: states_of(values, file) for layer, values in values_by_layer.items()}

    def load(self, file: Path) -> Any:
        """Return the array of a file; raise InputError if it is unreadable, or an object that is not trusted."""
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
    """Return one layer as float16 or float32; float64, which no model computes in, is rounded."""
    array = np.asarray(values)
    if array.dtype.hasobject:
        array = _numbers(values, file)
    if array.dtype.kind != "f" or array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{file} has a layer of shape {array.shape} and type {array.dtype}; floats [T, D] are needed")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are reported as such
        return np.ascontiguousarray(array, dtype=np.float16 if array.dtype == np.float16 else np.float32)
