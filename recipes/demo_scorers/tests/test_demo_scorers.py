"""The scorers that the repository has are those that the demo asks for."""

import json
from pathlib import Path

from recipes.demo_scorers.__main__ import NOTE, demo_plan, training_tasks, write
from safetensors.torch import load_file

from poolbench.config import asset_path
from poolbench.steps.scorer import CONFIG, REPORT, WEIGHTS
from poolbench_scorer.training.shipped import SHIPPED, shipped_scorer


def test_each_scorer_of_the_demo_is_shipped_under_its_key_and_no_other() -> None:
    tasks = dict(training_tasks(demo_plan()))
    folders = {folder.name: folder for folder in asset_path(SHIPPED).iterdir() if folder.is_dir()}
    assert folders.keys() == tasks.keys(), "run `python -m recipes.demo_scorers`: the demo asks for other scorers"
    for key, folder in folders.items():
        config = json.loads((folder / CONFIG).read_text())
        assert config["concept"] == tasks[key].params["concept"] and config["kind"] == "head"
        assert json.loads((folder / REPORT).read_text())["note"] == NOTE
        assert {str(tensor.dtype) for tensor in load_file(folder / WEIGHTS).values()} == {"torch.float16"}


def test_the_service_takes_them_as_the_recipe_writes_them(tmp_path: Path) -> None:
    key = next(key for key, _ in training_tasks(demo_plan()))
    scorer = shipped_scorer(key)
    assert scorer is not None
    write(scorer, tmp_path / key)
    for file in (asset_path(SHIPPED) / key).iterdir():
        assert (tmp_path / key / file.name).read_bytes() == file.read_bytes()
