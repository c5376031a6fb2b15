"""D1: the prober's measures by cell, checks of each concept, scores by passage, and cosines of directions."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, product
from typing import Any

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import PROBE_SCORES
from poolbench.errors import CellError
from poolbench.pooling.registry import STRATEGIES
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_driver.contract.abilities import AT_LAYER, Answers
from poolbench_driver.contract.source import RowSource, measured, opaque, strategy_columns
from poolbench_driver.measures.cosines import cosine_rows
from poolbench_driver.results import COSINE_SCHEMA
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.suites.poolbench.metrics import ON_TEST

#: AUROC from which a strategy counts as at the ceiling.
CEILING = 0.99


def concept_check_rows(cells: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return rows of `d1.saturation`, `d1.alarms` and `d1.collapses` for each concept and layer.

    These rows have no strategy. They are computed from the rows of `d1.auroc` in `cells`. If more than half of the
    strategies reach .99, the reason of the `d1.saturation` row says so.
    """
    gathered: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell["metric"] == "d1.auroc" and cell["status"] != Status.NOT_IMPLEMENTED:
            gathered[cell["concept"], cell["layer"]].append(cell)
    return [
        {**measure.to_row(), "concept": concept, "layer": layer, "split": "train"}
        for (concept, layer), rows in sorted(gathered.items())
        for measure in _checks(rows)
    ]


def _checks(rows: list[Mapping[str, Any]]) -> list[Measure]:
    auroc_rows = [row for row in rows if row["value"] is not None]
    collapsed = [row["strategy"] for row in rows if row["status"] == Status.COLLAPSED]
    if not auroc_rows:
        reason = "no strategy has an AUROC on this concept"
        measures = [Measure.null(name, Status.TOO_FEW, reason) for name in ("d1.saturation", "d1.alarms")]
    else:
        high = [row["strategy"] for row in auroc_rows if row["value"] >= CEILING]
        alarmed = [row["strategy"] for row in auroc_rows if row["reason"]]  # the reason of a value is its alarm
        measures = [_saturation(high, len(auroc_rows)), _share("d1.alarms", alarmed, len(auroc_rows), _alarms(alarmed))]
    return [*measures, _share("d1.collapses", collapsed, len(rows), None)]


def _saturation(high: list[str], count: int) -> Measure:
    flag = f"saturated: {len(high)} of {count} strategies reach {CEILING}; their order says little"
    return _share("d1.saturation", high, count, flag if 2 * len(high) > count else None)


def _alarms(alarmed: list[str]) -> str | None:
    return f"alarm: below .5 by more than 2 standard errors: {', '.join(sorted(alarmed))}" if alarmed else None


def _share(metric: str, strategies: list[str], count: int, reason: str | None) -> Measure:
    details = {"strategies": sorted(strategies)}
    return Measure.of(metric, len(strategies) / count, n=count, reason=reason, details=details)


#: Constructions that are compared, beside the one that steers.
COMPARED = ("C1", "C3")


def identity_of(concept: str, strategy: str, layer: int | None) -> Row:
    """Return the columns that identify a D1 figure of a strategy.

    `layer` is None if nested cross-validation chose the layer separately in each fold.
    """
    return {**strategy_columns(STRATEGIES.get(strategy)), "concept": concept, "layer": layer, "split": "train"}


#: Measures of D1 as rows.
_measured = partial(measured, split="train", on_test=ON_TEST)


def d1_rows(plan: ConceptsPlan, source: RowSource) -> Iterator[Row]:
    """Yield the result rows of D1.

    First come the rows of each strategy at each layer. Then come the rows of each strategy at the layer that nested
    cross-validation chooses, and last the checks of each concept.
    """
    rows = list[Row]()
    for name, probes in plan.probes.concepts.items():
        for spec, layer in product(plan.scope.strategies, plan.scope.layers):
            key = probes.measures[Cell(spec.id, layer)]
            rows += _measured("d1.auroc", key, identity_of(name, spec.id, layer), source)
    for name, probes in plan.probes.concepts.items():
        for strategy, key in probes.nested.items():
            rows += measured(
                "d1.auroc_nested", key, identity_of(name, strategy, None), source, split="train", on_test=ON_TEST
            )
    return chain(rows, concept_check_rows(rows))


def published_d1_rows(probes: ConceptProbes, source: RowSource) -> Iterator[Row]:
    """Yield the D1 rows of a concept by the definition of the published reference."""
    for (strategy, layer), key in probes.published.items():
        yield from measured(
            "d1.auroc", key, identity_of(probes.concept.id, strategy, layer), source, split="train", on_test=ON_TEST
        )


def passage_scores(plan: ConceptsPlan, source: RowSource) -> list[Row]:
    """Return the prober's score of each passage. Ids of sensitive passages are replaced by opaque ids."""
    rows: list[Row] = []
    for name, probes in plan.probes.concepts.items():
        passages = plan.vectors.concepts[name].passages if probes.concept.sensitive else None
        for (strategy, layer), key in probes.scores.items():
            table = source.table(key)
            if not isinstance(table, Failure):
                identity = {"concept": name, "strategy": strategy, "layer": layer}
                for row in table.select(PROBE_SCORES.names).to_pylist():
                    if passages is not None:
                        row["passage_id"] = opaque(passages[row["split"]], row["passage_id"])
                    rows.append({**identity, **row})
    return rows


def right_passages(passage_scores: pa.Table) -> Answers:
    """Return whether the probe of each strategy and layer classified each passage correctly, by concept.

    If a probe did not converge, its passages have no score and are left out.
    """
    right: Answers = {}
    for row in passage_scores.to_pylist():
        if row["score"] is not None:
            entrant = f"{row['strategy']}{AT_LAYER}{row['layer']}"
            by_item = right.setdefault(row["concept"], {}).setdefault(entrant, {})
            by_item[row["passage_id"]] = (row["score"] > 0) == (row["label"] == 1)
    return right


def cosine_table(plan: ConceptsPlan, source: RowSource) -> pa.Table:
    """Return cosines of all pairs of a run's strategies, for each concept at each layer that has directions.

    The cosines are computed here from committed directions, so that a further strategy repeats no task.
    """
    scope, rows = plan.scope, list[Row]()
    for probes, layer in product(plan.probes.concepts.values(), scope.layers_with_steering):
        directions: dict[str, pa.Table | CellError] = {}
        for spec in scope.strategies:
            try:
                directions[spec.id] = source.required(probes.directions[Cell(spec.id, layer)])
            except CellError as error:
                directions[spec.id] = error
        identity = {"model": scope.model.ref.id, "layer": layer, "concept": probes.concept.id}
        for construction in dict.fromkeys((*COMPARED, scope.config.steering.direction)):
            rows += ({**identity, **row} for row in cosine_rows(directions, construction))
    return pa.Table.from_pylist(rows, COSINE_SCHEMA)
