"""From the probes of a run to its tables: scores by set and entrant, winning rates, and predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from poolbench.config import EMBEDDING, EMBEDDING_INDEX, FINAL
from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statistics import group_weights, percentile_interval
from poolbench.statistics.winning_rate import discriminability, pair_counts, published_winning_rate
from poolbench.statuses import Status
from poolbench_driver.loop import Failure
from poolbench_driver.suites.holmes import RATE, SCORE
from poolbench_driver.suites.holmes.comparisons import compared, examples
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope, Probed
from poolbench_driver.suites.source import RowSource, missing, strategy_columns
from poolbench_driver.suites.suite import Tables

#: The score of a set: of classes, or of values.
SCORES = ("probe.macro_f1", "probe.pearson")
#: The score of each seed.
SEEDS = pa.schema(
    [
        ("protocol", pa.string()),
        ("set", pa.string()),
        ("entrant", pa.string()),
        ("number", pa.int64()),  # of the seed, from 0
        ("value", pa.float64()),
    ]
)
CI_METHOD = "cluster bootstrap over phenomena, percentile"


def assemble(plan: HolmesPlan, source: RowSource) -> Tables:
    """Return result rows; tables of sets, predictions, comparisons, examples and notes; rows by published definitions.

    The published rows are in a table of their own, so that they are not ranked.
    """
    scope, config = plan.scope, plan.scope.config
    rows = [row for at, keys in plan.probes.items() for row in _measures(scope, at, keys["measures"], source)]
    phenomena, types = {name: each.phenomenon for name, each in scope.sets.items()}, types_of(scope)
    rows += winning_rates(rows, phenomena, types, num_resamples=config.budget.num_bootstrap, seed=config.seed)
    predictions = [row for at, keys in plan.probes.items() for row in _predictions(scope, at, keys, source)]
    sets = _sets(scope, rows)
    others = {"sets": sets, "predictions": predictions, "notes": [{"note": each} for each in scope.notes]}
    others |= _of_leader(plan, rows, sets, predictions)
    published = [row for at, keys in plan.published.items() for row in _measures(scope, at, keys["measures"], source)]
    others["seeds"] = pa.Table.from_pylist([*_seeds(rows, "corrected"), *_seeds(published, "published")], SEEDS)
    published += list(published_rates(published))
    return Tables(rows, others, {"published": published} if plan.published else {})


def _seeds(rows: Sequence[Row], protocol: str) -> Iterator[Row]:
    for row in rows:
        details = row.get("details") if row["metric"] == SCORE else None
        for number, value in enumerate(json.loads(details)["values"] if details else ()):
            yield {
                "protocol": protocol, "set": row["task"], "entrant": row["entrant"], "number": number, "value": value
            }  # fmt: skip


def _sets(scope: HolmesScope, rows: Sequence[Row]) -> list[Row]:
    """Return what is known of each set, with how far its order of the entrants is the overall one."""
    _, names, values_MN = _score_matrix(rows)
    taus = dict(zip(names, discriminability(values_MN), strict=True))
    return [
        {
            "set": name,
            "type": each.type,
            "phenomenon": each.phenomenon,
            "input": each.input,
            "task": each.task,
            "fidelity": each.fidelity,
            "stands_for": each.stands_for,
            "num_instances": scope.data[name].instances.num_rows,
            "discriminability": float(taus[name]) if np.isfinite(taus.get(name, np.nan)) else None,
            "licence": each.licence,
            "source": each.source,
        }
        for name, each in scope.sets.items()
    ]


def _of_leader(
    plan: HolmesPlan, rows: Sequence[Row], sets: Sequence[Row], predictions: Sequence[Row]
) -> dict[str, pa.Table]:
    """Return the tests of the leader with every other entrant, and instances of the set that discriminates most."""
    rates = {row["entrant"]: row["value"] for row in rows if row["metric"] == RATE and row["value"] is not None}
    classed = [each for each in sets if each["task"] == "classes"]
    leader = max(rates, key=rates.__getitem__) if rates else entrant_of(plan.scope, next(iter(plan.probes)))
    found = {"comparisons": compared(leader, predictions, [each["set"] for each in classed])}
    if classed:
        opened = max(classed, key=lambda each: -2.0 if each["discriminability"] is None else each["discriminability"])
        control = next(at.control for at in plan.probes if entrant_of(plan.scope, at) == leader)
        data = plan.scope.data_of(control)[opened["set"]]
        found["examples"] = examples(opened["set"], leader, data, predictions)
    return found


def types_of(scope: HolmesScope) -> dict[str, str]:
    """Return the type of phenomenon of each set."""
    return {name: each.type for name, each in scope.sets.items()}


def entrant_of(scope: HolmesScope, at: Probed) -> str:
    """Return the name of an entrant: model with its control, strategy and layer."""
    names = {EMBEDDING_INDEX: EMBEDDING, scope.model.num_blocks: FINAL}
    model = f"{scope.model.ref.id}/{at.control}" if at.control else scope.model.ref.id
    return f"{model} {at.strategy} {names.get(at.layer, at.layer)}"


def _identity(scope: HolmesScope, at: Probed) -> Row:
    (spec,) = (spec for spec in scope.strategies if spec.id == at.strategy)
    own = {"task": at.set, "entrant": entrant_of(scope, at), "layer": at.layer, **strategy_columns(spec)}
    return {**own, "params": {"set": at.set} | ({"control": at.control} if at.control else {})}


def _measures(scope: HolmesScope, at: Probed, key: str, source: RowSource) -> Iterator[Row]:
    """Yield the figures of one set and entrant, and its score under one name for all sets."""
    identity, table = _identity(scope, at), source.table(key)
    if isinstance(table, Failure):
        yield {**missing(SCORE, table), **identity}
        return
    timings = source.timings(key)
    for measure in table.to_pylist():
        row = {**timings, **measure, **identity, "split": "test"}
        yield row
        if measure["metric"] in SCORES:
            yield {**row, "metric": SCORE}


def winning_rates(
    rows: Sequence[Row],
    phenomena: Mapping[str, str],
    types: Mapping[str, str],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
) -> Iterator[Row]:
    """Yield the mean winning rate of each entrant, over all sets and over those of each type.

    Intervals come from a bootstrap over phenomena, because sets of one phenomenon are not independent.
    """
    entrants, sets, values_MN = _score_matrix(rows)
    for kind in ("", *sorted(set(types.values()))):
        chosen = [number for number, name in enumerate(sets) if not kind or types[name] == kind]
        groups = np.array([phenomena[sets[number]] for number in chosen])
        weights_RN = np.concatenate([np.ones((1, len(groups))), group_weights(groups, num_resamples, seed)])
        for entrant, measure in zip(entrants, _rates(values_MN[:, chosen], weights_RN, groups, kind), strict=True):
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def published_rates(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield winning rates as the public leaderboard computes them, scaled by set (`row`) or by entrant (`column`)."""
    entrants, sets, values_MN = _score_matrix(rows)
    scales: tuple[Literal["row", "column"], ...] = ("row", "column")
    for scale in scales if len(entrants) > 1 else ():
        for entrant, rate in zip(entrants, published_winning_rate(values_MN, scale), strict=True):
            metric, n = f"{RATE}.{scale}", len(sets)
            measure = (
                Measure.of(metric, float(rate), None, n=n)
                if np.isfinite(rate)
                else Measure.null(metric, Status.FAILED, "its ranks have no spread to scale by", n=n)
            )
            yield {**measure.to_row(), **_of_entrant(rows, entrant)}


