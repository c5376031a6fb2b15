"""Vectors from files, by name."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from poolbench.directions.vector_files import CARD_FILE, VECTOR_FILE, layer_of
from poolbench.errors import InputError, PoolbenchError
from poolbench_steerer.http.vectors import parse_safetensors
from poolbench_steerer.plugin.bank import VectorBank
from poolbench_steerer.plugin.spec import Positions
from poolbench_steerer.steered_names import NAME

_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class NamedVector:
    """A vector that requests can name.

    Attributes:
        vector: float32 [width].
        layer: Block whose output the vector steers. None if the file does not have it.
        residual_norm: Size of strength 1. None if the file does not have it.
        unit: Unit of a strength in the name of a steered model: a coefficient (`alpha`), or a number of residual norms.
        recommended: Strength for a name of a steered model without a strength. None if the file does not have it.
        positions: Positions that are steered by the name of a steered model.
    """

    name: str
    vector: np.ndarray
    layer: int | None = None
    residual_norm: float | None = None
    unit: Literal["alpha", "strength"] = "alpha"
    recommended: float | None = None
    positions: Positions = "generated"


def read_vectors(sources: Sequence[str]) -> dict[str, NamedVector]:
    """Read the vectors of folders and files by name.

    The vector of a file with one vector has the name of the file. The vectors of a file with several have the names of
    their tensors. A folder of `poolbench-driver find` or `vectors` is one vector with the name of the folder, whose
    card has the layer and the residual norm.

    Args:
        sources: Safetensors files, folders with a card, folders of both, or `NAME=` followed by one vector.

    Raises:
        InputError, VectorError: A source cannot be read, or two vectors have the same name.
    """
    vectors: dict[str, NamedVector] = {}
    for name, file in _files(sources):
        for vector in _read(name, file):
            if vector.name in vectors:
                raise InputError(f"two vectors are named {vector.name!r}, the second in {file}; write NAME=FILE")
            vectors[vector.name] = vector
    return vectors


def check_vectors(vectors: Sequence[NamedVector], width: int, num_layers: int) -> None:
    """Raise PoolbenchError, with the name, for a vector that does not fit a model."""
    for vector in vectors:
        try:
            VectorBank(width, 1).register([vector.vector])
        except PoolbenchError as error:
            raise type(error)(f"vector {vector.name!r}: {error}") from None
        if vector.layer is not None and not 0 <= vector.layer < num_layers:
            raise InputError(
                f"vector {vector.name!r} is for layer {vector.layer}, but the model has blocks 0..{num_layers - 1}"
            )


def _files(sources: Sequence[str]) -> Iterator[tuple[str | None, Path]]:
    """Yield each file, with the name that its vector was given."""
    for source in sources:
        name, equals, path = source.partition("=")
        if equals:
            yield name, Path(path)
            continue
        folder = Path(source)
        if not folder.is_dir() or (folder / CARD_FILE).is_file():
            yield None, folder
            continue
        places = sorted([*folder.glob(f"*{_SUFFIX}"), *(card.parent for card in folder.glob(f"*/{CARD_FILE}"))])
        if not places:
            raise InputError(f"folder {source} has no {_SUFFIX} file with steering vectors")
        yield from ((None, place) for place in places)


def _read(name: str | None, file: Path) -> list[NamedVector]:
    try:
        if file.is_dir():
            vectors = _with_card(vectors_in((file / VECTOR_FILE).read_bytes()), (file / CARD_FILE).read_bytes())
            own_name = file.name
        else:
            vectors, own_name = vectors_in(file.read_bytes()), file.stem
    except OSError as error:
        raise InputError(f"steering vectors {file} cannot be read: {error}") from None
    except PoolbenchError as error:
        raise type(error)(f"{file}: {error}") from None
    if len(vectors) == 1:
        return [named(vectors[0], name or own_name)]
    if name is not None:
        raise InputError(f"{name}={file}: the file holds {len(vectors)} vectors, and a name is for one; leave it out")
    return [named(vector, vector.name) for vector in vectors]


def _with_card(vectors: Sequence[NamedVector], card: bytes) -> list[NamedVector]:
    """Return the vectors of layers with what their card says about sizes and positions.

    The recommended strength of several layers is that of all of them at once, so none of them has it.
    """
    try:
        facts = json.loads(card)
        norms = facts["apply"]["residual_norms"] or {}
        of_card: dict[str, Any] = {
            "unit": "alpha" if facts["apply"]["alpha_unit"] == "absolute" else "strength",
            "recommended": facts["strength"]["recommended"] if len(vectors) == 1 else None,
            "positions": facts["apply"]["positions"],
        }
        return [replace(vector, residual_norm=norms.get(str(vector.layer)), **of_card) for vector in vectors]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{CARD_FILE} is not the card of a steering vector: {error!r}") from None


def named(vector: NamedVector, name: str) -> NamedVector:
    """Return a vector with a new name. Raise InputError for a name that requests could not use."""
    if not re.fullmatch(NAME, name):
        raise InputError(f"{name!r} cannot name a vector; take letters, digits and . _ - /")
    return replace(vector, name=name)


def vectors_in(data: bytes) -> list[NamedVector]:
    """Read vectors from safetensors, named as their tensors. Raise InputError or VectorError."""
    labels, arrays = parse_safetensors(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    facts = header.get("__metadata__", {})
    norm = facts.get("residual_norm")
    try:
        residual_norm = None if norm is None else float(norm)
    except ValueError:
        raise InputError(f"residual_norm in the metadata is {norm!r}, not a number") from None
    unit: Literal["alpha", "strength"] = "alpha" if residual_norm is None else "strength"
    return [
        NamedVector(label, array, layer_of(label, facts), residual_norm, unit)
        for label, array in zip(labels, arrays, strict=True)
    ]
