"""Readings of words: mean cosine with the liked words minus mean cosine with the disliked ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import WORDS, require_columns
from poolbench.errors import CellError, InputError, shown
from poolbench.statuses import Status
from poolbench_prober.d1.published import unit_rows
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.valence.reading import Reading, common_plane, first_errors, missing_vector

DOMAIN, POSITIVE, NEGATIVE, NEUTRAL = GROUPS = ("domain", "positive", "negative", "neutral")
BARE = -1
CI_METHOD = "bootstrap over words, percentile"
#: Fewest words of the domain: one word has no variance.
MIN_WORDS = 2
#: Share of the norm of a word's vector below which what the correction leaves of it is rounding of float32.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Words:
    """The words of a table of texts."""

    names: tuple[str, ...]  # word of each item [I]: domain, positive, negative, each in order of the alphabet
    groups: tuple[str, ...]  # group of each item [I]
    bare: tuple[np.ndarray, ...]  # row of the bare word, of each item: none or one
    in_templates: tuple[np.ndarray, ...]  # rows of the word in templates, of each item
    neutral: np.ndarray  # rows of the neutral texts in templates

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Return the words in `table` (WORDS).

        Raise InputError for a missing word, an unknown group or template, a text of a word that is there twice, or
        words that are both positive and negative.
        """
        require_columns(table, WORDS, "the words")
        rows_of: dict[tuple[int, str], dict[int, int]] = {}
        columns = (table[name].to_pylist() for name in ("word", "group", "template"))
        for row, (word, group, template) in enumerate(zip(*columns, strict=True)):
            if not word or group not in GROUPS or template is None or template < BARE:
                raise InputError(
                    f"word {shown(word)} with group {shown(group)} and template {shown(template)}: a word must not be "
                    f"empty, the group is one of {', '.join(GROUPS)}, and the template at least {BARE}"
                )
            texts = rows_of.setdefault((GROUPS.index(group), word), {})
            if template in texts:
                raise InputError(f"word {shown(word)} of group {group} has two texts with template {template}")
            texts[template] = row
        both = sorted(
            {word for group, word in rows_of if GROUPS[group] == POSITIVE}
            & {word for group, word in rows_of if GROUPS[group] == NEGATIVE}
        )
        if both:
            raise InputError(f"{len(both)} words are both positive and negative: {', '.join(map(shown, both[:5]))}")
        items = [(GROUPS[group], word, rows_of[group, word]) for group, word in sorted(rows_of)]
        shown_items = [item for item in items if item[0] != NEUTRAL]
        neutral = [_in_templates(rows) for group, _, rows in items if group == NEUTRAL]
        return cls(
            names=tuple(word for _, word, _ in shown_items),
            groups=tuple(group for group, _, _ in shown_items),
            bare=tuple(_rows([rows[BARE]] if BARE in rows else []) for _, _, rows in shown_items),
            in_templates=tuple(_in_templates(rows) for _, _, rows in shown_items),
            neutral=np.concatenate([_rows([]), *neutral]),
        )


def _rows(rows: Sequence[int]) -> np.ndarray:
    return np.array(rows, dtype=int)


def _in_templates(rows: dict[int, int]) -> np.ndarray:
    return _rows([rows[template] for template in sorted(rows) if template != BARE])


def word_reading(words: Words, before: PooledVectors, after: PooledVectors, *, corrected: bool) -> Reading:
    """Return the reading of the bare words, or with `corrected` of the words in templates minus the neutral mean.

    Each state subtracts its own mean over the neutral texts that have a vector in both states.
    """
    rows_I, neutral = words.bare, None
    if corrected:
        rows_I = words.in_templates
        neutral = words.neutral[before.usable[words.neutral] & after.usable[words.neutral]]
    (before_IW, before_errors), (after_IW, after_errors) = (
        _item_vectors(vectors, rows_I, neutral) for vectors in (before, after)
    )
    errors = first_errors(before_errors, after_errors)
    groups_I = np.array(words.groups, dtype=str)
    usable_I = np.array([error is None for error in errors], dtype=bool)
    used = np.flatnonzero(usable_I)
    groups = groups_I[used]
    positive, negative = groups == POSITIVE, groups == NEGATIVE
    towards = positive / max(1, positive.sum()) - negative / max(1, negative.sum())

    def unit_vectors(vectors: PooledVectors) -> np.ndarray:
        """Return the unit vector of each used word [m, W]. Raise CellError if a word or neutral text has no vector."""
        h_mW, errors = _item_vectors(vectors, [rows_I[item] for item in used], neutral)
        error = next(filter(None, errors), None)
        if error is not None:
            raise error
        return unit_rows(h_mW)

    error = _too_few(groups, neutral)
    plane = None
    if error is None:
        plane = common_plane(used, unit_rows(before_IW[used]), unit_rows(after_IW[used]), towards)
    measured = used[groups == DOMAIN]
    return Reading(
        names=words.names,
        groups=words.groups,
        errors=errors,
        measured=measured,
        units=np.array([words.names[item] for item in measured]),
        values=lambda vectors: valences(unit_vectors(vectors), groups),
        ci_method=CI_METHOD,
        others=used[groups != DOMAIN],
        cosines=lambda vectors: cosines(unit_vectors(vectors), groups),
        plane=plane,
        error=error,
    )


