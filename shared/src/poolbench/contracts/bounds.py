"""Bounded types of the values and names in requests, task parameters and messages.

Integers are strict: a boolean, a float or a string is refused. Text with a lone surrogate is refused wherever its
length is bounded, because it cannot be written as UTF-8. Two kinds of limits exist: a field's own bound, declared here
and in the models (422), and the expected cost of a whole request or task, which `require_at_most`
checks before work starts (413).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from poolbench.errors import TooLargeError

MAX_NAME = 200
"""Characters of a name: of a concept, strategy, model, scorer, group, passage."""

MAX_CHARACTERS = 1_000_000
"""Characters of one text."""

MAX_ROWS = 100_000
"""Vectors, labels or tokens of one request."""

MAX_WIDTH = 65_536
"""Numbers of one vector."""

#: The id of a concept of a user.
CONCEPT_PATTERN = r"^[a-z][a-z0-9_]{1,39}$"
#: What clients read of the object store over HTTP: records of runs, scorers, activations and concepts. No artifact.
RECORD_PATTERN = r"^((runs|scorers|activations)(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+|concepts/[a-z0-9_]+/concept\.json)$"
#: The beginning of such paths.
RECORDS_PATTERN = r"^(runs|scorers|activations|concepts)(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*/?$"
#: Text without control characters.
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

#: A whole number; the field says how large.
Whole = Annotated[int, Field(strict=True)]
#: A finite number; the field says how large.
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
#: True or false; no other value is converted.
Flag = Annotated[bool, Field(strict=True)]

#: A seed of random draws.
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
#: A whole number that names something, such as a group.
Number = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
#: One number of a vector.
Component = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-3.5e38, le=3.5e38)]
#: A vector. Long lists fail fast: a list of a million wrong entries is one error, not a million.
Vector = Annotated[list[Component], Field(min_length=1, max_length=MAX_WIDTH, fail_fast=True)]
#: A decoder block; negative ones count from the end.
Layer = Annotated[int, Field(strict=True, ge=-1000, lt=1000)]
#: How many times the median norm of its passage a token's norm must exceed, at a layer, to be an attention sink.
SinkRatio = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=1, le=1e9)]
SINK_RATIO = 10.0
#: An inverse regularisation.
Regularisation = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1e-12, le=1e12)]

#: A name without control characters.
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
#: Rows of a table of directions.
DirectionIds = Annotated[tuple[Name, ...], Field(max_length=1_000)]
#: Strengths of steering, in residual norms or absolute.
Strength = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e6, le=1e6)]
Strengths = Annotated[tuple[Strength, ...], Field(max_length=1_000)]
#: A name that may be empty.
Label = Annotated[str, Field(max_length=MAX_NAME, pattern=PRINTABLE)]
#: A text.
Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]

#: One name for each vector, or None for some.
Labels = Annotated[list[Label], Field(max_length=MAX_ROWS, fail_fast=True)]
LabelsOrNone = Annotated[list[Label | None], Field(max_length=MAX_ROWS, fail_fast=True)]

#: Key of an artifact, or id of a task: one part of a path in the object store.
KEY_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
ArtifactKey = Annotated[str, Field(max_length=MAX_NAME, pattern=KEY_PATTERN)]
#: Part played by an artifact in a task, such as `train/A1_mean/3`; not a path.
Role = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
#: Preset, Hugging Face id, or folder; `poolbench.config.models` says which folders a request may name.
ModelName = Annotated[str, Field(min_length=1, max_length=1000, pattern=PRINTABLE)]
#: Branch, tag or commit of a model repository. It becomes a path in the hub's cache, so it holds no `..`.
Revision = Annotated[str, Field(max_length=MAX_NAME, pattern=r"^[A-Za-z0-9_-]+([./+][A-Za-z0-9_-]+)*$")]
#: Folder inside a model repository or folder.
Subfolder = Annotated[str, Field(max_length=MAX_NAME, pattern=r"^([A-Za-z0-9_{}-]+([./+@][A-Za-z0-9_{}-]+)*)?$")]
#: Parameters of one strategy by name; the strategy's registration says what each may be.
StrategyParams = Annotated[dict[Name, Any], Field(max_length=20)]
#: Type of weights and activations.
Dtype = Literal["float32", "bfloat16", "float16"]


def require_at_most(what: str, number: float, limit: float, remedy: str) -> None:
    """Raise TooLargeError if `number` exceeds `limit`.

    The message says that `what` costs this number, and the remedy.
    """
    if number > limit:
        raise TooLargeError(f"{what}: {number:,.0f}; the limit is {limit:,.0f}; {remedy}")
