"""Vectors of single texts, for `POST /embed` and `PoolingEncoder`."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from poolbench.config import layer_index
from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tables import ANNOTATIONS, table_from_rows
from poolbench.errors import ConfigError, InputError
from poolbench.pooling.batch import Request
from poolbench.pooling.context import Words
from poolbench.statuses import Status
from poolbench_extractor.config import MAX_REQUEST_CHARACTERS, EmbedRequest
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Encoded, PassageTexts, Reading
from poolbench_extractor.models.decoder import Decoder

_PER_WORD = [name for name in ANNOTATIONS.names if name != "passage_id"]


def unsupervised(strategy: str, params: Mapping[str, Any] | None = None) -> Request:
    """Return a strategy that needs only texts. Raise UnknownStrategyError or ConfigError for any other strategy."""
    pooling = Request.of(strategy, params)
    if "labels" in pooling.strategy.needs:
        raise ConfigError(
            f"strategy {strategy} is supervised: it learns from labelled passages, and texts have no labels; "
            "it is computed in a run (`poolbench-driver run --strategies ...`), inside the folds of the probe"
        )
    if pooling.strategy.reads_counts or pooling.strategy.common_component:
        raise ConfigError(
            f"strategy {strategy} learns from the train passages of all concepts of a run: it is computed in a run "
            "(`poolbench-driver run --strategies ...`)"
        )
    return pooling


def text_id(text: str) -> str:
    """Return the default id of a text: a hash of its content, independent of order and of other texts."""
    return "text-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def passages_of(request: EmbedRequest, pooling: Request) -> PassageTexts:
    """Return the texts of a request with their ids and annotations.

    Raises:
        TooLargeError: The texts are too long together.
        InputError: The lists differ in length, two texts have one id, an annotation is malformed, or the strategy
            reads annotations and the request has none.
    """
    characters = sum(map(len, request.texts))
    require_at_most("characters in texts", characters, MAX_REQUEST_CHARACTERS, "send fewer texts at a time")
    optional_ids = request.ids or [None] * len(request.texts)
    _require_length("ids", optional_ids, request.texts)
    ids = [name if name is not None else text_id(text) for name, text in zip(optional_ids, request.texts, strict=True)]
    texts: dict[str, str] = {}
    for name, text in zip(ids, request.texts, strict=True):
        if texts.setdefault(name, text) != text:
            raise InputError(f"id {name!r} stands for two texts; ids must differ")
    if not pooling.strategy.reads_annotations:
        return PassageTexts(ids, request.texts)
    if request.annotations is None:
        raise InputError(
            f"strategy {pooling.id} reads annotations: send the rows that `POST /pooler/annotate` answers for these "
            "texts as `annotations`"
        )
    _require_length("annotations", request.annotations, request.texts)
    rows = [row.model_dump() for row in request.annotations]
    return PassageTexts(ids, request.texts, dict(zip(ids, words_of(rows), strict=True)))


def words_of(rows: Sequence[Mapping[str, Any]]) -> list[Words]:
    """Read the words of annotation rows from the pooler. Raise InputError with the number of a malformed row."""
    for number, row in enumerate(rows):
        columns = [name for name in _PER_WORD if name != "keyword" or row.get(name) is not None]
        absent = [name for name in columns if not isinstance(row.get(name), list)]
        if absent:
            raise InputError(f"annotation {number} lacks the list {absent[0]!r}; needed: {', '.join(_PER_WORD)}")
        if len({len(row[name]) for name in columns}) > 1:
            raise InputError(f"annotation {number}: its lists differ in length; each has one entry a word")
        if any(isinstance(head, int) and not 0 <= head < len(row["head"]) for head in row["head"]):
            raise InputError(f"annotation {number}: a head is the index of a word, from 0 to {len(row['head']) - 1}")
    try:
        table = table_from_rows([dict(row) for row in rows], ANNOTATIONS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
        raise InputError(f"annotations: {error}") from None
    return [Words.from_row(row) for row in table.to_pylist()]


def reading_of(request: EmbedRequest) -> Reading:
    """Return the settings of a request for tokens, batches and attention sinks."""
    return Reading(request.include_bos, request.add_bos, request.max_length, request.limits(), request.sink_rule)


def embed(
    decoder: Decoder, request: EmbedRequest, pooling: Request, passages: PassageTexts | Sequence[Encoded]
) -> pa.Table:
    """Return VECTORS of the texts. The metadata name the model, the strategy and the settings.

    Args:
        passages: The texts, or the texts as tokens.

    Raises:
        LayerError: The model has no such layer.
    """
    layer = layer_index(request.layer, decoder.num_blocks)
    (table,) = extract(decoder, passages, {layer: [pooling]}, reading=reading_of(request)).values()
    notes = {
        "model": request.model,
        "model_revision": decoder.revision,
        "dtype": request.reference().dtype,
        "strategy": pooling.id,
        "strategy_version": str(pooling.strategy.version),
        "params": json.dumps(pooling.params, sort_keys=True),
        "layer": str(layer),
        "include_bos": json.dumps(request.include_bos),
        "add_bos": json.dumps(request.add_bos),
        "sinks": request.sinks,
    }
    return table.replace_schema_metadata(notes)


def as_stream(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def as_json(table: pa.Table) -> dict[str, Any]:
    """Return a table of vectors as JSON: its metadata, the number of failed texts, and one list per column."""
    notes: dict[str, Any] = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    for name in ("layer", "strategy_version", "params", "include_bos", "add_bos"):
        notes[name] = json.loads(notes[name])
    columns = {f"{name}s" if name == "vector" else name: table[name].to_pylist() for name in table.column_names}
    columns["ids"] = columns.pop("passage_id")
    num_failed = sum(status != Status.OK for status in columns["status"])
    return {**notes, "num_failed": num_failed, **columns}


def _require_length(name: str, values: Sequence[Any], texts: Sequence[str]) -> None:
    if len(values) != len(texts):
        raise InputError(f"{name} has {len(values)} entries for {len(texts)} texts; they must agree")
