"""GGUF control vectors: float tensors `direction.<n>`, which llama.cpp, repeng and EasySteer read and write.

What n means was read in the sources of the readers. All three add `direction.<n>` to the output of block n, counted
from 0, which is layer n here:

- llama.cpp stores `direction.<n>` at n_embd * (n - 1) (`common/common.cpp: common_control_vector_load_one`) and reads
  block il from n_embd * (il - 1) (`src/llama-adapter.cpp: llama_adapter_cvec::apply`). It refuses a file with
  `direction.0`.
- repeng wraps `layers[n]` and adds to its output (`repeng/control.py: ControlModule`); n may be 0.
- EasySteer keys its layers by n (`vllm/steer_vectors/algorithms/loading.py: read_gguf_directions`); n may be 0.

The generator of llama.cpp (`tools/cvector-generator`) names its first direction `direction.1`, although it comes from
the output of block 0. Its files are read as llama.cpp applies them.

Reference: docs/gguf.md of ggml-org/ggml, version 3 of the format.
"""

import struct
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from poolbench.errors import InputError, shown

MAGIC = b"GGUF"
ARCHITECTURE = "controlvector"
#: Version written here; version 2 has the same layout.
_VERSION, _READ_VERSIONS = 3, (2, 3)
_ALIGNMENT = 32
_MAX_DIMS = 4
_PREFIX = "direction."
#: Numbers of the types of metadata, with their codes of `struct`.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_UINT32, _STRING, _ARRAY = 4, 8, 9
#: Numbers of the float types of tensors, with those of NumPy; the upper half of float32 stands for bfloat16.
_FLOAT32, _BFLOAT16 = 0, 30
_FLOATS = {_FLOAT32: "<f4", 1: "<f2", 28: "<f8", _BFLOAT16: "<u2"}


def encode_gguf(direction_by_layer: Mapping[int, np.ndarray], metadata: Mapping[str, str | int]) -> bytes:
    """Return a control vector as GGUF.

    Args:
        direction_by_layer: Vectors [width] by layer, which are written as float32.
        metadata: Further entries by key; `general.architecture` is written first.
    """
    entries = {"general.architecture": ARCHITECTURE, **metadata}
    head = [MAGIC, struct.pack("<IQQ", _VERSION, len(direction_by_layer), len(entries))]
    for key, value in entries.items():
        is_text = isinstance(value, str)
        head += [_text(key), struct.pack("<I", _STRING if is_text else _UINT32)]
        head.append(_text(value) if isinstance(value, str) else struct.pack("<I", value))
    data, offset = list[bytes](), 0
    for layer, direction in direction_by_layer.items():
        numbers = direction.astype("<f4").tobytes()
        head += [_text(f"{_PREFIX}{layer}"), struct.pack("<IQIQ", 1, direction.size, _FLOAT32, offset)]
        padded = _padded(numbers)
        data.append(padded)
        offset += len(padded)
    return _padded(b"".join(head)) + b"".join(data)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def decode_gguf(data: Any) -> tuple[dict[int, np.ndarray], dict[str, Any]]:
    """Return the vectors of a control vector by layer, float32 [width], and the metadata of the file without arrays.

    Args:
        data: Content of the file: bytes, or an object whose slices are bytes, such as a memory map.

    Raises:
        InputError: The file is damaged, of another version or architecture, or holds other tensors.
    """
    try:
        return _Reader(data).control_vector()
    except (struct.error, IndexError, ArithmeticError, RecursionError, ValueError):
        raise InputError("the GGUF file is damaged, or ends before its tensors do") from None


class _Reader:
    """A position in a GGUF file."""

    def __init__(self, data: Any) -> None:
        self._data, self._at = data, len(MAGIC)

    def control_vector(self) -> tuple[dict[int, np.ndarray], dict[str, Any]]:
        (version,) = self._numbers("I")
        if version not in _READ_VERSIONS:
            raise InputError(f"the GGUF file has version {version}; versions 2 and 3 are read, little-endian")
        num_tensors, num_entries = self._numbers("QQ")
        metadata = dict[str, Any]()
        for _ in range(num_entries):
            key = self._text()
            value = self._value(*self._numbers("I"))
            if key == "general.architecture" and value != ARCHITECTURE:
                raise InputError(
                    f"the GGUF file has the architecture {shown(value)}; a control vector has {ARCHITECTURE!r}"
                )
            metadata |= {} if value is None else {key: value}
        if "general.architecture" not in metadata:
            raise InputError("the GGUF file names no general.architecture; a control vector has 'controlvector'")
        places = [self._tensor_place() for _ in range(num_tensors)]
        alignment = int(metadata.get("general.alignment", _ALIGNMENT))
        start = self._at + -self._at % alignment
        layers = [layer for layer, *_ in places]
        if len(set(layers)) < len(layers):
            raise InputError("the GGUF file has several vectors of one layer; add them up into one")
        return {layer: self._floats(start + at, kind, size) for layer, size, kind, at in places}, metadata

    def _numbers(self, codes: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{codes}")
        numbers = struct.unpack(f"<{codes}", self._data[self._at : self._at + size])
        self._at += size
        return numbers

    def _text(self) -> str:
        (size,) = self._numbers("Q")
        encoded = bytes(self._data[self._at : self._at + size])
        if len(encoded) < size:
            raise IndexError
        self._at += size
        return encoded.decode()

    def _value(self, kind: int) -> Any:
        """Read a value of the metadata. Arrays are skipped, and None is returned for them."""
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._numbers(_SCALARS[kind])[0] if kind in _SCALARS else self._refuse_kind(kind)
        inner, count = self._numbers("IQ")
        if inner in _SCALARS:
            self._at += struct.calcsize(f"<{_SCALARS[inner]}") * count
            if self._at > len(self._data):
                raise IndexError
        else:
            for _ in range(count):
                self._value(inner)
        return None

    def _refuse_kind(self, kind: int) -> None:
        raise InputError(f"the GGUF file has metadata of the unknown type {kind}")

    def _tensor_place(self) -> tuple[int, int, int, int]:
        """Read the entry of a tensor, and return its layer, size, type and offset.

        Raise InputError if the tensor is not a vector of floats named `direction.<layer>`.
        """
        name = self._text()
        (num_dims,) = self._numbers("I")
        if num_dims > _MAX_DIMS:
            raise IndexError
        shape = self._numbers("Q" * num_dims)
        kind, offset = self._numbers("IQ")
        number = name.removeprefix(_PREFIX)
        if not name.startswith(_PREFIX) or not number.isdecimal():
            raise InputError(f"the GGUF file holds the tensor {shown(name)}; a control vector has direction.<layer>")
        if max(shape, default=0) != prod(shape):
            raise InputError(f"{name} has the shape {shape}; a vector is needed")
        if kind not in _FLOATS:
            raise InputError(f"{name} is of the tensor type {kind}; floats are needed (F32, F16, BF16, F64)")
        return int(number), prod(shape), kind, offset

    def _floats(self, start: int, kind: int, size: int) -> np.ndarray:
        numbers = np.frombuffer(self._data, _FLOATS[kind], size, start)
        if kind == _BFLOAT16:
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.astype(np.float32)
