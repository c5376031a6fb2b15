"""Cosines of the words with single liked and disliked words: two ways to be preferred, and one word for a list."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statistics.bootstrap import group_mean_resamples, percentile_interval
from poolbench_driver.suites.humanoid.metrics import AWAY, TOWARDS

LISTS = ("positive", "negative")
_CI_METHOD = "bootstrap over words, percentile"


@dataclass(frozen=True)
class Cosines:
    """Cosines of n words of the domain with E liked and disliked words, before and after a fine-tune."""

    words: tuple[str, ...]  # words of the domain [n]
    others: tuple[str, ...]  # liked and disliked words [E]
    groups: np.ndarray  # list of each of them: `positive` or `negative` [E]
    before_nE: np.ndarray
    after_nE: np.ndarray

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read the cosines of a WORD_COSINES table, in which the rows of each word are adjacent."""
        words = dict.fromkeys(table["word"].to_pylist())
        pairs = dict.fromkeys(zip(table["group"].to_pylist(), table["other"].to_pylist(), strict=True))
        shape = len(words), len(pairs)
        before_nE, after_nE = (table[state].to_numpy().reshape(shape) for state in ("before", "after"))
        groups, others = zip(*pairs, strict=True)
        return cls(tuple(words), others, np.array(groups), before_nE, after_nE)

    def changes(self) -> dict[str, np.ndarray]:
        """Return the mean change of each word's cosine to liked words, and to disliked words with the opposite sign."""
        change_nE = self.after_nE - self.before_nE
        liked_n, disliked_n = (change_nE[:, self.groups == group].mean(axis=1) for group in LISTS)
        return {TOWARDS: liked_n, AWAY: -disliked_n}

    def ways(self, num_bootstrap: int, seed: int) -> Iterator[Measure]:
        """Yield the mean change of the cosine to liked words, and the negative mean change to disliked words.

        The sum of both is the change of valence. The other figures use the same resamples of the words.
        """
        change_n2 = np.stack(list(self.changes().values()), axis=1)
        samples_R2 = group_mean_resamples(change_n2, np.array(self.words), num_resamples=num_bootstrap, seed=seed)
        for column, metric in enumerate((TOWARDS, AWAY)):
            interval, count = percentile_interval(samples_R2[:, column]), len(self.words)
            fields = {"n": count, "num_groups": count, "seed": seed, "ci_method": _CI_METHOD}
            yield Measure.of(metric, change_n2[:, column].mean(), interval, **fields)

    def single_words(self) -> Iterator[Row]:
        """Yield the change of variance if one word replaces its whole list, for each list with several words."""
        lists = {group: self.groups == group for group in LISTS}
        whole = self._variance_change(lists)
        for column, (other, group) in enumerate(zip(self.others, self.groups.tolist(), strict=True)):
            if lists[group].sum() > 1:
                alone = np.arange(len(self.others)) == column
                variance = self._variance_change({**lists, group: alone})
                yield {"list": group, "word": other, "variance": variance, "difference": variance - whole}

    def _variance_change(self, lists: dict[str, np.ndarray]) -> float:
        """Return the change of the population variance of valence; `lists` says which words [E] each list has."""
        before, after = (
            (cosines_nE[:, lists["positive"]].mean(axis=1) - cosines_nE[:, lists["negative"]].mean(axis=1)).var()
            for cosines_nE in (self.before_nE, self.after_nE)
        )
        return float(after - before)
