"""The page of a run: which autoencoder separates best, what limits that, the board, its picture, one subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from poolbench.contracts import Row
from poolbench_driver.contract.page import (
    Answer,
    Block,
    Cell,
    Column,
    Heads,
    Line,
    Page,
    Part,
    Passage,
    Picture,
    SideBySide,
    Table,
)
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.contract.vega import GREY, MUTED
from poolbench_driver.pages.drawing import CROSS, chart, looks_of, number_axis, picture, points, texts
from poolbench_driver.pages.plain import entrant_cell, number, passage
from poolbench_driver.records.features import FEATURES, features_of
from poolbench_driver.suites.ce_bench.concepts import Reader, readers
from poolbench_driver.suites.ce_bench.families import COORDINATES, RANDOM
from poolbench_driver.suites.ce_bench.metrics import (
    CONTRASTIVE,
    DENSE,
    EXCESS,
    HELD_OUT,
    INDEPENDENT,
    L0,
    PAPER,
    PRIMARY,
    RECOVERED,
    UNEXPLAINED,
    WIDTH,
)
from poolbench_driver.suites.ce_bench.view import CeBenchView, view_of


def score_by_l0(view: CeBenchView) -> Picture | None:
    """Plot the score of each entrant against its L0, with intervals, or return None without an autoencoder."""
    if not view.trained:
        return None
    kinds = {RANDOM: "random directions", COORDINATES: "coordinates"}
    rows = [
        {
            "x": entrant.value(L0), "y": row["value"], "low": row["ci_low"], "high": row["ci_high"],
            "series": kinds.get(entrant.kind, str(entrant.architecture)),
            "width": f"{entrant.count(WIDTH).text} features", "num_features": entrant.value(WIDTH),
            "text": entrant.name,
            "says": f"{entrant.name}: {entrant.figure(PRIMARY).text} at L0 {entrant.count(L0).text}",
        }
        for entrant in view.entrants
        if (row := entrant.figures[PRIMARY])["value"] is not None and entrant.value(L0) and entrant.value(WIDTH)
    ]  # fmt: skip
    architectures = sorted({str(entrant.architecture) for entrant in view.trained})
    looks = {
        **looks_of(architectures),
        **dict(zip(kinds.values(), ((GREY, "triangle-down"), (GREY, CROSS)), strict=True)),
    }
    widths = dict.fromkeys(row["width"] for row in sorted(rows, key=lambda row: row["num_features"]))
    size = {
        "field": "width", "type": "nominal",
        "scale": {"type": "ordinal", "domain": list(widths), "range": [50 + 50 * n for n in range(len(widths))]},
        "legend": {"symbolFillColor": MUTED, "columns": 3},
    }  # fmt: skip
    best = [row for row in rows if row["text"] == view.trained[0].name]
    drawn = chart(
        [points(rows, size=size), texts(best, dy=-8, fontWeight="bold")],
        number_axis("L0: features per token", scale="log"),
        number_axis("interpretability, divided by the root of the width"),
        300,
        looks,
    )
    captions = ["lines: 95 % intervals from a bootstrap over subjects", "grey: nothing was learned"]
    return picture("Score against L0", drawn, captions=captions)


#: Columns of the board, with their heads.
_COLUMNS = {
    UNEXPLAINED: "unexplained", RECOVERED: "loss recovered", DENSE: "dense", PRIMARY: "interpretability",
    CONTRASTIVE: "contrastive", INDEPENDENT: "independent", EXCESS: "excess", HELD_OUT: "held out",
}  # fmt: skip
_PUBLISHED = {
    CONTRASTIVE: "contrastive", INDEPENDENT: "independent", PRIMARY: "interpretability",
    "ce.interpretability.sum": "sum", PAPER: "sparsity-aware",
}  # fmt: skip
#: The columns of a pair of stories by what the page calls them.
SIDES = {"high": "first", "low": "second"}
#: Strongest features of a subject, and those that are named for each of all subjects.
_STRONGEST, _NAMED = 5, 3
#: Features that the page lists with their subjects, and rows of the table that it reads for them.
_FEATURES_SHOWN, _READ_ROWS = 10, 2000
_METHOD = (
    "Each subject has pairs of stories, one high and one low. The score is how far one feature stands out, in the "
    "difference between the two plus that between the subject and all others."
)
_BOARD_NOTE = (
    "Highest `ce.interpretability` first, with 95 % interval from a bootstrap over subjects. The blue edge marks the "
    "best autoencoder and those that it does not beat. Random directions have the width of an autoencoder, and on each "
    "token as many features. Loss recovered: of the loss that zeros in place of the states add, the share that the "
    "reconstruction does not; 1 loses nothing. Dense: share of features that are active on more than a tenth of the "
    "tokens. Excess is over pairs of stories of the same side; 0 means that the two sides differ no more than these. "
    "Held out: share of right pairs by one feature that was chosen on other pairs of the subject; chance is .5. A word "
    "in place of a number is why there is none."
)


def report(run: FinishedRun, page: Page) -> Page:
    """Return the page of a run."""
    view = view_of(run)
    return page_of_view(view, page, [*_features(view, run), *reader_parts(readers(run.rows("results")))])


def page_of_view(view: CeBenchView, page: Page, parts: Sequence[Part] = ()) -> Page:
    """Return the page of one or several runs, with further parts at its end."""
    return replace(
        page,
        answer=Answer(view.headline(), [*filter(None, [view.certainty()]), _METHOD]),
        board=_board(view),
        problems=[*view.problems(), *page.problems],
        picture=score_by_l0(view),
        parts=[
            *_published(view),
            *_size(view),
            *view.families.parts(),
            *_subjects(view),
            *parts,
        ],
    )


def _board(view: CeBenchView) -> Table:
    heads: Heads = [Column(head, has_intervals=metric == PRIMARY) for metric, head in _COLUMNS.items()]
    lines = [
        Line.of(
            entrant_cell(entrant.name), number(entrant.layer, "d"), entrant.count(WIDTH), entrant.count(L0),
            *map(entrant.figure, _COLUMNS), is_tied=entrant.name in view.tied,
        )
        for entrant in view.entrants
    ]  # fmt: skip
    return Table.of(["entrant", "layer", "d", "L0", *heads], lines, note=_BOARD_NOTE)


def _published(view: CeBenchView) -> Iterator[Part]:
    lines = [
        Line.of(entrant.name, entrant.count(WIDTH), entrant.count(L0), *map(entrant.figure, _PUBLISHED))
        for entrant in view.published
    ]
    note = (
        "Tags stay in the text, states are bfloat16, I2 is 0, scores are not divided by the root of the width, and a "
        "mean is over pairs (published.parquet). They are there to be compared with published figures."
    )
    if lines:
        board = Table.of(["entrant", "d", "L0", *_PUBLISHED.values()], lines)
        yield Part("published", "By the published definition, never ranked with the board", [board], "Published", note)


def _size(view: CeBenchView) -> Iterator[Part]:
    note = (
        "Share of the pairs of autoencoders that a score orders as size alone does: by fewer features per token (−L0), "
        "or by more features (log2 of d), with the correlations of Spearman and Pearson. A score that follows one of "
        "them closely says little more than that."
    )
    if len(view.trained) > 1:
        heads = [Column(name, group=group) for group in ("-L0", "log2 d") for name in ("pairs", "Spearman", "Pearson")]
        table = Table.of(["score", *heads], [Line.of(*cells) for cells in view.by_size()])
        yield Part("size", "What size alone says", [table], "Size", note)


def _subjects(view: CeBenchView) -> Iterator[Part]:
    """Yield the subject that the best autoencoder separates most clearly, and all subjects as it sees them."""
    opened, subjects = view.opened(), view.of_subjects()
    if opened:
        note = (
            f"The subject whose two sides {view.trained[0].name} tells apart most clearly: its first pair of stories, "
            "with what is marked, and the features that differ most over all its pairs."
        )
        yield Part("subject", f"One subject opened: {opened['subject']}", opened_subject(opened), "Subject", note)
    if subjects:
        yield subjects_part(view.trained[0].name, subjects)


def opened_subject(subject: Row, opens: str = "") -> list[Block]:
    """Return the first pair of stories of a subject, and the features that differ most over all pairs of the subject.

    Args:
        opens: Address of the page that the features link to.
    """
    stories = [(name, _story(subject, side)) for name, side in SIDES.items()]
    features = [
        Line.of(
            Cell(str(feature["feature"]), opens=opens),
            number(feature["first"], ".4f"),
            number(feature["second"], ".4f"),
        )
        for feature in strongest_features(subject)
    ]
    return [SideBySide(stories), Table.of(["feature", "mean, high", "mean, low"], features)]


def strongest_features(subject: Row) -> list[Row]:
    """Return the strongest features of a subject, which are listed beside the subject's stories."""
    features: list[Row] = subject["features"][:_STRONGEST]
    return features


