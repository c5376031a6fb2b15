"""Clauses from dependency arcs.

A word *heads a clause* when its relation is `root`, `advcl`, `acl` (relative clauses included),
`ccomp`, `csubj` or `parataxis`; or when it is a `conj` that is a predicate itself: a VERB or AUX, or
a word with a subject or copula of its own. Open complements (`xcomp`) share their subject and stay in the
clause above. Every other word belongs to the clause of its nearest ancestor that heads one, so a clause may
be interrupted: *the man [who left] was old* is two clauses, the first in two pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from poolbench.pooling.relations import to_universal

CLAUSAL = frozenset({"root", "advcl", "acl", "ccomp", "csubj", "parataxis"})
PREDICATE_TAGS = frozenset({"VERB", "AUX"})
OF_PREDICATES = frozenset({"nsubj", "csubj", "cop"})


def segment_clauses(head: Sequence[int], dep: Sequence[str], upos: Sequence[str]) -> list[int]:
    """Number the clauses of a passage in order of their first word.

    Args:
        head: Index of each word's head, [W]; a root points at itself.
        dep: Relation of each word to its head, UD or ClearNLP, [W].
        upos: Universal part of speech, [W].

    Returns:
        The clause of each word, [W], from 0.

    Raises:
        CellError: If a label belongs to no known scheme.
    """
    relations = [to_universal(label) for label in dep]
    governs = {h for h, relation in zip(head, relations, strict=True) if relation in OF_PREDICATES}
    heads_clause = [
        head[i] == i or relation in CLAUSAL or (relation == "conj" and (upos[i] in PREDICATE_TAGS or i in governs))
        for i, relation in enumerate(relations)
    ]
    numbers: dict[int, int] = {}
    return [numbers.setdefault(_clause_head(i, head, heads_clause), len(numbers)) for i in range(len(head))]


def _clause_head(word: int, head: Sequence[int], heads_clause: Sequence[bool]) -> int:
    while not heads_clause[word]:
        word = head[word]
    return word
