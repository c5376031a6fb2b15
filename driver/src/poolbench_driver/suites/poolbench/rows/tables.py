"""The tables of a PoolBench run: rows by metric, curves, scores, directions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain

from poolbench.concepts import stay
from poolbench.contracts import Row
from poolbench.contracts.measures import to_rows
from poolbench.storage import directions
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Tables
from poolbench_driver.pages.boards.layer_stability import layer_stability
from poolbench_driver.suites.poolbench.differences import other_settings
from poolbench_driver.suites.poolbench.measures.concept_checks import concept_check_rows
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.rows.confounds import Confounds
from poolbench_driver.suites.poolbench.rows.probe_rows import (
    cosine_table,
    d1_rows,
    nested_rows,
    passage_scores,
    published_d1_rows,
)
from poolbench_driver.suites.poolbench.rows.steering_rows import SteeringRows


def assemble(plan: PoolBenchPlan, source: RowSource) -> Tables:
    """Return result rows and tables; `published`, if requested, has rows by the reference's definitions."""
    probes = plan.probes.concepts.values()
    rows = [row for concept_probes in probes for row in d1_rows(plan.scope, concept_probes, source)]
    rows += [row for concept_probes in probes for row in nested_rows(concept_probes, source)]
    rows += concept_check_rows(rows)
    confounds = Confounds.of(plan, source)
    rows += [row for concept_probes in probes for row in confounds.rows(concept_probes)]
    rows += to_rows(layer_stability(rows, "d1.auroc", seed=plan.scope.config.seed))
    curves, text_scores = list[Row](), list[Row]()
    if plan.steering:
        steering = SteeringRows(plan, plan.steering, source)
        rows += steering.scorer_rows()
        for concept in plan.scope.concepts:
            rows += steering.rows(concept)
            curves += steering.curves(concept)
            text_scores += steering.text_scores(concept)
        text_scores += steering.unsteered_scores()
    others = {
        "cosines": cosine_table(plan, source),
        directions.TABLE: directions.table_of(_directions(plan, rows, curves)),
        "audit": confounds.table(),
        "passage_scores": passage_scores(plan, source),
        "curves": curves,
        "text_scores": text_scores,
    }
    published = plan.scope.config.protocol == "published"
    return Tables(rows, others, {"published": list(_published_rows(plan, source))} if published else {})


def _directions(plan: PoolBenchPlan, rows: list[Row], curves: list[Row]) -> Iterator[Row]:
    """Yield the directions that requests may name, with what the run says about them; a collapsed one has none."""
    construction = plan.scope.config.steering.direction
    itself = f"d1.direction.{construction}"
    figures = {
        (row["concept"], row["strategy"], row["layer"], row["metric"]): row["value"]
        for row in rows
        if row["metric"] in ("d1.auroc", "d2.best_gain", itself) and row.get("strategy")
    }
    fluent = dict[tuple[str, str, int], float]()
    for row in curves:
        if row["fluent"] and row["alpha_unit"] == "residual_norm":  # the unit that requests give strengths in
            at = row["concept"], row["strategy"], row["layer"]
            fluent[at] = max(row["strength"], fluent.get(at, 0.0))
    model = plan.scope.model.ref
    for name, probes in plan.probes.concepts.items():
        for (strategy, layer), key in probes.directions.items():
            at = name, strategy, layer
            is_null = all(figures.get((*at, metric), 0.0) is None for metric in ("d1.auroc", itself))
            if not (is_null or stay([key])):
                yield {
                    **{"model": model.id, "model_revision": model.revision, "key": key},
                    **{"concept": name, "strategy": strategy, "layer": layer},
                    "construction": construction,
                    "d1": figures.get((*at, "d1.auroc")),
                    "gain": figures.get((*at, "d2.best_gain")),
                    "fluent_strength": fluent.get(at),
                }


def _published_rows(plan: PoolBenchPlan, source: RowSource) -> Iterable[Row]:
    """Yield rows by the reference's definitions; they have a separate table, so that they are not ranked.

    `params.differs` has the settings in which the run is not the reference's.
    """
    steering = SteeringRows(plan, plan.steering, source) if plan.steering else None
    differs = {setting.name: setting.ours for setting in other_settings(plan.scope.config)}
    for probes in plan.probes.concepts.values():
        rows = (published_d1_rows(probes, source), steering.rows(probes.concept, published=True) if steering else ())
        for row in chain(*rows):
            params = json.loads(row.get("params") or "{}")
            yield row | {"params": {**params, "differs": differs}} if differs else row
