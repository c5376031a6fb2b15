"""Prompting as a baseline of steering: what a chat model does when it is asked for a concept."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_mean_resamples
from poolbench.statistics.response import MIN_OPENINGS
from poolbench.statuses import Status
from poolbench_driver.measures.response import SteeringRules, opening_interval

CI_METHOD = "paired bootstrap over openings, expanded percentile"

#: Texts and their scores, as tables TEXTS and SCORES.
Scored = tuple[pa.Table, pa.Table]


def prompted_gain(prompted: Scored, neutral: Scored, scorer: GatedScorer, rules: SteeringRules) -> Measure:
    """Return the mean score of replies that were asked for the concept minus that of replies that were not.

    Both are continuations of the same openings inside the model's chat template, and differ in the instruction alone.
    Source: the prompted baseline of PoolBench's reference, which puts its instruction before the opening, without a
    chat template. Raise CellError as `paired_gain`.
    """
    return paired_gain("d2.prompted", prompted, neutral, scorer, rules)


def paired_gain(
    metric: str,
    raised: Scored,
    base: Scored,
    scorer: GatedScorer,
    rules: SteeringRules,
    groups: Mapping[str, int] | None = None,
) -> Measure:
    """Return the mean score of texts minus that of others on the same openings, with a paired interval.

    Args:
        metric: Name of the figure.
        raised: Texts and scores.
        base: Those that are subtracted.
        scorer: The scorer that is read.
        rules: Settings.
        groups: Group of each opening, such as the document that it is from; groups are resampled. By default each
            opening is a group.

    Raises:
        CellError: The scorer is not valid, or fewer than MIN_OPENINGS openings have both scores.
    """
    scorer.require_valid()
    means = [_by_opening(*scored, scorer.concept) for scored in (raised, base)]
    openings = [name for name in means[0] if name in means[1]]
    if len(openings) < MIN_OPENINGS:
        raise CellError(Status.TOO_FEW, f"only {len(openings)} openings are complete; {MIN_OPENINGS} are needed")
    raised_P, base_P = (np.array([by_opening[name] for name in openings]) for by_opening in means)
    groups_P = np.arange(len(openings)) if groups is None else np.array([groups[name] for name in openings])
    num_groups, rise_P1 = len(np.unique(groups_P)), (raised_P - base_P)[:, None]
    samples_R1 = group_mean_resamples(rise_P1, groups_P, num_resamples=rules.num_bootstrap, seed=rules.seed)
    interval = opening_interval(samples_R1[:, 0], num_groups, 1, rules.level)
    details = {"score": float(raised_P.mean()), "neutral": float(base_P.mean())}
    fields = {"n": len(openings), "num_groups": num_groups, "seed": rules.seed, "details": details}
    return Measure.of(metric, float((raised_P - base_P).mean()), interval, ci_method=CI_METHOD, **fields)


def _by_opening(texts: pa.Table, scores: pa.Table, scorer: str) -> dict[str, float]:
    """Return the mean score of each opening's texts; texts without a score, and scores of other texts, are left out."""
    opening_of = dict(zip(texts["text_id"].to_pylist(), texts["prompt_id"].to_pylist(), strict=True))
    by_opening: dict[str, list[float]] = defaultdict(list)
    for row in scores.select(["text_id", "scorer", "score"]).to_pylist():
        if row["scorer"] == scorer and row["score"] is not None and row["text_id"] in opening_of:
            by_opening[opening_of[row["text_id"]]].append(row["score"])
    return {name: float(np.mean(values)) for name, values in by_opening.items()}
