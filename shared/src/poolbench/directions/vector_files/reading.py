"""Read a file of steering vectors, whatever its format: the contents tell it, not the name."""

import json
import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np

from poolbench.directions.sae_formats.converted import read_tensors, residual_layer
from poolbench.directions.torch_file import load_torch
from poolbench.directions.vector_files.gguf import MAGIC, decode_gguf
from poolbench.errors import InputError, shown

#: Files of a folder that PoolBench writes.
VECTOR_FILE, CARD_FILE = "vector.safetensors", "card.json"
#: Key of the card in the metadata of a GGUF file.
CARD_KEY = "poolbench.card"
_READ = "GGUF, .npy, safetensors, .pt, the JSON of Neuronpedia, and folders with vector.safetensors"
_SHOWN = 6  # names in a message


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file as it holds them, and what it says about them.

    Attributes:
        format: `gguf`, `npy`, `safetensors`, `pt`, `neuronpedia` or `poolbench`.
        vectors: float32 [width] by layer; under None the vector of a file that names no layer.
        model: Id of the model; None if the file names none.
        architecture: Type of the model as Transformers names it, such as `llama`.
        label: What the file calls the vector.
        card: The card that PoolBench has written beside the vectors or into the file, as JSON.
    """

    format: str
    vectors: Mapping[int | None, np.ndarray]
    model: str | None = None
    architecture: str | None = None
    label: str | None = None
    card: str | None = None

    def at(self, layer: int | None) -> Self:
        """Return the vectors of one layer; all of them without a layer.

        Raises:
            InputError: The file does not hold this layer, or names none and neither does the caller.
        """
        if None in self.vectors:
            if layer is None:
                raise InputError("the file names no layer; give --layer, the block whose output it is for, from 0")
            return replace(self, vectors={layer: self.vectors[None]})
        if layer is None:
            return self
        if layer not in self.vectors:
            raise InputError(f"the file has no vector of layer {layer}; it has {', '.join(map(str, self.vectors))}")
        return replace(self, vectors={layer: self.vectors[layer]})


def read_vector_file(path: Path) -> VectorFile:
    """Return the vectors of a file or folder.

    Raises:
        InputError: The file does not exist, it is of another format or damaged, or a vector is not finite or is zero.
            The message begins with the path and has one line.
    """
    try:
        file = _read(path)
        if not file.vectors:
            raise InputError("the file holds no vector")
        for layer, vector in file.vectors.items():
            _require_usable(layer, vector)
        if len({vector.size for vector in file.vectors.values()}) > 1:
            raise InputError("the vectors of its layers have several widths")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except InputError as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    return file


def _read(path: Path) -> VectorFile:
    if path.is_dir():
        if not (path / VECTOR_FILE).is_file():
            raise InputError(f"the folder has no {VECTOR_FILE}; read are {_READ}")
        file = replace(_of_safetensors((path / VECTOR_FILE).read_bytes()), format="poolbench")
        with suppress(FileNotFoundError):
            return replace(file, card=(path / CARD_FILE).read_text("utf-8", "replace"))
        return file
    with path.open("rb") as stream:
        start = stream.read(64)
        if start.startswith(MAGIC):  # the weights of a model may be gigabytes, and are refused by their first lines
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _of_gguf(data)
    read = _reader(start)
    if read is None:
        raise InputError(f"the format of the file is unknown; read are {_READ}")
    if read is _of_torch:
        return read(path)
    return read(path.read_bytes())


def _reader(start: bytes) -> Callable[[Any], VectorFile] | None:
    if start.startswith(b"\x93NUMPY"):
        return _of_npy
    if start[8:9] == b"{" and not start.lstrip().startswith(b"{"):
        return _of_safetensors
    if start.startswith((b"PK", b"\x80")):
        return _of_torch
    return _of_json if start.lstrip().startswith(b"{") else None


def _of_gguf(data: Any) -> VectorFile:
    vectors, metadata = decode_gguf(data)
    hint = metadata.get("controlvector.model_hint")
    card = metadata.get(CARD_KEY)
    return VectorFile(
        "gguf",
        dict(sorted(vectors.items())),
        architecture=hint if isinstance(hint, str) and hint else None,
        card=card if isinstance(card, str) else None,
    )


def _of_npy(data: bytes) -> VectorFile:
    try:
        array = np.load(BytesIO(data), allow_pickle=False)
    except Exception as error:  # NumPy raises many kinds, also MemoryError for the size that a header claims
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error)
        raise InputError(f"the .npy file cannot be read: {reason}") from None
    return VectorFile("npy", {None: _vector("the array", array)})


def _of_safetensors(data: bytes) -> VectorFile:
    tensors = read_tensors(data, "the file")
    return VectorFile("safetensors", _by_layer(tensors))


def _of_torch(path: Path) -> VectorFile:
    return VectorFile("pt", _by_layer(load_torch(path)))


def _by_layer(tensors: Mapping[Any, np.ndarray]) -> dict[int | None, np.ndarray]:
    """Return vectors by layer, of tensors that are called `direction.<layer>` or by the number; or the single one."""
    layers = {name: str(name).removeprefix("direction.") for name in tensors}
    if tensors and all(layer.isdecimal() for layer in layers.values()):
        by_layer = {int(layers[name]): _vector(str(name), tensor) for name, tensor in tensors.items()}
        return dict(sorted(by_layer.items()))
    if len(tensors) != 1:
        raise InputError(
            f"the file holds {_listed(tensors)}; one tensor, or one for each layer called direction.<layer>, is needed"
        )
    ((name, tensor),) = tensors.items()
    return {None: _vector(str(name), tensor)}


def _of_json(data: bytes) -> VectorFile:
    """Return the vector of a request or an answer of Neuronpedia's API.

    `POST /api/vector/new` takes `modelId`, `layerNumber`, `hookType`, `vector` and `vectorLabel`
    (apps/webapp/app/api/vector/new/route.tsx of hijohnnylin/neuronpedia). It answers with `hookName`, `label` and
    `values`; `/api/vector/get` answers with `hookName`, `vectorLabel` and `vector`.
    """
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the file is not JSON: {error}") from None
    if isinstance(record.get("vector"), dict):  # an answer has the record in it
        record = record["vector"]
    numbers = record.get("vector", record.get("values"))
    try:
        array = np.asarray(numbers, np.float64) if isinstance(numbers, list) else None
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None:
        raise InputError("the JSON holds no list of numbers called 'vector', as a vector of Neuronpedia has")
    site = record.get("hookName") or f"blocks.{record.get('layerNumber')}.{record.get('hookType')}"
    layer = residual_layer(site, "the vector")
    if layer < 0:
        raise InputError(f"the vector is for {shown(site)}, the embedding; a block's output is needed")
    label = record.get("vectorLabel") or record.get("label")
    return VectorFile(
        "neuronpedia",
        {layer: _vector("vector", array)},
        model=str(record["modelId"]) if record.get("modelId") else None,
        label=str(label) if label else None,
    )


def _vector(name: str, array: np.ndarray) -> np.ndarray:
    """Return a vector [width] in float32, of [width] or [1, width]. Raise InputError for anything else."""
    if array.dtype.kind not in "fiu" or array.ndim == 0 or not array.size or array.size != array.shape[-1]:
        raise InputError(f"{name} is {array.dtype} of shape {array.shape}; numbers of shape [width] are needed")
    with np.errstate(over="ignore"):
        return array.reshape(-1).astype(np.float32)


def _require_usable(layer: int | None, vector: np.ndarray) -> None:
    of_layer = "" if layer is None else f" of layer {layer}"
    if not np.isfinite(vector).all():
        raise InputError(f"the vector{of_layer} holds NaN or infinity; a steering vector must be finite")
    if not vector.any():
        raise InputError(f"the vector{of_layer} is zero; it has no direction to steer along")


def _listed(names: Mapping[Any, Any]) -> str:
    more = " ..." if len(names) > _SHOWN else ""
    return ", ".join(shown(name) for name in sorted(names, key=str)[:_SHOWN]) + more if names else "no tensor"
