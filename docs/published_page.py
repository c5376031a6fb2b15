"""The page of the official tables: their source and definitions, and their arithmetic from their own cells."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from poolbench.concepts import CONCEPTS
from poolbench_driver.reproduction import check_rows, disagreement_rows
from poolbench_driver.suites.poolbench.official import (
    Check,
    Meaning,
    OfficialTable,
    check_table,
    d1_board,
    official_table,
    same_cells,
)

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]

#: The check whose disagreements have a table of their own, because they are many.
_MANY = "p-values are those of the mean ranks beside them"


def parts(table: Table) -> Iterator[str]:
    """Yield the page's paragraphs and tables."""
    official = official_table()
    yield "# The official tables and their arithmetic"
    yield from _source(official)
    yield from _checks(check_table(official), table)
    yield from _ranks(official, table)
    yield from _below_chance(official, table)
    yield from _definitions(official, table)


def _source(official: OfficialTable) -> Iterator[str]:
    source, values = official.source, sum(cell.value is not None for cell in official.cells)
    yield (
        f"The repository holds the cells of {source['title']} (version {source['version']}, {source['date']}): "
        f"{values:,} figures of {len(official.models)} models, {len(official.strategies)} strategies and "
        f"{len(official.concepts)} concepts. They come from {source['repository']}, commit "
        f"`{source['commit'][:7]}`, under its licence ({source['licence']}). They lie in "
        "`driver/src/poolbench_driver/suites/poolbench/official/data/`, with the files that each of them comes from."
    )
    yield (
        "`poolbench-driver reproduce` sets them beside a run ([how](../runs.md#the-published-cells-beside-ours)). No "
        "run of these models has been made here: that needs a GPU and the Hugging Face hub. What this page compares "
        "is the source with itself: every mean, rank and test, computed again from the cells. "
        "`poolbench-driver reproduce --check` prints the same."
    )


def _checks(checks: Sequence[Check], table: Table) -> Iterator[str]:
    yield "## What was compared"
    rows = check_rows(checks)
    yield table(list(rows[0]), ([str(value) for value in row.values()] for row in rows))
    yield (
        "The figures were read page by page and written down, not downloaded. Each cell enters two means of the "
        "source, and all of them agree to its five decimals. A wrong digit in the last two places of a single cell "
        "(up to .00008) could still hide in the rounding of both means."
    )
    yield "## Where the source disagrees with itself"
    listed = [each for each in checks if each.meaning != Meaning.COPY and each.name != _MANY]
    yield (
        "The means and the ranks follow from the cells. The tests of differences on D1 do not fit together. They use "
        "33 of the 51 blocks of model and concept, which the source does not name: of all choices of 11 concepts, one "
        f"agrees with its mean ranks ({', '.join(official_table().significance.concepts)}, in all three models)."
    )
    yield _disagreements(listed, table)
    many = next(each for each in checks if each.name == _MANY)
    yield (
        f"The mean ranks give equal cells different ranks, the p-values do not. So {len(many.disagreements)} of the "
        f"{many.num_compared} p-values differ by more than 1 % from those that the mean ranks beside them give:"
    )
    yield _disagreements([many], table, why=False)


def _disagreements(checks: Iterable[Check], table: Table, *, why: bool = True) -> str:
    names = ("figure", "theirs", "recomputed", *(["why"] if why else []))
    return table(names, ([row[name] for name in names] for row in disagreement_rows(checks)))


def _ranks(official: OfficialTable, table: Table) -> Iterator[str]:
    board, lines = d1_board(official), {line.strategy: line for line in official.leaderboard}
    yield "## Their order and ours, from the same cells"
    yield (
        "The leaderboard orders strategies by their mean D1 over concepts and models. We rank them within each concept "
        f"([why](../metrics.md#ranks)). The critical difference of {board.summary['num_blocks']} concepts is "
        f"{board.summary['critical_difference']:.3f}. Where most strategies lie below .5, a strategy that is always "
        "at .5, such as P2, ranks high."
    )
    found = zip(board.entrants, board.measures, strict=True)
    yield table(
        ("strategy", "our mean rank", "95 % interval", "their rank", "their mean D1"),
        (
            (
                name,
                f"{measure.value:.2f}",
                f"{measure.ci_low:.2f} to {measure.ci_high:.2f}",
                str(lines[name].rank),
                f"{lines[name].means['D1_auroc']:.5f}",
            )
            for name, measure in found
        ),
    )
    equal = [f"{first} and {second} ({model})" for model, first, second in same_cells(official)]
    yield f"All figures of these strategies are equal: {', '.join(equal)}."


def _below_chance(official: OfficialTable, table: Table) -> Iterator[str]:
    yield "## D1 below chance"
    yield (
        "Ungrouped folds put a passage and its rewrite on two sides, which pulls D1 below .5 "
        "([why](../metrics.md#published-definitions)). *Lead* is the difference of W4_hierarchical and A1_mean in mean "
        "D1 over the models."
    )
    leads = {name: _lead(official, name) for name in official.concepts}
    rows = []
    for name in sorted(official.concepts, key=lambda name: -leads[name]):
        values = _d1(official, name)
        below = sum(value < 0.5 for value in values)
        pairs = "yes" if CONCEPTS.get(name).matched_pairs else ""
        rows.append((name, pairs, f"{fmean(values):.3f}", f"{below} of {len(values)}", f"{leads[name]:+.4f}"))
    yield table(("concept", "matched pairs", "mean D1", "cells below .5", "lead"), rows)
    matched = sum(leads[name] for name in official.concepts if CONCEPTS.get(name).matched_pairs)
    yield (
        f"The concepts with matched pairs make {100 * matched / sum(leads.values()):.0f} % of the lead of the first "
        "strategy over the mean."
    )


def _d1(official: OfficialTable, concept: str, strategy: str | None = None) -> list[float]:
    return [
        cell.value
        for cell in official.cells
        if cell.column == "D1_auroc" and cell.concept == concept and cell.strategy == (strategy or cell.strategy)
        if cell.value is not None
    ]


def _lead(official: OfficialTable, concept: str) -> float:
    return fmean(_d1(official, concept, "W4_hierarchical")) - fmean(_d1(official, concept, "A1_mean"))


def _definitions(official: OfficialTable, table: Table) -> Iterator[str]:
    yield "## Definitions, and our figures beside them"
    yield (
        "All figures of a model are of one layer, which the source calls its best. The source keeps "
        "special tokens in its vectors; our corrected protocol leaves them out. D2 and D3 compare only with runs "
        "that steer with absolute coefficients from the openings `published-10`, as `--protocol published` does."
    )
    yield table(
        ("figure", "definition", "published", "corrected", "what else differs"),
        (
            (f"`{c.id}`", c.definition, _ours(c.ours, "published"), _ours(c.ours, "corrected"), c.differs)
            for c in official.columns
        ),
    )
    yield table(
        ("model", "on the leaderboard", "layer", "layers measured"),
        ((f"`{m.preset}`", m.label, str(m.best_layer), ", ".join(map(str, m.layers))) for m in official.models),
    )
    yield table(
        ("strategy of the table", "ours", "what differs"),
        ((s.id, f"`{s.ours}`" if s.ours else "none", s.differs) for s in official.strategies),
    )


def _ours(metrics: dict[str, str], protocol: str) -> str:
    return f"`{metrics[protocol]}`" if protocol in metrics else "none"
