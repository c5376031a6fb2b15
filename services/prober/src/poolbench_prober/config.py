"""Parameters of the prober's tasks and requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.errors import ConfigError


class _Params(BaseModel):
    """Parameters that come with a task."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The parameters in ``values``.

        Raises:
            ConfigError: Naming each wrong parameter.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            known = ", ".join(cls.model_fields)
            raise ConfigError(f"prober parameters: {'; '.join(lines)} (known: {known})") from error


class ProbeParams(_Params):
    """Parameters of ``prober.probe``; each of them changes the figures.

    Attributes:
        concept: Concept of the passages, for messages.
        seed: Seed of folds, resamples, permutations, control words and random pairs.
        folds: Number of grouped, stratified folds.
        num_bootstrap: Resamples of the groups.
        primary_c: Inverse regularisation of ``d1.auroc``.
        sensitivity_c: Further values, reported beside it.
        num_permutations: Labelings of the chance check.
        num_control_words: Control tasks behind the selectivity.
        min_domain_class: Fewest passages of each class in a held-out domain.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    concept: str = ""
    seed: int = Field(0, ge=0)
    folds: int = Field(5, ge=2)
    num_bootstrap: int = Field(1000, ge=0)
    primary_c: float = Field(1.0, gt=0)
    sensitivity_c: tuple[float, ...] = (0.01, 0.1, 10.0)
    num_permutations: int = Field(5, ge=1)
    num_control_words: int = Field(3, ge=1)
    min_domain_class: int = Field(30, ge=1)
    tolerance: float = Field(1e-6, gt=0, le=1e-5)


class NullParams(_Params):
    """Parameters of ``prober.nulls``."""

    num_nulls: int = Field(20, ge=1)
    seed: int = Field(0, ge=0)