def subjects_part(entrant: str, subjects: Sequence[Row]) -> Part:
    """Return the table of all subjects, with the scores and strongest features of an entrant."""
    heads: Heads = ["subject", "contrastive", "held out", Column("strongest features", is_text=True)]
    lines = [
        Line.of(row["subject"], number(row["contrastive"]), number(row["held_out"], ".2f"), _strongest(row))
        for row in subjects
    ]
    note = "With the strongest features, and the side that has more of each. Others are in subjects.parquet."
    return Part("subjects", f"Subjects, as {entrant} sees them", [Table.of(heads, lines)], note=note)


def _features(view: CeBenchView, run: FinishedRun) -> Iterator[Part]:
    """Yield the features of the best autoencoder that stand out most, each with the subjects that it answers to."""
    if not view.trained or FEATURES not in run.tables:  # a run of an earlier version
        return
    autoencoder, by_feature = view.trained[0].name, dict[int, list[Row]]()
    for row in features_of(run.tables[FEATURES], autoencoder, limit=_READ_ROWS):
        by_feature.setdefault(row["feature"], []).append(row)
    lines = [
        Line.of(str(feature), ", ".join(map(_answered, rows[:_NAMED])))
        for feature, rows in list(by_feature.items())[:_FEATURES_SHOWN]
    ]
    note = (
        "The subjects whose high and low stories a feature tells apart, the clearest first, with the side that has "
        "more of it and the z of its difference among all features. All are in features.parquet; "
        "`poolbench-driver features --feature N` and `--subject NAME` list them."
    )
    if lines:
        heads: Heads = ["feature", Column("subjects that it answers to", is_text=True)]
        yield Part("features", f"Features of {autoencoder} by subject", [Table.of(heads, lines)], note=note)


