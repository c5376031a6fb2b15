"""Texts of every run: named sets of concept-neutral openings and the calibration texts; and how words are counted."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

import pyarrow as pa
import yaml

from poolbench.contracts.tables import PASSAGES, PROMPTS
from poolbench.errors import CorpusError, UnknownNameError

CALIBRATION_SET = "calibration-v1"
_SOURCE = "poolbench"
_LICENCE = "Apache-2.0"
_WORD = re.compile(r"\w+(?:['’]\w+)?|[^\w\s]")


def words_of(text: str) -> list[str]:
    """Return lower-case words and punctuation marks."""
    return _WORD.findall(text.lower())


def count_words(text: str) -> int:
    """Count words and punctuation marks: the token count without a tokenizer (recorded as `words`)."""
    return len(_WORD.findall(text))


def list_openings() -> list[str]:
    """Return the names of the opening sets."""
    names = [entry.name.removesuffix(".yaml") for entry in files(__package__).iterdir() if entry.name.endswith(".yaml")]
    return sorted(name for name in names if "openings" in _load(name))


def load_openings(name: str, num_openings: int | None = None) -> pa.Table:
    """Return the first `num_openings` openings of a set such as `neutral-54` as a PROMPTS table. The default is all.

    Raise UnknownNameError with the nearest sets, or CorpusError if the set has fewer openings.
    """
    if name not in list_openings():
        raise UnknownNameError("opening set", name, list_openings())
    texts = _load(name)["openings"]
    count = len(texts) if num_openings is None else num_openings
    if not 0 < count <= len(texts):
        raise CorpusError(f"opening set {name} has {len(texts)} openings; received num_openings={count}")
    rows = [{"prompt_id": f"{name}-{index:02d}", "text": text} for index, text in enumerate(texts[:count])]
    return pa.Table.from_pylist(rows, schema=PROMPTS)


def load_calibration() -> pa.Table:
    """Return the fixed calibration texts as PASSAGES, without a concept."""
    texts = _load(CALIBRATION_SET)["passages"]
    rows = [_passage(f"{CALIBRATION_SET}-{index:02d}", text) for index, text in enumerate(texts)]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


def _passage(passage_id: str, text: str) -> dict[str, Any]:
    return {
        "passage_id": passage_id,
        "concept": "",
        "split": "train",
        "label": 0,
        "text": text,
        "domain": "mixed",
        "doc_id": f"{_SOURCE}/{passage_id}",
        "pair_id": None,
        "source": _SOURCE,
        "licence": _LICENCE,
        "token_count": count_words(text),
        "signal": [],
    }


@cache
def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(files(__package__).joinpath(f"{name}.yaml").read_text("utf-8"))
    return loaded
