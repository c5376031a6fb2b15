"""The steered texts of a cell with their scores and likelihoods, or why there are none to measure."""

from __future__ import annotations

from functools import cached_property

from poolbench.pooling.registry import StrategySpec
from poolbench.suites import Scorer, SteeredTables
from poolbench_driver.assemble.direction_tables import directions_of, unusable_direction
from poolbench_driver.assemble.rows import Source
from poolbench_driver.plan import NULLS, ConceptPlan, Plan
from poolbench_driver.run import Failure

#: A strategy whose D1 cell has one of these is not steered with either: its direction is not its own.
UNUSABLE = ("collapsed", "no_coverage", "class_dependent_coverage", "one_class", "too_few", "non_finite")

#: Steered, unsteered and null texts of one (concept, strategy).
Tables = tuple[SteeredTables, SteeredTables, SteeredTables]


class SteeredTexts:
    """What a plan's steerer and scorers made."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan, self.source = plan, source

    @cached_property
    def scorers(self) -> dict[str, Scorer]:
        """What is known of each scorer, and of those that cannot be had."""
        absent = {name: Scorer(name, "no_scorer", reason) for name, reason in self.plan.absent.items()}
        return absent | {name: self._scorer(name) for name in self.plan.scorers}

    @cached_property
    def unsteered(self) -> SteeredTables | Failure:
        """The texts at strength 0, shared by all concepts."""
        texts, fluency, scores = self.plan.unsteered
        return self._steered(texts, scores, fluency)

    def tables(self, cells: ConceptPlan, spec: StrategySpec) -> Tables | Failure:
        """Steered, unsteered and null texts, or what is in the way of the first that is missing."""
        steered, unsteered, nulls = self._usable(cells, spec), self.unsteered, self._named(cells, NULLS)
        if isinstance(steered, Failure):
            return steered
        if isinstance(unsteered, Failure):
            return unsteered
        return nulls if isinstance(nulls, Failure) else (steered, unsteered, nulls)

    def _usable(self, cells: ConceptPlan, spec: StrategySpec) -> SteeredTables | Failure:
        """The steered texts of a strategy, or why its figures are null."""
        if not spec.implemented:
            return Failure("", "", "not_implemented", f"{spec.id} is not implemented yet")
        measures = self.source.table(cells.measures[spec.id, self.plan.steering_layer])
        if isinstance(measures, Failure):
            return measures
        d1 = next((row for row in measures.to_pylist() if row["metric"] == "d1.auroc"), None)
        if d1 and d1["status"] in UNUSABLE:
            return Failure("", "", d1["status"], d1["reason"] or f"D1 is {d1['status']}")
        directions = directions_of(cells, spec, self.plan, self.source)
        unusable = unusable_direction(directions, self.plan.config.steering.direction)
        return self._named(cells, spec.id) if unusable is None else unusable

    def _named(self, cells: ConceptPlan, name: str) -> SteeredTables | Failure:
        """The texts of a strategy, or of the null directions."""
        return self._steered(cells.texts[name], cells.scores[name], cells.fluency[name])

    def _steered(self, texts: str, scores: str, fluency: str) -> SteeredTables | Failure:
        tables = [self.source.table(key) for key in (texts, scores, fluency)]
        failed = next((table for table in tables if isinstance(table, Failure)), None)
        return failed or SteeredTables(*tables)

    def _scorer(self, name: str) -> Scorer:
        table = self.source.table(self.plan.scorers[name].gate)
        if isinstance(table, Failure):
            return Scorer(name, "no_scorer", table.reason)
        return Scorer.from_gate(name, table.to_pylist())
