"""Stage of fine-tunes: the same texts read by a model before and after its weights are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poolbench.steps.common import StrategyParam
from poolbench.steps.extractor import EXTRACT, PASSAGES, VECTORS, ChangeParams, ExtractParams
from poolbench_driver.stages.stage import Draft

#: The model as it is, among its states by name.
BEFORE = "before"


def read_states(
    draft: Draft,
    texts: str,
    reading: Mapping[str, Any],
    layers: Sequence[int],
    changes: Mapping[str, ChangeParams | None],
    strategy: str = "A1_mean",
) -> dict[str, dict[int, str]]:
    """Plan vectors of texts by every state of a model; return their keys by state and layer.

    Args:
        texts: Key of a table of passages; its column `span`, if there is one, says which characters are pooled.
        reading: Parameters that name the model and how it reads.
        changes: What the weights are changed by, by the name of the state; None for nothing.
    """
    keys_by_state: dict[str, dict[int, str]] = {}
    for name, change in changes.items():
        changed: dict[str, Any] = {} if change is None else {"change": change}
        params = ExtractParams(**reading, strategies=[StrategyParam(id=strategy)], layers=list(layers), **changed)
        roles = {layer: VECTORS(strategy, layer) for layer in layers}
        outputs = draft.add(EXTRACT, params, {PASSAGES(): texts}, roles.values())
        keys_by_state[name] = {layer: outputs[role] for layer, role in roles.items()}
    return keys_by_state
