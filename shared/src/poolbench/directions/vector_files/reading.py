"""Read a file of steering vectors, whatever its format: the contents tell it, not the name."""

import json
import mmap
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile, ZipFile

import numpy as np

from poolbench.directions.sae_formats.converted import read_tensors, residual_layer
from poolbench.directions.torch_file import load_torch_record
from poolbench.directions.vector_files.gguf import MAGIC, decode_gguf
from poolbench.errors import InputError, shown

#: Files of a folder that PoolBench writes.
VECTOR_FILE, CARD_FILE = "vector.safetensors", "card.json"
#: Key of the card in the metadata of a GGUF file.
CARD_KEY = "poolbench.card"
_READ = "GGUF, .npy, .npz, safetensors, .pt, the JSON of Neuronpedia, and folders with vector.safetensors"
_SHOWN = 6  # names in a message
_NUMBER = re.compile(r"[0-9]{1,9}")  # of a layer
#: What the name of a tensor has if it is that of a site of the model.
_SITE = re.compile(r"(^|\.)(blocks|layers|h)\.\d+(\.|$)|hook_")


@dataclass(frozen=True)
class VectorFile:
    """The vectors of a file as stored, and the facts that the file states about these vectors.

    Attributes:
        format: `gguf`, `npy`, `npz`, `safetensors`, `pt`, `neuronpedia` or `poolbench`.
        vectors: float32 [width] by layer. If the file names no layer, its vector has the key None.
        model: Id of the model, or None if the file names no model.
        architecture: Type of the model as Transformers names it, such as `llama`.
        label: Name of the vector in the file.
        card: The card that PoolBench has written beside the vectors or into the file, as JSON.
    """

    format: str
    vectors: Mapping[int | None, np.ndarray]
    model: str | None = None
    architecture: str | None = None
    label: str | None = None
    card: str | None = None

    def at(self, layer: int | None) -> Self:
        """Return the file with the vector of one layer. Without `layer`, return the vectors of all layers.

        If the file names no layer, its vector is taken to belong to `layer`.

        Raises:
            InputError: The file has no vector for this layer, or neither the file nor the caller names a layer.
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
        InputError: The file does not exist, is damaged or has an unknown format, or a vector is zero or not finite. The
            message is one line that begins with the path.
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
        file = replace(_of_safetensors(path / VECTOR_FILE), format="poolbench")
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
    return read(path)


def _reader(start: bytes) -> Callable[[Path], VectorFile] | None:
    if start.startswith(b"\x93NUMPY"):
        return _of_npy
    if start[8:9] == b"{" and not start.lstrip().startswith(b"{"):
        return _of_safetensors
    if start.startswith(b"PK"):
        return _of_zip
    if start.startswith(b"\x80"):
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


def _of_npy(path: Path) -> VectorFile:
    return VectorFile("npy", {None: _vector("the array", _load_numpy(path, ".npy"))})


def _of_zip(path: Path) -> VectorFile:
    """Return the vectors of a `.npz` or `.pt` file. Both are zip archives."""
    try:
        with ZipFile(path) as archive:
            is_npz = all(name.endswith(".npy") for name in archive.namelist())
    except (BadZipFile, NotImplementedError, ValueError):  # torch says how it is damaged
        is_npz = False
    if not is_npz:
        return _of_torch(path)
    arrays = _load_numpy(path, ".npz")
    facts = {name: array.item() for name, array in arrays.items() if array.ndim == 0}
    return _of_record("npz", {name: array for name, array in arrays.items() if array.ndim}, facts)


def _load_numpy(path: Path, form: str) -> Any:
    """Return the array of a `.npy` file, or the arrays of a `.npz` file by name. Errors name the format `form`."""
    try:
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        with content:
            return dict(content)
    except Exception as error:  # NumPy raises many kinds, also MemoryError for the size that a header claims
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error)
        raise InputError(f"the {form} file cannot be read: {reason}") from None


def _of_safetensors(path: Path) -> VectorFile:
    data = path.read_bytes()
    tensors = read_tensors(data, "the file")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return _of_record("safetensors", tensors, header.get("__metadata__", {}))


def _of_torch(path: Path) -> VectorFile:
    return _of_record("pt", *load_torch_record(path))


def _of_record(form: str, tensors: Mapping[Any, np.ndarray], facts: Mapping[str, Any]) -> VectorFile:
    """Return the vectors of a file whose tensors are named by layer or site, or that has a single tensor.

    Model and label of the result are read from `facts`.
    """
    by_layer = dict[int | None, np.ndarray]()
    for name, tensor in tensors.items():
        if len(tensors) > 1 and _layer_of_name(str(name)) is None:
            raise InputError(
                f"the file holds {_listed(tensors)}; one tensor, or one for each layer called direction.<layer>, is "
                "needed"
            )
        layer = layer_of(str(name), facts)
        if layer in by_layer:
            raise InputError(f"the file has several vectors of layer {layer}; add them up into one")
        by_layer[layer] = _vector(str(name), tensor)
    model, label = _first(facts, "modelId", "model_id", "model_name", "model"), _first(facts, "vectorLabel", "label")
    return VectorFile(
        form,
        dict(sorted(by_layer.items())) if None not in by_layer else by_layer,
        model=None if model is None else str(model),
        label=None if label is None else str(label),
    )


def layer_of(name: str, facts: Mapping[str, Any]) -> int | None:
    """Return the layer of a tensor, by the same rule for all formats, or None if the file names no layer.

    The name of a tensor is a layer, `direction.<layer>`, or a site of the model such as `blocks.3.hook_resid_pre`. For
    any other name, the layer or the site comes from `facts`.

    Raises:
        InputError: The site is not the output of a block.
    """
    layer = _layer_of_name(name)
    return _layer_of_facts(facts) if layer is None else layer


def _layer_of_name(name: str) -> int | None:
    """Return the layer in the name of a tensor, or None if the name has no layer."""
    number = name.removeprefix("direction.")
    if _NUMBER.fullmatch(number):
        return int(number)
    return _layer_of_site(name) if _SITE.search(name) else None


def _layer_of_facts(facts: Mapping[str, Any]) -> int | None:
    """Return the layer that the facts of a file name, or None if they name no layer."""
    site, hook = _first(facts, "hookName", "hook_name", "hook_point"), _first(facts, "hookType", "hook_type")
    number = _first(facts, "layerNumber", "layer", "hook_layer")
    if site is None and hook is not None:
        site = f"blocks.{number}.{hook}"
    if site is not None:
        return _layer_of_site(str(site))
    if number is None:
        return None
    if not _NUMBER.fullmatch(str(number)):
        raise InputError(f"the layer of the vector is {shown(number)}; a block is a whole number from 0")
    return int(number)


def _layer_of_site(site: str) -> int:
    layer = residual_layer(site, "the vector")
    if layer < 0:
        raise InputError(f"the vector is for {shown(site)}, the embedding; a block's output is needed")
    return layer


def _first(facts: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first name among `names` that the facts have, or None without such a value."""
    return next((facts[name] for name in names if facts.get(name) not in (None, "")), None)


def _of_json(path: Path) -> VectorFile:
    """Return the vector of a request or an answer of Neuronpedia's API.

    `POST /api/vector/new` takes `modelId`, `layerNumber`, `hookType`, `vector` and `vectorLabel`
    (apps/webapp/app/api/vector/new/route.tsx of hijohnnylin/neuronpedia). It answers with `hookName`, `label` and
    `values`; `/api/vector/get` answers with `hookName`, `vectorLabel` and `vector`.
    """
    try:
        record = json.loads(path.read_bytes())
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
    return _of_record("neuronpedia", {"vector": array}, record)


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
