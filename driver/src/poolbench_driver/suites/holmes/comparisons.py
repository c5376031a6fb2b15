"""What the predictions of a run say: the leader against every other entrant, and one set opened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.statistics.mcnemar import mcnemar_test
from poolbench.statistics.multiple import holm
from poolbench_corpora.probing import ProbingData

#: Instances of the opened set that are shown of each kind.
SHOWN = 3
COMPARISONS = pa.schema(
    [
        ("entrant", pa.string()),  # the leader
        ("other", pa.string()),
        ("set", pa.string()),
        ("n", pa.int64()),  # test instances that both predict
        ("only_entrant", pa.int64()),  # right for the leader alone
        ("only_other", pa.int64()),
        ("p", pa.float64()),  # McNemar's exact test, two-sided
        ("p_holm", pa.float64()),  # over the sets of this pair
    ]
)
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
EXAMPLES = pa.schema(
    [
        ("set", pa.string()),
        ("entrant", pa.string()),
        ("instance_id", pa.string()),
        ("right", pa.bool_()),
        ("truth", pa.string()),
        ("predicted", pa.string()),
        # The text of each side of a pair, and its spans; none where the whole text is read.
        ("texts", pa.list_(pa.struct([("text", pa.string()), ("spans", pa.list_(_SPAN))]))),
    ]
)


def compared(leader: str, predictions: Sequence[Row], sets: Sequence[str]) -> pa.Table:
    """Return McNemar's test of the leader with every other entrant, on the test instances of each set that both have.

    Args:
        predictions: Rows with set, entrant, instance_id, truth and predicted.
        sets: The sets with classes: a real value is not right or wrong.
    """
    right: dict[str, dict[tuple[str, str], bool]] = {}
    for row in predictions:
        if row["set"] in sets and row["predicted"] is not None:
            answers = right.setdefault(row["entrant"], {})
            answers[row["set"], row["instance_id"]] = row["predicted"] == row["truth"]
    first = right.pop(leader, {})
    comparisons = [row for other, second in right.items() for row in _pair(leader, other, first, second)]
    return pa.Table.from_pylist(comparisons, COMPARISONS)


def _pair(leader: str, other: str, first: Mapping[Any, bool], second: Mapping[Any, bool]) -> list[Row]:
    shared: dict[str, list[tuple[bool, bool]]] = {}
    for (name, instance), answer in first.items():
        if (name, instance) in second:
            shared.setdefault(name, []).append((answer, second[name, instance]))
    rows: list[Row] = [
        {
            "entrant": leader,
            "other": other,
            "set": name,
            "n": len(pairs),
            "only_entrant": sum(one and not two for one, two in pairs),
            "only_other": sum(two and not one for one, two in pairs),
        }
        for name, pairs in shared.items()
    ]
    counts = np.array([[row["only_entrant"], row["only_other"]] for row in rows], dtype=int).reshape(-1, 2)
    p_values = mcnemar_test(*counts.T)
    for row, p, adjusted in zip(rows, p_values, holm(p_values), strict=True):
        row |= {"p": float(p), "p_holm": float(adjusted)}
    return rows


def examples(name: str, leader: str, data: ProbingData, predictions: Sequence[Row]) -> pa.Table:
    """Return some right and some wrong test instances of a set, as the leader reads them."""
    tests = [
        row for row in predictions if (row["set"], row["entrant"]) == (name, leader) and row["predicted"] is not None
    ]
    tests.sort(key=lambda row: hashlib.sha256(row["instance_id"].encode()).hexdigest())  # not in the order of a source
    answers = {right: [row for row in tests if (row["predicted"] == row["truth"]) is right] for right in (True, False)}
    instances = {row["instance_id"]: row for row in data.instances.to_pylist()}
    passages = {row["passage_id"]: row for row in data.passages.to_pylist()}
    rows = [
        {
            "set": name,
            "entrant": leader,
            "instance_id": row["instance_id"],
            "right": row["predicted"] == row["truth"],
            "truth": row["truth"],
            "predicted": row["predicted"],
            "texts": list(_texts(instances[row["instance_id"]], passages)),
        }
        for answer_rows in answers.values()
        for row in answer_rows[:SHOWN]
    ]
    return pa.Table.from_pylist(rows, EXAMPLES)


def _texts(instance: Mapping[str, Any], passages: Mapping[str, Row]) -> Iterator[Row]:
    for side in ("first", "second"):
        if pieces := [passages[name] for name in instance[side]]:
            text = pieces[0]["text"]
            spans = sorted((piece["span"] for piece in pieces), key=lambda span: span["start"])
            yield {"text": text, "spans": [span for span in spans if span["end"] - span["start"] < len(text)]}
