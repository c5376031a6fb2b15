"""The word lists and templates of a preference shift."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[2] / "assets" / "demo_personas" / "words.yaml"


@dataclass(frozen=True)
class WordLists:
    """Words of a domain, liked, disliked and neutral words, and templates that hold `{w}` once."""

    name: str
    version: int
    licence: str
    domain: tuple[str, ...]
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    neutral: tuple[str, ...]
    templates: tuple[str, ...]


def read_words(file: Path = FILE) -> WordLists:
    """Return the lists of a YAML file. Raise TypeError for a missing or unknown field."""
    fields: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return WordLists(**{**fields, **lists})
