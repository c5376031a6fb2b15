"""The page of a search: the chosen vector with its honest gain, and the board of all candidates."""

from collections.abc import Iterator

from poolbench_driver.contract.page import (
    Answer,
    Cell,
    Column,
    Facts,
    Heads,
    Line,
    Page,
    Part,
    Picture,
    Problem,
    Span,
    Table,
)
from poolbench_driver.find.baselines import baselines_part
from poolbench_driver.find.necessity import necessity_part
from poolbench_driver.find.search import SCREEN, SearchResult
from poolbench_driver.pages.drawing import chart, level, looks_of, number_axis, picture, points, texts
from poolbench_driver.pages.text import interval, with_interval
from poolbench_driver.vectors.card import CardMeasure, VectorCard
from poolbench_driver.vectors.words import facts_of, measures_of


def search_page(result: SearchResult) -> Page:
    """Return the page of a search."""
    card, selection, best = result.vector.card, result.selection, result.selection.chosen
    gain = with_interval(selection.gain, selection.interval, "+.3f")
    others = len(selection.tied) - 1
    sentences = [
        f"At strength {selection.strength:g} it moves the score of {card.concept} by {gain} on "
        f"{selection.num_openings} openings that the choice never saw.",
        f"The score falls on {with_interval(selection.wrong_way, selection.wrong_way_interval, '.0%')} of these "
        "openings.",
        f"On the openings of the choice the score moves by {selection.naive:+.3f}. A figure without the split would be "
        f"{abs(selection.optimism):.3f} {'lower' if selection.optimism < 0 else 'higher'}.",
    ]
    if others:
        sentences.append(
            f"The data cannot tell it apart from {others} other{'s' * (others > 1)}, which the edge marks."
        )
    elif len(selection.gains) > 1:
        sentences.append("The data tell it apart from every other candidate.")
    sentences += _second_opinion(card)
    headline = [Span(best.entrant, named=True), Span(f" at layer {best.layer} steers {card.concept} best.")]
    facts = Part("card", "Card of the vector", [Facts(list(facts_of(card)))], "Card")
    board, measured = _board(result), Part("figures", "Figures", [_figures(card)], "Figures")
    parts = [_damaged(card), *necessity_part(card), *_robustness(card), *baselines_part(card), facts, measured]
    parts += [_screened(result), *_excluded(result)]
    problems = []
    if selection.interval and selection.interval[0] <= 0:
        problems.append(Problem("The interval of its gain holds 0: it may not steer at all", "figures"))
    if card.strength.reason:
        problems.append(Problem(f"{card.strength.reason[0].upper()}{card.strength.reason[1:]}", "damage"))
    if card.limit and card.strength.recommended and (outside := card.limit.outside([card.strength.recommended])):
        problems.append(Problem(f"The recommended {outside}", "card"))
    for measure in card.measures:
        if measure.name == "judge.gain" and measure.value is not None and not (measure.ci_low or 0) > 0:
            problems.append(Problem("The second judge does not confirm the gain: its interval holds 0", "figures"))
        if measure.name == "damage.kl" and measure.value is None:
            problems.append(Problem(f"Its damage is unknown: {measure.reason}", "figures"))
    return Page("Vector", card.name, Answer(headline, sentences), board, problems, _picture(card), parts=parts)


def _second_opinion(card: VectorCard) -> Iterator[str]:
    """Yield sentences about the ratings of a second judge, and about other concepts that move."""
    for measure in card.measures:
        if measure.name == "judge.gain" and measure.value is None:
            yield f"No second judge confirms it: {measure.reason}."
        elif measure.name == "judge.gain":
            yield f"A second judge, {card.judge}, rates these texts {_text(measure)} of its scale higher."
        elif measure.name.startswith("side_effects.") and (measure.ci_low or 0) * (measure.ci_high or 0) > 0:
            yield f"It moves {measure.name.partition('.')[2]} too, by {_text(measure)}."


def _text(measure: CardMeasure, spec: str = "+.3f") -> str:
    assert measure.value is not None
    return with_interval(measure.value, (measure.ci_low, measure.ci_high), spec)


#: Measures of damage by strength, the heads of their columns, and how their numbers are written.
_DAMAGE = {
    "find.gain_by_strength": ("gain", "+.3f"),
    "damage.kl": ("KL, nats per token", ".3g"),
    "damage.perplexity_ratio": ("perplexity ratio", ".3f"),
    "damage.pair_accuracy": ("pairs right", ".3f"),
}


