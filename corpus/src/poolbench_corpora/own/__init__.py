"""Corpora that users bring: read their files, split them, and say what they are good for."""

from poolbench_corpora.own.build import OwnTexts, build_own, revision_of
from poolbench_corpora.own.definition import Definition, read_definition, template
from poolbench_corpora.own.files import SentFile, Text, TextFile, read_pairs, read_texts
from poolbench_corpora.own.labelled import TABLE_SUFFIXES, parse_columns, read_labelled
from poolbench_corpora.own.make import Made, TextFiles, make_concept
from poolbench_corpora.own.review import Remark, review

__all__ = [
    "TABLE_SUFFIXES",
    "Definition",
    "Made",
    "OwnTexts",
    "Remark",
    "SentFile",
    "Text",
    "TextFile",
    "TextFiles",
    "build_own",
    "make_concept",
    "parse_columns",
    "read_definition",
    "read_labelled",
    "read_pairs",
    "read_texts",
    "review",
    "revision_of",
    "template",
]