def valences(unit_mW: np.ndarray, groups_m: np.ndarray) -> np.ndarray:
    """Return mean cosine with the positive minus mean cosine with the negative words, of each word of the domain [n].

    The mean of cosines is the product with the mean of unit vectors. Sums, not a BLAS, whose bits depend on the number
    of threads.
    """
    towards_W = unit_mW[groups_m == POSITIVE].mean(axis=0) - unit_mW[groups_m == NEGATIVE].mean(axis=0)
    return np.asarray((unit_mW[groups_m == DOMAIN] * towards_W).sum(axis=1))


def cosines(unit_mW: np.ndarray, groups_m: np.ndarray) -> np.ndarray:
    """Return the cosine of each word of the domain with each liked and disliked word [n, E], by sums."""
    domain_nW = unit_mW[groups_m == DOMAIN]
    return np.stack([(domain_nW * other_W).sum(axis=1) for other_W in unit_mW[groups_m != DOMAIN]], axis=1)


def _item_vectors(
    vectors: PooledVectors, rows_I: Sequence[np.ndarray], neutral: np.ndarray | None
) -> tuple[np.ndarray, list[CellError | None]]:
    """Return the vector of each item [I, W], NaN where there is none, and why there is none [I].

    Args:
        vectors: Vectors of the texts.
        rows_I: Rows of each item's texts, whose vectors are averaged.
        neutral: Rows of the texts whose mean is subtracted; None subtracts nothing.
    """
    h_IW = np.full((len(rows_I), vectors.width), np.nan)
    centre_W = np.zeros(vectors.width)
    if neutral is not None and len(neutral):
        error = missing_vector(vectors, neutral)
        if error is not None:
            return h_IW, [error] * len(rows_I)
        centre_W = vectors.matrix_nW[neutral].mean(axis=0)
    errors = []
    for item, rows in enumerate(rows_I):
        error = missing_vector(vectors, rows)
        if not len(rows):
            error = CellError(
                Status.FAILED, f"the word has no text {'in a template' if neutral is not None else 'alone'}"
            )
        if error is None:
            mean_W = vectors.matrix_nW[rows].mean(axis=0)
            h_IW[item] = mean_W - centre_W
            if _norm(h_IW[item]) <= _ROUNDING * _norm(mean_W):
                h_IW[item] = np.nan
                error = CellError(Status.COLLAPSED, "the vector of the word is zero: it has no direction")
        errors.append(error)
    return h_IW, errors


def _norm(vector_W: np.ndarray) -> float:
    return float(np.sqrt(np.square(vector_W).sum()))


def _too_few(groups_m: np.ndarray, neutral: np.ndarray | None) -> CellError | None:
    counts = {group: int((groups_m == group).sum()) for group in (DOMAIN, POSITIVE, NEGATIVE)}
    if counts[DOMAIN] < MIN_WORDS or not counts[POSITIVE] or not counts[NEGATIVE]:
        have = ", ".join(f"{count} {group}" for group, count in counts.items())
        reason = f"words with a vector in both states: {have}; {MIN_WORDS} domain, 1 positive, 1 negative are needed"
        return CellError(Status.TOO_FEW, reason)
    if neutral is not None and not len(neutral):
        return CellError(Status.TOO_FEW, "no neutral text in a template has a vector in both states")
    return None
