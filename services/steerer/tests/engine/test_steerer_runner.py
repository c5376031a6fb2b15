"""The engine of a CPU has vLLM's first model runner, which the hooks serve there, whatever the environment says."""

from __future__ import annotations

from typing import Any

import pytest

from poolbench_steerer.host import EngineHost


@pytest.mark.slow
def test_another_model_runner_in_the_environment_does_not_reach_the_engine(
    monkeypatch: pytest.MonkeyPatch, steerer_config: Any, model_ref: Any
) -> None:
    """The engine's process itself says which runner it has; its title stands where its environment could be read."""
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    host = EngineHost(steerer_config)

    async def runner(engine: Any) -> str:
        return str(engine.runner)

    try:
        assert host.run(model_ref, runner) == "v1"
    finally:
        host.close()
