"""How many texts a plan generates."""

from __future__ import annotations

from dataclasses import dataclass

from poolbench_driver.plan.plan import Plan


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


def generations(plan: Plan) -> Generations:
    """How many texts a plan's steering tasks generate; continuations for the scorers' gate are not among them."""
    if not plan.openings:
        return Generations(0, 0, 0)
    budget, steering = plan.config.budget, plan.config.steering
    texts = budget.num_openings * steering.num_samples
    concepts = len(plan.concepts) * texts
    return Generations(
        steered=concepts * len(plan.implemented) * len(budget.strengths),
        null=concepts * budget.num_nulls * len(budget.null_strengths),
        unsteered=texts,
    )
