"""The suite `best_layer`: at which layer does a linear probe separate a concept best?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poolbench.config import LayerChoice, ProbesBudget, amounts
from poolbench.steps.roles import Cell
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import PassagesSource, ReadingConfig, as_concepts
from poolbench_driver.contract.source import RowSource, measured
from poolbench_driver.contract.suite import BoardSpec, MetricInfo, Suite, Tables
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.probes import Probes, plan_components, plan_probes
from poolbench_driver.stages.resolve import resolve
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Plan, joined
from poolbench_driver.stages.vectors import plan_vectors

AUROC = "best_layer.auroc"


class Settings(ReadingConfig):
    """What is read and how, and the settings that this suite adds."""

    budget: ProbesBudget = amounts(ProbesBudget, "demo")
    """How much is measured; result rows hold its name."""
    concepts: tuple[str, ...] = ()
    """Concept ids, or `all`."""
    corpus: PassagesSource = PassagesSource()
    """Where passages come from: `planted`, `real`, or a folder of JSONL files."""
    layers: tuple[LayerChoice, ...] | None = None
    """Block indices, depths, `embedding` or `final`; by default depths .5, .75 and 1."""
    pooling: str = "A1_mean"
    """Pooling strategy whose vectors are probed."""


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

    id = "best_layer"
    summary = "at which layer does a linear probe separate a concept best?"
    config = Settings
    metrics = (MetricInfo(AUROC, "out-of-fold AUROC of the probe at a layer", True, 0, 1),)
    board = BoardSpec(ranked=(AUROC,), shown=(AUROC,), entrant="entrant")

    def preset(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the amounts of a preset, for two concepts at all quarters of the model's depth."""
        concepts, layers = ["causation", "contrast"], [0.25, 0.5, 0.75, 1.0]
        return super().preset(name, given) | {"concepts": concepts, "layers": layers}

    def resolve(self, config: Settings, session: Session, model: ModelInfo | None = None) -> LayersScope:
        """Return concepts, model and the one strategy, checked."""
        probing = as_concepts(config, strategies=(config.pooling,), metrics=("d1",))
        return LayersScope(config, resolve(probing, session, model))

    def plan(self, scope: LayersScope) -> LayersPlan:
        """Join the stages: passages to vectors, vectors to probes."""
        vectors = plan_vectors(scope.stages)
        components = plan_components(scope.stages, vectors)
        probes = plan_probes(scope.stages, vectors, components)
        tasks = joined([vectors, components, probes])
        return LayersPlan(scope.config, tasks, scope.stages.facts, scope.stages, probes)

    def assemble(self, plan: LayersPlan, source: RowSource) -> Tables:
        """Return one row for each concept and layer."""
        return Tables(list(self._rows(plan, source)))

    def _rows(self, plan: LayersPlan, source: RowSource) -> Iterator[dict[str, Any]]:
        (strategy,) = plan.scope.strategies
        for concept, probes in plan.probes.concepts.items():
            for layer in plan.scope.layers:
                identity = {"concept": concept, "strategy": strategy.id, "strategy_version": strategy.version}
                for row in measured("d1.auroc", probes.measures[Cell(strategy.id, layer)], identity, source):
                    if row["metric"] == "d1.auroc":
                        yield {**row, "metric": AUROC, "entrant": f"layer {layer}"}


SUITE = BestLayer()
