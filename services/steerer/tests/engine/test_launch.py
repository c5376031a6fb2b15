"""Checkpoints that lack weights start no engine."""

from pathlib import Path
from typing import Any

import pytest
from services.steerer.tests.host.test_host import saved

from poolbench.errors import ModelError
from poolbench_steerer.engine.launch import require_weights


def test_a_checkpoint_that_lacks_weights_starts_no_engine(steerer_config: Any, tmp_path: Path) -> None:
    """One part of a joined parameter is enough, which vLLM itself does not notice."""
    from safetensors import safe_open

    require_weights(saved(tmp_path / "whole"), steerer_config)
    with safe_open(tmp_path / "whole" / "model.safetensors", "pt") as content:
        names = list(content.keys())
    query = "model.layers.1.self_attn.q_proj.weight"
    for place, weights, message in (
        ("one", {name: name for name in names if name != query}, rf"lacks weights, such as {query}; save the whole"),
        ("head", {name: name for name in names if name != "lm_head.weight"}, r"such as lm_head\.weight"),
        ("ddp", {name: f"module.{name}" for name in names}, r"has others .* such as module\.lm_head\.weight"),
    ):
        with pytest.raises(ModelError, match=message):
            require_weights(saved(tmp_path / place, weights), steerer_config)
