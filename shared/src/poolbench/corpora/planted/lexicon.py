"""Domains, content words and carrier templates of the three uses, read from `lexicons/<use>.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

Use = Literal["corpus", "lm", "scorer"]
USES: tuple[Use, ...] = get_args(Use)


@dataclass(frozen=True)
class Domain:
    """One subject area: slot name to the words or phrases that may fill it."""

    name: str
    slots: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Lexicon:
    """Everything that one use writes with, apart from the markers of the concepts.

    Attributes:
        templates: Slot name (`clause`, `subj`, `obj`, `vp`) to its carrier templates.
        domains: Subject areas; each fills `role`, `thing`, `adj`, `place`, `past`, `base`, and with the
            words of the use `name` and `time`.
    """

    use: Use
    templates: Mapping[str, tuple[str, ...]]
    domains: tuple[Domain, ...]


def load_yaml(*path: str) -> Any:
    """A YAML file of this package."""
    return yaml.safe_load(files(__package__).joinpath(*path).read_text("utf-8"))


@cache
def load_lexicon(use: Use) -> Lexicon:
    """The lexicon of a use."""
    raw = load_yaml("lexicons", f"{use}.yaml")
    common = {"name": tuple(raw["names"]), "time": tuple(raw["times"])}
    domains = tuple(Domain(name, {**common, **_slots(words)}) for name, words in raw["domains"].items())
    templates = {slot: tuple(options) for slot, options in raw["templates"].items()}
    return Lexicon(use, templates, domains)


def _slots(words: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    slots = {slot: tuple(options) for slot, options in words.items() if slot != "verb"}
    forms = [verb.split() for verb in words["verb"]]  # "prune pruned": base form, past form
    return slots | {"base": tuple(base for base, _ in forms), "past": tuple(past for _, past in forms)}
