"""Figures of the paper over the entrants of a board: reliability, types of phenomena, frequent words, and models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

import numpy as np

from poolbench.contracts import Row
from poolbench.statistics.bootstrap import group_weights
from poolbench_driver.contract.page import Block, Column, Heads, Line, Part, Picture, Prose, Table
from poolbench_driver.pages.drawing import Datum, chart, looks_of, number_axis, picture, points, trends
from poolbench_driver.pages.plain import number
from poolbench_driver.statistics.correlation import MIN_POINTS, spearman
from poolbench_driver.statistics.winning_rate import present_means
from poolbench_driver.suites.holmes.correlations import (
    OVERALL,
    Estimate,
    estimated,
    rates_by_type,
    resampled,
    type_taus,
)
from poolbench_driver.suites.holmes.metrics import SCORE
from poolbench_driver.suites.holmes.recordings import NUM_RESAMPLES, ScoreTable
from poolbench_driver.suites.holmes.view import Entrant, HolmesView

#: Figures of one entrant by set.
BySet = Mapping[str, float]
#: Winning rates by type and entrant, each followed by its resamples [1 + R].
Rates = Mapping[str, Mapping[str, np.ndarray]]
#: Words that are shown, as in the paper, and entrants whose accuracy on them is shown.
NUM_WORDS, _SHOWN, _WORDS = 20, 6, "Frequent words"


def figures(view: HolmesView) -> Iterator[Part]:
    """Yield the parts of a page. A part that the tables do not suffice for says which option keeps what it needs."""
    table = score_table(view)
    rates = {kind: dict(zip(table.models, rates_RM.T, strict=True)) for kind, rates_RM in rates_by_type(table).items()}
    yield _reliability(view)
    yield _types(view, table, rates)
    yield _words(view)
    if len({entrant.model for entrant in view.pooled}) > 1:
        yield _models(view, rates)


def score_table(view: HolmesView) -> ScoreTable:
    """Return the scores of all entrants of a board."""
    names = [row["set"] for row in view.sets]
    scores = [[entrant.score_by_set().get(name) for name in names] for entrant in view.entrants]
    types, phenomena = (np.array([row[column] for row in view.sets]) for column in ("type", "phenomenon"))
    return ScoreTable([e.name for e in view.entrants], names, types, phenomena, np.array(scores, float), 1.0, ())


def _of_metric(metric: str) -> Callable[[Entrant], BySet]:
    def by_set(entrant: Entrant) -> BySet:
        rows = entrant.others.get(metric, ())
        return {row["task"]: row["value"] for row in rows if row["value"] is not None}

    return by_set


def _deviation(entrant: Entrant) -> BySet:
    return {name: stdev(values) for name, values in entrant.seeds.items() if len(values) > 1}


def _means(by_entrant: Sequence[BySet]) -> dict[str, float]:
    """Return the mean of a figure over the entrants that have it, by set."""
    names = dict.fromkeys(name for by_set in by_entrant for name in by_set)
    return {name: fmean(by_set[name] for by_set in by_entrant if name in by_set) for name in names}


def _reliability(view: HolmesView) -> Part:
    """Return the score of each set against the deviation over seeds, compression and selectivity of its probes."""
    published = [entrant for entrant in view.published if entrant.is_pooled]
    measures: dict[str, tuple[Sequence[Entrant], Callable[[Entrant], BySet], str]] = {
        "standard deviation over seeds": (
            published or view.pooled,
            _deviation,
            "a linear probe that converged does not depend on the seed; `--protocol published` trains five seeds",
        ),
        "compression": (
            view.pooled, _of_metric("probe.compression"), "only linear probes have it: leave out `--hidden`"
        ),
        "selectivity": (view.pooled, _of_metric("probe.selectivity"), "more sets are needed: `--sets`"),
    }  # fmt: skip
    lines, drawn = list[Line](), list[Block]()
    for name, (entrants, figure, instead) in measures.items():
        pairs: dict[str, list[tuple[float, float]]] = {}
        for entrant in entrants:
            values, scores = figure(entrant), _of_metric(SCORE)(entrant)
            for of_set in values.keys() & scores.keys():
                pairs.setdefault(of_set, []).append((values[of_set], scores[of_set]))
        rows = [row for row in view.sets if row["set"] in pairs]
        means_n2 = np.array([np.mean(pairs[row["set"]], axis=0) for row in rows]).reshape(-1, 2)
        correlation = _spearman(means_n2, np.array([row["phenomenon"] for row in rows]))
        is_known = np.isfinite(correlation.value)
        drawn += [_scatter(name, means_n2, rows, view.types)] if is_known else []
        lines.append(Line.of(name, number(len(rows), "d"), correlation.cell(), "" if is_known else instead))
    heads: Heads = ["beside the score", "sets", Column("Spearman", has_intervals=True), Column("lacks", is_text=True)]
    note = (
        "Each point is a probing set, as the mean over the entrants that pool a model and have both figures. The score "
        "is the macro-F1 (or correlation) of the same probes; the deviation is that of the published protocol where "
        "the run has it."
    )
    return Part("reliability", "Can the scores be trusted?", [Table.of(heads, lines), *drawn], "Reliability", note)


def _spearman(means_n2: np.ndarray, groups_n: np.ndarray) -> Estimate:
    """Return the rank correlation of two figures of sets, with an interval from a bootstrap over phenomena."""
    value = float(spearman(*means_n2.T))
    if not np.isfinite(value):
        return Estimate(value)
    counts_Rn = group_weights(groups_n, NUM_RESAMPLES, 0).astype(int)
    samples = [spearman(*means_n2.repeat(counts_n, axis=0).T) for counts_n in counts_Rn]
    return estimated(value, np.array(samples), -1.0, 1.0)


def _scatter(name: str, means_n2: np.ndarray, sets: Sequence[Row], types: Sequence[str]) -> Picture:
    rows = [
        {"x": x, "y": y, "series": row["type"], "says": f"{row['set']}: {name} {x:.3f}, score {y:.3f}"}
        for (x, y), row in zip(means_n2.tolist(), sets, strict=True)
    ]
    drawn = chart([points(rows, 30)], number_axis(name), number_axis("score"), 180, looks_of(types))
    return picture(f"Score against {name}", drawn)


def _types(view: HolmesView, table: ScoreTable, rates: Rates) -> Part:
    """Return means of score, selectivity and discriminability by type, and how far the types order entrants alike."""
    by_measure = {
        "score": _means(list(map(_of_metric(SCORE), view.pooled))),
        "selectivity": _means(list(map(_of_metric("probe.selectivity"), view.pooled))),
        "discriminability": {
            row["set"]: row["discriminability"] for row in view.sets if row.get("discriminability") is not None
        },
    }
    lines = []
    for kind in (OVERALL, *table.kinds):
        of_kind = np.ones(len(table.sets), bool) if kind == OVERALL else table.types == kind
        weights = group_weights(table.phenomena[of_kind], NUM_RESAMPLES, 0)
        weights = np.concatenate([np.ones((1, int(of_kind.sum()))), weights])
        cells = []
        for by_set in by_measure.values():
            values = np.array([[by_set.get(name, np.nan) for name in np.array(table.sets)[of_kind]]])
            cells.append(resampled(present_means(values, weights)[0]).cell(".3f"))
        lines.append(Line.of(kind, number(int(of_kind.sum()), "d"), *cells))
    heads: Heads = ["type", "sets", *(Column(name, has_intervals=True) for name in by_measure)]
    blocks: list[Block] = [Table.of(heads, lines, "Means by type")]
    if len(view.pooled) < MIN_POINTS:
        blocks.append(
            Prose(f"{MIN_POINTS} entrants are needed to correlate types: name more `--strategies`, `--layers` or runs.")
        )
    else:
        pooled = [entrant.name for entrant in view.pooled]
        taus = type_taus({kind: np.transpose([of_kind[name] for name in pooled]) for kind, of_kind in rates.items()})
        pairs = [Line.of(first, second, tau.cell()) for (first, second), tau in taus.items()]
        heads = ["type", Column("with", is_text=True), Column("Kendall's tau", has_intervals=True)]
        blocks.append(Table.of(heads, pairs, "Do the types order entrants alike?"))
    note = (
        "Means over sets and over the entrants that pool a model, and Kendall's tau of the winning rates of these "
        "entrants. Intervals of 95 % come from a bootstrap over phenomena. All sets include the sets of a type, which "
        "raises the correlations with them."
    )
    return Part("types", "Types of phenomena", blocks, "Types", note)


def _words(view: HolmesView) -> Part:
    """Return the accuracy on the words that are most frequent among the test instances, and on all others."""
    entrants, ordered = [entrant.name for entrant in view.entrants[:_SHOWN]], list(view.words)
    if not ordered:
        lacks = "No set of the run reads single words, or an earlier version made the run and kept none: run it with "
        return Part("words", _WORDS, [Prose(f"{lacks}such sets, as `--sets planted-pos` or `'ud-pos-*'`.")])
    frequent, others = ordered[:NUM_WORDS], ordered[NUM_WORDS:]
    groups = {word: [word] for word in frequent} | {f"the {len(frequent)} most frequent words": frequent}
    groups |= {"all other words": others} if others else {}
    lines = []
    for name, words in groups.items():
        answers = [[view.words[word].get(entrant, (0, 0)) for word in words] for entrant in entrants]
        counts = np.sum(answers, axis=1).tolist()  # of each entrant right and all
        accuracies = (number(right / of_all if of_all else None) for right, of_all in counts)
        lines.append(Line.of(name, number(max(of_all for _, of_all in counts), "d"), *accuracies))
    note = (
        "Accuracy on the test instances of sets with classes that read a word, by the form of the word in lower case. "
        "Words are ordered by their number of these instances."
    )
    table = Table.of(["word", "instances", *entrants], lines)
    return Part("words", _WORDS, [table], "Words", note, is_folded=True)


def _models(view: HolmesView, rates: Rates) -> Part:
    """Return winning rates by architecture, by size, and after minus before tuning."""
    note = (
        "Winning rates in percent among the entrants of this board, with intervals of 95 % from a bootstrap over "
        "phenomena."
    )
    blocks = [_by_architecture(view, rates), _by_size(view, rates), _tuned(view, rates)]
    return Part("models", "Architecture, size and tuning", blocks, "Models", note)


def _by_architecture(view: HolmesView, rates: Rates) -> Block:
    groups: dict[str, list[Entrant]] = {}
    for entrant in view.pooled:
        if entrant.architecture is not None:
            groups.setdefault(entrant.architecture, []).append(entrant)
    if len(groups) < 2:
        return Prose("To compare encoders and decoders, add a run of the other architecture.")
    lines = [
        Line.of(
            kind,
            number(len({entrant.model for entrant in members}), "d"),
            *(
                resampled(np.mean([of_kind[entrant.name] for entrant in members], axis=0)).cell(".0f")
                for of_kind in rates.values()
            ),
        )
        for kind, members in groups.items()
    ]
    heads: Heads = ["architecture", "models", *(Column(name, has_intervals=True) for name in rates)]
    return Table.of(heads, lines, "By architecture")


def _by_size(view: HolmesView, rates: Rates) -> Block:
    """Return the winning rate of each entrant against the parameters of its model; a strategy at a layer is a line."""
    rows = list[Datum]()
    for entrant in view.pooled:
        if entrant.num_parameters is not None:
            rate, millions = resampled(rates[OVERALL][entrant.name]), entrant.num_parameters / 1e6
            says = f"{entrant.name}: {millions:.4g} million parameters, {rate.value:.0f} %"
            ends = dict(zip(("low", "high"), rate.ends or (None, None), strict=True))
            rows.append({"x": millions, "y": rate.value, "series": entrant.reading, "says": says, **ends})
    if len({row["x"] for row in rows}) < 2:
        return Prose("To compare sizes, add runs of models of other sizes.")
    axes = number_axis("parameters, millions", scale="log"), number_axis("winning rate, %")
    looks = looks_of(dict.fromkeys(row["series"] for row in rows))
    return picture("Winning rates by size of the model", chart([trends(rows), points(rows)], *axes, 250, looks))


def _tuned(view: HolmesView, rates: Rates) -> Block:
    """Return the winning rate of each other model minus that of the first run's model, read in the same way."""
    base = {entrant.reading: entrant.name for entrant in view.pooled if entrant.model == view.base}
    lines = [
        Line.of(
            entrant.model or "",
            entrant.reading,
            *(
                resampled(of_kind[entrant.name] - of_kind[base[entrant.reading]]).cell("+.1f")
                for of_kind in rates.values()
            ),
        )
        for entrant in view.pooled
        if entrant.model != view.base and entrant.reading in base
    ]
    if not lines:
        return Prose(f"To compare models with {view.base}, read them by the same strategies at the same layers.")
    heads: Heads = ["model", Column("read by", is_text=True), *(Column(name, has_intervals=True) for name in rates)]
    note = f"in points; after tuning, if {view.base} is the model before. The first run that is named is the base"
    return Table.of(heads, lines, f"Minus {view.base}", note)
