"""Texts of the openings that the choice of a vector never saw: along the vector at its strength, and unsteered."""

from dataclasses import dataclass

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.wire import UNSTEERED
from poolbench.storage import Artifacts
from poolbench_driver.find.selection import Selection
from poolbench_driver.records import Run
from poolbench_driver.stages.plan import ConceptsPlan


@dataclass(frozen=True)
class HeldOutText:
    """A text, with the score of the concept's scorer. The id says nothing of how the text was made."""

    text_id: str
    prompt_id: str
    prompt: str
    text: str  # generated part only
    is_steered: bool
    score: float
    sample: int = 0  # of several on one opening


def held_out_texts(
    plan: ConceptsPlan, folder: Run, artifacts: Artifacts, concept: str, selection: Selection
) -> list[HeldOutText]:
    """Return the texts of a run on the held-out openings, at the chosen strength and at 0."""
    entrant, texts = selection.chosen.entrant, list[HeldOutText]()
    for name, of, strength in ((entrant, {"concept": concept}, selection.strength), (UNSTEERED, {}, 0.0)):
        table = artifacts.read_table(text_keys(plan, concept, entrant)[name]).select(["text_id", "prompt", "text"])
        contents: dict[str, Row] = {row["text_id"]: row for row in table.to_pylist()}
        for row in folder.rows("text_scores", name=name, scorer=concept, **of):
            if row["prompt_id"] in selection.openings and np.isclose(row["strength"], strength, rtol=0, atol=1e-9):
                content = contents[row["text_id"]]
                numbers = name == entrant, row["score"], row.get("sample") or 0
                texts.append(
                    HeldOutText(row["text_id"], row["prompt_id"], content["prompt"] or "", content["text"], *numbers)
                )
    return texts


def text_keys(plan: ConceptsPlan, concept: str, entrant: str) -> dict[str, str]:
    """Return the artifact keys of the texts that are steered along a direction, and of the unsteered texts, by name."""
    steered = plan.steered.texts.concepts[concept].texts[entrant]
    return {entrant: steered.texts, UNSTEERED: plan.steered.unsteered.texts.texts}
