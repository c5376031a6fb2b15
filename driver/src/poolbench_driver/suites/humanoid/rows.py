"""From the comparisons of a run to its tables: a row for each fine-tune and figure, and the words before and after."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.pooling.registry import STRATEGIES
from poolbench.statistics.bootstrap import bootstrap_counts, group_weights, percentile_interval
from poolbench.statuses import Status
from poolbench.steps.base import Keys
from poolbench_driver.contract.source import RowSource, missing, strategy_columns
from poolbench_driver.contract.suite import Tables
from poolbench_driver.stages.failure import Failure
from poolbench_driver.suites.humanoid.config import POOLING
from poolbench_driver.suites.humanoid.cosines import Cosines
from poolbench_driver.suites.humanoid.metrics import AWAY, CHANGES, LOG_VARIANCE, PRIMARY, SHIFTS, TOWARDS, VALENCE
from poolbench_driver.suites.humanoid.plan import MIN_NEUTRAL, HumanoidPlan, ShiftCell

#: Columns of a figure that its comparisons share.
_IDENTITY: tuple[str, ...] = ("entrant", "layer", "concept", "direction", "strategy", "strategy_version", "params")
#: Rows of figures by fine-tune, of one layer, reading and concept.
ByTune = Mapping[str, list[Row]]
#: Resamples of the figures of one fine-tune [R] by metric.
Samples = Mapping[str, np.ndarray]


def assemble(plan: HumanoidPlan, source: RowSource) -> Tables:
    """Return result rows, figures by the reference's definition, and the tables of words."""
    neutral = {tune.name for tune in plan.scope.tunes if tune.neutral}
    rows, published, words, ablation = list[Row](), list[Row](), list[Row](), list[Row]()
    for at, compared in _gathered(plan).items():
        figures = {name: list(_measures(plan, at, name, keys, source)) for name, keys in compared.items()}
        for name, keys in compared.items():
            identity = {"entrant": name, "neutral": name in neutral, "layer": at.layer, "reading": at.reading}
            cosines = _cosines(keys, source)
            ablation += [{**identity, **row} for row in (cosines.single_words() if cosines else ())]
        shifted = {name: source.rows(keys["words"]) for name, keys in compared.items()}
        samples = {name: _samples(plan, shifted[name], _cosines(keys, source)) for name, keys in compared.items()}
        shifts = [
            row
            for name, lines in figures.items()
            for row in (*lines, *_beside_neutral(name, figures, neutral, samples, plan.scope.config.seed))
        ]
        if at.reading == "published":
            published += shifts
            continue
        rows += shifts
        if at.concept is None:
            standing = _favourites(shifted, neutral)
            rows += [_row(plan, at, name, measure.to_row()) for name, measure in standing.items()]
            words += [
                {"entrant": name, "neutral": name in neutral, "layer": at.layer, **row}
                for name, lines in shifted.items()
                for row in lines
            ]
    tunes = [
        {
            "entrant": tune.name,
            "neutral": tune.neutral,
            "revision": tune.change.revision,
            "amounts": json.dumps(dict(tune.amounts)),
        }
        for tune in plan.scope.tunes
    ]
    return Tables(rows, {"words": words, "ablation": ablation, "tunes": tunes}, {"published": published})


def _gathered(plan: HumanoidPlan) -> dict[ShiftCell, dict[str, Keys]]:
    """Return the keys of each comparison by fine-tune."""
    keys_by_tune: dict[ShiftCell, dict[str, Keys]] = {}
    for at, keys in plan.shifts.items():
        keys_by_tune.setdefault(at._replace(tune=""), {})[at.tune] = keys
    return keys_by_tune


def _row(plan: HumanoidPlan, at: ShiftCell, tune: str, measure: Row) -> Row:
    """Return a result row of one fine-tune."""
    (revision,) = (fine_tune.change.revision for fine_tune in plan.scope.tunes if fine_tune.name == tune)
    identity = {"entrant": tune, "layer": at.layer, "concept": at.concept, **strategy_columns(STRATEGIES.get(POOLING))}
    if at.concept:
        identity["direction"] = measure.get("direction") or "C1"
    return {**measure, **identity, "params": {"fine_tune": revision}}


