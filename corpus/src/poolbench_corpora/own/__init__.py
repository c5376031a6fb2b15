"""Corpora that users bring: read their files, split them, and say what they are good for."""

from poolbench_corpora.own.build import Made, OwnTexts, TextFiles, build_own, make_concept, revision_of
from poolbench_corpora.own.definition import Definition, read_definition, template
from poolbench_corpora.own.files import Text, read_pairs, read_texts
from poolbench_corpora.own.labelled import parse_columns, read_labelled
from poolbench_corpora.own.review import review
