"""Texts of the openings that the choice of a vector never saw: along the vector at its strength, and unsteered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.wire import UNSTEERED
from poolbench.storage import Artifacts
from poolbench_driver.records import RunFolder
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.search.selection import Selection


@dataclass(frozen=True)
class HeldOutText:
    """A text, with the score of the concept's scorer. The id says nothing of how the text was made."""

    text_id: str
    opening: str  # id of the opening
    prompt: str  # the opening itself
    text: str  # generated part only
    is_steered: bool
    score: float


def held_out_rows(folder: RunFolder, concept: str, selection: Selection) -> Iterator[tuple[bool, Row]]:
    """Yield rows of `text_scores` of the held-out openings, and whether the text is steered: at the chosen strength."""
    best = selection.chosen
    steered = folder.rows("text_scores", concept=concept, name=best.entrant, scorer=concept)
    unsteered = folder.rows("text_scores", name=UNSTEERED, scorer=concept)
    for is_steered, strength, rows in ((True, selection.strength, steered), (False, 0.0, unsteered)):
        for row in rows:
            if row["prompt_id"] in selection.openings and np.isclose(row["strength"], strength, rtol=0, atol=1e-9):
                yield is_steered, row


def held_out_texts(
    plan: PoolBenchPlan, folder: RunFolder, artifacts: Artifacts, concept: str, selection: Selection
) -> list[HeldOutText]:
    """Return a steered and an unsteered text of each held-out opening, its first sample where it has several."""
    first = dict[tuple[bool, str], Row]()
    for is_steered, row in held_out_rows(folder, concept, selection):
        at = is_steered, row["prompt_id"]
        if at not in first or (row.get("sample") or 0) < (first[at].get("sample") or 0):
            first[at] = row
    texts = dict[str, Row]()
    for key in text_keys(plan, concept, selection.chosen.entrant).values():
        for row in artifacts.read_table(key).select(["text_id", "prompt", "text"]).to_pylist():
            texts[row["text_id"]] = row
    return [
        HeldOutText(row["text_id"], opening, text["prompt"] or "", text["text"], is_steered, row["score"])
        for (is_steered, opening), row in sorted(first.items())
        if (text := texts.get(row["text_id"])) is not None
    ]


def text_keys(plan: PoolBenchPlan, concept: str, entrant: str) -> Mapping[str, str]:
    """Return the artifacts of the texts along a direction, and of the unsteered ones, by name."""
    assert plan.steering is not None
    steered = plan.steering.texts.concepts[concept].texts[entrant]
    return {entrant: steered.texts, UNSTEERED: plan.steering.unsteered.texts.texts}


def pairs_of(texts: Sequence[HeldOutText]) -> dict[str, tuple[HeldOutText, HeldOutText]]:
    """Return the unsteered and the steered text by opening, where there are both."""
    steered, unsteered = ({text.opening: text for text in texts if text.is_steered is side} for side in (True, False))
    return {opening: (unsteered[opening], text) for opening, text in steered.items() if opening in unsteered}
