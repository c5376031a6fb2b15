"""From the probes of a run to its tables: scores by set and entrant, winning rates, and predictions."""

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from poolbench.config import EMBEDDING, EMBEDDING_INDEX, FINAL
from poolbench.contracts import Row
from poolbench_driver.contract.source import RowSource, measured, strategy_columns
from poolbench_driver.contract.suite import Tables
from poolbench_driver.statistics.ranks import best_first
from poolbench_driver.suites.holmes.metrics import RATE, SCORE
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope, ProbeCell
from poolbench_driver.suites.holmes.rates import (
    compared,
    discriminability_by_set,
    examples,
    published_rates,
    winning_rates,
)

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


def assemble(plan: HolmesPlan, source: RowSource) -> Tables:
    """Return result rows, tables of sets, predictions, comparisons and examples, and rows by published definitions.

    The published rows are in a separate table, so that they are not ranked.
    """
    scope, config = plan.scope, plan.scope.config
    rows = [row for at, keys in plan.probes.items() for row in _measures(scope, at, keys["measures"], source)]
    phenomena, types = {name: probing_set.phenomenon for name, probing_set in scope.sets.items()}, types_of(scope)
    rows += winning_rates(rows, phenomena, types, num_resamples=config.budget.num_bootstrap, seed=config.seed)
    predictions = [row for at, keys in plan.probes.items() for row in _predictions(scope, at, keys, source)]
    sets = _sets(scope, rows)
    others = {"sets": sets, "predictions": predictions, "entrants": _entrants(plan)}
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
    """Return a row for each set, with how well its order of the entrants agrees with the overall order."""
    taus = discriminability_by_set(rows)
    return [
        {
            "set": name,
            "type": probing_set.type,
            "phenomenon": probing_set.phenomenon,
            "input": probing_set.input,
            "task": probing_set.task,
            "fidelity": probing_set.fidelity,
            "stands_for": probing_set.stands_for,
            "num_instances": scope.data[name].instances.num_rows,
            "discriminability": taus.get(name),
            "licence": probing_set.licence,
            "source": probing_set.source,
        }
        for name, probing_set in scope.sets.items()
    ]


def _of_leader(
    plan: HolmesPlan, rows: Sequence[Row], sets: Sequence[Row], predictions: Sequence[Row]
) -> dict[str, pa.Table]:
    """Return the tests of the leader with every other entrant, and instances of the set that discriminates most."""
    rates = [row for row in rows if row["metric"] == RATE and row["value"] is not None]
    order = best_first(np.array([-row["value"] for row in rates]), np.array([row["n"] for row in rates]))
    classed = [row for row in sets if row["task"] == "classes"]
    leader = rates[order[0]]["entrant"] if order else entrant_of(plan.scope, next(iter(plan.probes)))
    tables = {"comparisons": compared(leader, predictions, [row["set"] for row in classed])}
    if classed:
        opened = max(classed, key=lambda row: -2.0 if row["discriminability"] is None else row["discriminability"])
        control = next(at.control for at in plan.probes if entrant_of(plan.scope, at) == leader)
        data = plan.scope.data_of(control)[opened["set"]]
        tables["examples"] = examples(opened["set"], leader, data, predictions)
    return tables


def types_of(scope: HolmesScope) -> dict[str, str]:
    """Return the type of phenomenon of each set."""
    return {name: probing_set.type for name, probing_set in scope.sets.items()}


def entrant_of(scope: HolmesScope, at: ProbeCell) -> str:
    """Return the name of an entrant: model with its control, strategy, layer, and the probe if it is an MLP.

    An entrant without a model has the name of its vectors.
    """
    probe = "" if scope.config.hidden is None else f" MLP {scope.config.hidden}"
    if at.vectors is not None:
        return f"vectors {at.vectors}{probe}"
    model = f"{scope.model.ref.id}/{at.control}" if at.control else scope.model.ref.id
    return f"{model} {at.strategy} {_layer_name(scope, at)}{probe}"


def _layer_name(scope: HolmesScope, at: ProbeCell) -> str:
    return {EMBEDDING_INDEX: EMBEDDING, scope.model.num_blocks: FINAL}.get(at.layer, str(at.layer))


def _entrants(plan: HolmesPlan) -> list[Row]:
    """Return a row for each entrant with the columns that its name is made of."""
    scope = plan.scope
    entrants = {}
    for at in plan.probes:
        is_model = at.vectors is None
        entrants[entrant_of(scope, at)] = {
            "model": scope.model.ref.id if is_model else None,
            "architecture": scope.model.architecture if is_model else None,
            "num_parameters": scope.model.num_parameters if is_model else None,
            "control": at.control,
            "strategy": at.strategy if is_model else None,
            "layer": at.layer if is_model else None,
            "layer_name": _layer_name(scope, at) if is_model else None,
            "hidden": scope.config.hidden,
            "vectors": at.vectors,
        }
    return [{"entrant": name, **columns} for name, columns in entrants.items()]


def _identity(scope: HolmesScope, at: ProbeCell) -> Row:
    columns: Row = {"task": at.set, "entrant": entrant_of(scope, at), "layer": None, "strategy": None}
    if at.vectors is None:
        (spec,) = (spec for spec in scope.strategies if spec.id == at.strategy)
        columns |= {"layer": at.layer, **strategy_columns(spec)}
    apart = {"control": at.control, "hidden": scope.config.hidden, "vectors": at.vectors}
    return {**columns, "params": {"set": at.set, **{name: value for name, value in apart.items() if value}}}


def _measures(scope: HolmesScope, at: ProbeCell, key: str, source: RowSource) -> Iterator[Row]:
    """Yield the figures of one set and entrant, and its score under one name for all sets."""
    for row in measured(SCORE, key, _identity(scope, at), source, split="test"):
        yield row
        if row["metric"] in SCORES:
            yield {**row, "metric": SCORE}


def _predictions(scope: HolmesScope, at: ProbeCell, keys: Mapping[str, str], source: RowSource) -> Iterator[Row]:
    """Yield the test predictions of the first seed, with the texts of the instances left to the store."""
    instances = scope.data[at.set].instances
    words = dict(zip(instances["instance_id"].to_pylist(), instances["word"].to_pylist(), strict=True))
    for row in source.rows(keys["predictions"]):
        if row["split"] == "test" and row["seed"] == scope.config.seed:
            instance = {name: row[name] for name in ("instance_id", "seen")}
            answers = {name: None if row[name] is None else str(row[name]) for name in ("truth", "predicted")}
            yield {
                "set": at.set,
                "entrant": entrant_of(scope, at),
                **instance,
                **answers,
                "word": words[row["instance_id"]],
            }
