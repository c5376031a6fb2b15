"""A small run of the main job: the demo with fewer and shorter texts. Every kind of task is in it."""

from pathlib import Path

import yaml
from tests.servers import tutorial

SMALL = {
    "preset": "demo",
    "concepts": ["contrast"],
    "strategies": ["A1_mean", "L5_keyword"],
    "layers": [2, 4],
    "budget": {
        "name": "nodes",
        "num_train": 60,
        "num_test": 30,
        "num_scorer": 80,
        "strengths": [0.5],
        "null_strengths": [0.5],
        "reference_strength": 0.5,
        "num_openings": 4,
        "max_tokens": 8,
        "num_continuations": 20,
        "num_bootstrap": 50,
    },
}


def command(config: Path, output: Path) -> list[str]:
    """Return the run of the tutorial with this configuration, written to `config`; its results go below `output`."""
    config.write_text(yaml.safe_dump(SMALL))
    run = tutorial.command("poolbench-driver run", {"--preset demo": str(config)})
    return [*run, "--output", str(output), "--display", "plain"]
