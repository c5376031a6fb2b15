"""The official tables: the copy against every mean of the source, and what the source's own arithmetic says."""

from __future__ import annotations

import csv
import tomllib
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from fnmatch import fnmatch
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from poolbench.concepts import CONCEPTS
from poolbench.config import MODEL_PRESETS
from poolbench.errors import UnknownModelError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES
from poolbench_driver.contract.metrics import all_metrics
from poolbench_driver.suites.poolbench import official
from poolbench_driver.suites.poolbench.official import Meaning, check_table, d1_board, official_table, same_cells
from poolbench_driver.suites.poolbench.official.significance import block_values, rank_bounds

DATA = Path(official.__file__).parent / "data"
TABLE = official_table()

#: Llama's A1 on D1, from the card's specification and not from the files.
A1_OF_LLAMA = {
    "academic_tone": 0.99978, "bureaucratic": 0.99998, "causation": 0.40803, "code_docs": 0.99907,
    "conditionality": 0.4162, "contrast": 0.4334, "deference": 0.88864, "depression": 1, "frustration": 0.87358,
    "hedging": 0.41649, "imdb_sentiment": 0.87819, "legal_formality": 0.42362, "narrative": 0.99994,
    "negation_density": 0.42596, "numerical_precision": 0.97683, "planning": 1, "toxicity": 0.90467,
}  # fmt: skip


def lines(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / name).read_text("utf-8").splitlines()))


def test_the_table_is_whole() -> None:
    assert (len(TABLE.models), len(TABLE.strategies), len(TABLE.concepts), len(TABLE.columns)) == (3, 19, 17, 6)
    assert len(TABLE.cells) == 3 * 19 * 17 * 6 == len(TABLE.values)
    assert sum(cell.value is not None for cell in TABLE.cells) == 4904
    assert TABLE.source["commit"] == "283209c2e53c0395217b2cbcbec2c1fd6d4c7f8a"
    assert set(TABLE.significance.mean_ranks) == {line.strategy for line in TABLE.leaderboard}


def test_known_cells() -> None:
    found = {concept: TABLE.values["llama3_8b", "A1_mean", concept, "D1_auroc"] for concept in TABLE.concepts}
    assert found == A1_OF_LLAMA
    assert TABLE.values["gemma2_9b", "W4_hierarchical", "legal_formality", "D3_LD"] == 3.39278
    assert TABLE.values["mistral_7b", "P2_first_token", "causation", "D2_scp_c"] is None
    first = [(line.strategy, line.means["D1_auroc"]) for line in TABLE.leaderboard[:5]]
    assert first == [
        ("W4_hierarchical", 0.77987), ("S3_ITI_exact", 0.77274), ("S1_attention_weighted", 0.77025),
        ("A1_mean", 0.76998), ("L2_dependency_rel", 0.76998),
    ]  # fmt: skip


@pytest.mark.parametrize(("over", "of"), [("concepts", "strategy"), ("strategies", "concept")])
def test_every_published_mean_follows_from_the_copied_cells(over: str, of: str) -> None:
    """In decimal arithmetic and from the files themselves, so that nothing of the reader is needed."""
    cells: dict[tuple[str, str, str], list[Decimal]] = defaultdict(list)
    columns = [column.id for column in TABLE.columns]
    for model in TABLE.models:
        for row in lines(f"cells-{model.name}.csv"):
            for column in columns:
                if row[column]:
                    cells[model.name, row[of], column].append(Decimal(row[column]))
    means = [row for row in lines("means.csv") if row["over"] == over]
    assert len(means) == 3 * (19 if over == "concepts" else 17)
    for row in means:
        for column in columns:
            found = cells[row["model"], row["of"], column]
            assert bool(found) == bool(row[column]), (row["model"], row["of"], column)
            if found:
                assert abs(sum(found) / len(found) - Decimal(row[column])) <= Decimal("0.000005"), (row, column)


