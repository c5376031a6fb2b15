"""Places in the engine: texts of tasks leave some to texts that clients wait for."""

from __future__ import annotations

import pytest

from poolbench_steerer.engine.engine import num_task_places


@pytest.mark.parametrize(
    ("num_rows", "num_seqs", "places"), [(1024, 256, 240), (64, 256, 56), (1024, 8, 7), (1024, 1, 1), (2, 256, 2)]
)
def test_places_of_tasks(num_rows: int, num_seqs: int, places: int) -> None:
    assert num_task_places(num_rows, num_seqs) == places
