"""Vectors of the texts of a file: requests to the extractor, and to the pooler first if words are needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import vector_column, vector_matrix
from poolbench.errors import ConfigError, EndpointError, InputError
from poolbench.statuses import Code, Status
from poolbench_driver.cluster.services import ServiceError, Services
from poolbench_driver.queries.texts import TextLine

#: Texts of one request; a larger --batch-size raises it up to what the services take.
REQUEST_TEXTS, MAX_REQUEST_TEXTS = 64, 1_000
#: Errors that a single text may cause: the others are requested again without it.
SEPARABLE = (Code.INPUT, Code.OUT_OF_MEMORY, Code.TOO_LARGE)

Progress = Callable[[int], None]
Part = tuple[Sequence[TextLine], "pa.Table | str"]


@dataclass(frozen=True)
class Reference:
    """Texts that document frequencies come from (L5), and their description."""

    texts: Sequence[str]
    source: str

    @classmethod
    def of(cls, lines: Sequence[TextLine], source: str) -> Reference:
        """Return the first texts, as many as the pooler takes: keywords must not depend on the batch."""
        texts = [line.text for line in lines if line.invalid is None]
        used = texts[:MAX_REQUEST_TEXTS]
        count = f"{len(used)}" if len(used) == len(texts) else f"the first {len(used)} of {len(texts)}"
        return cls(used, f"{count} texts of {source}")


@dataclass(frozen=True)
class Embedder:
    """Request vectors from the services."""

    services: Services
    settings: dict[str, Any]
    reference: Reference | None = None  # texts of the document frequencies, if the strategy reads annotations
    notes: dict[str, str] = field(default_factory=dict)  # what the pooler reports on its annotations

    def run(self, lines: Sequence[TextLine], progress: Progress) -> pa.Table:
        """Return one row per line, in the order of the lines.

        The columns are id, line, vector, applied, token_share, num_sinks, num_left_out, status and reason.

        Args:
            progress: Called with the number of texts that a response has covered.

        Raises:
            InputError: No text could be embedded, because of the texts themselves.
            PoolbenchError: An error concerns all texts.
        """
        parts = []
        for part in self._parts(lines):
            parts.append(part)
            progress(len(part[0]))
        return _assemble(parts, self.notes)

    def explain(self, text: str, direction: Sequence[float] | None) -> dict[str, Any]:
        """Return the contribution of each token to a text's vector, from `POST /explain`. Raise PoolbenchError."""
        body = {**self.settings, "texts": [text], "direction": direction}
        if self.reference is not None:
            body["annotations"] = self._annotate([text], self.reference)
        return self.services.post("extractor", "explain", body)

    def _parts(self, lines: Sequence[TextLine]) -> Iterator[Part]:
        size = min(max(REQUEST_TEXTS, self.settings.get("batch_size") or 0), MAX_REQUEST_TEXTS)
        for line in lines:
            if line.invalid is not None:
                yield [line], line.invalid
        sound = [line for line in lines if line.invalid is None]
        for start in range(0, len(sound), size):
            yield from self._separated(sound[start : start + size])

    def _separated(self, lines: Sequence[TextLine]) -> Iterator[Part]:
        """Yield the response for some texts. If a text makes the request fail, yield its error and other responses."""
        try:
            yield lines, self._ask(lines)
            return
        except ServiceError as error:
            if error.code not in SEPARABLE:
                raise
            if len(lines) == 1:
                yield lines, str(error)
                return
        middle = len(lines) // 2
        yield from self._separated(lines[:middle])
        yield from self._separated(lines[middle:])

    def _ask(self, lines: Sequence[TextLine]) -> pa.Table:
        texts = [line.text for line in lines]
        body = {**self.settings, "texts": texts, "ids": [line.id for line in lines]}
        if self.reference is not None:
            body["annotations"] = self._annotate(texts, self.reference)
        return self.services.post_table("extractor", "embed", body)

    def _annotate(self, texts: list[str], reference: Reference) -> list[dict[str, Any]]:
        answer = self.services.post("pooler", "annotate", {"texts": texts, "idf_texts": list(reference.texts)})
        note_keys = {"annotator": "pipeline", "annotator_version": "pipeline_version", "dep_scheme": "dep_scheme"}
        self.notes.update({name: str(answer[key]) for name, key in note_keys.items()}, idf_source=reference.source)
        return answer["annotations"]