def _score_matrix(rows: Sequence[Row]) -> tuple[list[str], list[str], np.ndarray]:
    """Return entrants, sets, and the scores [entrants, sets], NaN where there is none."""
    scored = {(row["entrant"], row["task"]): row for row in rows if row["metric"] == SCORE}
    entrants, sets = list(dict.fromkeys(name for name, _ in scored)), sorted({name for _, name in scored})
    return entrants, sets, np.array([[_value(scored.get((entrant, name))) for name in sets] for entrant in entrants])


def _of_entrant(rows: Sequence[Row], entrant: str) -> Row:
    """Return the columns of a figure of an entrant over several sets."""
    own = next(row for row in rows if row["entrant"] == entrant)
    kept = {name: own[name] for name in ("entrant", "layer", "strategy", "strategy_version")}
    return {**kept, "task": None, "params": {}}


def _value(row: Row | None) -> float:
    return np.nan if row is None or row["value"] is None else float(row["value"])


def _rates(values_MN: np.ndarray, weights_RN: np.ndarray, groups: np.ndarray, kind: str) -> list[Measure]:
    """Return the winning rate of each entrant over some sets; the first row of the weights gives the value."""
    metric = f"{RATE}.{kind}" if kind else RATE
    fields: dict[str, Any] = {"n": values_MN.shape[1], "num_groups": len(set(groups))}
    if len(values_MN) < 2:
        reason = "one entrant: name several models, strategies or layers"
        return [Measure.null(metric, Status.TOO_FEW, reason, **fields) for _ in values_MN]
    won_NM, met_NM = pair_counts(values_MN)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates_RM = (weights_RN @ won_NM) / (weights_RN @ met_NM)
    found = []
    for column in rates_RM.T:
        if not np.isfinite(column[0]):
            found.append(Measure.null(metric, Status.FAILED, "no set that another entrant was measured on", **fields))
            continue
        interval = percentile_interval(column[1:]) if len(column) > 1 and len(set(groups)) > 1 else None
        found.append(Measure.of(metric, float(column[0]), interval, ci_method=CI_METHOD, **fields))
    return found


def _predictions(scope: HolmesScope, at: Probed, keys: Mapping[str, str], source: RowSource) -> Iterator[Row]:
    """Yield the test predictions of the first seed, with the texts of the instances left to the store."""
    table = source.table(keys["predictions"])
    if isinstance(table, Failure):
        return
    for row in table.to_pylist():
        if row["split"] == "test" and row["seed"] == scope.config.seed:
            shown = {name: row[name] for name in ("instance_id", "seen")}
            answers = {name: None if row[name] is None else str(row[name]) for name in ("truth", "predicted")}
            yield {"set": at.set, "entrant": entrant_of(scope, at), **shown, **answers}
