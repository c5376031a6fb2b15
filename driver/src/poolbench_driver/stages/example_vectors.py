"""Stage of vectors that no model of the run makes: one for each example of a set, from a file or from its words."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts.keys import digest
from poolbench.contracts.tables import vectors_schema
from poolbench.errors import InputError
from poolbench.steps.local import PASSAGES as STORED
from poolbench.steps.local import TABLE, PassagesParams
from poolbench.steps.roles import Cell
from poolbench_corpora.probing import ProbingData, bags_of_words
from poolbench_driver.corpora.sources import LocalStep, stored_rows
from poolbench_driver.stages.probing_sets import SetVectors
from poolbench_driver.stages.stage import Draft

#: The cell of such vectors: they have neither strategy nor layer.
FROM_FILE = Cell("file", 0)


@dataclass(frozen=True)
class VectorsFile:
    """The vectors of a file."""

    path: Path
    ids: tuple[str, ...]
    matrix_nD: np.ndarray  # float32

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.ids)}

    def of(self, name: str, data: ProbingData) -> np.ndarray:
        """Return the vectors of a set's examples [n, D]. Raise InputError if an example has none."""
        examples = data.instances["instance_id"].to_pylist()
        absent = [example for example in examples if example not in self._row_of]
        if absent:
            raise InputError(
                f"{self.path}: {len(absent)} of {len(examples)} examples of {name} have no vector, such as "
                f"{absent[0]!r}; ids are those of `corpus examples {name}`"
            )
        return np.asarray(self.matrix_nD[[self._row_of[example] for example in examples]])


def plan_file_vectors(draft: Draft, name: str, data: ProbingData, file: VectorsFile) -> SetVectors:
    """Plan the vectors of a set from a file. Raise InputError if an example has none."""
    matrix_nD = file.of(name, data)
    examples = data.instances["instance_id"].to_pylist()
    content = hashlib.sha256("\n".join(examples).encode() + matrix_nD.tobytes()).hexdigest()[:32]
    return _plan_vectors(draft, name, data, content, lambda: matrix_nD)


def plan_bags_of_words(draft: Draft, name: str, data: ProbingData, num_dimensions: int) -> SetVectors:
    """Plan a bag of words for each example of a set: see `poolbench_corpora.probing.bags_of_words`."""
    rows = {"bag_of_words": 1, "num_dimensions": num_dimensions, "instances": data.instances.to_pylist()}
    return _plan_vectors(draft, name, data, digest(rows, 32), lambda: bags_of_words(data, num_dimensions))


def _plan_vectors(
    draft: Draft, name: str, data: ProbingData, content: str, matrix: Callable[[], np.ndarray]
) -> SetVectors:
    """Plan the vectors of a set's examples, each of which is a passage of its own.

    Args:
        content: Hash of everything that the vectors depend on.
        matrix: Makes the vectors [n, D], in the order of the examples.
    """
    examples = data.instances["instance_id"].to_pylist()

    def build() -> pa.Table:
        matrix_nD = matrix()
        width, num_rows = matrix_nD.shape[1], len(examples)
        columns = {
            "passage_id": examples,
            "vector": pa.FixedSizeListArray.from_arrays(matrix_nD.ravel(), width),
            "applied": pa.repeat(True, num_rows),
        }
        schema = vectors_schema(width)
        arrays = [columns.get(field.name, pa.nulls(num_rows, field.type)) for field in schema]
        return pa.table(arrays, schema=schema)

    rows = [{**row, "first": [row["instance_id"]], "second": []} for row in data.instances.to_pylist()]
    instances = draft.add_local(
        stored_rows(f"instances of {name}", pa.Table.from_pylist(rows, data.instances.schema), "probing")
    )
    params = PassagesParams(concept="vectors", split="vectors", rows=content)
    key = draft.add_local(
        LocalStep(STORED.key(TABLE(), params, {}), f"vectors of {name}", build, lambda: len(examples))
    )
    return SetVectors(instances, {FROM_FILE: {0: key}}, {FROM_FILE: key})


def read_vectors(path: Path) -> VectorsFile:
    """Return the vectors of a file: `.npz` with `ids` [n] and `vectors` [n, D], or Parquet with `id` and `vector`.

    Raises:
        InputError: The file cannot be read, an id comes twice, lengths differ, or a number is NaN or infinite.
    """
    ids, matrix_nD = _of_parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _of_npz(path)
    if matrix_nD.ndim != 2 or len(matrix_nD) != len(ids) or not matrix_nD.size:
        raise InputError(f"{path}: {len(ids)} ids and vectors of the shape {matrix_nD.shape}; one vector for each id")
    wrong = np.flatnonzero(~np.isfinite(matrix_nD).all(axis=1))
    if len(wrong):
        count = f"{len(wrong)} vector{'s hold' if len(wrong) > 1 else ' holds'}"
        raise InputError(f"{path}: {count} NaN or infinity, such as that of {ids[wrong[0]]!r}; leave it out")
    if len(set(ids)) < len(ids):
        twice = next(name for number, name in enumerate(ids) if name in set(ids[:number]))
        raise InputError(f"{path}: id {twice!r} comes twice")
    return VectorsFile(path, tuple(ids), matrix_nD)


def _of_npz(path: Path) -> tuple[list[str], np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return list(map(str, archive["ids"].tolist())), np.asarray(archive["vectors"], dtype=np.float32)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a .npz file with the arrays ids and vectors: {error}") from None


def _of_parquet(path: Path) -> tuple[list[str], np.ndarray]:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["id", "vector"])
        lists = table["vector"].combine_chunks()
        widths = set(pc.list_value_length(lists).to_pylist())
        if len(widths) != 1 or None in widths:
            raise InputError(f"{path}: vectors have several lengths, or some are missing; leave those rows out")
        flat = lists.flatten().to_numpy(zero_copy_only=False)
        return list(map(str, table["id"].to_pylist())), flat.reshape(len(lists), -1).astype(np.float32)
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not Parquet with the columns id and vector: {error}") from None
