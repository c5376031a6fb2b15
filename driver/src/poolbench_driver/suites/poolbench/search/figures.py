"""Figures of damage by strength: divergence, perplexity and minimal pairs, from the likelihood of given texts.

Values and intervals are over texts; texts of one group, such as a document, are drawn together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poolbench.contracts import Row
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights
from poolbench.statuses import Status
from poolbench_driver.suites.poolbench.measures.response import SteeringRules, opening_interval
from poolbench_driver.vectors.card import CardMeasure

#: Perplexity ratio of given texts that is 1 % of damage.
ONE_PERCENT = 1.01


@dataclass(frozen=True)
class TextGrid:
    """Texts that have figures at every strength; column 0 is unsteered."""

    ids: tuple[str, ...]
    strengths: np.ndarray  # ascending, the first is 0 [S]
    log_likelihood: np.ndarray  # nats, summed over the tokens of a text [n, S]
    kl: np.ndarray  # nats, mean over the tokens of a text [n, S]
    num_tokens: np.ndarray  # [n]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> TextGrid:
        """Return the grid of rows of DAMAGE of one direction. Raise CellError if no text has all figures."""
        strengths = np.array(sorted({float(row["strength"]) for row in rows}))
        cells = dict[str, dict[float, Row]]()
        for row in rows:
            if row["status"] == Status.OK:
                cells.setdefault(row["passage_id"], {})[float(row["strength"])] = row
        complete = {name: by_strength for name, by_strength in cells.items() if len(by_strength) == len(strengths)}
        if not complete:
            example = next((row for row in rows if row["reason"]), {"status": Status.TOO_FEW, "reason": "no text"})
            raise CellError(
                Status(example["status"]), f"no text has a likelihood at each strength: {example['reason']}"
            )

        def column(name: str) -> np.ndarray:
            return np.array([[by_strength[s][name] for s in strengths] for by_strength in complete.values()], float)

        return cls(tuple(complete), strengths, column("log_likelihood"), column("kl"), column("num_tokens")[:, 0])

    def kl_at(self, weights_Rn: np.ndarray) -> np.ndarray:
        """Return the mean divergence per token of all texts [R, S]."""
        return (weights_Rn @ (self.kl * self.num_tokens[:, None])) / (weights_Rn @ self.num_tokens)[:, None]

    def perplexity_at(self, weights_Rn: np.ndarray) -> np.ndarray:
        """Return the perplexity per token of all texts [R, S]."""
        return np.exp(-(weights_Rn @ self.log_likelihood) / (weights_Rn @ self.num_tokens)[:, None])


@dataclass(frozen=True)
class Samples:
    """Weights of texts: row 0 is the value, the others are resamples of their groups."""

    weights_Rn: np.ndarray
    num_groups: int
    rules: SteeringRules

    @classmethod
    def of(cls, ids: Sequence[str], groups: Mapping[str, str], rules: SteeringRules) -> Samples:
        """Return the weights of texts; one without a group is a group of its own."""
        of_ids = np.array([groups.get(name) or name for name in ids])
        drawn_Rn = group_weights(of_ids, rules.num_bootstrap, rules.seed).astype(float)
        return cls(np.vstack([np.ones(len(of_ids)), drawn_Rn]), len(np.unique(of_ids)), rules)

    def measure(self, name: str, values_R: np.ndarray, strength: float | None = None) -> CardMeasure:
        """Return a measure: the first value, with the interval of the others."""
        bounds = None
        if self.num_groups > 1:
            bounds = opening_interval(values_R[1:], self.num_groups, level=self.rules.level)
        low, high = bounds or (None, None)
        num_texts = self.weights_Rn.shape[1]
        return CardMeasure(
            name=name, strength=strength, value=float(values_R[0]), ci_low=low, ci_high=high, n=num_texts
        )


@dataclass(frozen=True)
class TextDamage:
    """Damage on benign texts, and the largest strength that it leaves safe."""

    measures: Sequence[CardMeasure]
    safe_high: float


def text_damage(rows: Sequence[Row], groups: Mapping[str, str], rules: SteeringRules) -> TextDamage:
    """Return divergence and perplexity ratio by strength, and the strength at 1 % damage.

    Args:
        rows: Rows of DAMAGE of one direction.
        groups: Group of texts by id.

    Raises:
        CellError: No text has all figures, or one of them is not finite.
    """
    grid = TextGrid.of(rows)
    samples = Samples.of(grid.ids, groups, rules)
    kl_RS, perplexity_RS = grid.kl_at(samples.weights_Rn), grid.perplexity_at(samples.weights_Rn)
    ratio_RS = perplexity_RS / perplexity_RS[:, :1]
    if not (np.isfinite(ratio_RS[0]).all() and np.isfinite(kl_RS[0]).all()):
        raise CellError(Status.NON_FINITE, "the perplexity of the texts is infinite at some strength")
    measures = [samples.measure("damage.perplexity", perplexity_RS[:, 0], 0.0)]
    for column, strength in enumerate(grid.strengths.tolist()):
        if column:
            measures.append(samples.measure("damage.kl", kl_RS[:, column], strength))
            measures.append(samples.measure("damage.perplexity_ratio", ratio_RS[:, column], strength))
    largest = float(grid.strengths[-1])
    at_one_R = strength_at(ratio_RS, grid.strengths, ONE_PERCENT)
    name = "damage.strength_at_1_percent"
    if np.isfinite(at_one_R[0]):
        measures.append(samples.measure(name, at_one_R.clip(max=largest)))
    else:
        reason = f"the perplexity ratio stays at most {ONE_PERCENT:g} up to strength {largest:g}, the largest measured"
        measures.append(CardMeasure(name=name, status=Status.NO_EFFECT, reason=reason, n=len(grid.ids)))
    safe = strength_at(ratio_RS[:1], grid.strengths, rules.max_perplexity_ratio)
    return TextDamage(measures, float(safe.clip(max=largest)[0]))


def strength_at(ratio_RS: np.ndarray, strengths_S: np.ndarray, bound: float) -> np.ndarray:
    """Return the largest strength up to which a perplexity ratio stays at most `bound` [R].

    Between two strengths, the logarithm of the ratio is taken as linear. Infinity where the ratio never exceeds it.
    """
    is_over_RS = ratio_RS > bound
    over_R = np.arange(len(ratio_RS)), np.maximum(is_over_RS.argmax(axis=1), 1)
    below_R = over_R[0], over_R[1] - 1
    with np.errstate(invalid="ignore", divide="ignore"):
        share_R = (np.log(bound) - np.log(ratio_RS[below_R])) / (np.log(ratio_RS[over_R]) - np.log(ratio_RS[below_R]))
        reached_R = strengths_S[below_R[1]] + share_R * (strengths_S[over_R[1]] - strengths_S[below_R[1]])
    return np.where(is_over_RS.any(axis=1), reached_R, np.inf)


def pair_accuracy(rows: Sequence[Row], groups: Mapping[str, str], rules: SteeringRules) -> Iterator[CardMeasure]:
    """Yield the share of minimal pairs whose good sentence is the likelier one, by strength, 0 included.

    Args:
        rows: Rows of DAMAGE; ids are those of `pairs_table`. A pair counts if both sentences have all figures.
        groups: Group of texts by id.
    """
    grid = TextGrid.of(rows)
    row_of = {name: row for row, name in enumerate(grid.ids)}
    pairs = [name.removesuffix("/good") for name in grid.ids if name.endswith("/good")]
    pairs = [pair for pair in pairs if f"{pair}/bad" in row_of]
    if not pairs:
        raise CellError(Status.TOO_FEW, "no pair has a likelihood of both sentences")
    good, bad = ([row_of[f"{pair}/{side}"] for pair in pairs] for side in ("good", "bad"))
    is_right_nS = (grid.log_likelihood[good] > grid.log_likelihood[bad]).astype(float)
    samples = Samples.of(pairs, {pair: groups[f"{pair}/good"] for pair in pairs}, rules)
    share_RS = samples.weights_Rn @ is_right_nS / samples.weights_Rn.sum(axis=1, keepdims=True)
    for column, strength in enumerate(grid.strengths.tolist()):
        yield samples.measure("damage.pair_accuracy", share_RS[:, column], strength)
