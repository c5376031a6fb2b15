"""From the probes of a run to its tables: scores by set and entrant, winning rates, and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from poolbench.config import EMBEDDING, EMBEDDING_INDEX, FINAL
from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statistics import group_weights, percentile_interval
from poolbench.statistics.winning_rate import pair_counts
from poolbench.statuses import Status
from poolbench_driver.loop import Failure
from poolbench_driver.suites.holmes import RATE, SCORE
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope, Probed
from poolbench_driver.suites.source import RowSource, missing, strategy_columns
from poolbench_driver.suites.suite import Tables

#: The score of a set: of classes, or of values.
SCORES = ("probe.macro_f1", "probe.pearson")
CI_METHOD = "cluster bootstrap over phenomena, percentile"


def assemble(plan: HolmesPlan, source: RowSource) -> Tables:
    """Return result rows, and the tables `sets`, `predictions` and `notes`."""
    scope = plan.scope
    rows = [row for at, keys in plan.probes.items() for row in _measures(scope, at, keys["measures"], source)]
    rows += list(winning_rates(rows, {name: each.phenomenon for name, each in scope.sets.items()}, types_of(scope)))
    sets = [
        {
            "set": name,
            "type": each.type,
            "phenomenon": each.phenomenon,
            "input": each.input,
            "fidelity": each.fidelity,
            "num_instances": scope.data[name].instances.num_rows,
            "licence": each.licence,
            "source": each.source,
        }
        for name, each in scope.sets.items()
    ]
    predictions = [row for at, keys in plan.probes.items() for row in _predictions(scope, at, keys, source)]
    return Tables(rows, {"sets": sets, "predictions": predictions, "notes": [{"note": each} for each in scope.notes]})


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


def winning_rates(rows: Sequence[Row], phenomena: Mapping[str, str], types: Mapping[str, str]) -> Iterator[Row]:
    """Yield the mean winning rate of each entrant, over all sets and over those of each type.

    Intervals come from a bootstrap over phenomena, because sets of one phenomenon are not independent.
    """
    scored = {(row["entrant"], row["task"]): row for row in rows if row["metric"] == SCORE}
    entrants = list(dict.fromkeys(name for name, _ in scored))
    sets = sorted({name for _, name in scored})
    values = np.array([[_value(scored.get((entrant, name))) for name in sets] for entrant in entrants])
    for kind in ("", *sorted(set(types.values()))):
        chosen = [number for number, name in enumerate(sets) if not kind or types[name] == kind]
        groups = np.array([phenomena[sets[number]] for number in chosen])
        for entrant, measure in zip(entrants, _rates(values[:, chosen], groups, kind), strict=True):
            own = next(row for row in rows if row["entrant"] == entrant)
            kept = {name: own[name] for name in ("entrant", "layer", "strategy", "strategy_version")}
            yield {**measure.to_row(), **kept, "task": None, "params": {}}


def _value(row: Row | None) -> float:
    return np.nan if row is None or row["value"] is None else float(row["value"])


def _rates(values_MN: np.ndarray, groups: np.ndarray, kind: str) -> list[Measure]:
    """Return the winning rate of each entrant over some sets."""
    metric = f"{RATE}.{kind}" if kind else RATE
    fields: dict[str, Any] = {"n": values_MN.shape[1], "num_groups": len(set(groups))}
    if len(values_MN) < 2:
        reason = "one entrant: name several models, strategies or layers"
        return [Measure.null(metric, Status.TOO_FEW, reason, **fields) for _ in values_MN]
    won_NM, met_NM = pair_counts(values_MN)
    weights_RN = np.concatenate([np.ones((1, len(groups))), group_weights(groups, 1000, 0)])
    with np.errstate(invalid="ignore", divide="ignore"):
        rates_RM = (weights_RN @ won_NM) / (weights_RN @ met_NM)
    found = []
    for column in rates_RM.T:
        if not np.isfinite(column[0]):
            found.append(Measure.null(metric, Status.FAILED, "no set that another entrant was measured on", **fields))
            continue
        interval = percentile_interval(column[1:]) if len(set(groups)) > 1 else None
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
