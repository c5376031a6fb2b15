"""The validity gate of a scorer. Without the gate, steering towards noise would count as success.

(a) The scorer separates held-out passages cut to generation length: lower bound of the AUROC >= .75.
(b) It separates the model's own continuations of positive and negative halves: lower bound > .6.
(c) Shuffled and looping texts do not score high. Every cut passage is broken both ways; the level of a set of
    texts is (mean score - mean of intact negatives) / (mean of intact positives - mean of intact negatives).
    Intact texts of both classes together have level .5, so the upper bound of the level must stay at or below
    .5 for the broken texts of both classes (breaking a text must not raise its score on average; a scorer
    that only looks for words would stand at .5) and for those of negatives alone (a loop of harmless words
    must not look like the concept).

If a word rule labelled the corpus, the rule also labels these texts. A cut passage need not show the word that makes
its passage positive, and a continuation need not use this word again. With the class of the passage as the label, (a)
would measure the cut, and (b) would measure the model. If the rule gives a cut passage no class, as with two of four
numbers, the cut passage keeps the class of its passage. A continuation without a class is left out. With fewer than 30
continuations of a class, the model's texts cannot show whether the scorer is right. Then (b) is null, and the verdict
depends on the other parts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts.measures import Measure, to_rows
from poolbench.contracts.tables import MEASURES, TEXTS, require_columns, table_from_rows
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench.steps.scorer import GateParams
from poolbench.word_rules import WordRule, word_rule
from poolbench_scorer.classifiers.scorer import Scorer
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.classifiers.windows import BaseTokenizer, draw, loop_words, shuffle_words
from poolbench_scorer.training.examples import LabelledPassages, read_passages
from poolbench_scorer.training.report import CI_METHOD, brier_score, expected_calibration_error, grouped_auroc

Score = Callable[[list[str]], np.ndarray]
GATE = "scorer.gate"


@dataclass(frozen=True)
class Labelled:
    """Texts with the class and the group of each text."""

    texts: list[str]
    labels: np.ndarray
    groups: np.ndarray


def judge_scorer(scorer: Scorer, test: pa.Table, continuations: pa.Table, params: GateParams) -> pa.Table:
    """Judge a scorer by its validity gate. Return MEASURES.

    Args:
        test: PASSAGES of split `test`.
        continuations: TEXTS whose `prompt_id` is the passage that was continued.

    Returns:
        `scorer.gate` rows with `params.part` a, b, c..., then `scorer.positive_mean`, `scorer.negative_mean`,
        `scorer.ece` and `scorer.brier` on the cut passages, and last the verdict: 1 if the scorer passed, else 0 with
        the reason. If the passages are too few or of one class, the verdict is the only row.

    Raises:
        InputError: The rule in `params` is not the rule of the scorer's concept, or a passage is of another split.
    """
    require_columns(continuations, TEXTS, "continuations")
    try:
        passages = read_passages(test, "test")
    except CellError as error:
        return _table([_refusal(str(error))], scorer)
    continued = pick_continuations(continuations, passages)
    # In the scorer's tokens, which are not the language model's.
    lengths = [len(content) for content in scorer.tokens.content(continued.texts)]
    length = max(1, round(float(np.median(lengths)))) if lengths else params.num_tokens
    cut = cut_passages(passages, scorer.tokens, length, params.seed)
    if params.rule is not None:
        rule = word_rule(scorer.concept, params.rule)
        cut, continued = relabelled(cut, rule, others=True), relabelled(continued, rule, others=False)
        if np.unique(cut.labels).size < 2:
            return _table([_refusal("cut to generation length, no passage of one class is left by the rule")], scorer)

    def score(texts: list[str]) -> np.ndarray:
        return score_texts({"scorer": scorer}, texts)["scorer"]

    return _table(gate_measures(score, cut, continued, params), scorer)


def _refusal(reason: str) -> Measure:
    return Measure.of(GATE, 0.0, params={"part": "verdict"}, reason=reason)


def gate_measures(score: Score, cut: Labelled, continued: Labelled, params: GateParams) -> list[Measure]:
    """Return the measures of the gate for texts and a scoring function."""
    intact = score(cut.texts)
    parts = [
        _separation("a", intact, cut, params, params.min_corpus_auroc, {"num_tokens": params.num_tokens}),
        _continuations_part(score(continued.texts), continued, params),
        *_degenerate_parts(score, intact, cut, params),
    ]
    means = [
        Measure.of(f"scorer.{side}_mean", float(intact[cut.labels == label].mean()), n=int((cut.labels == label).sum()))
        for side, label in (("positive", 1), ("negative", 0))
    ]
    fields: dict[str, Any] = {"n": len(intact), "params": {"calibrated": True, "on": "test"}}
    error, brier = expected_calibration_error(intact, cut.labels), brier_score(intact, cut.labels)
    calibration = [Measure.of("scorer.ece", error, **fields), Measure.of("scorer.brier", brier, **fields)]
    return [*parts, *means, *calibration, verdict(parts)]


def verdict(parts: list[Measure]) -> Measure:
    """Return the verdict: 1 if every judged part passed, else 0.

    The reason names all parts that did not pass, including parts that could not be judged.
    """
    not_passed = [part for part in parts if not part.details.get("passed")]
    passed = all(part.details.get("unjudged") for part in not_passed)
    reason = "; ".join(map(_complaint, not_passed)) or None
    return Measure.of(GATE, float(passed), params={"part": "verdict"}, reason=reason)


def pick_continuations(continuations: pa.Table, passages: LabelledPassages) -> Labelled:
    """Return continuations, each with the class and the group of the passage that it continues.

    Continuations of unknown passages are left out.
    """
    place = {passage: row for row, passage in enumerate(passages.ids)}
    columns = (continuations[name].to_pylist() for name in ("prompt_id", "text"))
    placed_texts = [(place[prompt], text) for prompt, text in zip(*columns, strict=True) if prompt in place]
    rows = np.array([row for row, _ in placed_texts], dtype=np.int64)
    return Labelled([text for _, text in placed_texts], passages.labels[rows], passages.groups[rows])


def relabelled(texts: Labelled, rule: WordRule, *, others: bool) -> Labelled:
    """Label texts by a word rule.

    Args:
        others: Whether to return texts to which the rule gives no class. These texts keep their previous class.
    """
    labels = [rule.label(text) for text in texts.texts]
    rows = [row for row, label in enumerate(labels) if others or label is not None]
    classes = [texts.labels[row] if labels[row] is None else labels[row] for row in rows]
    return Labelled([texts.texts[row] for row in rows], np.array(classes, dtype=np.int64), texts.groups[rows])


def cut_passages(passages: LabelledPassages, tokens: BaseTokenizer, length: int, seed: int) -> Labelled:
    """Cut each passage to `length` tokens at a random place.

    The place depends on the seed and on the id of the passage's pair, or of the passage if it has no pair.
    """
    names = [pair or name for pair, name in zip(passages.pairs, passages.ids, strict=True)]
    starts = [float(draw(seed, f"cut/{name}").random()) for name in names]
    texts = [tokens.cut(text, start, length) for text, start in zip(passages.texts, starts, strict=True)]
    return Labelled(texts, passages.labels, passages.groups)


def degenerate_level(
    broken: np.ndarray, intact: np.ndarray, labels: np.ndarray, weights_RN: np.ndarray, within: np.ndarray
) -> np.ndarray:
    """Return the level of the broken texts in `within` for each row of weights [R].

    The module's docstring defines the level. It is infinite if intact positives do not score above intact negatives.
    """
    weights = weights_RN.astype(float)
    positive, negative = labels == 1, labels != 1
    with np.errstate(invalid="ignore", divide="ignore"):
        tops, floors, means = (
            (weights[:, rows] @ values[rows]) / weights[:, rows].sum(axis=1)
            for values, rows in ((intact, positive), (intact, negative), (broken, within))
        )
        return np.where(tops <= floors, np.inf, (means - floors) / (tops - floors))


def _degenerate_parts(score: Score, intact: np.ndarray, cut: Labelled, params: GateParams) -> list[Measure]:
    weights_RN = group_weights(cut.groups, params.num_bootstrap, params.seed)
    weights_RN = np.concatenate([np.ones((1, len(intact))), weights_RN])
    parts = []
    for kind, spoil in (("shuffled", shuffle_words), ("looping", loop_words)):
        broken = score([spoil(text, draw(params.seed, f"{kind}/{text}")) for text in cut.texts])
        for name, within in (("both", np.ones(len(intact), dtype=bool)), ("negatives", cut.labels != 1)):
            levels = degenerate_level(broken, intact, cut.labels, weights_RN, within)
            settings = {"texts": kind, "of": name, "max_upper": params.max_degenerate_level}
            parts.append(_level_measure(levels, _fields(cut, params, "c", settings), params))
    return parts


def _level_measure(levels: np.ndarray, fields: dict[str, Any], params: GateParams) -> Measure:
    """Return a measure of part (c).

    Args:
        levels: The observed level, then its resamples. Resamples without both classes are NaN and are ignored.
    """
    samples = levels[1:][~np.isnan(levels[1:])]
    low, high = np.percentile(samples, 2.5, method="lower"), np.percentile(samples, 97.5, method="higher")
    if not np.isfinite([levels[0], low, high]).all():
        reason = "intact positives do not score clearly above intact negatives, so no score counts as high"
        return Measure.null(GATE, Status.SCORER_INVALID, reason, **fields)
    passed = {"passed": bool(high <= params.max_degenerate_level)}
    return Measure.of(GATE, float(levels[0]), (float(low), float(high)), details=passed, **fields)


def _continuations_part(scores: np.ndarray, texts: Labelled, params: GateParams) -> Measure:
    """Return the measure of part (b).

    If a word rule labels the texts and a class is too rare, the part is marked as not judged.
    """
    if params.rule is None:
        return _separation("b", scores, texts, params, params.min_continuation_auroc, {})
    needed = params.model_copy(update={"min_class": params.min_rule_class})
    part = _separation("b", scores, texts, needed, params.min_continuation_auroc, {"rule": params.rule})
    return part if part.value is not None else replace(part, details={"unjudged": True})


def _separation(
    part: str, scores: np.ndarray, texts: Labelled, params: GateParams, bound: float, more: Mapping[str, Any]
) -> Measure:
    """Return the measure of part (a) or (b): whether the lower end of the AUROC's interval reaches `bound`."""
    fields = _fields(texts, params, part, {"min_lower": bound, **more})
    counts = np.bincount(texts.labels, minlength=2)
    if counts.min() < params.min_class:
        reason = f"{counts[1]} positive and {counts[0]} negative texts; need {params.min_class} of each"
        return Measure.null(GATE, Status.TOO_FEW, reason, **fields)
    auroc = grouped_auroc(scores, texts.labels, texts.groups, num_bootstrap=params.num_bootstrap, seed=params.seed)
    if auroc.interval is None:
        return Measure.null(GATE, Status.TOO_FEW, f"{auroc.num_groups} groups give no interval", **fields)
    low = auroc.interval[0]
    passed = low >= bound if part == "a" else low > bound
    return Measure.of(GATE, auroc.value, auroc.interval, details={"passed": passed}, **fields)


def _fields(texts: Labelled, params: GateParams, part: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "n": len(texts.texts),
        "num_groups": int(np.unique(texts.groups).size),
        "seed": params.seed,
        "ci_method": CI_METHOD,
        "params": {"part": part, **more},
    }


def _complaint(part: Measure) -> str:
    label = " ".join(str(part.params[name]) for name in ("part", "texts", "of") if name in part.params)
    if part.value is None:
        return f"part {label}: {part.reason}"
    if part.params["part"] == "c":
        return f"part {label}: upper bound {part.ci_high:.3f} of the level exceeds {part.params['max_upper']}"
    return f"part {label}: lower bound {part.ci_low:.3f} of the AUROC misses {part.params['min_lower']}"


def _table(measures: list[Measure], scorer: Scorer) -> pa.Table:
    return table_from_rows(to_rows([one.with_fields(scorer=scorer.concept) for one in measures]), MEASURES)