def _by_strength(card: VectorCard) -> dict[float, dict[str, CardMeasure]]:
    """Return the measures of `_DAMAGE` that have a value, by ascending strength and name."""
    by_strength = dict[float, dict[str, CardMeasure]]()
    for measure in card.measures:
        if measure.name in _DAMAGE and measure.strength is not None and measure.value is not None:
            by_strength.setdefault(measure.strength, {})[measure.name] = measure
    return dict(sorted(by_strength.items()))


def _picture(card: VectorCard) -> Picture | None:
    """Plot the gain on the openings of the choice against the divergence on benign text, one point per strength."""
    recommended, other = f"recommended strength {card.strength.recommended:g}", "other strengths"
    unsteered = {name: CardMeasure(name=name, value=0.0) for name in ("find.gain_by_strength", "damage.kl")}
    rows = []
    for strength, measures in [(0.0, unsteered), *_by_strength(card).items()]:
        gain, divergence = measures.get("find.gain_by_strength"), measures.get("damage.kl")
        if gain is not None and divergence is not None:
            says = f"strength {strength:g}: gain {gain.value:+.3f}, KL {divergence.value:.3g} nats per token"
            at = {"x": divergence.value, "y": gain.value, "low": gain.ci_low, "high": gain.ci_high}
            series = recommended if strength == card.strength.recommended else other
            rows.append({**at, "series": series, "text": f"{strength:g}", "says": says})
    if len(rows) == 1:
        return None
    layers = [level("y", 0), points(rows), texts(rows)]
    across = number_axis("KL to the unsteered model on benign text, nats per token")
    up = number_axis("gain on the openings of the choice")
    drawn = chart(layers, across, up, 220, looks_of([recommended, other]))
    return picture("Gain against damage, by strength", drawn)


def _damaged(card: VectorCard) -> Part:
    by_strength = _by_strength(card)
    names = [name for name in _DAMAGE if any(name in measures for measures in by_strength.values())]
    lines = [
        Line.of(Cell(f"{strength:.4g}", strength), *(_figure(measures.get(name)) for name in names))
        for strength, measures in by_strength.items()
    ]
    columns = [Column(_DAMAGE[name][0], has_intervals=True) for name in names]
    table = Table.of([Column("strength"), *columns], lines)
    notes = [
        "The gain by strength is that of the openings of the choice, since only these are steered at every strength. "
        "The damage is read on benign text that no choice saw, steered at every position. The perplexity ratio is the "
        "perplexity of this text over that of the unsteered model."
    ]
    for measure in card.measures:
        if measure.name == "damage.strength_at_1_percent" and measure.value is not None:
            notes.append(
                f"Up to strength {_text(measure, '.3g')} it stays at most 1.01, which is 1 % of damage; between "
                "strengths its logarithm is taken as linear."
            )
    return Part("damage", "Damage by strength", [table], "Damage", " ".join(notes))


def _figure(measure: CardMeasure | None) -> Cell:
    if measure is None or measure.value is None:
        return Cell()
    _, form = _DAMAGE[measure.name]
    limits = interval((measure.ci_low, measure.ci_high), form)
    return Cell(f"{measure.value:{form}}", measure.value, measure.ci_low, measure.ci_high, limits)


def _figures(card: VectorCard, of: str = "") -> Table:
    """Return the measures of a card whose names begin with `of`."""
    rows = [row for row in measures_of(card) if row["measure"].startswith(of)]
    columns = ("value", "95 % interval", "n", "why null")
    lines = [
        Line.of(row["measure"].removeprefix(of), *("" if row[name] is None else str(row[name]) for name in columns))
        for row in rows
    ]
    return Table.of(["measure", *columns[:-1], Column("why null", is_text=True)], lines)


def _robustness(card: VectorCard) -> Iterator[Part]:
    """Yield the gains on other data, if the card has any."""
    if any(measure.name.startswith("robustness.") for measure in card.measures):
        note = (
            "Gains of the held-out openings at the recommended strength, against unsteered texts of the same prompts: "
            "behind benign context, in other forms, at other temperatures, and with another vector added. The spread "
            "is the largest minus the smallest gain of the forms; noise alone makes it positive."
        )
        figures = _figures(card, "robustness.")
        yield Part("robustness", "Does it hold elsewhere", [figures], "Elsewhere", note)


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