def _measures(plan: HumanoidPlan, at: ShiftCell, tune: str, keys: Keys, source: RowSource) -> Iterator[Row]:
    """Yield the figures of one fine-tune, or a null where its comparison failed."""
    table = source.table(keys["measures"])
    if isinstance(table, Failure):
        yield from (_row(plan, at, tune, missing(metric, table)) for metric in (CHANGES if at.concept else SHIFTS))
        return
    measures, timings = table.to_pylist(), source.timings(keys["measures"])
    yield from (_row(plan, at, tune, {**timings, **measure}) for measure in measures)
    if "cosines" in keys:
        (valence,) = (measure for measure in measures if measure["metric"] == VALENCE)
        yield from (_row(plan, at, tune, {**timings, **row}) for row in _ways(plan, keys, valence, source))


def _ways(plan: HumanoidPlan, keys: Keys, valence: Row, source: RowSource) -> Iterator[Row]:
    """Yield the two parts of the change of valence, or nulls with its reason where no word could be measured."""
    table = source.table(keys["cosines"])
    if isinstance(table, Failure):
        yield from (missing(metric, table) for metric in (TOWARDS, AWAY))
        return
    cosines = _cosines(keys, source)
    if cosines is None:
        reason = valence["reason"] or "no word has a cosine"
        nulls = (Measure.null(metric, valence["status"], reason) for metric in (TOWARDS, AWAY))
        yield from (measure.to_row() for measure in nulls)
        return
    config = plan.scope.config
    yield from (measure.to_row() for measure in cosines.ways(config.num_bootstrap, config.seed))


def _cosines(keys: Keys, source: RowSource) -> Cosines | None:
    """Return the cosines of the words of a comparison, or None if it has none."""
    table = source.table(keys["cosines"]) if "cosines" in keys else None
    return None if table is None or isinstance(table, Failure) or not table.num_rows else Cosines.from_table(table)


def _samples(plan: HumanoidPlan, words: Sequence[Row], cosines: Cosines | None) -> Samples:
    """Return each change under a bootstrap over the words of the domain, [R] by metric.

    Equal words have equal resamples, so that fine-tunes are paired. Texts along a direction have none.
    """
    measured = [row for row in words if row["group"] == "domain" and row["change"] is not None]
    if not measured:
        return {}
    shares_Rn = _shares(plan, [row["word"] for row in measured])
    values = [np.array([row[state] for row in measured]) for state in ("before", "after")]
    before_R, after_R = (shares_Rn @ values_n**2 - (shares_Rn @ values_n) ** 2 for values_n in values)
    vary = (before_R > 0) & (after_R > 0)
    log_R = np.where(vary, np.log(np.where(vary, after_R, 1) / np.where(vary, before_R, 1)), np.nan)
    samples = {PRIMARY: after_R - before_R, VALENCE: shares_Rn @ (values[1] - values[0]), LOG_VARIANCE: log_R}
    if cosines is not None:
        shares_Rn = _shares(plan, cosines.words)
        samples |= {metric: shares_Rn @ change_n for metric, change_n in cosines.changes().items()}
    return samples


def _shares(plan: HumanoidPlan, words: Sequence[str]) -> np.ndarray:
    """Return the share of each word in the resamples of a bootstrap over some words [R, n]."""
    config = plan.scope.config
    return group_weights(np.array(words), config.num_bootstrap, config.seed).astype(float) / len(words)


def _beside_neutral(
    tune: str, figures: ByTune, neutral: set[str], samples: Mapping[str, Samples], seed: int
) -> Iterator[Row]:
    """Yield excess and rank of each shift of a fine-tune over the neutral ones, itself left out."""
    for shift in figures[tune]:
        if (metric := shift["metric"]) not in SHIFTS:
            continue
        same = {name: row for name in sorted(neutral - {tune}) for row in figures[name] if row["metric"] == metric}
        others = {name: row["value"] for name, row in same.items() if row["value"] is not None}
        identity = {name: shift[name] for name in _IDENTITY if name in shift}
        resampled = [samples[name].get(metric) for name in (tune, *others)]
        excess_R = None if any(of is None for of in resampled) or not others else _excess(np.array(resampled), seed)
        for measure in _compared(shift, list(others.values()), MIN_NEUTRAL - (tune in neutral), excess_R):
            yield {**measure.to_row(), **identity}


