"""Vectors and columns of files: `.npy`, and the Parquet that `embed` writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import InputError
from poolbench_corpora.reading import is_missing, is_unlabelled, marks_missing, name_in
from poolbench_driver.queries.plain_values import plain

NUMBERS = "fiub"
_KINDS = {"f": "floats", "i": "integers", "u": "unsigned integers", "b": "truth values", "U": "words"}


@dataclass(frozen=True)
class FileVectors:
    """Vectors of a file."""

    matrix: np.ndarray  # float64 [n, D]; a row that failed is not finite
    made_by: dict[str, str]  # what `embed` notes about how they were made, such as `layer`; empty for others

    def rows(self) -> list[list[float] | None]:
        """Return the vectors as JSON rows. A vector that is not finite is null, which services count as missing."""
        finite = np.isfinite(self.matrix).all(axis=1).tolist()
        return [row if usable else None for row, usable in zip(self.matrix.tolist(), finite, strict=True)]


def load_vectors(file: Path) -> FileVectors:
    """Return the vectors of a `.npy` file, or of a Parquet file from `embed`. Raise InputError if it has no vectors."""
    if file.suffix.lower() != ".parquet":
        return FileVectors(load_array(file, 2).astype(np.float64), {})
    import pyarrow as pa
    import pyarrow.parquet as pq

    from poolbench.contracts.tables import vector_matrix

    try:
        table = pq.read_table(file, columns=["vector"])
        matrix = vector_matrix(table["vector"]).astype(np.float64)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file} has no column of vectors as `embed` writes it: {reason}") from None
    notes = table.schema.metadata or {}
    return FileVectors(matrix, {name.decode(): value.decode("utf-8", "replace") for name, value in notes.items()})


def load_labels(file: Path, *, are_classes: bool = True) -> list[Any]:
    """Return the whole numbers, real values or words of a `.npy` file. Raise InputError if a label is missing."""
    return labels_in(load_array(file, 1, NUMBERS + "U"), str(file), are_classes=are_classes)


def labels_in(labels: Any, name: str, *, are_classes: bool = True) -> list[Any]:
    """Return the whole numbers, real values or words of an array. Raise InputError, with `name`, if one is missing."""
    array = checked_array(labels, name, 1, NUMBERS + "U")
    if array.dtype.kind == "b":
        array = array.astype("int64")  # requests take no booleans for numbers
    if array.dtype.kind == "f":
        array = array.astype("float64")
        if not np.isfinite(array).all():
            raise InputError(f"{name} holds labels that are not finite; leave their rows out")
    labels = list(array.tolist())
    if missing := [number for number, label in enumerate(labels, 1) if is_missing(label)]:
        raise InputError(f"{name}: label {missing[0]} is missing; leave its row out")
    if are_classes and marks_missing(map(str, labels)) and any(is_unlabelled(str(label)) for label in labels):
        raise InputError(f"{name}: label -1 means missing beside classes from 0; leave its rows out, or write words")
    return labels


def load_names(file: Path, *, may_lack: bool = False) -> list[str]:
    """Return the entries of a `.npy` file as words. A missing entry, such as NaN, is "".

    Raise InputError for the first missing entry, unless `may_lack` is true.
    """
    return names_in(load_array(file, 1, NUMBERS + "U"), str(file), may_lack=may_lack)


def names_in(column: Any, name: str, *, may_lack: bool = False) -> list[str]:
    """Return the entries of an array as words, as in `load_names`. Errors contain `name`."""
    entries = checked_array(column, name, 1, NUMBERS + "U").tolist()
    words = [name_in({"entry": entry}, "entry", name) for entry in entries]
    if "" in words and not may_lack:
        raise InputError(f"{name}: entry {words.index('') + 1} is missing; leave its row out")
    return words


def load_array(file: Path, num_dims: int, kinds: str = NUMBERS) -> np.ndarray:
    """Return the numbers (or words) of a .npy file.

    Args:
        kinds: NumPy's letters for the allowed types.

    Raises:
        InputError: There is no such file, or it holds other types or dimensions.
    """
    _require_npy(file)
    try:
        array = np.load(file, allow_pickle=False)
    except Exception as error:  # NumPy raises many kinds, also MemoryError for the size that a header claims
        reason = "it holds Python objects; save numbers" if "allow_pickle" in str(error) else error
        raise InputError(f"{file} is not a readable .npy file: {reason}") from None
    return checked_array(array, str(file), num_dims, kinds)


def checked_array(values: Any, name: str, num_dims: int, kinds: str = NUMBERS) -> np.ndarray:
    """Return numbers (or words) as an array. Raise InputError, with `name`, for other types or dimensions.

    Args:
        kinds: NumPy's letters for the allowed types.
    """
    if hasattr(values, "columns"):
        raise InputError(f"{name} is a {type(values).__name__}; give an array of the columns that are meant")
    try:
        array = _array_of(values)
    except (TypeError, ValueError, OverflowError) as error:  # rows of different lengths, or other objects
        raise InputError(f"{name} is not an array of {num_dims} dimensions: {error}") from None
    if array.ndim != num_dims:
        raise InputError(f"{name} has shape {array.shape}; {num_dims} dimensions are needed")
    if array.dtype == object:
        array = _without_objects(array)
    if array.dtype.kind not in kinds:
        allowed = ", ".join(_KINDS[kind] for kind in kinds)
        raise InputError(f"{name} holds {array.dtype}; allowed are {allowed} (bfloat16: save as float32)")
    if array.dtype.kind == "U" and array.dtype.itemsize:  # Python cannot make strings of other numbers
        numbers = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if ((numbers > 0x10FFFF) | ((numbers >= 0xD800) & (numbers <= 0xDFFF))).any():
            raise InputError(f"{name} holds words that are not valid Unicode; save them again")
    return array


def _array_of(values: Any) -> np.ndarray:
    """Return an array, a tensor, a column, or a list of these, as an array."""
    if hasattr(values, "detach"):  # a tensor of PyTorch; NumPy has no bfloat16
        values = values.detach().cpu()
        return np.asarray(values.float() if str(values.dtype) == "torch.bfloat16" else values)
    if isinstance(values, list | tuple) and any(hasattr(entry, "detach") for entry in values):
        return np.stack([_array_of(entry) for entry in values])
    array = np.asarray(values)
    entries = array.tolist() if array.dtype == object and array.ndim == 1 else ()
    widths = [len(entry) for entry in entries if isinstance(entry, list | tuple | np.ndarray)]
    if not widths:
        return array
    # A column of vectors of Arrow or pandas, where one may be missing.
    return np.asarray([np.full(widths[0], np.nan) if is_missing(entry) else entry for entry in entries])


def _without_objects(array: np.ndarray) -> np.ndarray:
    """Convert an array of Python strings or numbers to a type of NumPy. A missing entry becomes "" or NaN."""
    entries = [plain(entry) for entry in array.flat]
    if all(isinstance(entry, str) or is_missing(entry) for entry in entries):
        array = np.array([entry if isinstance(entry, str) else "" for entry in entries], str).reshape(array.shape)
    elif all(isinstance(entry, int | float) or is_missing(entry) for entry in entries):
        array = np.array([np.nan if is_missing(entry) else entry for entry in entries]).reshape(array.shape)
    return array


def _require_npy(file: Path) -> None:
    try:
        with file.open("rb") as content:
            start = content.read(6)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    if start != b"\x93NUMPY":
        raise InputError(f"{file} is not a .npy file, as numpy.save writes it: convert it")
