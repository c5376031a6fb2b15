"""The pooler's functions on tables: annotation of passages, and hidden states from requests."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.cancellation import check_cancelled
from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.tables import ANNOTATIONS, require_columns, table_from_rows
from poolbench.errors import InputError
from poolbench.pooling.states import KeptPassage, states_table
from poolbench.settings import PoolerSettings
from poolbench.steps.pooler import AnnotateParams
from poolbench_pooler import config
from poolbench_pooler.annotate import (
    BATCH_SIZE,
    Columns,
    Pipeline,
    annotate_texts,
    check_text,
    load_pipeline,
    parse,
    tokenize,
)
from poolbench_pooler.keywords import DocumentFrequencies

#: Texts that a process takes at once: batches of the pipeline, so that results do not depend on the processes.
_PORTION = 4 * BATCH_SIZE
_LOOK_S = 1.0
TEXT_COLUMNS = pa.schema([("passage_id", pa.string()), ("text", pa.string())])
Progress = Callable[[int, int], None]


def parse_together(pipeline: Pipeline, texts: Sequence[str], names: Sequence[str]) -> Iterator[Columns]:
    """Yield the annotation columns of each text, parsed in POOLBENCH_POOLER_PROCESSES processes.

    The columns are equal to the columns from `parse`.

    Raises:
        InputError: A text is too long or is not valid Unicode. It is raised before the first text is parsed.
        MemoryError: A process was killed. The task is then delivered again.
    """
    number = PoolerSettings.load().processes
    if number == 1 or len(texts) <= _PORTION:
        yield from parse(pipeline, texts, names)
        return
    for text, name in zip(texts, names, strict=True):
        check_text(text, name)
    portions = [list(texts[start : start + _PORTION]) for start in range(0, len(texts), _PORTION)]
    pool = _processes(number)
    pending = [pool.submit(_parse, pipeline.name, portion) for portion in portions]
    try:
        for future in pending:
            for columns in future.result():
                check_cancelled()
                yield columns
    except BrokenProcessPool as error:
        _processes.cache_clear()
        raise MemoryError("a process that parses texts was killed, perhaps for lack of memory") from error
    finally:
        for future in pending:
            future.cancel()


@lru_cache(maxsize=1)
def _processes(number: int) -> ProcessPoolExecutor:
    # Not forked: a replica has many threads, and a lock of one of them would stay locked in the copy.
    return ProcessPoolExecutor(
        number, multiprocessing.get_context("spawn"), initializer=_end_with_owner, initargs=(os.getpid(),)
    )


def _parse(pipeline: str, texts: Sequence[str]) -> list[Columns]:
    return list(parse(load_pipeline(pipeline), texts))


def _end_with_owner(owner: int) -> None:
    """End this process when its owner is gone.

    If the owner is killed by SIGKILL, no other process ends this process.
    """

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(_LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="owner-watch", daemon=True).start()


def frequencies_of(pipeline: Pipeline, texts: Sequence[str]) -> DocumentFrequencies:
    """Return the document frequencies of texts. Texts are split into words as in annotation."""
    return DocumentFrequencies.of(tokenize(pipeline.nlp, text).words for text in texts)


def idf_texts(passages: pa.Table, idf_passages: pa.Table | None) -> list[str]:
    """Return the texts for document frequencies: passages of the train split only.

    Args:
        passages: The passages to annotate.
        idf_passages: Passages to take the train split from. If None, `passages` are used.

    Raises:
        InputError: There is no train passage, or no column `split`.
    """
    table = passages if idf_passages is None else idf_passages
    if "split" not in table.column_names:
        raise InputError("passages have no column 'split', so train texts for the IDF cannot be found")
    rows = zip(table["text"].to_pylist(), table["split"].to_pylist(), strict=True)
    texts = [text for text, split in rows if split == "train"]
    if not texts:
        raise InputError(
            "no passage of split 'train' to take document frequencies from; give the train passages as idf_passages"
        )
    return texts


def annotate_passages(
    pipeline: Pipeline,
    passages: pa.Table,
    train_texts: Sequence[str],
    params: AnnotateParams,
    progress: Progress | None = None,
) -> pa.Table:
    """Return ANNOTATIONS of PASSAGES in their order.

    The metadata hold the pipeline, its version and label scheme, and the numbers of keywords and IDF documents. Raise
    TooLargeError if the passages are too long together.
    """
    require_columns(passages, TEXT_COLUMNS, "passages")
    _require_characters("the passages", passages["text"].to_pylist(), config.MAX_TASK_CHARACTERS)
    names, texts = passages["passage_id"].to_pylist(), passages["text"].to_pylist()
    frequencies = frequencies_of(pipeline, train_texts)
    rows = []
    for row in annotate_texts(pipeline, names, texts, frequencies, params.num_keywords, parse_together):
        rows.append(row)
        if progress is not None:
            progress(len(rows), len(texts))
    notes = pipeline.describe() | {"num_keywords": str(params.num_keywords), "idf_documents": str(len(train_texts))}
    return table_from_rows(rows, ANNOTATIONS).replace_schema_metadata(notes)


def annotate_rows(
    pipeline: Pipeline, texts: Sequence[str], train_texts: Sequence[str], num_keywords: int
) -> list[dict[str, Any]]:
    """Return one annotation row per text. The id of a row is the position of its text.

    Raise TooLargeError if the texts are too long together.
    """
    _require_characters("texts", texts, config.MAX_REQUEST_CHARACTERS)
    _require_characters("idf_texts", train_texts, config.MAX_IDF_CHARACTERS)
    names = [str(index) for index in range(len(texts))]
    frequencies = frequencies_of(pipeline, train_texts)
    return list(annotate_texts(pipeline, names, texts, frequencies, num_keywords))


def annotator(idf_texts: Sequence[str] | None = None) -> Callable[[Sequence[str]], list[dict[str, Any]]]:
    """Return a function that annotates texts without a cluster, for `PoolingEncoder`.

    Args:
        idf_texts: Texts for document frequencies. If None, the rows have no keywords. Frequencies of the annotated
            texts themselves would make a vector depend on the other texts of its batch.
    """
    params = AnnotateParams()
    pipeline = load_pipeline(params.pipeline)
    frequencies = None if idf_texts is None else frequencies_of(pipeline, idf_texts)

    def annotate(texts: Sequence[str]) -> list[dict[str, Any]]:
        names = [str(index) for index in range(len(texts))]
        return list(annotate_texts(pipeline, names, texts, frequencies, params.num_keywords))

    return annotate


def _require_characters(what: str, texts: Sequence[str | None], limit: int) -> None:
    """Raise TooLargeError if the texts are too long together."""
    require_at_most(f"characters in {what}", sum(len(text or "") for text in texts), limit, "send fewer at a time")


def states_of(request: config.PoolRequest) -> pa.Table:
    """Return a STATES table of one row with the hidden states of a request.

    Raises:
        TooLargeError: The hidden states have too many numbers.
        InputError: The hidden states are malformed, another list differs in length, or no token is real.
    """
    numbers = sum(map(len, request.hidden_states))
    require_at_most("numbers in hidden_states", numbers, config.MAX_STATES, "pool kept states in a run instead")
    num_tokens, width = len(request.hidden_states), len(request.hidden_states[0])
    if width == 0 or any(len(state) != width for state in request.hidden_states):
        raise InputError(f"hidden_states must be [T][D] with one width D > 0; the first row has {width}")
    for name in ("offsets", "special", "inflow"):
        values = getattr(request, name)
        if values is not None and len(values) != num_tokens:
            raise InputError(f"{name} has {len(values)} entries for {num_tokens} hidden states; they must agree")
    offsets = request.offsets or [(index, index + 1) for index in range(num_tokens)]
    special = np.array(request.special or [False] * num_tokens, dtype=bool)
    if special.all():
        raise InputError("special marks every token; at least one must be a real token")
    passage = KeptPassage(
        position=0,
        passage_id="0",
        hidden_TD=np.asarray(request.hidden_states, dtype=np.float32),
        special=special,
        token_ids=np.zeros(num_tokens, np.int64),
        offsets=np.asarray(offsets, dtype=np.int64),
        signals={} if request.inflow is None else {"inflow": np.asarray(request.inflow)},
    )
    return states_table([passage], width)
