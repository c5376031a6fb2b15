"""The tables of a PoolBench run: rows by metric, curves, scores, directions."""

import json
from collections.abc import Iterator
from itertools import product

from poolbench.concepts import stay
from poolbench.contracts import Row
from poolbench.contracts.measures import Measure, to_rows
from poolbench.errors import CellError
from poolbench.library import directions
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Tables
from poolbench_driver.pages.boards.agreement import layer_stability
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.suites.poolbench.audit import Audits
from poolbench_driver.suites.poolbench.d1 import cosine_table, d1_rows, passage_scores, published_d1_rows
from poolbench_driver.suites.poolbench.d2 import d2_measures, published_d2, response_curve
from poolbench_driver.suites.poolbench.d3 import all_d3, published_d3, scorer_pairs
from poolbench_driver.suites.poolbench.presets import other_settings
from poolbench_driver.suites.poolbench.steering_results import SteeredCell, SteeringResults


def assemble(plan: ConceptsPlan, source: RowSource) -> Tables:
    """Return the result rows and the tables of a run.

    If the protocol is `published`, the table `published` has rows by the definitions of the published reference.
    """
    config = plan.scope.config
    rows = list(d1_rows(plan, source))
    audits = Audits.of(plan, source)
    rows += audits.rows()
    rows += to_rows(layer_stability(rows, "d1.auroc", seed=config.seed))
    steered = SteeringResults(plan, plan.steering, source) if plan.steering else None
    rows += steered.scorer_rows() if steered else ()
    curves, published = list[Row](), list[Row]()
    for probes in plan.probes.concepts.values():
        published += published_d1_rows(probes, source)
        if steered is None:
            continue
        rows += steered.prompted_rows(probes.concept)
        for cell in steered.cells(probes.concept):
            rows += steered.rows(cell, _measures(steered, cell))
            if config.protocol == "published":
                published += steered.rows(cell, _published_measures(steered, cell))
            if isinstance(cell.texts, CellError):
                continue
            at = {"concept": cell.concept.id, "strategy": cell.entrant, "layer": plan.scope.steering_layer}
            curve = response_curve(cell.texts, steered.scorers[cell.concept.id], cell.rules)
            curves += ({**at, "alpha_unit": config.budget.alpha_unit, **row} for row in curve)
    if published and (settings := other_settings(config)):  # in which the run is not the reference's
        differs = {setting.name: setting.ours for setting in settings}
        for row in published:
            row["params"] = {**json.loads(row.get("params") or "{}"), "differs": differs}
    others = {
        "cosines": cosine_table(plan, source),
        directions.TABLE: directions.table_of(_directions(plan, rows, curves)),
        "audit": audits.table(),
        "passage_scores": passage_scores(plan, source),
        "curves": curves,
        "text_scores": list(steered.text_scores()) if steered else [],
    }
    return Tables(rows, others, {"published": published} if config.protocol == "published" else {})


def _measures(steered: SteeringResults, cell: SteeredCell) -> Iterator[Measure]:
    metrics = steered.plan.scope.config.metrics
    if "d2" in metrics:
        yield from d2_measures(cell.texts, steered.scorers[cell.concept.id], cell.rules)
    if "d3" in metrics:
        yield from all_d3(steered.scorers, steered.directions, cell)


def _published_measures(steered: SteeringResults, cell: SteeredCell) -> Iterator[Measure]:
    """Yield measures of the texts of a cell by the card's definitions. They get a table of their own and no ranks."""
    metrics = steered.plan.scope.config.metrics
    if "d2" in metrics:
        yield from published_d2(cell.texts, steered.scorers[cell.concept.id], cell.rules)
    if "d3" in metrics:
        for pair in scorer_pairs(steered.scorers, cell.concept):
            yield from published_d3(cell.texts, pair, cell.rules)


def _directions(plan: ConceptsPlan, rows: list[Row], curves: list[Row]) -> Iterator[Row]:
    """Yield the directions that requests may name, with their figures.

    Collapsed directions and directions of sensitive concepts are left out.
    """
    steering = plan.scope.config.steering
    of_directions = (f"d1.direction.{name}" for name in steering.directions)
    read_metrics = {"d1.auroc", "d2.best_gain", "d2.best_strength", *of_directions}
    figures = {
        (row["concept"], row["strategy"], row["layer"], row["metric"]): row["value"]
        for row in rows
        if row["metric"] in read_metrics and row.get("strategy")
    }
    gains_where_chosen = {
        (row["concept"], row["strategy"], row["layer"]): row["details"].get("gain_where_chosen")
        for row in rows
        if row["metric"] == "d2.best_strength"
    }
    is_of_requests = plan.scope.config.budget.alpha_unit == "residual_norm"  # the unit that requests give strengths in
    fluent = dict[tuple[str, str, int], float]()
    for row in curves:
        if row["fluent"] and is_of_requests:
            at = row["concept"], row["strategy"], row["layer"]
            fluent[at] = max(row["strength"], fluent.get(at, 0.0))
    model = plan.scope.model.ref
    for name, probes in plan.probes.concepts.items():
        for construction, ((strategy, layer), key) in product(steering.directions, probes.directions.items()):
            if construction != steering.direction and layer != plan.scope.steering_layer:
                continue
            at, entrant = (name, strategy, layer), steering.entrant(strategy, construction)
            steered = name, entrant, layer
            of_direction = ("d1.auroc", f"d1.direction.{construction}")
            is_null = all(figures.get((*at, metric), 0.0) is None for metric in of_direction)
            if not (is_null or stay([key])):
                yield {
                    **{"model": model.id, "model_revision": model.revision, "key": key},
                    **{"concept": name, "strategy": entrant, "layer": layer},
                    "construction": construction,
                    "d1": figures.get((*at, "d1.auroc")),
                    "gain": figures.get((*steered, "d2.best_gain")),
                    "gain_where_chosen": gains_where_chosen.get(steered),
                    "best_strength": figures.get((*steered, "d2.best_strength")) if is_of_requests else None,
                    "fluent_strength": fluent.get(steered),
                }
