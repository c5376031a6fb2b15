"""Dependency labels: Universal Dependencies, and a mapping from the ClearNLP scheme of spaCy's models."""

from poolbench.errors import CellError
from poolbench.statuses import Status

#: Clause and modifier arcs that L2 selects.
CLAUSE_AND_MODIFIER = frozenset({"advcl", "mark", "cc", "conj", "case", "acl"})

_UNIVERSAL_NAMES = """
acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated
expl fixed flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum
root vocative xcomp
"""
UNIVERSAL = frozenset(_UNIVERSAL_NAMES.split())

#: ClearNLP and older Stanford labels; `prep` marks the preposition itself, as `case` does in UD.
TO_UNIVERSAL = {
    "prep": "case", "agent": "case", "relcl": "acl", "rcmod": "acl", "partmod": "acl", "preconj": "cc",
    "prt": "compound", "nn": "compound", "mwe": "fixed", "auxpass": "aux", "nsubjpass": "nsubj", "csubjpass": "csubj",
    "dobj": "obj", "dative": "iobj", "pobj": "obl", "pcomp": "ccomp", "acomp": "xcomp", "attr": "xcomp",
    "oprd": "xcomp", "poss": "nmod", "possessive": "case", "npadvmod": "obl", "npmod": "obl", "tmod": "obl",
    "quantmod": "advmod", "neg": "advmod", "intj": "discourse", "meta": "dep", "num": "nummod", "number": "nummod",
    "predet": "det", "erased": "dep", "": "dep",
}  # fmt: skip


def to_universal(label: str) -> str:
    """Return the Universal Dependencies relation of a label, without its subtype.

    Raise CellError if the label belongs to no known scheme. If it were ignored, this would look like no coverage.
    """
    base = label.lower().partition(":")[0]
    if base in UNIVERSAL:
        return base
    if base in TO_UNIVERSAL:
        return TO_UNIVERSAL[base]
    reason = f"dependency label {label!r} belongs to no known scheme (UD or ClearNLP)"
    raise CellError(Status.FAILED, reason)
