"""Prompts that ask a language model for pairs of stories, and what its answers hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from poolbench.errors import CorpusError
from poolbench_corpora.stories.data import MAX_CHARACTERS, parse_tags

#: Why an answer holds no pair of stories.
NO_TAGS, WRONG_TAGS, EMPTY, ALIKE, TOO_LONG = NONSENSE = (
    "no tags",
    "wrong tags",
    "empty text",
    "equal stories",
    "too long",
)


@cache
def _settings() -> Mapping[str, Any]:
    settings: Mapping[str, Any] = yaml.safe_load(files(__package__).joinpath("prompts.yaml").read_text("utf-8"))
    return settings


def prompts_version() -> int:
    """Return the version of the prompts."""
    return int(_settings()["version"])


def prompts_of(subject: str) -> dict[str, str]:
    """Return the prompts for a subject by name; the answer to each is one pair of stories."""
    text, scenes = _settings()["text"], _settings()["scenes"]
    return {name: text.replace("{scene}", scene).replace("{subject}", subject) for name, scene in scenes.items()}


def stories_of(answer: str) -> tuple[str, str]:
    """Return the high and the low story of an answer, with their tags.

    Raise CorpusError with one of `NONSENSE`. A story needs a marked range: a set of our own marks what it is about.
    """
    if not answer.strip():
        raise CorpusError(EMPTY)
    sides = [re.findall(rf"<{side}>(.*?)</{side}>", answer, re.I | re.S) for side in ("high", "low")]
    if not all(sides):
        raise CorpusError(NO_TAGS)
    if any(len(stories) > 1 for stories in sides):
        raise CorpusError(WRONG_TAGS)
    high, low = (_checked(stories[0].strip()) for stories in sides)
    if parse_tags(high).text == parse_tags(low).text:
        raise CorpusError(ALIKE)
    return high, low


def _checked(story: str) -> str:
    if len(story) > MAX_CHARACTERS:
        raise CorpusError(TOO_LONG)
    try:
        parsed = parse_tags(story)
    except CorpusError:
        raise CorpusError(WRONG_TAGS) from None
    if not parsed.text.strip():
        raise CorpusError(EMPTY)
    if not parsed.marks:
        raise CorpusError(NO_TAGS)
    return story
