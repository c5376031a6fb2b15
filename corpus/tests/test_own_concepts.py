"""Concepts of users: their definition, their pairs, and what a forecast says of their texts."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest

from poolbench.errors import ConfigError
from poolbench_corpora.own import Definition, Made, make_concept, read_definition, template
from poolbench_corpora.own.forecast import auroc_error, forecast

WORDS = [f"word{number}" for number in range(4000)]


def write_texts(path: Path, count: int, seed: int, word: str = "") -> str:
    rng = random.Random(seed)
    lines = (json.dumps({"text": " ".join([*rng.sample(WORDS, 20), word])}) + "\n" for _ in range(count))
    path.write_text("".join(lines), "utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Sixty texts of each class."""
    return {
        name: write_texts(tmp_path / f"{name}.jsonl", 60, seed) for seed, name in enumerate(("positives", "negatives"))
    }


def make(**fields: object) -> Made:
    definition = Definition.model_validate(fields)
    return make_concept(definition, definition.files())


def made(files: dict[str, str], name: str = "mine", **fields: object) -> Made:
    return make(id=name, **files, **fields)


def test_a_concept_has_its_definition_and_half_of_its_texts_for_training(files: dict[str, str]) -> None:
    found = made(files, definition="It is said. At length.", neighbours=("hedging", "narrative"), licence="MIT")
    assert found.usable
    assert (found.concept.summary, found.concept.family) == ("It is said", "own")
    assert [*found.concept.neighbours] == ["hedging", "narrative"]
    assert [(row["split"], row["positives"], row["negatives"]) for row in found.sizes()] == [
        ("train", 30, 30), ("test", 15, 15), ("scorer", 15, 15),
    ]  # fmt: skip
    assert set(found.passages["licence"].to_pylist()) == {"MIT"}


def test_the_template_is_a_definition_with_paths_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "mine.yaml"
    path.parent.mkdir()
    path.write_text(template("mine"), "utf-8")
    assert read_definition(path).positives == str(tmp_path / "deep" / "positives.jsonl")
    path.write_text("id: Mine\ncolour: red\n", "utf-8")
    with pytest.raises(ConfigError, match=r"id: .*colour: "):
        read_definition(path)


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "messages"


def test_a_forecast_of_the_example_finds_no_confound_and_a_scorer_that_should_pass() -> None:
    files = {"positives": str(EXAMPLE / "gratitude.jsonl"), "negatives": str(EXAMPLE / "neutral.jsonl")}
    power, gate, neighbours = forecast(made(files, "gratitude"))
    assert power.message.startswith("D1: with 99 and 111 documents or pairs for training, an AUROC of 0.61 or more")
    assert "0.74 to 0.86" in power.message
    assert gate.level == "note" and "1.00 to 1.00): the scorer should pass part (a)" in gate.message
    assert neighbours.message.startswith("D3: no distant and no close neighbour")


def test_a_forecast_warns_of_confounds_and_of_words_that_say_nothing(files: dict[str, str], tmp_path: Path) -> None:
    found = forecast(made(files, neighbours=("hedging", "narrative")))
    assert [remark.level for remark in found] == ["note", "warning", "warning"]
    assert found[1].message == (
        "D1: a run's verdict on the passages will be `short`: a class has 30 train documents or pairs; 50 are needed "
        "to exclude a confound"
    )
    assert "the gate asks a scorer for 0.75" in found[2].message  # random words: no scorer learns them
    longer = write_texts(tmp_path / "longer.jsonl", 60, 0, "more words than the other class has")
    messages = [remark.message for remark in forecast(made({**files, "positives": longer}))]
    assert "will be `confounded`: length alone separates the classes" in messages[1]


def test_a_forecast_without_test_texts_tries_no_scorer(files: dict[str, str]) -> None:
    found = made(files, neighbours=("hedging", "narrative"))
    kept = found.passages.filter(pc.not_equal(found.passages["split"], "test"))
    messages = [remark.message for remark in forecast(replace(found, passages=kept))]
    assert messages[2:] == ["D2: no scorer could be tried: a class has 0 test texts; 10 are needed"]


def test_the_standard_error_of_an_auroc() -> None:
    """By hand; at .5 it is that of the rank sum."""
    assert auroc_error(0.8, 100, 100) == pytest.approx(0.031369, abs=1e-6)
    assert auroc_error(0.5, 100, 100) == pytest.approx(((100 + 100 + 1) / (12 * 100 * 100)) ** 0.5, rel=1e-9)
