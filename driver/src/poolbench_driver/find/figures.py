"""Figures of damage by strength: divergence, perplexity and minimal pairs, from the likelihood of given texts.

Values and intervals are over texts; texts of one group, such as a document, are drawn together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import error_of
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench_driver.measures.response import SteeringRules, opening_interval
from poolbench_driver.vectors.card import CardMeasure

#: Perplexity ratio of given texts that is 1 % of damage.
ONE_PERCENT = 1.01


def card_measure(measure: Measure, strength: float | None = None) -> CardMeasure:
    """Convert a measure, read at a strength if given, to a measure of a card."""
    return CardMeasure.of_row(measure.metric, measure.to_row(), strength)


@dataclass(frozen=True)
class TextGrid:
    """Texts that have figures at every strength; column 0 is unsteered."""

    ids: tuple[str, ...]
    strengths: np.ndarray  # ascending, the first is 0 [S]
    log_likelihood: np.ndarray  # nats, summed over the tokens of a text [n, S]
    kl: np.ndarray  # nats, mean over the tokens of a text [n, S]
    num_tokens: np.ndarray  # [n, S]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> TextGrid:
        """Return the grid of rows of DAMAGE of one direction. Raise CellError if no text has all figures."""
        strengths, cells = sorted({row["strength"] for row in rows}), dict[str, dict[float, Row]]()
        for row in rows:
            if row["status"] == Status.OK:
                cells.setdefault(row["passage_id"], {})[row["strength"]] = row
        complete = {name: by_strength for name, by_strength in cells.items() if len(by_strength) == len(strengths)}
        if not complete:
            raise error_of(next(row for row in rows if row["status"] != Status.OK))
        columns = ("log_likelihood", "kl", "num_tokens")
        figures = [[[of[s][name] for s in strengths] for of in complete.values()] for name in columns]
        return cls(tuple(complete), np.array(strengths), *np.array(figures, dtype=float))


@dataclass(frozen=True)
class Samples:
    """Weights of texts. Row 0 weighs all texts equally, and every other row is a resample of the texts' groups."""

    weights_Rn: np.ndarray
    num_groups: int
    level: float

    @classmethod
    def of(cls, ids: Sequence[str], groups: Mapping[str, str], rules: SteeringRules) -> Samples:
        """Return the weights of texts. A text without a group is a group of its own."""
        of_ids = np.array([groups.get(name) or name for name in ids])
        drawn_Rn = group_weights(of_ids, rules.num_bootstrap, rules.seed).astype(float)
        return cls(np.vstack([np.ones(len(of_ids)), drawn_Rn]), len(np.unique(of_ids)), rules.level)

    def measure(self, name: str, values_R: np.ndarray, strength: float | None = None) -> CardMeasure:
        """Return the first value. Its interval comes from the other values, and is null without two groups."""
        interval = opening_interval(values_R[1:], self.num_groups, level=self.level)
        return card_measure(Measure.of(name, values_R[0], interval, n=self.weights_Rn.shape[1]), strength)


def text_damage(
    rows: Sequence[Row], groups: Mapping[str, str], rules: SteeringRules
) -> tuple[list[CardMeasure], float]:
    """Return measures of benign text by strength, and the largest strength with a perplexity ratio that is safe.

    Args:
        rows: Rows of DAMAGE of one direction.
        groups: Group of texts by id.

    Raises:
        CellError: No text has all figures, or the perplexity is not finite.
    """
    grid = TextGrid.of(rows)
    samples = Samples.of(grid.ids, groups, rules)
    num_tokens_RS = samples.weights_Rn @ grid.num_tokens
    kl_RS = samples.weights_Rn @ (grid.kl * grid.num_tokens) / num_tokens_RS
    perplexity_RS = np.exp(-(samples.weights_Rn @ grid.log_likelihood) / num_tokens_RS)
    ratio_RS = perplexity_RS / perplexity_RS[:, :1]
    if not np.isfinite(ratio_RS[0]).all():
        raise CellError(Status.NON_FINITE, "the perplexity of the texts is infinite at some strength")
    measures = [samples.measure("damage.perplexity", perplexity_RS[:, 0], 0.0)]
    for strength, kl_R, ratio_R in zip(grid.strengths[1:].tolist(), kl_RS.T[1:], ratio_RS.T[1:], strict=True):
        measures.append(samples.measure("damage.kl", kl_R, strength))
        measures.append(samples.measure("damage.perplexity_ratio", ratio_R, strength))
    name, largest = "damage.strength_at_1_percent", float(grid.strengths[-1])
    at_one_R = strength_at(ratio_RS, grid.strengths, ONE_PERCENT)
    if np.isfinite(at_one_R[0]):
        measures.append(samples.measure(name, at_one_R.clip(max=largest)))
    else:
        reason = f"the perplexity ratio stays at most {ONE_PERCENT:g} up to strength {largest:g}, the largest measured"
        measures.append(CardMeasure(name=name, status=Status.NO_EFFECT, reason=reason, n=len(grid.ids)))
    safe = strength_at(ratio_RS[:1], grid.strengths, rules.max_perplexity_ratio)
    return measures, float(safe.clip(max=largest)[0])


def strength_at(ratio_RS: np.ndarray, strengths_S: np.ndarray, bound: float) -> np.ndarray:
    """Return the largest strength up to which a perplexity ratio stays at most `bound` [R].

    Between two strengths, the logarithm of the ratio is interpolated linearly. The result is infinity if the ratio
    never exceeds `bound`.
    """
    is_over_RS, R = ratio_RS > bound, np.arange(len(ratio_RS))
    over_R = np.maximum(is_over_RS.argmax(axis=1), 1)
    below_R = over_R - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        log_RS = np.log(ratio_RS)
        share_R = (np.log(bound) - log_RS[R, below_R]) / (log_RS[R, over_R] - log_RS[R, below_R])
        reached_R = strengths_S[below_R] + share_R * (strengths_S[over_R] - strengths_S[below_R])
    return np.where(is_over_RS.any(axis=1), reached_R, np.inf)


def pair_accuracy(rows: Sequence[Row], groups: Mapping[str, str], rules: SteeringRules) -> Iterator[CardMeasure]:
    """Yield the share of minimal pairs whose good sentence is more likely than the bad one, by strength, 0 included.

    A pair counts if both sentences have all figures. Raise CellError if no pair counts.

    Args:
        rows: Rows of DAMAGE, with the ids of `pairs_table`.
        groups: Group of sentences by id.
    """
    grid = TextGrid.of(rows)
    row_of = {name: row for row, name in enumerate(grid.ids)}
    good = [name for name in grid.ids if name.endswith("/good") and name.replace("/good", "/bad") in row_of]
    if not good:
        raise CellError(Status.TOO_FEW, "no pair has a likelihood of both sentences")
    good_nS, bad_nS = (
        grid.log_likelihood[[row_of[name.replace("/good", side)] for name in good]] for side in ("/good", "/bad")
    )
    samples = Samples.of(good, groups, rules)
    share_RS = samples.weights_Rn @ (good_nS > bad_nS) / samples.weights_Rn.sum(axis=1, keepdims=True)
    for strength, share_R in zip(grid.strengths.tolist(), share_RS.T, strict=True):
        yield samples.measure("damage.pair_accuracy", share_R, strength)
