"""Sampled texts: seeds by prompt and sample alone, columns that say so, and no dependence on neighbours."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolbench.contracts.tables import CALIBRATION, PROMPTS, SAMPLES, TEXTS, directions_schema, table_from_rows
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.storage import open_store
from poolbench.storage.artifacts import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench_steerer import tasks
from poolbench_steerer.tasks.handlers import text_row, texts_table
from poolbench_steerer.tasks.plan import Direction, Prompt, plan_draws, plan_texts, plan_unsteered

PROMPT_ROWS = [Prompt("p0", "Once", (5, 6)), Prompt("p1", "Then", (7,))]


def test_greedy_texts_have_no_draws_and_their_old_ids() -> None:
    assert plan_draws(["p0"], temperature=0.0, num_samples=1, seed=3) is None
    plan = plan_texts(PROMPT_ROWS, [Direction("d", np.ones(2))], [0.5], 3, 20.0)
    assert [text.draw for text in plan] == [None, None]
    assert texts_table([text_row(plan[0], "a", [1], None)]).schema.equals(TEXTS)


def test_several_greedy_samples_are_refused() -> None:
    with pytest.raises(InputError, match="num_samples is 2 at temperature 0"):
        plan_draws(["p0"], temperature=0.0, num_samples=2, seed=0)


def test_a_seed_depends_on_task_seed_prompt_and_sample_and_on_nothing_else() -> None:
    draws = plan_draws(["p0", "p1"], temperature=0.7, num_samples=3, seed=1)
    assert draws is not None
    seeds = {(name, draw.sample): draw.seed for name, own in draws.items() for draw in own}
    assert len(set(seeds.values())) == 6
    alone = plan_draws(["p1"], temperature=0.9, num_samples=1, seed=1)
    assert alone is not None and alone["p1"][0].seed == seeds["p1", 0]
    other = plan_draws(["p1"], temperature=0.7, num_samples=1, seed=2)
    assert other is not None and other["p1"][0].seed != seeds["p1", 0]


def test_every_sample_is_a_text_of_its_own_with_its_seed_in_the_table() -> None:
    draws = plan_draws(["p0", "p1"], temperature=0.7, num_samples=2, seed=1)
    plan = plan_texts(PROMPT_ROWS, [Direction("d", np.ones(2))], [0.1, 0.5], 3, 20.0, draws)
    assert len({text.text_id for text in plan}) == len(plan) == 8
    by_strength = {text.strength: text.draw for text in plan if text.prompt.prompt_id == "p0"}
    assert by_strength[0.1] == by_strength[0.5]  # strengths are compared on the same random numbers
    table = texts_table([text_row(text, "a", [1], None) for text in plan])
    assert table.schema.names == [*TEXTS.names, *SAMPLES.names]
    assert table["sample"].to_pylist() == [0, 1] * 4
    assert len(plan_unsteered(PROMPT_ROWS, 3, draws)) == 4


def test_a_sampled_text_is_the_same_alone_and_among_others(
    host: Any, tiny_model: Path, unit_vectors: np.ndarray, tmp_path: Path
) -> None:
    """One strength and opening alone, and the same in a batch with other strengths, openings and null directions."""
    store = Artifacts(open_store(str(tmp_path / "store")))
    openings = [{"prompt_id": f"p{n}", "text": text} for n, text in enumerate(["The river runs", "Nobody saw", "If"])]
    store.write_table("few", table_from_rows(openings[1:2], PROMPTS))
    store.write_table("many", table_from_rows(openings, PROMPTS))
    norms = [{"layer": 2, "median_residual_norm": 50.0, "num_tokens": 9}]
    store.write_table("calibration", table_from_rows(norms, CALIBRATION))
    rows = [{"direction_id": f"C{n}", "vector": unit_vectors[n].tolist(), "raw_norm": 1.0} for n in range(1, 4)]
    store.write_table("a1", table_from_rows(rows, directions_schema(unit_vectors.shape[1])))

    def texts(prompts: str, key: str, **changes: Any) -> dict[tuple[str, str, float, int], list[int]]:
        params = {"model": str(tiny_model), "layer": 2, "strengths": [0.5], "max_tokens": 12, "ignore_eos": True}
        params |= {"temperature": 0.9, "num_samples": 2, "seed": 11, **changes}
        inputs = {"prompts": prompts, "calibration": "calibration", "directions/x": "a1"}
        outputs = {"texts/x": f"texts.{key}", "fluency/x": f"fluency.{key}"}
        task = Task(kind="steerer.generate", inputs=inputs, outputs=outputs, params=params)
        tasks.generate(host, task, TaskIO(task, store))
        table = store.read_table(f"texts.{key}").to_pylist()
        return {(r["direction_key"], r["prompt_id"], r["strength"], r["sample"]): r["token_ids"] for r in table}

    alone = texts("few", "alone")
    crowd = texts("many", "crowd", direction_ids="all", strengths=[0.1, 0.5, 1.0])
    assert len(alone) == 2 and len(crowd) == 3 * 3 * 3 * 2
    assert {key: crowd[key] for key in alone} == alone
    assert len({tuple(ids) for ids in alone.values()}) == 2  # samples differ
    assert texts("few", "reseeded", seed=12) != alone
