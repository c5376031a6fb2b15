"""How many texts a plan generates."""

from __future__ import annotations

from dataclasses import dataclass

from poolbench_driver.plan.scope import Scope


@dataclass(frozen=True)
class Generations:
    """Texts that a plan generates, for D2 and D3 together: no text is generated for either alone.

    Attributes:
        steered: Along the strategies' directions: concepts x strategies x strengths x openings x samples.
        null: Along the null directions.
        unsteered: At strength 0, once for all concepts.
    """

    steered: int
    null: int
    unsteered: int

    def __str__(self) -> str:
        total = self.steered + self.null + self.unsteered
        parts = f"{self.steered:,} steered, {self.null:,} along null directions, {self.unsteered:,} unsteered"
        return f"{total:,} ({parts})"


def generations(scope: Scope) -> Generations:
    """Count the texts that a run generates, without the continuations for the scorers' gate."""
    if not scope.steers:
        return Generations(0, 0, 0)
    budget, steering = scope.config.budget, scope.config.steering
    texts = budget.num_openings * steering.num_samples
    concepts = len(scope.concepts) * texts
    return Generations(
        steered=concepts * len(scope.strategies) * len(budget.strengths),
        null=concepts * budget.num_nulls * len(budget.null_strengths),
        unsteered=texts,
    )