def _answered(row: Row) -> str:
    return f"{row['subject']} ({'high' if row['difference'] > 0 else 'low'}, z {row['z']:.1f})"


def _story(subject: Row, side: str) -> Passage:
    return passage(subject[side], [(mark["start"], mark["end"]) for mark in subject[f"{side}_marks"] or ()])


def _strongest(subject: Row) -> str:
    return ", ".join(
        f"{feature['feature']} ({'high' if feature['first'] > feature['second'] else 'low'})"
        for feature in subject["features"][:_NAMED]
    )


def reader_parts(ranking: Sequence[Reader]) -> Iterator[Part]:
    """Yield the table of how well features and pooled directions carry concepts."""
    concepts = list(dict.fromkeys(name for reader in ranking for name in reader.values))
    lines = [
        Line.of(
            reader.name,
            number(reader.layer, "d"),
            number(reader.mean),
            *(Cell(reader.text(concept), reader.values[concept]) for concept in concepts),
        )
        for reader in ranking
    ]
    note = (
        "AUROC out of fold on the same passages and folds, best mean first. k: a logistic probe of the k features "
        "whose class means differ most on the other folds. Directions are of the pooled states; C5 is made from the "
        "first autoencoder of the layer. ±: standard deviation over five seeds of folds. A word in place of a number "
        "is why there is none."
    )
    if lines:
        table = Table.of(["reader", "layer", "mean", *concepts], lines)
        heading = "How well features and directions read concepts and probing sets, by AUROC"
        yield Part("concepts", heading, [table], "Concepts", note)
