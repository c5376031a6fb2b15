"""Stage of fine-tunes: the same texts read by a model before and after its weights are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from poolbench.steps.base import StrategyParam
from poolbench.steps.extractor import EXTRACT, PASSAGES, VECTORS, ChangeParams, ExtractParams
from poolbench_driver.stages.stage import Draft


class State(NamedTuple):
    """A state of a model: as it is, after a fine-tune, or after a random change of the same size."""

    tune: str | None = None
    random_seed: int | None = None


def read_states(
    draft: Draft,
    texts: str,
    reading: Mapping[str, Any],
    layers: Sequence[int],
    changes: Mapping[State, ChangeParams | None],
    strategy: str = "A1_mean",
) -> dict[State, dict[int, str]]:
    """Plan vectors of texts by every state of a model; return their keys by state and layer.

    Args:
        texts: Key of a table of passages; its column `span`, if there is one, says which characters are pooled.
        reading: Parameters that name the model and how it reads.
        changes: What the weights are changed by in each state; None for nothing.
    """
    keys_by_state: dict[State, dict[int, str]] = {}
    for state, change in changes.items():
        changed: dict[str, Any] = {} if change is None else {"change": change}
        params = ExtractParams(**reading, strategies=[StrategyParam(id=strategy)], layers=list(layers), **changed)
        roles = {layer: VECTORS(strategy, layer) for layer in layers}
        outputs = draft.add(EXTRACT, params, {PASSAGES(): texts}, roles.values())
        keys_by_state[state] = {layer: outputs[role] for layer, role in roles.items()}
    return keys_by_state
