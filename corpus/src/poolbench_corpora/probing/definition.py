"""Definitions of probing sets: one YAML file per set, or per family of sets whose members an archive lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from poolbench.config import StrictModel
from poolbench.config.base import read_yaml
from poolbench.errors import ConfigError

Type = Literal["syntax", "morphology", "semantics", "reasoning", "discourse"]
Input = Literal["text", "text_pair", "span", "span_pieces", "span_pair"]
Fidelity = Literal["same", "rebuilt", "planted"]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Words = Annotated[str, Field(min_length=1, max_length=1000, coerce_numbers_to_str=True)]

PAIRS: tuple[Input, ...] = ("text_pair", "span_pair")
PIECES: tuple[Input, ...] = ("span_pieces", "span_pair")
"""Inputs whose spans may have several pieces."""


class ProbingSet(StrictModel):
    """What one probing set asks, where its texts come from, and how they are read."""

    id: Name
    type: Type  # type of phenomenon
    phenomenon: Words
    input: Input  # what one vector, or pair of vectors, stands for
    task: Literal["classes", "values"] = "classes"
    source: Words  # repository, corpus or grammar
    revision: Words  # commit or version of the source
    licence: Words
    citation: Words
    fidelity: Fidelity  # texts and labels of the public suite, rebuilt from another source, or written by a grammar
    stands_for: str | None = None  # set of the public suite that it replaces
    max_instances: int = Field(4000, ge=1, le=1_000_000)
    balanced: bool = False  # whether as many instances of each label are chosen
    reader: Name
    parameters: Mapping[str, Any] = {}  # of the reader
    folder: Path | None = Field(None, exclude=True, repr=False)  # where the definition lies


class ProbingFamily(ProbingSet):
    """Sets that differ in one file of an archive; `id` is what their ids begin with.

    Type and phenomenon of a member are those of the public suite, or of the first pattern of `others` that matches it,
    or the family's own.
    """

    others: Mapping[str, tuple[Type, Words]] = {}


def read_definition(path: Path, families: frozenset[str] = frozenset()) -> ProbingSet:
    """Return the definition in a YAML file; sets of the readers in `families` are families.

    Raise ConfigError with the file and the wrong fields.
    """
    values = read_yaml(path, "probing set")
    values["folder"] = path.parent
    kind = ProbingFamily if str(values.get("reader")) in families else ProbingSet
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, issue['loc'])) or 'set'}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"probing set {path}: {'; '.join(wrong)}") from None
