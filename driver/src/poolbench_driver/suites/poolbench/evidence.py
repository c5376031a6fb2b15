"""What stands behind a figure of PoolBench: passages by the probe's score, and steered texts by strength."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.keys import is_restricted
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.grouping import grouped
from poolbench_driver.contract.evidence import NO_TEXTS, TOKENS, Evidence, OpenedCell, TextGroup, TextIds
from poolbench_driver.contract.page import Cell, Column, Heads, Line, Part, Passage, SideBySide, Table
from poolbench_driver.contract.source import RowSource
from poolbench_driver.pages.plain import number, passage, text_cell
from poolbench_driver.stages.failure import Failure
from poolbench_driver.stages.plan import ConceptsPlan

#: exp of a larger number overflows.
_LARGEST_NLL = 700.0
_SENSITIVE = " The concept is sensitive: its texts stay in the object store, and only scores are shown."


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield the passages behind a D1 figure, or the steered texts behind a D2 or D3 figure.

    Yield nothing for a figure without a strategy or a concept.
    """
    family = cell.row["metric"].partition(".")[0]
    if cell.row["strategy"] is None or cell.row["concept"] is None:
        return
    if family == "d1" and cell.row["layer"] is not None:
        yield from _passages(cell)
    elif family in ("d2", "d3"):
        yield from _steered(cell)


def _passages(cell: OpenedCell) -> Iterator[Part]:
    """Yield the passages of a cell with their scores, misclassified passages first. Yield nothing without a probe."""
    row = cell.row
    at = {name: row[name] for name in ("concept", "strategy", "layer")}
    split = row["split"] or "train"
    scores = [score for score in cell.rows("passage_scores", **at) if score["split"] == split]
    if not scores:
        return
    first_scores = wrong_first(scores)[: cell.most]
    texts = _texts(cell, TextGroup(row["concept"]), [score["passage_id"] for score in first_scores])
    heads: Heads = ["", "score", Column("concept", is_text=True), Column("text", is_text=True)]
    lines = [
        Line.of(
            _verdict(score),
            _score_cell(cell, score, has_text=score["passage_id"] in texts),
            "with" if score["label"] == 1 else "without",
            text_cell(texts.get(score["passage_id"]), score["passage_id"]),
        )
        for score in first_scores
    ]
    num_wrong = sum(_verdict(score) == WRONG for score in scores)
    how = "by the probe that is fitted on train" if split == "test" else "each by the probe of a fold that holds it out"
    note = (
        f"{num_wrong} of {len(scores)} {split} passages are on the wrong side of 0. The most wrong come first, then "
        f"those that are right most clearly; {how}.{_lacking(cell, texts, first_scores)}"
    )
    yield Part("passages", "Passages by the probe's score", [Table.of(heads, lines)], note=note)


def _score_cell(cell: OpenedCell, score: Row, *, has_text: bool) -> Cell:
    """Return the cell of a score. If the text is available, the cell links to the tokens of its passage."""
    score_cell = number(score["score"], "+.3f") if _verdict(score) else Cell("not a number")
    path = f"{TOKENS}/{cell.row['cell_id']}/{quote(score['passage_id'], safe='')}"
    return replace(score_cell, opens=path if has_text else "")


RIGHT, WRONG = "right", "wrong"


def _verdict(score: Row) -> str:
    """Return `right` if a score has the sign of its label, `wrong` if not, and "" if the score is not a number."""
    if score["score"] is None or not math.isfinite(score["score"]):
        return ""
    return RIGHT if (score["score"] > 0) == (score["label"] == 1) else WRONG


def wrong_first(scores: Iterable[Row]) -> list[Row]:
    """Sort scores of passages: the most wrong first, then the most clearly right, and last scores without a number."""

    def place(score: Row) -> tuple[int, float, str]:
        verdict = _verdict(score)
        certainty = abs(score["score"]) if verdict else 0.0
        return [WRONG, RIGHT, ""].index(verdict), -certainty, score["passage_id"]

    return sorted(scores, key=place)