def test_the_source_disagrees_with_itself_only_in_its_tests() -> None:
    checks = {check.name: check for check in check_table(TABLE)}
    assert not [name for name, check in checks.items() if check.meaning == Meaning.COPY and check.disagreements]
    found = {name: len(check.disagreements) for name, check in checks.items() if check.disagreements}
    assert found == {
        "ranks by mean D1": 2,
        "strategies with equal cells have equal mean ranks": 1,
        "pairs that differ at 5 %": 3,
        "p-values are those of the mean ranks beside them": 71,
        "critical difference": 2,
        "tiers and pairs follow from the critical difference": 2,
    }


def test_a_damaged_cell_is_found_twice() -> None:
    place = next(k for k, cell in enumerate(TABLE.cells) if cell.value == 0.40803)
    damaged = (*TABLE.cells[:place], replace(TABLE.cells[place], value=0.40083), *TABLE.cells[place + 1 :])
    checks = check_table(replace(TABLE, cells=damaged))
    assert [check.name for check in checks if check.meaning == Meaning.COPY and check.disagreements] == [
        "means over the concepts", "means over the strategies",
    ]  # fmt: skip


def test_one_choice_of_eleven_concepts_fits_the_mean_ranks() -> None:
    """The source ranks 33 blocks without naming them; of all choices of 11 concepts one agrees with its mean ranks."""
    bounds = [rank_bounds(block_values(TABLE, (concept,))) for concept in TABLE.concepts]
    best, worst = (np.array([pair[side] for pair in bounds]) for side in (0, 1))
    choices = list(combinations(range(17), 11))
    chosen = np.zeros((len(choices), 17))
    chosen[np.repeat(np.arange(len(choices)), 11), np.ravel(choices)] = 1 / 11
    theirs = np.array([TABLE.significance.mean_ranks[strategy.id] for strategy in TABLE.strategies])
    fits = ((chosen @ best <= theirs + 1e-6) & (chosen @ worst >= theirs - 1e-6)).all(axis=1)
    (only,) = np.flatnonzero(fits)
    assert tuple(TABLE.concepts[k] for k in choices[only]) == TABLE.significance.concepts


def test_our_board_of_their_cells() -> None:
    board = d1_board(TABLE)
    assert board.entrants[0] == "W4_hierarchical" and board.summary["num_blocks"] == 17
    assert board.summary["critical_difference"] == pytest.approx(6.788, abs=5e-4)
    ranks = dict(zip(board.entrants, (measure.value for measure in board.measures), strict=True))
    assert ranks["A1_mean"] == ranks["L2_dependency_rel"]


def test_equal_strategies_are_named() -> None:
    everywhere = [(model.name, "A1_mean", "L2_dependency_rel") for model in TABLE.models]
    assert sorted(same_cells(TABLE)) == sorted([*everywhere, ("gemma2_9b", "S1_attention_weighted", "S3_ITI_exact")])


def test_counterparts_exist() -> None:
    assert set(TABLE.concepts) == {concept.id for concept in CONCEPTS.all()}
    assert [strategy.id for strategy in TABLE.strategies if strategy.ours is None] == ["L2_dependency_rel"]
    for strategy in TABLE.strategies:
        assert strategy.ours is None or STRATEGIES.get(strategy.ours)
    for column in TABLE.columns:
        assert set(column.ours) <= {"published", "corrected"} and set(column.ours.values()) <= set(all_metrics())
    for model in TABLE.models:
        assert model.preset in MODEL_PRESETS and model.best_layer in model.layers
        assert TABLE.model(MODEL_PRESETS[model.preset].source) == TABLE.model(model.label) == model


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="official"):
        official_table("offical")
    with pytest.raises(UnknownModelError, match=r"llama-3\.1-8b"):
        TABLE.model("llama-3.1-9b")


def test_the_package_carries_the_data() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    files = [path.name for path in DATA.iterdir() if path.name != "README.md"]
    assert len(files) == 8 and all(any(fnmatch(name, pattern) for pattern in patterns) for name in files)