def _assemble(parts: Sequence[Part], notes: dict[str, str]) -> pa.Table:
    """Return all parts as one table, sorted by line."""
    tables = [answer for _, answer in parts if isinstance(answer, pa.Table)]
    if not tables:
        raise InputError(f"not one text could be embedded; line {parts[0][0][0].number}: {parts[0][1]}")
    if any(table.schema != tables[0].schema or table.schema.metadata != tables[0].schema.metadata for table in tables):
        raise EndpointError("the extractor's model changed between two answers; run the same command again")
    width = tables[0].schema.field("vector").type.list_size
    rows = [
        _rows(lines, answer) if isinstance(answer, pa.Table) else _failed(lines, answer, width)
        for lines, answer in parts
    ]
    metadata = {name.decode(): value.decode() for name, value in (tables[0].schema.metadata or {}).items()}
    table = pa.concat_tables(rows).sort_by("line")
    return table.replace_schema_metadata({**metadata, **notes, "width": str(width)})


def _rows(lines: Sequence[TextLine], answer: pa.Table) -> pa.Table:
    """Return a response with its columns named for readers, and the line of each text."""
    numbers = pa.array([line.number for line in lines], pa.int64())
    renamed = answer.rename_columns(["id" if name == "passage_id" else name for name in answer.column_names])
    return renamed.add_column(1, "line", numbers).replace_schema_metadata(None)


def _failed(lines: Sequence[TextLine], reason: str, width: int) -> pa.Table:
    """Return rows without vector."""
    num = len(lines)
    columns = {
        "id": pa.array([line.id for line in lines], pa.string()),
        "line": pa.array([line.number for line in lines], pa.int64()),
        "vector": vector_column(np.zeros((num, width), dtype=np.float32), np.zeros(num, dtype=bool)),
        "applied": pa.array([False] * num),
        "token_share": pa.array([0.0] * num, pa.float32()),
        "num_sinks": pa.nulls(num, pa.int32()),
        "num_left_out": pa.nulls(num, pa.int32()),
        "status": pa.array([Status.FAILED] * num),
        "reason": pa.array([reason] * num),
    }
    return pa.table(columns)


def num_fallbacks(table: pa.Table) -> int:
    """Return the number of texts in which the strategy selected no token, so that they have the vector of A1."""
    rows = zip(table["status"].to_pylist(), table["applied"].to_pylist(), strict=True)
    return sum(status == Status.OK and not applied for status, applied in rows)


Writer = Callable[[pa.Table, Path], None]


def writer_of(file: Path) -> Writer:
    """Return the writer for a file's suffix. Raise ConfigError for an unknown suffix, InputError for a bad folder."""
    if file.suffix not in WRITERS:
        raise ConfigError(f"{file}: its suffix is {file.suffix or 'missing'!r}; allowed: {', '.join(WRITERS)}")
    if not file.parent.is_dir():
        raise InputError(f"{file}: its folder does not exist; create it first")
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        raise InputError(f"{file} cannot be written: it is a folder, or its folder is not writable")
    return WRITERS[file.suffix]


def write_npy(table: pa.Table, file: Path) -> None:
    """Write vectors as float32 [texts, width], with NaN for failed texts. The format has no room for ids or notes."""
    with file.open("wb") as stream:
        np.save(stream, vector_matrix(table["vector"]))


def write_parquet(table: pa.Table, file: Path) -> None:
    """Write every column, null vectors where a text failed, and the notes as metadata of the schema."""
    import pyarrow.parquet as pq

    pq.write_table(table, file)


def write_safetensors(table: pa.Table, file: Path) -> None:
    """Write tensors `vectors` (NaN for failed texts), `ok` and `line`. Notes and ids go into the file's metadata."""
    from safetensors.numpy import save_file

    tensors = {
        "vectors": vector_matrix(table["vector"]),
        "ok": np.asarray(table["status"].to_pylist()) == Status.OK,
        "line": np.asarray(table["line"], dtype=np.int64),
    }
    notes = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    save_file(tensors, file, metadata={**notes, "ids": json.dumps(table["id"].to_pylist())})


WRITERS: dict[str, Writer] = {".npy": write_npy, ".parquet": write_parquet, ".safetensors": write_safetensors}


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `file` on success and is removed on failure."""
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield partial
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
