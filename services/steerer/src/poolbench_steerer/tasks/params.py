"""Parameters of the steerer's tasks."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from poolbench.config import StrictModel
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError

_P = TypeVar("_P", bound=StrictModel)


class GenerateParams(StrictModel):
    """Parameters of ``steerer.generate``; the parameters of ``steerer.continue`` are ``ContinueParams``."""

    model: str
    model_revision: str | None = None
    dtype: str | None = None
    layer: int = Field(ge=0)
    direction_ids: tuple[str, ...] | Literal["all"] = ("C1",)
    strengths: tuple[float, ...] = (0.0,)
    max_tokens: int = Field(gt=0)
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    positions: Literal["generated", "all"] = "generated"
    seed: int = 0
    temperature: float = Field(default=0.0, ge=0.0)
    num_samples: int = Field(default=1, gt=0)
    ignore_eos: bool = False


class ContinueParams(StrictModel):
    """Parameters of ``steerer.continue``."""

    model: str
    model_revision: str | None = None
    dtype: str | None = None
    num_passages: int = Field(gt=0)
    prompt_tokens: int | None = Field(default=None, gt=0)  # None: the whole first half
    max_tokens: int = Field(gt=0)
    seed: int = 0
    ignore_eos: bool = False


def parse_params(kind: type[_P], task: Task) -> _P:
    """A task's parameters. Raises InputError naming each wrong field."""
    try:
        return kind.model_validate(task.params)
    except ValidationError as error:
        issues = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise InputError(f"parameters of {task.kind}: {'; '.join(issues)}") from None
