"""Arrow schemas of every table that crosses a service boundary.

Vectors are `fixed_size_list<float32>[width]`, so their schemas are functions of the width. A table may have more
columns than its schema, never fewer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.errors import CellError, InputError
from poolbench.statuses import Status

#: The columns of a row that say why it has no value.
ERROR_COLUMNS = ("status", "reason")

_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])

PASSAGES = pa.schema(
    [
        ("passage_id", pa.string()),
        ("concept", pa.string()),
        ("split", pa.string()),  # train, test or scorer
        ("label", pa.int8()),  # 1 positive, 0 negative
        ("text", pa.string()),
        ("domain", pa.string()),
        ("doc_id", pa.string()),  # "<source>/<document>"
        ("pair_id", pa.string()),  # null where the concept has no matched pairs
        ("source", pa.string()),
        ("licence", pa.string()),
        ("token_count", pa.int32()),
        ("signal", pa.list_(_SPAN)),  # character ranges that carry a planted signal
    ]
)

ANNOTATIONS = pa.schema(
    [
        ("passage_id", pa.string()),
        ("word_start", pa.list_(pa.int32())),
        ("word_end", pa.list_(pa.int32())),
        ("upos", pa.list_(pa.string())),
        ("dep", pa.list_(pa.string())),
        ("head", pa.list_(pa.int32())),  # word index; a root points at itself
        ("lemma", pa.list_(pa.string())),
        ("entity", pa.list_(pa.string())),  # entity type or ""
        ("sentence", pa.list_(pa.int32())),
        ("clause", pa.list_(pa.int32())),
        ("keyword", pa.list_(pa.bool_())),
    ]
)

CALIBRATION = pa.schema([("layer", pa.int32()), ("median_residual_norm", pa.float64()), ("num_tokens", pa.int64())])

#: How often each token id occurs among the real tokens of the train passages of all concepts of a run.
TOKEN_COUNTS = pa.schema([("token_id", pa.int64()), ("count", pa.int64())])

MEASURES = pa.schema(
    [
        ("metric", pa.string()),
        ("direction", pa.string()),
        ("value", pa.float64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("ci_method", pa.string()),
        ("n", pa.int64()),
        ("num_groups", pa.int64()),
        ("coverage", pa.float64()),
        ("seed", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("params", pa.string()),  # JSON
    ]
)

PROBE_SCORES = pa.schema(
    [
        ("passage_id", pa.string()),
        ("split", pa.string()),
        ("fold", pa.int32()),  # -1 on the test split
        ("label", pa.int8()),
        ("group", pa.string()),
        ("score", pa.float64()),
    ]
)

#: What a probing task asks of each instance: a text, a span, or a pair of them. Lists of passages are averaged.
INSTANCES = pa.schema(
    [
        ("instance_id", pa.string()),
        ("first", pa.list_(pa.string())),  # passage_ids of the vectors; more than one: a span of pieces
        ("second", pa.list_(pa.string())),  # those of the second of a pair, concatenated; empty throughout without
        ("label", pa.string()),  # class; null in a regression
        ("value", pa.float64()),  # real value; null where there are classes
        ("split", pa.string()),  # train, dev or test; null throughout where none is given
        ("group", pa.string()),  # instances of one group never part; null: on its own
        ("word", pa.string()),  # word type, for control labels per type; null throughout without
    ]
)

#: Texts of words whose preference shift is measured. The mean of the neutral texts stands for what all words share.
WORDS = pa.schema(
    [
        ("passage_id", pa.string()),
        ("text", pa.string()),
        ("word", pa.string()),
        ("group", pa.string()),  # domain, positive, negative or neutral
        ("template", pa.int32()),  # number of the sentence around the word; -1: the bare word
    ]
)

#: Valence of each word, or position of each text along a direction, before and after a change of the model.
WORD_SHIFTS = pa.schema(
    [
        ("word", pa.string()),  # or passage_id
        ("group", pa.string()),  # domain, positive or negative; null for passages
        ("before", pa.float64()),
        ("after", pa.float64()),
        ("change", pa.float64()),
        ("standout", pa.float64()),  # distance of the change from the median, in 1.4826 median absolute deviations
        ("x_before", pa.float64()),  # in the plane of the first two principal components
        ("y_before", pa.float64()),
        ("x_after", pa.float64()),
        ("y_after", pa.float64()),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: Cosine of each word of the domain with each liked and disliked word, before and after a change of the model.
WORD_COSINES = pa.schema(
    [
        ("word", pa.string()),
        ("other", pa.string()),  # the liked or disliked word
        ("group", pa.string()),  # its group: positive or negative
        ("before", pa.float64()),
        ("after", pa.float64()),
    ]
)

#: Features of a sparse autoencoder, pooled over the tokens of a passage. The metadata has `num_features` and
#: `autoencoder`, its id.
FEATURES = pa.schema(
    [
        ("passage_id", pa.string()),
        ("part", pa.string()),  # all; also marked and unmarked where the passage has marks
        ("num_tokens", pa.int32()),
        ("features", pa.list_(pa.int32())),  # numbers of the features that are not 0 throughout, ascending
        ("means", pa.list_(pa.float32())),  # their means over the tokens of the part
        ("l0", pa.float32()),  # features that are not 0, mean over the tokens
        ("squared_error", pa.float64()),  # of the reconstruction, summed over the tokens; null where there is none
        ("squared_norm", pa.float64()),  # of the states about the mean of all tokens of the table, summed
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: Pairs of stories about a subject that differ in one respect, one row per pair.
STORIES = pa.schema(
    [
        ("row_id", pa.string()),
        ("subject", pa.string()),
        ("first", pa.string()),  # passage_id of the story on the high side
        ("second", pa.string()),  # passage_id of the story on the low side
    ]
)

#: Scores of a sparse autoencoder by subject, and the features that differ most between its stories.
SUBJECT_SCORES = pa.schema(
    [
        ("subject", pa.string()),
        ("num_rows", pa.int32()),  # pairs of stories that were used
        ("contrastive", pa.float64()),
        ("independent", pa.float64()),  # null where the other subjects are needed and there are none
        ("interpretability", pa.float64()),
        ("held_out", pa.float64()),  # null with one pair of stories
        (
            "features",  # strongest first
            pa.list_(
                pa.struct(
                    [
                        ("feature", pa.int32()),
                        ("first", pa.float64()),  # mean over the stories of the high side
                        ("second", pa.float64()),  # and of the low side
                        ("sign", pa.int8()),  # of first - second
                    ]
                )
            ),
        ),
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: How much more of a feature the high stories of a subject have than the low ones, one row per subject and feature.
SUBJECT_FEATURES = pa.schema(
    [
        ("subject", pa.string()),
        ("feature", pa.int32()),
        ("first", pa.float32()),  # mean over the stories of the high side
        ("second", pa.float32()),  # and of the low side
        ("difference", pa.float32()),  # first - second; never 0
        ("z", pa.float32()),  # z of abs(difference) among all features of the autoencoder on this subject
    ]
)

PROMPTS = pa.schema([("prompt_id", pa.string()), ("text", pa.string())])
#: Prompts of a chat: the model is asked for the `instruction`, and its reply begins with the `text`.
CHAT_PROMPTS = pa.schema([*PROMPTS, ("instruction", pa.string())])

#: Texts that others steered, before their tokens are known.
IMPORTED_TEXTS = pa.schema(
    [
        ("text_id", pa.string()),
        ("prompt_id", pa.string()),
        ("direction_key", pa.string()),
        ("strength", pa.float64()),  # as TEXTS
        ("prompt", pa.string()),
        ("text", pa.string()),  # without the prompt
    ]
)

TEXTS = pa.schema(
    [
        ("text_id", pa.string()),
        ("prompt_id", pa.string()),
        ("direction_key", pa.string()),  # "unsteered" at strength 0
        ("strength", pa.float64()),  # in median residual norms, or absolute as alpha is
        ("alpha", pa.float64()),  # coefficient of the unit vector
        ("layer", pa.int32()),
        ("prompt", pa.string()),
        ("text", pa.string()),  # generated part only
        ("token_ids", pa.list_(pa.int32())),
        ("num_tokens", pa.int32()),
        ("repeated_4grams", pa.float64()),  # share of 4-grams seen before in the same text
        ("vector_hash", pa.string()),
        ("positions_changed", pa.int32()),
        ("positions_expected", pa.int32()),
    ]
)

#: Further columns of TEXTS where texts were sampled; greedy ones do not have them.
SAMPLES = pa.schema([("sample", pa.int32()), ("sample_seed", pa.int64()), ("temperature", pa.float64())])

FLUENCY = pa.schema([("text_id", pa.string()), ("mean_nll", pa.float64()), ("num_tokens", pa.int32())])

SCORES = pa.schema([("text_id", pa.string()), ("scorer", pa.string()), ("score", pa.float64())])


#: Likelihood of given texts under the model as it is (`unsteered`, strength 0) and steered at every position.
DAMAGE = pa.schema(
    [
        ("passage_id", pa.string()),
        ("direction_id", pa.string()),
        ("strength", pa.float64()),  # as TEXTS
        ("alpha", pa.float64()),  # coefficient of the unit vector
        ("log_likelihood", pa.float64()),  # nats, summed over the tokens that are predicted
        ("num_tokens", pa.int64()),  # tokens that are predicted: those with a position before them
        ("kl", pa.float64()),  # KL(unsteered || steered) over the whole vocabulary, nats, mean over these tokens
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)

#: Tokens whose logits a direction raises and lowers most.
LENS = pa.schema(
    [
        ("direction_id", pa.string()),
        ("strength", pa.float64()),  # null: the direction itself through final norm and head; else measured on texts
        ("promoted", pa.bool_()),  # by direction, strength and side, the strongest first
        ("token_id", pa.int64()),
        ("token", pa.string()),
        ("value", pa.float64()),  # change of the logit beyond the mean change over the vocabulary
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)


def vectors_schema(width: int, num_parts: int = 1, readout: str | None = None) -> pa.Schema:
    """Return the schema of pooled vectors of a strategy at a layer, one row per passage.

    For a strategy with a readout, each row concatenates `num_parts` vectors of `width`, and the metadata of the schema
    holds the number of parts and the name of the readout.
    """
    notes = None if readout is None else {"num_parts": str(num_parts), "readout": readout}
    return pa.schema(
        [
            ("passage_id", pa.string()),
            ("vector", pa.list_(pa.float32(), num_parts * width)),  # null where the passage failed
            ("applied", pa.bool_()),  # false: nothing selected, fell back to A1
            ("token_share", pa.float32()),  # share of tokens that carry weight
            ("num_sinks", pa.int32()),  # attention sinks of the passage at this layer
            ("num_left_out", pa.int32()),  # sinks that the strategy left out: all or none
            ("status", pa.string()),
            ("reason", pa.string()),
        ],
        metadata=notes,
    )


def parts_of(table: pa.Table) -> tuple[int, str | None]:
    """Return the number of vectors in each row of a VECTORS table, and their readout.

    Without parts, return 1 and None.
    """
    notes = table.schema.metadata or {}
    if b"readout" not in notes:
        return 1, None
    return int(notes[b"num_parts"]), notes[b"readout"].decode()


#: Whether the probes of a pilot were right, one row for each seed, size, fold and test instance of the fold.
PILOT_ANSWERS = pa.schema(
    [
        ("seed", pa.int64()),
        ("size", pa.int64()),  # instances that were asked for: of training, development and test together
        ("fold", pa.int64()),  # from 0
        ("num_train", pa.int64()),  # instances that the probe was fitted on
        ("num_dev", pa.int64()),  # instances that it was chosen on
        ("instance_id", pa.string()),
        ("right", pa.bool_()),  # null where there is no vector or no probe
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)


def predictions_schema(answer: pa.DataType) -> pa.Schema:
    """Return the schema of the predictions of a probing task, one row per seed and instance of dev or test.

    An instance without a vector has one row with status and reason, but without seed and predictions. `answer` is the
    type of the labels, or float64 for a regression.
    """
    return pa.schema(
        [
            ("instance_id", pa.string()),
            ("split", pa.string()),  # dev or test; of an instance without a vector as given, or null
            ("seed", pa.int64()),
            ("seen", pa.bool_()),  # the same passages, in the same order, are an instance of train
            ("truth", answer),
            ("predicted", answer),
            ("control_truth", answer),  # null without a control task
            ("control_predicted", answer),  # null also where the control probe failed
            ("status", pa.string()),
            ("reason", pa.string()),
        ]
    )


def features_schema(num_features: int, autoencoder: str) -> pa.Schema:
    """Return the schema FEATURES with the number of features and the id of the autoencoder as metadata."""
    return FEATURES.with_metadata({"num_features": str(num_features), "autoencoder": autoencoder})


def autoencoder_of(table: pa.Table) -> tuple[int, str]:
    """Return the number of features and the autoencoder's id from the metadata of a FEATURES table.

    Raise InputError if the metadata lacks either value.
    """
    notes = table.schema.metadata or {}
    count = notes.get(b"num_features", b"")
    if not count.isdigit() or b"autoencoder" not in notes:
        raise InputError("the metadata of a table of features must hold num_features and autoencoder")
    return int(count), notes[b"autoencoder"].decode()


#: Arrow type of kept states by their dtype. Arrow has no bfloat16: its bits are stored as they are, in uint16.
HIDDEN_TYPES = {"float32": pa.float32(), "float16": pa.float16(), "bfloat16": pa.uint16()}


def states_schema(width: int, dtype: str = "float32") -> pa.Schema:
    """Return the schema of kept hidden states of a layer, one row per passage.

    A passage has T positions, including special tokens, and states of width D. The states keep the dtype of the model,
    which the metadata gives as `hidden_dtype`, a name from `HIDDEN_TYPES`. Imported states have no token ids and no
    ranges.
    """
    return pa.schema(
        [
            ("passage_id", pa.string()),
            ("position", pa.int32()),  # row in the passages; shards come in order of completion
            ("token_ids", pa.list_(pa.int32())),
            ("token_start", pa.list_(pa.int32())),  # character range of each token
            ("token_end", pa.list_(pa.int32())),
            ("special", pa.list_(pa.bool_())),  # added by the tokenizer: no real token
            ("hidden", pa.list_(pa.list_(HIDDEN_TYPES[dtype], width))),  # null where the passage failed
            ("signals", pa.map_(pa.string(), pa.list_(pa.float32()))),  # by name: T values, or H x T
            ("status", pa.string()),
            ("reason", pa.string()),
        ],
        metadata={"hidden_dtype": dtype},
    )


def directions_schema(width: int) -> pa.Schema:
    """Return the schema of unit directions of one strategy at one layer, one row per construction method."""
    return pa.schema(
        [
            ("direction_id", pa.string()),  # C1, C3 ..., null_007 or common_component
            ("vector", pa.list_(pa.float32(), width)),
            ("raw_norm", pa.float64()),
            ("seed", pa.int64()),
            ("status", pa.string()),
            ("reason", pa.string()),
        ]
    )


def error_of(row: Mapping[str, Any], otherwise: str = "no reason was recorded") -> CellError:
    """Return the error that a row without a value records. If the row has no reason, the reason is `otherwise`."""
    return CellError(row["status"] or Status.FAILED, row["reason"] or otherwise)


def table_from_rows(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make a table from dictionaries. Columns that a dictionary lacks are null in its row."""
    names = schema.names
    return pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows], schema=schema)


def vector_column(matrix: np.ndarray, valid: np.ndarray | None = None) -> pa.FixedSizeListArray:
    """Make a vector column from `matrix` [rows, width]. Rows where `valid` is false become null."""
    flat = pa.array(np.ascontiguousarray(matrix, dtype=np.float32).reshape(-1))
    mask = None if valid is None else pa.array(~np.asarray(valid, dtype=bool))
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1], mask=mask)


def vector_matrix(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return the vectors of a column as float32 [rows, width]. Null rows become NaN."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    width = array.type.list_size
    if array.null_count == 0:
        return np.asarray(array.flatten(), dtype=np.float32).reshape(-1, width)
    matrix = np.full((len(array), width), np.nan, dtype=np.float32)
    valid = np.asarray(array.is_valid())
    matrix[valid] = np.asarray(array.drop_null().flatten(), dtype=np.float32).reshape(-1, width)
    return matrix


def require_columns(table: pa.Table, schema: pa.Schema, what: str) -> None:
    """Raise InputError if `table` lacks a column of `schema`."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise InputError(f"{what} lacks the columns {', '.join(missing)}; it has {', '.join(table.column_names)}")
