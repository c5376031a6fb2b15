"""The page of a search: the chosen vector with its honest gain, and the board of all candidates."""

from collections.abc import Iterator

from poolbench_driver.contract.page import Answer, Cell, Column, Facts, Heads, Line, Page, Part, Problem, Span, Table
from poolbench_driver.pages.text import interval
from poolbench_driver.suites.poolbench.search.necessity import necessity_part
from poolbench_driver.suites.poolbench.search.runs import SCREEN, SearchResult
from poolbench_driver.vectors.words import facts_of, measures_of


def search_page(result: SearchResult) -> Page:
    """Return the page of a search."""
    card, selection, best = result.vector.card, result.selection, result.selection.chosen
    gain = f"{selection.gain:+.3f}"
    if selection.interval:
        gain += f" ({interval(selection.interval, '+.3f')})"
    others = len(selection.tied) - 1
    sentences = [
        f"At strength {selection.strength:g} it raises the score of {card.concept} by {gain} on "
        f"{selection.num_openings} openings that the choice never saw.",
        f"The best of {len(selection.gains)} candidates on all openings rises by {selection.naive:+.3f}: without the "
        f"split, the figure would be {selection.optimism:+.3f} higher.",
        "The data tell it apart from every other candidate."
        if not others
        else f"The data cannot tell it apart from {others} other{'s' * (others > 1)}, which the edge marks.",
    ]
    headline = [Span(best.entrant, named=True), Span(f" at layer {best.layer} steers {card.concept} best.")]
    facts = Part("card", "Card of the vector", [Facts(list(facts_of(card)))], "Card")
    figures = Table.of(
        ["measure", "value", "95 % interval", "n", Column("why null", is_text=True)],
        [Line.of(*("" if row[name] is None else str(row[name]) for name in _MEASURE)) for row in measures_of(card)],
    )
    parts = [facts, *necessity_part(card), Part("figures", "Figures", [figures], "Figures")]
    parts += [_screened(result), *_excluded(result)]
    problems = []
    if selection.interval and selection.interval[0] <= 0:
        problems.append(Problem("The interval of its gain holds 0: it may not steer at all", "figures"))
    return Page("Vector", card.name, Answer(headline, sentences), _board(result), problems, parts=parts)


_MEASURE = ("measure", "value", "95 % interval", "n", "why null")


def _board(result: SearchResult) -> Table:
    selection = result.selection
    lines = [
        Line.of(
            candidate.strategy,
            candidate.construction,
            str(candidate.layer),
            Cell(f"{selection.strengths[candidate]:g}", selection.strengths[candidate]),
            Cell(f"{gain:+.3f}", gain),
            is_tied=candidate in selection.tied,
        )
        for candidate, gain in selection.gains.items()
    ]
    note = (
        "Each at the fluent strength of its highest gain on one half of the openings; the gain is read on the other "
        "half. The first line was chosen on the first half alone. The edge marks those that the second half cannot "
        "tell apart from it (paired permutation tests, Benjamini-Hochberg at .05)."
    )
    heads: Heads = ["strategy", Column("construction", is_text=True), "layer", "strength", "gain"]
    return Table.of(heads, lines, "Candidates", note)


def _screened(result: SearchResult) -> Part:
    lines = [
        Line.of(
            row["strategy"],
            str(row["layer"]),
            Cell("null", note=row["reason"] or "")
            if row["value"] is None
            else Cell(f"{row['value']:.3f}", row["value"]),
            "yes" if row["steered"] else "no",
        )
        for row in result.screened
    ]
    note = f"Strategies are screened by {SCREEN} of the train passages; the test passages decide nothing."
    table = Table.of(["strategy", "layer", SCREEN, Column("steered along", is_text=True)], lines, note=note)
    return Part("screened", "What was screened", [table], "Screened", is_folded=True)


def _excluded(result: SearchResult) -> Iterator[Part]:
    lines = [
        Line.of(candidate.entrant, str(candidate.layer), reason)
        for candidate, reason in result.selection.excluded.items()
    ]
    if lines:
        heads: Heads = ["candidate", "layer", Column("reason", is_text=True)]
        yield Part("excluded", "What could not be chosen", [Table.of(heads, lines)], "Left out")
