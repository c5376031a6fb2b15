"""D2 and D3 of one (concept, strategy) by the card's definitions, from the texts that the corrected ones read."""

from __future__ import annotations

from typing import Any

from poolbench.suites import (
    GatedScorer,
    Measure,
    SteeringRules,
    blank_published,
    published_d2,
    published_d3,
)
from poolbench_driver.assemble.steered import Tables
from poolbench_driver.run import Failure


def published(
    tables: Tables | Failure,
    rules: SteeringRules,
    direction: str,
    target: GatedScorer,
    neighbour: GatedScorer | None = None,
    relation: str | None = None,
) -> list[Measure]:
    """The published D2 of a concept, or with a neighbour and relation its D3."""
    if isinstance(tables, Failure):
        why: dict[str, Any] = {"scorer": target.concept, "direction": direction, "relation": relation}
        other = neighbour.concept if neighbour else None
        return blank_published(tables.error, **why, neighbour=other)
    steered, unsteered, _ = tables
    how: dict[str, Any] = {"rules": rules, "direction": direction}
    if neighbour is None or relation is None:
        return published_d2(steered, unsteered, scorer=target, **how)
    return published_d3(steered, unsteered, target=target, neighbour=neighbour, relation=relation, **how)
