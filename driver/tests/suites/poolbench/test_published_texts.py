"""Texts that others steered in place of our own: the folder that is read, the plan, the figures, and every mistake."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poolbench.errors import ConfigError, CorpusError, PoolbenchError
from poolbench.texts import load_openings
from poolbench_driver.assemble import assemble
from poolbench_driver.stages.plan import make_plan, num_texts
from poolbench_driver.stages.scope import Scope
from poolbench_driver.suites.poolbench.published_texts import with_published_texts

STRATEGIES = ("A1_mean", "W2_last_4")
#: The published name of the second.
SOURCE_NAMES = {"A1_mean": "A1_mean", "W2_last_4": "W1_mean_last_4"}


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    slope = 0.0 if "null" in key or scorer != "contrast" else 1.0
    return min(0.2 + 0.01 * opening + slope * strength, 1.0)


def published(folder: Path, scope: Scope, **changes: Any) -> Path:
    """The texts of a run in the published layout, with the source's names."""
    budget = scope.config.budget
    rows = [
        {
            "strategy": SOURCE_NAMES[strategy],
            "alpha": strength,
            "prompt": opening["text"],
            "text": " goes on",
            **changes,
        }
        for strategy in STRATEGIES
        for strength in budget.strengths
        for opening in load_openings(budget.opening_set, budget.num_openings).to_pylist()
    ]
    file = folder / "demo" / "contrast.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def scope_with(scope: Scope, folder: Path) -> Scope:
    return replace(scope, config=scope.config.model_copy(update={"steered_texts": str(folder)}))


def test_the_figures_of_imported_texts_are_those_of_the_same_texts_generated(steered: Any, tmp_path: Path) -> None:
    made = steered(strategies=STRATEGIES, steering={"reading": "whole"}).write(rising)
    generated = assemble(made.plan, made.artifacts, {}, "run-1")["results"].to_pylist()
    published(tmp_path / "theirs", made.plan.scope)
    made.plan = make_plan(with_published_texts(scope_with(made.plan.scope, tmp_path / "theirs")))
    kinds = Counter(task.kind for task in made.plan.tasks.values())
    assert kinds["steerer.read"] == 1 and kinds["steerer.generate"] == 2  # null directions, and unsteered texts
    assert num_texts(made.plan.scope)["steered"] == 0 and made.plan.scope.config.hashed()["steered_texts"]
    made.write(rising)
    imported = assemble(made.plan, made.artifacts, {}, "run-2")["results"].to_pylist()
    compared = 0
    for ours, theirs in zip(generated, imported, strict=True):
        if ours["metric"].startswith(("d2.", "d3.")):
            assert (ours["metric"], ours["strategy"], ours["value"]) == (
                theirs["metric"], theirs["strategy"], theirs["value"]
            )  # fmt: skip
            compared += ours["value"] is not None
    assert compared > 10


def test_the_stored_table_has_our_openings_and_the_strengths_of_the_file(steered: Any, tmp_path: Path) -> None:
    scope = steered(strategies=STRATEGIES).plan.scope
    published(tmp_path, scope)
    plan = make_plan(with_published_texts(scope_with(scope, tmp_path)))
    (step,) = [step for step in plan.local.values() if step.label == "imported texts contrast/W2_last_4"]
    rows = step.build().to_pylist()
    budget = scope.config.budget
    assert len(rows) == budget.num_openings * len([strength for strength in budget.strengths if strength])
    assert {row["direction_key"] for row in rows} == {"W2_last_4/C1"} and rows[0]["prompt_id"].endswith("-00")
    published(tmp_path, scope, text=" another text")
    again = make_plan(with_published_texts(scope_with(scope, tmp_path)))
    assert plan.local.keys() != again.local.keys()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"strategy": "A2_max"},
            ConfigError,
            "no texts of A1_mean after openings of neutral-54; it has A2_max",
        ),
        ({"prompt": "Another opening"}, ConfigError, "no texts of A1_mean after openings"),
        ({"alpha": 0.125}, CorpusError, "A1_mean has several texts of one strength and opening"),
        ({"alpha": "strong"}, CorpusError, r"contrast\.jsonl, line 1: the strength 'strong' is not a number"),
    ],
)
def test_what_is_wrong_is_one_line(
    steered: Any, tmp_path: Path, changes: dict[str, Any], error: type[PoolbenchError], message: str
) -> None:
    scope = steered(strategies=STRATEGIES).plan.scope
    published(tmp_path, scope, **changes)
    with pytest.raises(error, match=message):
        with_published_texts(scope_with(scope, tmp_path))


def test_what_the_folder_lacks_is_named(steered: Any, tmp_path: Path) -> None:
    scope = steered(strategies=STRATEGIES).plan.scope
    with pytest.raises(ConfigError, match="there is no folder"):
        with_published_texts(scope_with(scope, tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"has no texts of contrast .*leave the concept out"):
        with_published_texts(scope_with(scope, tmp_path))
    file = published(tmp_path, scope)
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    kept = [line for line in lines if line["alpha"] != max(scope.config.budget.strengths)]
    file.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
    with pytest.raises(ConfigError, match=r"no texts of A1_mean at strength .*: set budget\.strengths"):
        with_published_texts(scope_with(scope, tmp_path))
    del lines[3]["text"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    with pytest.raises(CorpusError, match="line 4: no column text or generated_text"):
        with_published_texts(scope_with(scope, tmp_path))
