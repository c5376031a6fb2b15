"""Training examples from passages: a validation part, windows, couples, and degenerate negatives."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import PASSAGES, require_columns
from poolbench.errors import CellError, InputError
from poolbench.statistics.folds import connected_groups
from poolbench.statuses import Status
from poolbench.steps.scorer import TrainParams
from poolbench.word_rules import word_rule
from poolbench_scorer.classifiers.windows import (
    BaseTokenizer,
    Window,
    draw,
    loop_words,
    shuffle_words,
    training_windows,
)
from poolbench_scorer.training.fit import Examples

MIN_CLASS = 10


@dataclass(frozen=True)
class LabelledPassages:
    """Passages of one split, as columns.

    Attributes:
        pairs: Id of each passage's matched pair, or None if the passage has no rewrite.
        groups: Number of each passage's group: passages of one document or pair share a group.
    """

    ids: list[str]
    texts: list[str]
    labels: np.ndarray
    pairs: list[str | None]
    groups: np.ndarray

    def take(self, rows: np.ndarray) -> "LabelledPassages":
        """Return the passages of the given rows."""
        picked = rows.tolist()
        ids, texts, pairs = ([column[row] for row in picked] for column in (self.ids, self.texts, self.pairs))
        return LabelledPassages(ids, texts, self.labels[rows], pairs, self.groups[rows])


def read_passages(table: pa.Table, split: str) -> LabelledPassages:
    """Read passages from a table.

    Raises:
        InputError: Columns are missing, or a passage is of another split. A scorer judges texts of the other splits, so
            it must not be trained on them.
        CellError: `no_scorer` if split `scorer` has no passage, `one_class` if all passages have one class, or
            `too_few` if a class has fewer than 10 passages.
    """
    require_columns(table, PASSAGES, "passages")
    splits = sorted(set(table["split"].to_pylist()))
    if splits not in ([], [split]):
        raise InputError(f"passages of split {', '.join(splits)}: this step takes passages of split {split} only")
    labels = np.array(table["label"].to_pylist(), dtype=np.int64)
    if split == "scorer" and not len(labels):
        raise CellError(Status.NO_SCORER, "the concept has no scorer passages, so no scorer can be trained")
    counts = np.bincount(labels, minlength=2)
    if counts.min() < MIN_CLASS:
        status = Status.ONE_CLASS if counts.min() == 0 and counts.max() > 0 else Status.TOO_FEW
        raise CellError(status, f"{counts[1]} positive and {counts[0]} negative passages; need {MIN_CLASS} of each")
    columns = (table[name].to_pylist() for name in ("passage_id", "text", "pair_id"))
    ids, texts, pairs = columns
    return LabelledPassages(ids, texts, labels, pairs, connected_groups(table["doc_id"].to_pylist(), pairs))


def split_validation(passages: LabelledPassages, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split passages into training and validation. Return the row numbers of both.

    All passages of a group (document, pair) are on one side. Groups are drawn separately among groups with equal
    classes, so that both sides have both classes.

    Raises:
        CellError: `too_few` if one side lacks a class.
    """
    classes: dict[int, set[int]] = defaultdict(set)
    for group, label in zip(passages.groups.tolist(), passages.labels.tolist(), strict=True):
        classes[group].add(label)
    strata: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for group in sorted(classes):
        strata[tuple(sorted(classes[group]))].append(group)
    held_out: list[int] = []
    for stratum, groups in sorted(strata.items()):
        order = draw(seed, f"validation/{stratum}").permutation(len(groups))
        if len(groups) > 1:
            held_out += [groups[index] for index in order[: math.ceil(share * len(groups))]]
    inside = np.isin(passages.groups, held_out)
    for rows in (inside, ~inside):
        if len(set(passages.labels[rows].tolist())) < 2:
            raise CellError(Status.TOO_FEW, f"{len(classes)} groups of passages cannot be split for validation")
    return np.flatnonzero(~inside), np.flatnonzero(inside)


def build_examples(passages: LabelledPassages, tokens: BaseTokenizer, params: TrainParams) -> Examples:
    """Return windows and couples for training, including degenerate negatives.

    Of a matched pair, only windows that differ in the rewrite are used. Otherwise two equal windows would have opposite
    labels. If a word rule labelled the passages, a window of a positive passage is left out if the rule labels the
    window as negative.
    """
    contents = tokens.content(passages.texts)
    windows: list[Window] = []
    labels: list[int] = []
    size = 1 + params.num_windows
    for row, content in enumerate(contents):
        rng = draw(params.seed, passages.pairs[row] or passages.ids[row])
        windows += training_windows(content, rng, params.num_windows, params.window_tokens)
        labels += [int(passages.labels[row])] * size
    couples = [
        (positive * size + index, negative * size + index)
        for positive, negative in couple_passages(passages.labels, passages.pairs, params.seed)
        for index in range(size)
        if passages.pairs[positive] is None or differs(windows[positive * size + index], contents[negative])
    ]
    if params.rule is not None:
        rule = word_rule(params.concept, params.rule)
        couples = [couple for couple in couples if rule.label(tokens.text(windows[couple[0]])) != 0]
    num_degenerate = round(params.degenerate_share * len(couples))
    couple_numbers = draw(params.seed, "degenerate").permutation(len(couples))[:num_degenerate].tolist()
    for index, couple in enumerate(couple_numbers):
        positive = couples[couple][0]
        couples.append((positive, len(windows)))
        windows.append(degenerate(tokens, windows[positive], looping=index % 3 == 2, seed=params.seed))
        labels.append(0)
    return Examples([tokens.wrap(window) for window in windows], np.array(labels), couples)


def differs(window: Window, rewrite: Window) -> bool:
    """Return whether a window has two adjacent tokens that do not occur together in the rewrite."""
    return not set(pairwise(window)) <= set(pairwise(rewrite))


def couple_passages(labels: np.ndarray, pairs: Sequence[str | None], seed: int) -> list[tuple[int, int]]:
    """Return couples of rows (positive, negative): first matched pairs, then random couples of the other passages.

    In random couples, passages of the smaller class are used several times.
    """
    by_pair: dict[str, dict[int, int]] = defaultdict(dict)
    for row, pair in enumerate(pairs):
        if pair is not None:
            by_pair[pair][int(labels[row])] = row
    couples = [(rows[1], rows[0]) for rows in by_pair.values() if len(rows) == 2]
    paired = {row for couple in couples for row in couple}
    rest = [[row for row in np.flatnonzero(labels == label).tolist() if row not in paired] for label in (1, 0)]
    if rest[0] and rest[1]:
        rng = draw(seed, "couples")
        positives, negatives = (rng.permutation(rows) for rows in rest)
        longest = max(len(positives), len(negatives))
        couples += zip(np.resize(positives, longest).tolist(), np.resize(negatives, longest).tolist(), strict=True)
    return couples


def degenerate(tokens: BaseTokenizer, window: Window, *, looping: bool, seed: int) -> Window:
    """Return a degenerate window: a loop over some words of `window`, or all its words in random order.

    The result has at most as many tokens as `window`.
    """
    text = tokens.text(window)
    spoil = loop_words if looping else shuffle_words
    return tokens.content([spoil(text, draw(seed, text))])[0][: len(window)]