def _is_sensitive(cell: OpenedCell) -> bool:
    return CONCEPTS.get(cell.row["concept"]).sensitive


def _texts(cell: OpenedCell, group: TextGroup, ids: Sequence[str]) -> Mapping[str, Row]:
    """Return texts by id. For a sensitive concept, return no texts, even if the operator allows sensitive concepts."""
    return {} if _is_sensitive(cell) else cell.texts(group, ids)


def _lacking(cell: OpenedCell, texts: Mapping[str, Row], shown: Sequence[object]) -> str:
    if _is_sensitive(cell):
        return _SENSITIVE
    return NO_TEXTS if len(texts) < len(shown) else ""


def _steered(cell: OpenedCell) -> Iterator[Part]:
    """Yield the response curve of a cell, and its texts by opening and strength."""
    row = cell.row
    concept, entrant = row["concept"], row["strategy"]
    curve = cell.rows("curves", concept=concept, strategy=entrant, layer=row["layer"])
    strengths = [
        Line.of(
            number(point["strength"], "g"),
            *(number(point[name]) for name in ("score", "gain")),
            number(point["perplexity_ratio"], ".2f"),
            "yes" if point["fluent"] else "no",
        )
        for point in curve
    ]
    if strengths:
        heads: Heads = ["strength", "score", "gain", "perplexity ratio", Column("fluent", is_text=True)]
        yield Part("strengths", f"{entrant} on {concept} by strength", [Table.of(heads, strengths)])
    scored = [*cell.rows("text_scores", concept=concept, name=entrant), *cell.rows("text_scores", name=UNSTEERED)]
    openings = raised_least(concept, scored)[: cell.most]
    steered = [text for opening in openings for text in opening if text["strength"]]
    unsteered = [text for opening in openings for text in opening if not text["strength"]]
    texts = dict(_texts(cell, TextGroup(concept, entrant), _ids(steered)))
    texts |= _texts(cell, TextGroup("", UNSTEERED), _ids(unsteered))
    if openings:
        note = (
            "Texts of one opening beside each other, first the opening whose score steering raises least. Perplexity "
            "is that of the unsteered model; a receipt says at how many positions the vector was added."
        )
        scorers = list(dict.fromkeys(filter(None, (concept, row["neighbour"], row["scorer"]))))
        blocks = [_side_by_side(opening, texts, scorers) for opening in openings]
        lacking = _lacking(cell, texts, [*steered, *unsteered])
        yield Part("texts", "Steered texts by strength", blocks, note=note + lacking)


def _ids(texts: Iterable[Row]) -> list[str]:
    return [text["text_id"] for text in texts]


def raised_least(concept: str, scored: Iterable[Row]) -> list[list[Row]]:
    """Group texts by opening and sample. The opening whose score rises least by steering comes first.

    Each group is sorted by strength. Groups without an unsteered and a steered text are left out.

    Args:
        scored: Rows of `text_scores.parquet` for steered and unsteered texts. Each returned row has the field `scores`,
            by scorer.
    """
    by_text: dict[str, Row] = {}
    for row in scored:
        by_text.setdefault(row["text_id"], {**row, "scores": {}})["scores"][row["scorer"]] = row["score"]
    by_opening = grouped(((text["prompt_id"], text.get("sample") or 0), text) for text in by_text.values())
    openings = [sorted(opening, key=itemgetter("strength")) for _, opening in sorted(by_opening.items())]
    compared = [opening for opening in openings if opening[0]["strength"] == 0 and len(opening) > 1]

    def rise(opening: list[Row]) -> float:
        unsteered, *steered = (text["scores"].get(concept) or 0.0 for text in opening)
        return max(steered) - unsteered

    return sorted(compared, key=rise)


