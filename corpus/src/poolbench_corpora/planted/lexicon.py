"""Domains, content words and sentence templates of the three uses, from `lexicons/<use>.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml

Use = Literal["corpus", "lm", "scorer"]


@dataclass(frozen=True)
class Domain:
    """A subject area; `slots` maps the name of a slot to the words or phrases that may fill it."""

    name: str
    slots: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Lexicon:
    """The words and templates of one use, without the markers of the concepts."""

    use: Use
    templates: Mapping[str, tuple[str, ...]]  # for the slots `clause`, `subj`, `obj` and `vp`
    domains: tuple[Domain, ...]  # with the slots `role`, `thing`, `adj`, `place`, `past`, `base`, `name`, `time`


def load_yaml(*path: str) -> Any:
    """Return the content of a YAML file of this package."""
    return yaml.safe_load(files(__package__).joinpath(*path).read_text("utf-8"))


@cache
def load_lexicon(use: Use) -> Lexicon:
    """Return the lexicon of a use."""
    raw = load_yaml("lexicons", f"{use}.yaml")
    common = {"name": tuple(raw["names"]), "time": tuple(raw["times"])}
    domains = tuple(Domain(name, {**common, **_slots(words)}) for name, words in raw["domains"].items())
    templates = {slot: tuple(options) for slot, options in raw["templates"].items()}
    return Lexicon(use, templates, domains)


def _slots(words: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    slots = {slot: tuple(options) for slot, options in words.items() if slot != "verb"}
    forms = [verb.split() for verb in words["verb"]]  # "prune pruned": base form, past form
    return slots | {"base": tuple(base for base, _ in forms), "past": tuple(past for _, past in forms)}
