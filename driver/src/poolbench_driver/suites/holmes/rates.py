"""What scores and predictions say: winning rates, tests of the leader against every other entrant, one set opened."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench_corpora.probing import ProbingData
from poolbench_driver.contract.evidence import MARKED_TEXT
from poolbench_driver.statistics.mcnemar import mcnemar_test
from poolbench_driver.statistics.multiple import holm
from poolbench_driver.statistics.winning_rate import discriminability, published_winning_rate, winning_rate_resamples
from poolbench_driver.suites.holmes.metrics import RATE, SCORE

CI_METHOD = "cluster bootstrap over phenomena, percentile"


def winning_rates(
    rows: Sequence[Row],
    phenomena: Mapping[str, str],
    types: Mapping[str, str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Iterator[Row]:
    """Yield the mean winning rate of each entrant, over all sets and over the sets of each type.

    Intervals come from a bootstrap over phenomena, because sets of one phenomenon are not independent.
    """
    entrants, sets, values_MN = score_matrix(rows)
    for kind in ("", *sorted(set(types.values()))):
        columns = [number for number, name in enumerate(sets) if not kind or types[name] == kind]
        groups = np.array([phenomena[sets[number]] for number in columns])
        weights_RN = np.concatenate([np.ones((1, len(groups))), group_weights(groups, num_resamples, seed)])
        for entrant, measure in zip(entrants, _rates(values_MN[:, columns], weights_RN, groups, kind), strict=True):
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def published_rates(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield winning rates as the public leaderboard computes them, scaled by set (`row`) or by entrant (`column`)."""
    entrants, _, values_MN = score_matrix(rows)
    counts = np.isfinite(values_MN).sum(axis=1).tolist()
    scales: tuple[Literal["row", "column"], ...] = ("row", "column")
    for scale in scales if len(entrants) > 1 else ():
        for entrant, rate, n in zip(entrants, published_winning_rate(values_MN, scale), counts, strict=True):
            metric = f"{RATE}.{scale}"
            measure = (
                Measure.of(metric, float(rate), None, n=n)
                if np.isfinite(rate)
                else Measure.null(metric, Status.COLLAPSED, "its ranks have no spread to scale by", n=n)
            )
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def score_matrix(rows: Sequence[Row]) -> tuple[list[str], list[str], np.ndarray]:
    """Return entrants, sets, and the scores [entrants, sets], NaN where there is none."""
    scored = {(row["entrant"], row["task"]): row["value"] for row in rows if row["metric"] == SCORE}
    entrants, sets = list(dict.fromkeys(name for name, _ in scored)), sorted({name for _, name in scored})
    scores = np.array([scored.get((entrant, name)) for entrant in entrants for name in sets], float)
    return entrants, sets, scores.reshape(len(entrants), len(sets))


def discriminability_by_set(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return how well the order of the entrants on each set agrees with the overall order, or None if undefined."""
    _, sets, values_MN = score_matrix(rows)
    taus = zip(sets, discriminability(values_MN).tolist(), strict=True)
    return {name: tau if np.isfinite(tau) else None for name, tau in taus}


def _of_entrant(rows: Sequence[Row], entrant: str) -> Row:
    """Return the columns of a figure of an entrant over several sets."""
    entrant_row = next(row for row in rows if row["entrant"] == entrant)
    identity = {name: entrant_row.get(name) for name in ("entrant", "layer", "strategy", "strategy_version")}
    return {**identity, "task": None, "params": {}}


def _rates(values_MN: np.ndarray, weights_RN: np.ndarray, groups: np.ndarray, kind: str) -> list[Measure]:
    """Return the winning rate of each entrant over some sets; the first row of the weights gives the value."""
    metric = f"{RATE}.{kind}" if kind else RATE
    rates = []
    for values_N, column in zip(values_MN, winning_rate_resamples(values_MN, weights_RN).T, strict=True):
        is_scored = np.isfinite(values_N)
        fields: dict[str, Any] = {"n": int(is_scored.sum()), "num_groups": len(set(groups[is_scored]))}
        if len(values_MN) < 2:
            reason = "one entrant: name several models, strategies or layers"
            rates.append(Measure.null(metric, Status.TOO_FEW, reason, **fields))
        elif not np.isfinite(column[0]):
            rates.append(Measure.null(metric, Status.TOO_FEW, "no set that another entrant was measured on", **fields))
        else:
            interval = percentile_interval(column[1:]) if len(column) > 1 and fields["num_groups"] > 1 else None
            rates.append(Measure.of(metric, float(column[0]), interval, ci_method=CI_METHOD, **fields))
    return rates


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
EXAMPLES = pa.schema(
    [
        ("set", pa.string()),
        ("entrant", pa.string()),
        ("instance_id", pa.string()),
        ("right", pa.bool_()),
        ("truth", pa.string()),
        ("predicted", pa.string()),
        # The text of each side of a pair, and its spans; none where the whole text is read.
        ("texts", pa.list_(MARKED_TEXT)),
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
    """Return some test instances of a set that the leader predicts correctly, and some that it predicts wrongly."""
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
            "texts": list(texts_of(instances[row["instance_id"]], passages)),
        }
        for answer_rows in answers.values()
        for row in answer_rows[:SHOWN]
    ]
    return pa.Table.from_pylist(rows, EXAMPLES)


def texts_of(instance: Mapping[str, Any], passages: Mapping[str, Row]) -> Iterator[Row]:
    """Yield the text and the spans of an instance, or of each side of a pair. A span of the whole text is left out."""
    for side in ("first", "second"):
        if pieces := [passages[name] for name in instance[side]]:
            text = pieces[0]["text"]
            spans = sorted((piece["span"] for piece in pieces), key=lambda span: span["start"])
            yield {"text": text, "spans": [span for span in spans if span["end"] - span["start"] < len(text)]}