def _side_by_side(opening: Sequence[Row], texts: Mapping[str, Row], scorers: Sequence[str]) -> SideBySide:
    """Return the texts of one opening, each below its strength, scores, perplexity and receipt."""
    captions = [_caption(text, texts.get(text["text_id"]), scorers) for text in opening]
    return SideBySide([(caption, _continued(text, texts)) for caption, text in zip(captions, opening, strict=True)])


def _caption(text: Row, kept: Row | None, scorers: Sequence[str]) -> str:
    facts = [f"strength {text['strength']:g}" if text["strength"] else UNSTEERED]
    scores = {scorer: text["scores"].get(scorer) for scorer in scorers}
    facts += [f"{scorer} {score:.3f}" for scorer, score in scores.items() if score is not None]
    if text.get("mean_nll") is not None:
        facts.append(f"perplexity {math.exp(min(text['mean_nll'], _LARGEST_NLL)):.3g}")
    if kept is not None and kept["positions_expected"]:
        changed, expected = kept["positions_changed"], kept["positions_expected"]
        facts.append(f"vector {kept['vector_hash']} at {changed} of {expected} positions")
    return ", ".join(facts)


def _continued(text: Row, texts: Mapping[str, Row]) -> Passage:
    """Return the opening and the marked continuation of a text. If the text is not available, return its id."""
    text_row = texts.get(text["text_id"])
    if text_row is None:
        return Passage(text["text_id"])
    prompt, (generated,) = text_row["prompt"] or "", text_row["texts"]
    whole = prompt + generated["text"]
    return passage(whole, [(len(prompt), len(whole))] if generated["text"] else ())


def shown_texts(tables: Mapping[str, pa.Table], most: int) -> Iterator[tuple[TextGroup, str]]:
    """Yield the texts that cells show: their first passages, and the texts of their first openings at all strengths.

    `most` is the number of passages and of openings per cell.
    """
    cells = grouped(
        ((row["concept"], row["strategy"], row["layer"], row["split"]), row)
        for row in tables["passage_scores"].to_pylist()
    )
    for (concept, *_), scores in cells.items():
        yield from ((TextGroup(concept), score["passage_id"]) for score in wrong_first(scores)[:most])
    scored = grouped(((row["concept"] or "", row["name"]), row) for row in tables["text_scores"].to_pylist())
    unsteered = scored.pop(("", UNSTEERED), [])
    for (concept, entrant), rows in scored.items():
        openings = [] if entrant == NULLS else raised_least(concept, [*rows, *unsteered])[:most]
        for text in (text for opening in openings for text in opening):
            yield TextGroup(concept, entrant) if text["strength"] else TextGroup("", UNSTEERED), text["text_id"]


def texts(plan: ConceptsPlan, source: RowSource, wanted: TextIds) -> Iterator[Row]:
    """Yield the wanted texts as rows of `TEXTS`. Texts of sensitive concepts are left out."""
    for group, ids in wanted.items():
        for key in _keys(plan, group):
            table = None if is_restricted(key) else source.table(key)
            if table is None or isinstance(table, Failure):
                continue
            id_column = "text_id" if "text_id" in table.column_names else "passage_id"
            for row in table.filter(pc.is_in(table[id_column], pa.array(ids, pa.string()))).to_pylist():
                marked = [{"text": row["text"], "spans": row.get("signal")}]
                yield {**row, **group._asdict(), "text_id": row[id_column], "texts": marked}


def _keys(plan: ConceptsPlan, group: TextGroup) -> Iterable[str]:
    """Return the keys of the artifacts that hold the texts of a group."""
    if not group.origin:
        return plan.vectors.concepts[group.block].passages.values()
    if plan.steering is None:
        return ()
    if group.origin == UNSTEERED:
        return [plan.steering.unsteered.texts.texts]
    return [plan.steering.texts.concepts[group.block].texts[group.origin].texts]


BEHIND = Evidence(evidence, shown_texts, texts)
