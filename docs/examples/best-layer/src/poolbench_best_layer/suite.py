"""What the suite `best_layer` does: its plan, its rows, and its page."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from poolbench.steps.roles import Cell
from poolbench_best_layer import AUROC, Settings
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import as_concepts
from poolbench_driver.contract.page import Column, Line, Page, Part, Table
from poolbench_driver.contract.source import RowSource, measured
from poolbench_driver.contract.suite import FinishedRun, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.drawing import chart, looks_of, number_axis, picture, points, trends
from poolbench_driver.pages.plain import figure, number
from poolbench_driver.stages.probes import Probes, plan_components, plan_probes
from poolbench_driver.stages.resolve import resolve
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, joined
from poolbench_driver.stages.vectors import plan_vectors


@dataclass(frozen=True)
class LayersScope:
    """The settings of a run, and what the stages read."""

    config: Settings
    stages: Scope


@dataclass(frozen=True)
class LayersPlan(Plan):
    """Probes of one strategy at every layer."""

    scope: Scope
    probes: Probes


class BestLayer(Suite[Settings, LayersScope, LayersPlan]):
    """Layers, ranked over concepts."""

    def resolve(self, config: Settings, session: Session, model: ModelInfo | None = None) -> LayersScope:
        """Return concepts, model and the one strategy, checked."""
        probing = as_concepts(config, strategies=(config.pooling,), metrics=("d1",))
        return LayersScope(config, resolve(probing, session, model))

    def plan(self, scope: LayersScope) -> LayersPlan:
        """Join the stages: passages to vectors, vectors to probes."""
        vectors = plan_vectors(scope.stages)
        components = plan_components(scope.stages, vectors)
        probes = plan_probes(scope.stages, vectors, components)
        work = joined([vectors, components, probes])
        return LayersPlan(scope.config, work, scope.stages.facts, scope=scope.stages, probes=probes)

    def assemble(self, plan: LayersPlan, source: RowSource) -> Tables:
        """Return one row for each concept and layer."""
        return Tables(list(self._rows(plan, source)))

    def _rows(self, plan: LayersPlan, source: RowSource) -> Iterator[dict[str, Any]]:
        (strategy,) = plan.scope.strategies
        for concept, probes in plan.probes.concepts.items():
            for layer in plan.scope.layers:
                identity = {"concept": concept, "strategy": strategy.id, "strategy_version": strategy.version}
                key = probes.measures[Cell(strategy.id, layer)]
                for row in measured("d1.auroc", key, identity, source, split="train"):
                    if row["metric"] == "d1.auroc":  # one of several figures of a probe, here by the suite's name
                        yield {**row, "metric": AUROC, "entrant": f"layer {layer}"}

    def report(self, run: FinishedRun, page: Page) -> Page:
        """Return the page that the frame makes, with a picture and a table: the AUROC of each concept by layer."""
        rows = run.rows("results", metric=AUROC, status="ok")
        if not rows:
            return page
        places = [
            {
                "x": row["layer"], "y": row["value"], "low": row["ci_low"], "high": row["ci_high"],
                "series": row["concept"], "says": f"{row['concept']}, layer {row['layer']}: {row['value']:.3f}",
            }
            for row in rows
        ]  # fmt: skip
        looks = looks_of(dict.fromkeys(row["concept"] for row in rows))
        drawn = chart([trends(places), points(places)], number_axis("layer"), number_axis("AUROC"), 220, looks)
        pictured = replace(page, picture=picture("AUROC by layer", drawn, captions=["upright: 95 % intervals"]))
        lines = [Line.of(row["concept"], number(row["layer"], "d"), figure(row)) for row in rows]
        heads: list[str | Column] = ["concept", "layer", Column("AUROC", has_intervals=True)]
        return pictured.with_parts(Part("concepts", "By concept", [Table.of(heads, lines)], "By concept"))
