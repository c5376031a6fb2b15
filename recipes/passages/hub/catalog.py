"""Which datasets each concept is made from, as data: `datasets.yaml` and `concepts.yaml`; tests of passages by name.

The tests of matched and numeric concepts are those of the archives (`recipes.passages.weak_labels`), so that
both corpora mean the same.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from recipes.passages.documents import Document
from recipes.passages.rewriting import REWRITES
from recipes.passages.weak_labels import (
    DocumentTest,
    Pool,
    WeakLabels,
    always,
    weak_labels,
)

from poolbench.concepts import CONCEPTS
from poolbench.errors import UnknownNameError
from poolbench.word_rules import TextTest, at_least, seed_pattern, without
from poolbench_corpora.partition import HUB

_LINK_OR_CODE = re.compile(r"https?://|```|^ {4}\S", re.M)
_TECHNICAL = re.compile(
    r"\b(software|program(?:s|ming)?|python|java(?:script)?|api|database|server|install(?:ed|ing)?|compil\w+|debug\w*|"
    r"algorithms?|function call|source code|command line|operating system|open[- ]source)\b",
    re.I,
)
_ADMINISTRATIVE = re.compile(
    r"\b(shall|pursuant|section|subsection|paragraph|secretary|commission|agenc(?:y|ies)|department|regulations?|"
    r"provisions?|authori[sz]\w+|requirements?|compliance|directive|amend\w*)\b",
    re.I,
)
_FICTION = re.compile(
    r"\b(novels?|films?|movies?|episodes?|protagonist|plot|fictional|manga|anime|television series)\b", re.I
)
_DISTRESS = re.compile(
    r"\b(depress\w*|suicid\w*|anxi\w+|therap\w+|hopeless\w*|self[- ]harm\w*|medicat\w+|mental health|panic attacks?)\b",
    re.I,
)


def _both_classes(concept: str) -> tuple[TextTest, TextTest]:
    """Return the archives' tests of positives and negatives."""
    labels = weak_labels()[concept]
    return labels.positives.passage, labels.negatives.passage if labels.negatives else always


#: From a concept's id to the test.
FILTERS: Mapping[str, Callable[[str], TextTest]] = MappingProxyType(
    {
        "any": lambda _: always,
        "markers": lambda concept: _both_classes(concept)[0],
        "no_markers": lambda concept: _both_classes(concept)[1],
        "seed_words": lambda concept: at_least(seed_pattern(CONCEPTS.get(concept)), 1),
        "no_seed_words": lambda concept: without(seed_pattern(CONCEPTS.get(concept))),
        "no_links": lambda _: without(_LINK_OR_CODE),
        "no_code": lambda _: without(re.compile("`")),
        "technical": lambda _: at_least(_TECHNICAL, 1),
        "administrative": lambda _: at_least(_ADMINISTRATIVE, 4),
        "no_fiction": lambda _: without(_FICTION),
        "no_distress": lambda _: without(_DISTRESS),
    }
)

Column = str | int | float | bool


class Range(BaseModel):
    """Bounds of a column, both included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: float = float("-inf")
    max: float = float("inf")


Condition = tuple[Column, ...] | Range


class Dataset(BaseModel):
    """A dataset of a hub, as its publisher names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str  # repository on the hub
    config: str | None = None
    revision: str | None = None  # null: the newest
    splits: tuple[str, ...] = ("train",)
    files: tuple[str, ...] = ()  # addresses of CSV files, for a repository that `datasets` cannot load
    text: tuple[str, ...]  # columns with the text; the first one that a record has is read
    title: str | None = None  # column that is put before the text
    licence: str | None  # null: none is declared, or none is known to us

    @property
    def name(self) -> str:
        """Return the id with its configuration."""
        return f"{self.id} ({self.config})" if self.config else self.id


class Side(BaseModel):
    """The passages of one class."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    domains: dict[str, str] = Field(alias="from")  # domain of each dataset
    filter: str = "any"
    where: dict[str, dict[str, Condition]] = {}  # by dataset: what its columns must be


class Recipe(BaseModel):
    """How the corpus of one concept is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    positives: Side
    negatives: Side | None = None  # null for matched concepts, whose negatives are rewrites

    @property
    def sides(self) -> tuple[Side, ...]:
        """Return the classes that are read."""
        return (self.positives, self.negatives) if self.negatives else (self.positives,)

    def datasets(self) -> tuple[str, ...]:
        """Return the names of all datasets, each once."""
        return tuple(dict.fromkeys(name for side in self.sides for name in side.domains))


def _load(name: str) -> Any:
    return yaml.safe_load(files("recipes.passages.hub").joinpath(name).read_text("utf-8"))


@cache
def datasets() -> Mapping[str, Dataset]:
    """Return the datasets by our name of them."""
    return TypeAdapter(dict[str, Dataset]).validate_python(_load("datasets.yaml"))


@cache
def recipes() -> Mapping[str, Recipe]:
    """Return the recipes by concept."""
    return TypeAdapter(dict[str, Recipe]).validate_python(_load("concepts.yaml"))


def get_recipe(concept: str, leave_out: frozenset[str] = frozenset()) -> Recipe:
    """Return the recipe of a concept without some datasets, named as here or as on the hub.

    Raises:
        UnknownNameError: No dataset has such a name.
    """
    names = {*datasets(), *(dataset.id for dataset in datasets().values())}
    if unknown := sorted(leave_out - names):
        raise UnknownNameError("dataset", unknown[0], sorted(names))
    recipe = recipes()[concept]
    sides = [_without(side, leave_out) for side in recipe.sides]
    return Recipe(positives=sides[0], negatives=sides[1] if len(sides) > 1 else None)


def _without(side: Side, leave_out: frozenset[str]) -> Side:
    domains = {n: d for n, d in side.domains.items() if not leave_out & {n, datasets()[n].id}}
    return side.model_copy(update={"domains": domains})


def labels_of(concept: str, recipe: Recipe) -> WeakLabels:
    """Return the rules of a recipe, as the choice of passages reads them; its sources are names of datasets."""
    pools = [Pool(tuple(side.domains), FILTERS[side.filter](concept), _where(side.where)) for side in recipe.sides]
    if recipe.negatives is None:
        return WeakLabels(pools[0], rewrite=REWRITES[concept])
    return WeakLabels(pools[0], pools[1])


def _where(conditions: Mapping[str, Mapping[str, Condition]]) -> DocumentTest:
    by_source = {HUB + name: columns for name, columns in conditions.items()}

    def test(document: Document) -> bool:
        columns = by_source.get(document.doc_id.partition("/")[0], {})
        return all(_holds(document.label(column), condition) for column, condition in columns.items())

    return test


def _holds(value: str, condition: Condition) -> bool:
    if isinstance(condition, Range):
        try:
            return condition.min <= float(value) <= condition.max
        except ValueError:
            return False
    return value.strip().lower() in {str(label).lower() for label in condition}
