"""Corpora that users bring: read their files, split them, and say what they are good for."""

from poolbench.corpora.own.build import OwnTexts, build_own, revision_of
from poolbench.corpora.own.files import Text, read_pairs, read_texts
from poolbench.corpora.own.labelled import parse_columns, read_labelled
from poolbench.corpora.own.review import Remark, review

__all__ = [
    "OwnTexts",
    "Remark",
    "Text",
    "build_own",
    "parse_columns",
    "read_labelled",
    "read_pairs",
    "read_texts",
    "review",
    "revision_of",
]
