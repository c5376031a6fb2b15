"""Texts that several processes parse together."""

import multiprocessing
import time

import pytest
from services.pooler.tests.test_annotate import PROSE

from poolbench.errors import InputError
from poolbench.settings import PoolerSettings
from poolbench_pooler import core
from poolbench_pooler.annotate import Columns, Pipeline, load_pipeline, parse
from poolbench_pooler.core import parse_together


@pytest.mark.lane(name="series")
def test_several_processes_give_the_same_columns(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{PROSE} Item {number} was late, although it was paid." for number in range(70)]
    names = [f"text {number}" for number in range(len(texts))]
    expected = list(parse(pipeline, texts, names))
    monkeypatch.setenv(PoolerSettings.variable("processes"), "2")
    assert list(parse_together(pipeline, texts, names)) == expected
    with pytest.raises(InputError, match="text 69 is not valid Unicode"):
        next(parse_together(pipeline, [*texts[:-1], "\ud800"], names))


def parse_first_portion(pipeline: str, texts: list[str]) -> list[Columns]:
    """Parse the portion with the first text, and hold the others open."""
    while texts[0] != f"{PROSE} 0":
        time.sleep(1)
    return list(parse(load_pipeline(pipeline), texts))


@pytest.mark.lane(name="series")
def test_a_killed_process_is_an_error_of_the_infrastructure(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PoolerSettings.variable("processes"), "2")
    texts = [f"{PROSE} {number}" for number in range(200)]
    with monkeypatch.context() as patch:
        patch.setattr(core, "_parse", parse_first_portion)
        columns = parse_together(pipeline, texts, texts)
        next(columns)
        for child in multiprocessing.active_children():
            child.kill()
        with pytest.raises(MemoryError, match="was killed"):
            list(columns)
    assert len(list(parse_together(pipeline, texts, texts))) == 200
