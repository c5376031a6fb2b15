"""Write probing sets as tables: passages once, and a row for each instance that refers to them."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from poolbench.errors import CorpusError
from poolbench_corpora.probing import ProbingData, ProbingSet
from poolbench_corpora.probing.samples import PAIRS, PIECES, Span, word_type
from poolbench_corpora.probing.shipped import COLUMNS, MANIFEST, MANIFEST_COLUMNS, PASSAGES, SETS, file_of

Row = dict[str, Any]
#: Columns of a table of instances; one without any value is left out.
_INSTANCES = pa.schema(
    [
        ("id", pa.string()),
        ("passage", pa.int32()),
        ("span", pa.string()),
        ("passage_2", pa.int32()),
        ("span_2", pa.string()),
        ("label", pa.string()),
        ("split", pa.string()),
        ("group", pa.string()),
        ("word", pa.string()),
    ]
)


def write_tables(data: Sequence[tuple[ProbingSet, ProbingData]], folder: Path) -> None:
    """Write sets, their passages and a manifest with the hash of each file. The same sets give the same bytes.

    Raises:
        CorpusError: The pieces of a span lie in several texts.
    """
    texts: dict[str, int] = {}
    files = dict[str, pa.Table]()
    for definition, set_data in data:
        files[file_of(definition.id)] = _instances(definition, set_data, texts)
    definitions = [definition for definition, _ in data]
    rows = [_definition(definition, set_data) for definition, set_data in data]
    files |= {
        SETS: pa.Table.from_pylist(rows, COLUMNS),
        PASSAGES: pa.table({"text": list(texts)}, pa.schema([pa.field("text", pa.string(), nullable=False)])),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in files.items():
        _write(table, folder / name)
    by_file = {file_of(definition.id): [definition] for definition in definitions}
    _write_manifest({name: by_file.get(name, definitions) for name in sorted(files)}, folder)


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Neighbouring passages and instances are alike, so what follows the one before is short.
    encoding = {
        field.name: "DELTA_BINARY_PACKED" if pa.types.is_integer(field.type) else "DELTA_BYTE_ARRAY"
        for field in table.schema
        if field.name in ("id", "group", "passage", "passage_2", "text")
    }
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in table.schema.names if name not in encoding],
        column_encoding=encoding,
        write_statistics=False,
        row_group_size=max(1, table.num_rows),
    )


def _write_manifest(definitions_of: Mapping[str, Sequence[ProbingSet]], folder: Path) -> None:
    """Write source, commit, licence and hash of each file."""
    with (folder / MANIFEST).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(MANIFEST_COLUMNS)
        for name, definitions in definitions_of.items():
            joined = [
                "; ".join(sorted({getattr(definition, field) for definition in definitions}))
                for field in ("source", "revision", "licence")
            ]
            writer.writerow([name, *joined, hashlib.sha256((folder / name).read_bytes()).hexdigest()])


def _definition(definition: ProbingSet, data: ProbingData) -> Row:
    labels = sorted({row for row in data.instances["label"].to_pylist() if row is not None})
    row = definition.model_dump(mode="json", include=set(COLUMNS.names))
    return row | {"classes": labels or None, "instances": data.instances.num_rows}


def _instances(definition: ProbingSet, data: ProbingData, texts: dict[str, int]) -> pa.Table:
    """Return the instances of a set; passages that it is the first to need are added to `texts`."""
    passages = {
        row["passage_id"]: Span(row["text"], row["span"]["start"], row["span"]["end"])
        for row in data.passages.to_pylist()
    }
    rows = [_row(definition, row, passages, texts) for row in data.instances.to_pylist()]
    table = pa.Table.from_pylist(rows, _INSTANCES)
    needless = {name for name in _INSTANCES.names if table[name].null_count == table.num_rows}
    if table["group"].equals(table["id"]):
        needless.add("group")
    return table.drop_columns(list(needless))


def _row(definition: ProbingSet, row: Row, passages: Mapping[str, Span], texts: dict[str, int]) -> Row:
    prefix = f"{definition.id}/"
    first, second = ([passages[name] for name in row[side]] for side in ("first", "second"))
    name, group = row["instance_id"].removeprefix(prefix), row["group"].removeprefix(prefix)
    of_spans = definition.input in ("span", *PIECES)
    values: Row = {"id": name, "split": row["split"], "group": group}
    values["word"] = None if row["word"] in (None, word_type(*first)) else row["word"]
    values["label"] = repr(row["value"]) if row["label"] is None else row["label"]
    for ending, spans in (("", first), ("_2", second))[: 2 if definition.input in PAIRS else 1]:
        if len({span.text for span in spans}) != 1:
            raise CorpusError(f"{row['instance_id']}: the pieces of a span lie in several texts; a table has one")
        values[f"passage{ending}"] = texts.setdefault(spans[0].text, len(texts))
        values[f"span{ending}"] = " ".join(f"{span.start}:{span.end}" for span in spans) if of_spans else None
    return values