def _excess(samples_KR: np.ndarray, seed: int) -> np.ndarray:
    """Return the resamples of the excess of the first fine-tune over the mean of the neutral ones, which are resampled
    too.
    """
    own_R, *neutral = samples_KR
    counts_RK = bootstrap_counts(len(neutral), len(own_R), seed + 1)
    return np.asarray(own_R - (counts_RK * np.transpose(neutral)).mean(axis=1))


def _compared(shift: Row, others: list[float], needed: int, excess_R: np.ndarray | None) -> Iterator[Measure]:
    """Yield excess over the mean of the others, and rank among them.

    The interval is that of the resamples of the excess; without any, that of the shift.
    """
    excess, rank = (f"{shift['metric']}.{suffix}_neutral" for suffix in ("excess", "rank"))
    if shift["value"] is None:
        status, reason = shift["status"], shift["reason"]
    elif len(others) < needed:
        status, reason = Status.TOO_FEW, f"{len(others)} other neutral fine-tunes; {needed} are needed (--null)"
    else:
        mean = fmean(others)
        if excess_R is not None:
            interval, method = percentile_interval(excess_R), "bootstrap over words and neutral fine-tunes, percentile"
        else:
            interval = None if shift["ci_low"] is None else (shift["ci_low"] - mean, shift["ci_high"] - mean)
            method = f"{shift['ci_method']}; mean of the neutral ones fixed"
        yield Measure.of(excess, shift["value"] - mean, interval, ci_method=method, n=len(others))
        yield Measure.of(rank, 1.0 + sum(other >= shift["value"] for other in others), n=len(others) + 1)
        return
    yield from (Measure.null(metric, status, reason, n=len(others)) for metric in (excess, rank))


def variance_by_word(words: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return by fine-tune the contribution of each word to the change of variance, whose mean over words is the change.

    The contribution of a word is its squared distance from the mean valence after training, minus the squared
    distance before. With several layers, the contribution is the mean over layers.
    """
    measured: dict[tuple[str, int], list[Row]] = {}
    for row in words:
        if row["group"] == "domain" and row["change"] is not None:
            measured.setdefault((row["entrant"], row["layer"]), []).append(row)
    by_layer: dict[str, dict[str, list[float]]] = {}
    for (tune, _), rows in measured.items():
        before, after = (fmean(row[state] for row in rows) for state in ("before", "after"))
        for row in rows:
            change = (row["after"] - after) ** 2 - (row["before"] - before) ** 2
            by_layer.setdefault(tune, {}).setdefault(row["word"], []).append(change)
    return {tune: {word: fmean(changes) for word, changes in by_word.items()} for tune, by_word in by_layer.items()}


def _favourites(words: Mapping[str, list[Row]], neutral: set[str]) -> dict[str, Measure]:
    """Mark the words that stand out more than any word of a neutral fine-tune, and count them by fine-tune.

    Among six exchangeable fine-tunes, five of them neutral, one in six has such a word by chance.
    """
    scores = {name: [row["standout"] for row in rows if row["standout"] is not None] for name, rows in words.items()}
    highest = {name: max(tune_scores, default=None) for name, tune_scores in scores.items()}
    counts: dict[str, Measure] = {}
    for name, rows in words.items():
        others = [value for other in neutral - {name} if (value := highest[other]) is not None]
        bound = max(others) if len(others) >= MIN_NEUTRAL - (name in neutral) else None
        for row in rows:
            row["favourite"] = None if bound is None or row["standout"] is None else row["standout"] > bound
        if bound is None:
            reason = f"{len(others)} other neutral fine-tunes; {MIN_NEUTRAL} are needed (--null)"
            counts[name] = Measure.null("shift.favourites", Status.TOO_FEW, reason)
        elif not rows:
            counts[name] = Measure.null("shift.favourites", Status.FAILED, "the comparison of its words failed")
        elif highest[name] is None:
            reason = "half of the words or more have one change, so that none can stand out"
            counts[name] = Measure.null("shift.favourites", Status.COLLAPSED, reason)
        else:
            counts[name] = Measure.of("shift.favourites", float(sum(bool(row["favourite"]) for row in rows)))
    return counts
