"""The scorers that the repository has are those that runs of the demo and of real text ask for."""

import json
from pathlib import Path

from recipes.scorers.__main__ import NOTE, training_tasks, write

from poolbench.config import asset_path
from poolbench.steps.scorer import CONFIG, REPORT
from poolbench_scorer.training.shipped import PACKED, SHIPPED, shipped_scorer


def test_each_scorer_that_a_default_run_asks_for_ships_under_its_key_and_no_other() -> None:
    tasks = training_tasks()
    folders = {folder.name: folder for folder in asset_path(SHIPPED).iterdir() if folder.is_dir()}
    assert folders.keys() == tasks.keys(), "run `python -m recipes.scorers`: the plans ask for other scorers"
    for key, folder in folders.items():
        config, (_, task) = json.loads((folder / CONFIG).read_text()), tasks[key]
        assert config["concept"] == task.params["concept"] and config["kind"] == "head"
        assert json.loads((folder / REPORT).read_text())["note"] == NOTE
        assert (folder / PACKED).stat().st_size <= 2_000_000


def test_the_recipe_writes_a_scorer_as_it_ships(tmp_path: Path) -> None:
    """Packed once more, the differences are the same but for the rounding of their scales."""
    key = next(iter(training_tasks()))
    scorer = shipped_scorer(key)
    assert scorer is not None
    write(scorer, tmp_path / key)
    shipped = asset_path(SHIPPED) / key
    assert {file.name for file in (tmp_path / key).iterdir()} == {file.name for file in shipped.iterdir()}
    for name in (CONFIG, REPORT):
        assert (tmp_path / key / name).read_bytes() == (shipped / name).read_bytes()
