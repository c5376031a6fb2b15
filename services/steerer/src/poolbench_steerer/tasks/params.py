"""Parameters of the steerer's tasks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError

from poolbench.config import StrictModel
from poolbench.contracts.bounds import Dtype, Flag, ModelName, Name, Real, Revision, Seed, Whole, require_at_most
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError

_P = TypeVar("_P", bound=StrictModel)

#: Texts, and new tokens, of one task.
MAX_TEXTS, MAX_TASK_TOKENS = 1_000_000, 100_000_000
_REMEDY = "plan smaller tasks"

#: Rows of a directions table.
Directions = Annotated[tuple[Name, ...], Field(max_length=1_000)]
Strength = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e6, le=1e6)]
Strengths = Annotated[tuple[Strength, ...], Field(max_length=1_000)]
#: New tokens of one text.
MaxTokens = Annotated[int, Field(strict=True, gt=0, le=100_000)]


class GenerateParams(StrictModel):
    """Parameters of ``steerer.generate``; the parameters of ``steerer.continue`` are ``ContinueParams``."""

    model: ModelName
    model_revision: Revision | None = None
    dtype: Dtype | None = None
    layer: Whole = Field(ge=0, lt=1_000)
    direction_ids: Directions | Literal["all"] = ("C1",)
    strengths: Strengths = (0.0,)
    max_tokens: MaxTokens
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    positions: Literal["generated", "all"] = "generated"
    seed: Seed = 0
    temperature: Real = Field(default=0.0, ge=0.0, le=2.0)
    num_samples: Whole = Field(default=1, gt=0, le=1_000)
    ignore_eos: Flag = False


class ContinueParams(StrictModel):
    """Parameters of ``steerer.continue``."""

    model: ModelName
    model_revision: Revision | None = None
    dtype: Dtype | None = None
    num_passages: Whole = Field(gt=0, le=1_000_000)
    prompt_tokens: Whole | None = Field(default=None, gt=0, le=1_000_000)  # None: the whole first half
    max_tokens: MaxTokens
    seed: Seed = 0
    ignore_eos: Flag = False


def require_affordable(num_texts: int, max_tokens: int) -> None:
    """Refuse a task that would generate too much, before its texts are planned.

    Raises:
        TooLargeError: Naming the number and the limit.
    """
    require_at_most("texts (prompts x directions x strengths x samples)", num_texts, MAX_TEXTS, _REMEDY)
    require_at_most("new tokens (texts x max_tokens)", num_texts * max_tokens, MAX_TASK_TOKENS, _REMEDY)


def parse_params(kind: type[_P], task: Task) -> _P:
    """A task's parameters. Raises InputError naming each wrong field."""
    try:
        return kind.model_validate(task.params)
    except ValidationError as error:
        issues = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise InputError(f"parameters of {task.kind}: {'; '.join(issues)}") from None
