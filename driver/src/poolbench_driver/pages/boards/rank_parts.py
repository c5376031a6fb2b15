"""The parts of a page about ranks: boards with their tests, standings, pairs, families, layers and concepts."""

from collections.abc import Iterable, Iterator, Mapping

from poolbench.contracts import Row
from poolbench_driver.contract.page import Block, Cell, Column, Details, Group, Heads, Line, Part, Picture, Prose, Table
from poolbench_driver.pages.boards.ranks import RanksView, rank_text
from poolbench_driver.pages.plain import number
from poolbench_driver.pages.text import interval

_STRATEGY = "strategy"


def rank_parts(ranks: RanksView, diagrams: Mapping[str, Picture] | None = None) -> Iterator[Part]:
    """Yield the ranks with their ties: overall, by family, concept family and model. Without ranks, yield nothing.

    If there are too few concepts for some figures, a line says so and these figures are left out. With one concept, the
    part is a list of values.

    Args:
        ranks: The boards and their tests.
        diagrams: Critical-difference diagrams, by metric.
    """
    if ranks.one_concept:
        lines = [Line.of(row["strategy"], number(row["value"])) for row in ranks.standings]
        values = Table.of([_STRATEGY, ranks.primary], lines)
        yield Part("ranks", f"{ranks.primary} on {ranks.one_concept}", [Prose(ranks.limit), values], "Ranks")
    elif ranks.boards:
        blocks: list[Block] = [Prose(ranks.limit)] if ranks.limit else []
        blocks += [*_drawn(diagrams or {}), _tests(ranks.tests)]
        heading = "Ranks"
        if ranks.standings:
            board = ranks.boards[ranks.primary]
            difference = None if ranks.limit else board.summary["critical_difference"]
            note = "" if difference is None else f", critical difference {difference:.2f}"
            heading = f"Ranks on {ranks.primary}: {len(board.blocks)} concepts{note}"
            blocks += [_standings(ranks), _pairs(ranks), *_by_part(ranks)]
        yield Part("ranks", heading, blocks, "Ranks", _note(ranks))


def _note(ranks: RanksView) -> str:
    sentences = [
        "Each concept ranks the strategies by their mean over layers and models; ranks are then averaged over "
        "concepts. Strategies that cannot represent a concept share its worst rank."
    ]
    if ranks.limit:
        sentences.append("Tests of pairs are left out.")
    else:
        sentences.append(
            "Strategies that share a letter (a bar in the diagram) lie within Nemenyi's critical difference: this run "
            "does not tell them apart. Pairs are also compared by Wilcoxon's signed-rank test; effect is the "
            "matched-pairs rank-biserial correlation."
        )
        if not ranks.shows_holm:
            sentences.append("Over so many pairs no p can stay below .05 after Holm's correction, so it is left out.")
    return " ".join([*sentences, "With few concepts the intervals are somewhat too narrow."])


def _drawn(diagrams: Mapping[str, Picture]) -> Iterator[Block]:
    """Yield the first diagram, then a folded block of the other diagrams."""
    pictures = list(diagrams.values())
    if pictures:
        yield Group(pictures[:1])
    if pictures[1:]:
        yield Details("Diagrams of the other metrics", [Group(pictures[1:])])


def _tests(tests: Iterable[Row]) -> Table:
    heads: Heads = [
        "ranked by", Column("board", is_text=True), "concepts", "complete", "Friedman p", "Iman-Davenport p",
        "critical difference", Column("left out, or why there is no test", is_text=True),
    ]  # fmt: skip
    lines = [
        Line.of(
            row["metric"],
            row["board"],
            str(row["concepts"]),
            str(row["num_blocks"]),
            number(row["friedman_p"], ".2g"),
            number(row["iman_davenport_p"], ".2g"),
            number(row["critical_difference"], ".2f"),
            "; ".join([*(f"{name}: {why}" for name, why in row["dropped"].items()), *filter(None, [row["reason"]])]),
        )
        for row in tests
    ]
    return Table.of(heads, lines, "Tests", "that some strategies differ")


def _p_heads(ranks: RanksView) -> list[str]:
    """Return the columns of p-values that so many concepts and pairs allow below the level."""
    return [] if ranks.limit else ["p", *(["p (Holm)"] if ranks.shows_holm else []), "p (BH)"]


def _p_cells(ranks: RanksView, pair: Row) -> list[Cell]:
    columns = {"p": "p", "p (Holm)": "p_holm", "p (BH)": "p_bh"}
    return [number(pair[columns[head]], ".2g") for head in _p_heads(ranks)]


