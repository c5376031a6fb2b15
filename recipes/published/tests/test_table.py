"""The published tables: the copy against every mean of the source, and what the source's own arithmetic says."""

import csv
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from recipes.published.significance import block_values, rank_bounds
from recipes.published.stated import DATA, Meaning, stated
from recipes.published.table import check_table, d1_board, same_cells

from poolbench_driver.suites.poolbench import published_table as tables
from poolbench_driver.suites.poolbench.published_table import published_table

CELLS = Path(tables.__file__).parent / "data"
TABLE = published_table()
STATED = stated()


def lines(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text("utf-8").splitlines()))


@pytest.mark.parametrize(("over", "of"), [("concepts", "strategy"), ("strategies", "concept")])
def test_every_published_mean_follows_from_the_copied_cells(over: str, of: str) -> None:
    """In decimal arithmetic and from the files themselves, so that nothing of the reader is needed."""
    cells: dict[tuple[str, str, str], list[Decimal]] = defaultdict(list)
    columns = [column.id for column in TABLE.columns]
    for model in TABLE.models:
        for row in lines(CELLS / f"cells-{model.name}.csv"):
            for column in columns:
                if row[column]:
                    cells[model.name, row[of], column].append(Decimal(row[column]))
    means = [row for row in lines(DATA / "means.csv") if row["over"] == over]
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
    theirs = np.array([STATED.significance.mean_ranks[strategy.id] for strategy in TABLE.strategies])
    fits = ((chosen @ best <= theirs + 1e-6) & (chosen @ worst >= theirs - 1e-6)).all(axis=1)
    (only,) = np.flatnonzero(fits)
    assert tuple(TABLE.concepts[k] for k in choices[only]) == STATED.significance.concepts


def test_our_board_of_their_cells() -> None:
    board = d1_board(TABLE)
    assert board.entrants[0] == "W4_hierarchical" and board.summary["num_blocks"] == 17
    assert board.summary["critical_difference"] == pytest.approx(6.788, abs=5e-4)
    ranks = dict(zip(board.entrants, (measure.value for measure in board.measures), strict=True))
    assert ranks["A1_mean"] == ranks["L2_dependency_rel"]


def test_equal_strategies_are_named() -> None:
    everywhere = [(model.name, "A1_mean", "L2_dependency_rel") for model in TABLE.models]
    assert sorted(same_cells(TABLE)) == sorted([*everywhere, ("gemma2_9b", "S1_attention_weighted", "S3_ITI_exact")])
