"""Texts that end because of what is read along."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from poolbench.errors import InputError

Scores = tuple[float, ...]  # at one position, the score of each reading
Statistic = Literal["token", "mean", "max"]


@dataclass(frozen=True)
class StopRule:
    """End a text once a statistic of a reading is beyond a threshold for some new tokens in a row.

    Attributes:
        reading: Number of the reading in its request.
        statistic: `token`: the score of the token. `mean`, `max`: mean and highest score of the new tokens so far.
    """

    reading: int
    threshold: float
    above: bool = True
    num_tokens: int = 1
    statistic: Statistic = "token"

    def __post_init__(self) -> None:
        if not abs(self.threshold) < float("inf"):
            raise InputError(f"the threshold of stop_when must be finite, got {self.threshold}")


@dataclass(frozen=True)
class Stopped:
    """The rule that ended a text, and the value of its statistic at the last token."""

    rule: StopRule
    value: float


class Watch:
    """Apply the rules of a request to its scores as they come."""

    def __init__(self, rules: Sequence[StopRule]) -> None:
        self._rules = rules
        self._num_scores = 0
        self._sums = [0.0] * len(rules)
        self._highest = [float("-inf")] * len(rules)
        self._in_a_row = [0] * len(rules)

    def first(self, scores: Sequence[Scores]) -> tuple[int, Stopped] | None:
        """Take the scores of the next tokens. Return the first token at which a rule ends the text, and that rule."""
        for number, values in enumerate(scores):
            self._num_scores += 1
            fired = [stopped for index in range(len(self._rules)) if (stopped := self._next(index, values)) is not None]
            if fired:
                return number, fired[0]
        return None

    def _next(self, index: int, values: Scores) -> Stopped | None:
        rule, score = self._rules[index], values[self._rules[index].reading]
        self._sums[index] += score
        self._highest[index] = max(self._highest[index], score)
        mean = self._sums[index] / self._num_scores
        value = {"token": score, "mean": mean, "max": self._highest[index]}[rule.statistic]
        is_beyond = value > rule.threshold if rule.above else value < rule.threshold
        self._in_a_row[index] = self._in_a_row[index] + 1 if is_beyond else 0
        return Stopped(rule, value) if self._in_a_row[index] >= rule.num_tokens else None