def _standings(ranks: RanksView) -> Table:
    board = ranks.boards[ranks.primary]
    measures = dict(zip(board.entrants, board.measures, strict=True))
    groups = [] if ranks.limit else [Column("tie groups", is_text=True)]
    heads: Heads = [
        _STRATEGY, "mean rank", *groups, "winning rate", "rank behind best", f"{ranks.primary} behind best", "effect",
        *_p_heads(ranks),
    ]  # fmt: skip
    lines = []
    for row in ranks.standings:
        best, measure = row["best"], measures[row["strategy"]]
        against: list[str | Cell] = [""] * (len(heads) - 3 - len(groups))
        if best and best["p"] is not None:
            against = [
                number(-best["rank_difference"], ".2f"),
                number(best["value_difference"]),
                number(best["effect"], ".2f"),
                *_p_cells(ranks, best),
            ]
        rank = Cell(row["rank"], measure.value, measure.ci_low, measure.ci_high)
        letters = [] if ranks.limit else [row["groups"]]
        lines.append(Line.of(row["strategy"], rank, *letters, number(row["winning_rate"], ".2f"), *against))
    note = "mean rank, mean winning rate over (concept, other strategy) pairs, and each strategy against the best"
    return Table.of(heads, lines, ranks.primary, note)


def _pairs(ranks: RanksView) -> Details:
    nemenyi = [] if ranks.limit else ["p (Nemenyi)"]
    heads: Heads = [
        _STRATEGY, Column("other", is_text=True), "concepts", "rank difference", f"{ranks.primary} difference",
        "effect", *_p_heads(ranks), *nemenyi,
    ]  # fmt: skip
    lines = []
    for pair in ranks.pairs:
        cells: list[str | Cell] = [pair["strategy"], pair["other"], str(pair["n"])]
        if pair["p"] is None:
            cells += [Cell(pair["status"], note=pair["reason"]), *[""] * (len(heads) - 4)]
        else:
            figures = (("rank_difference", ".2f"), ("value_difference", ".3f"), ("effect", ".2f"))
            cells += [number(pair[name], spec) for name, spec in figures]
            cells += [*_p_cells(ranks, pair), *([number(pair["p_nemenyi"], ".2g")] if nemenyi else [])]
        lines.append(Line.of(*cells))
    order = "" if ranks.limit else ", smallest p first"
    return Details(f"All {len(lines)} pairs{order}", [Table.of(heads, lines)])


def _by_part(ranks: RanksView) -> Iterator[Block]:
    """Yield tables of the ranks by strategy family, concept family, layer, concept and model."""
    families = [
        Line.of(
            family.family,
            str(len(family.strategies)),
            Cell(rank_text(family.mean_rank, family.interval), family.mean_rank, *(family.interval or (None, None))),
            family.strategies[0],
        )
        for family in ranks.strategy_families
    ]
    heads: Heads = ["family", "strategies", "mean rank", Column("best", is_text=True)]
    tables = [Table.of(heads, families, "Ranks by strategy family", "mean rank of their strategies")]
    if ranks.layers:
        layers = [
            Line.of(
                pair.first,
                pair.second,
                Cell(pair.status) if pair.value is None else number(pair.value, ".2f"),
                interval(pair.interval, ".2f"),
            )
            for pair in ranks.layers
        ]
        heads = ["layer", Column("other layer", is_text=True), "correlation", "95 % interval"]
        note = "Spearman correlation of the strategies' mean ranks"
        tables.append(Table.of(heads, layers, "Layer rank stability", note))
    resolution = "" if ranks.resolution is None else (
        f"; rank resolution {ranks.resolution:.1f} (95th percentile of rank changes when concepts are drawn again)"
    )  # fmt: skip
    concepts = [
        Line.of(row["concept"], Cell("all tied") if row["tau"] is None else number(row["tau"], ".2f"))
        for row in ranks.concepts
    ]
    note = f"Kendall's tau of the concept's order of strategies with the overall one{resolution}"
    yield Group([*tables, Table.of(["concept", "tau"], concepts, "Concepts", note)])
    for part, name in ((ranks.concept_families, "concept family"), (ranks.models, "model")):
        if part:
            lines = [Line.of(strategy, *cells) for strategy, cells in part.rows]
            yield Table.of([_STRATEGY, *part.parts], lines, f"Ranks by {name}", "number of concepts in brackets")
