"""Bounds and types of parameters move no key: the tasks of the presets are those of earlier releases, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from poolbench.config import ModelRef, load_run_config
from poolbench.contracts.keys import digest
from poolbench_driver.models import ModelInfo
from poolbench_driver.plan import Plan, make_plan
from poolbench_driver.plan.names import resolve_names

DEMO = ModelInfo(ModelRef("demo", "/models/demo", "local-0123456789ab"), 6, 256)
LLAMA = ModelInfo(ModelRef("llama-3.1-8b", "meta-llama/Llama-3.1-8B", "abc", "bfloat16"), 32, 4096)
ALL = ["card", "extended", "S3_iti_probe", "X1_learned_query"]
PUBLISHED = {
    "preset": "card",
    "protocol": "published",
    "budget": {
        "alpha_unit": "absolute",
        "strengths": [0.25, 0.5, 1.0, 2.0, 3.0],
        "null_strengths": [0.5, 1.0, 2.0],
        "reference_strength": 1.0,
        "opening_set": "published-10",
    },
    "steering": {"positions": "all"},
}
SAMPLED = {"preset": "demo", "steering": {"temperature": 0.8, "num_samples": 3}, "layer_choice": "nested", "seed": 7}

#: Digest of all tasks, and of all keys, as planned at commit 1fb733f. A raised step or strategy version moves them on
#: purpose; nothing else may.
PLANNED = {
    "demo": ("fb67fafa06801c2d", "366b8f3acfdf460a"),
    "card": ("a1bc0988586c52a0", "14bc84ce14eb1fbf"),
    "full": ("33e3873d91c1b135", "94e2399a688779fe"),
    "published": ("01273fc01fa63de8", "7231841e36e90610"),
    "kept": ("b5a483dc8b56c7b7", "30e9a80c849144de"),
    "sampled": ("e692d9f413a4a2b3", "bfa8bfefee3e50b0"),
}
RUNS: dict[str, tuple[dict[str, Any], ModelInfo]] = {
    "demo": ({"preset": "demo"}, DEMO),
    "card": ({"preset": "card", "model": "llama-3.1-8b"}, LLAMA),
    "full": ({"preset": "full", "model": "llama-3.1-8b", "fold_seeds": [1, 2, 3]}, LLAMA),
    "published": ({**PUBLISHED, "model": "llama-3.1-8b"}, LLAMA),
    "kept": ({"preset": "demo", "keep_activations": True, "strategies": ALL}, DEMO),
    "sampled": (SAMPLED, DEMO),
}


def planned(name: str) -> Plan:
    """The plan of one run."""
    settings, model = RUNS[name]
    config, strategies = resolve_names(load_run_config(None, settings))
    return make_plan(config, model, strategies, "1.0")


def digests(plan: Plan) -> tuple[str, str]:
    """Digest of the tasks as they are sent, and of the keys of all artifacts."""
    tasks = [task.model_dump(mode="json") for task in plan.tasks.values()]
    return digest(tasks, 16), digest(sorted([*plan.producers(), *plan.local]), 16)


@pytest.mark.parametrize("name", RUNS)
def test_tasks_and_keys_of_a_run_stay(name: str) -> None:
    assert digests(planned(name)) == PLANNED[name]
