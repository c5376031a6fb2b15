"""What is generated for a task: planning and tables, without an engine."""

import numpy as np
import pyarrow as pa
import pytest

from poolbench.contracts.tables import CALIBRATION, SAMPLES, TEXTS, directions_schema, table_from_rows, vector_column
from poolbench.errors import InputError, LayerError
from poolbench_steerer.tasks.handlers import text_row, texts_table
from poolbench_steerer.tasks.plan import (
    Direction,
    Prompt,
    choose_directions,
    choose_passages,
    first_half,
    plan_draws,
    plan_texts,
    plan_unsteered,
    residual_norm,
)
from poolbench_steerer.tokens import repeated_4grams

PROMPTS = [Prompt("p0", "Once", (5, 6)), Prompt("p1", "Then", (7,))]


def directions(*rows: tuple[str, list[float] | None]) -> pa.Table:
    matrix = np.array([vector or [0.0, 0.0] for _, vector in rows], dtype=np.float32)
    records = [{"direction_id": name, "reason": None if v else "collapsed"} for name, v in rows]
    columns = table_from_rows(records, directions_schema(2))
    return columns.set_column(1, "vector", vector_column(matrix, np.array([v is not None for _, v in rows])))


def test_only_wanted_directions_are_taken_and_absent_ones_are_an_error():
    table = directions(("C1", [1.0, 0.0]), ("C2", None), ("C3", [0.0, 1.0]))
    usable, skipped = choose_directions("causation", table, ("C1", "C2"))
    assert [(direction.key, direction.vector.tolist()) for direction in usable] == [("causation/C1", [1.0, 0.0])]
    assert skipped == {"C2": "collapsed"}
    assert len(choose_directions("causation", table, "all")[0]) == 2
    with pytest.raises(InputError, match="has no C9; it has C1"):
        choose_directions("x", directions(("C1", [1.0, 0.0])), ("C9",))


def test_every_direction_strength_and_prompt_is_planned_once():
    plan = plan_texts(PROMPTS, [Direction("d", np.ones(2))], [0.1, 0.5], layer=3, unit=20.0)
    assert [(text.prompt.prompt_id, text.alpha) for text in plan] == [
        ("p0", 2.0), ("p1", 2.0), ("p0", 10.0), ("p1", 10.0),
    ]  # fmt: skip
    assert len({text.text_id for text in plan}) == 4
    assert {text.direction_key for text in plan_unsteered(PROMPTS, 3)} == {"unsteered"}


def test_the_id_of_a_text_stays_when_its_vector_is_computed_again():
    """Fluency and scores name texts by id, and stay committed when only the texts are made again."""

    def ids(vector: float, unit: float, source: str) -> list[str]:
        direction = Direction("A1_mean/C1", np.array([vector, 1.0]), source)
        return [text.text_id for text in plan_texts(PROMPTS, [direction], [0.5], layer=3, unit=unit)]

    assert ids(1.0, 20.0, "prober.probe.1") == ids(1.0 + 1e-7, 20.0 + 1e-5, "prober.probe.1")
    assert not set(ids(1.0, 20.0, "prober.probe.1")) & set(ids(1.0, 20.0, "prober.probe.2"))


def test_the_norm_of_an_uncalibrated_layer_is_an_error():
    rows = [{"layer": 2, "median_residual_norm": 7.5, "num_tokens": 10}]
    calibration = table_from_rows(rows, CALIBRATION)
    assert residual_norm(calibration, 2) == 7.5
    with pytest.raises(LayerError, match="no layer 3; it has 2"):
        residual_norm(calibration, 3)


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([1, 2, 3], None), ([1, 2, 3, 4], 0.0), ([1, 1, 1, 1, 1, 1], 2 / 3), ([1, 2, 1, 2, 1, 2], 1 / 3)],
)
def test_repeated_4grams_by_hand(tokens, share):
    assert repeated_4grams(tokens) == (share if share is None else pytest.approx(share))


def test_passages_are_balanced_and_in_a_fixed_order():
    rows = [{"passage_id": f"{label}{i}", "label": label, "text": "t"} for label in (0, 1) for i in (2, 0, 1)]
    chosen = choose_passages(pa.Table.from_pylist(rows), 4)
    assert [row["passage_id"] for row in chosen] == ["10", "11", "00", "01"]
    assert choose_passages(pa.Table.from_pylist(rows[::-1]), 4) == chosen
    with pytest.raises(InputError, match="one class is empty"):
        choose_passages(pa.Table.from_pylist(rows[:3]), 4)


@pytest.mark.parametrize(("length", "limit", "expected"), [(10, 64, 5), (200, 64, 64), (200, None, 100), (1, 64, 1)])
def test_first_half(length, limit, expected):
    assert len(first_half(range(length), limit)) == expected


def test_greedy_texts_have_one_sample_no_draws_and_their_old_ids() -> None:
    assert plan_draws(["p0"], temperature=0.0, num_samples=1, seed=3) is None
    plan = plan_texts(PROMPTS, [Direction("d", np.ones(2))], [0.5], 3, 20.0)
    assert [text.draw for text in plan] == [None, None]
    assert texts_table([text_row(plan[0], "a", [1], None)]).schema.equals(TEXTS)
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
    plan = plan_texts(PROMPTS, [Direction("d", np.ones(2))], [0.1, 0.5], 3, 20.0, draws)
    assert len({text.text_id for text in plan}) == len(plan) == 8
    by_strength = {text.strength: text.draw for text in plan if text.prompt.prompt_id == "p0"}
    assert by_strength[0.1] == by_strength[0.5]  # strengths are compared on the same random numbers
    table = texts_table([text_row(text, "a", [1], None) for text in plan])
    assert table.schema.names == [*TEXTS.names, *SAMPLES.names]
    assert table["sample"].to_pylist() == [0, 1] * 4
    assert len(plan_unsteered(PROMPTS, 3, draws)) == 4
