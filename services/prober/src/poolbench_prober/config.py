"""Parameters of the prober's tasks and requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from poolbench.contracts.bounds import Flag, Label, Real, Regularisation, Seed, Whole
from poolbench.errors import ConfigError

#: Values of C, or seeds, of one cell.
Regularisations = Annotated[tuple[Regularisation, ...], Field(max_length=20)]
Seeds = Annotated[tuple[Seed, ...], Field(max_length=100)]


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
        protocol: ``corrected``, or ``published`` for the reference's own definition (which fixes folds and seeds).
        seed: Seed of folds, resamples, permutations, control words and random pairs.
        fold_seeds: Further seeds to draw folds with; ``d1.auroc`` is told for each, and how far they spread.
        folds: Number of grouped, stratified folds.
        num_bootstrap: Resamples of the groups.
        primary_c: Inverse regularisation of ``d1.auroc``.
        sensitivity_c: Further values, reported beside it.
        num_permutations: Labelings of the chance check.
        num_control_words: Control tasks behind the selectivity.
        sae_features: Features of the layer's sparse autoencoder that C5 is made of, where there is one.
        min_domain_class: Fewest passages of each class in a held-out domain.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    concept: Label = ""
    protocol: Literal["corrected", "published"] = "corrected"
    seed: Seed = 0
    fold_seeds: Seeds = ()
    folds: Whole = Field(5, ge=2, le=100)
    num_bootstrap: Whole = Field(1000, ge=0, le=100_000)
    primary_c: Regularisation = 1.0
    sensitivity_c: Regularisations = (0.01, 0.1, 10.0)
    num_permutations: Whole = Field(5, ge=1, le=1_000)
    num_control_words: Whole = Field(3, ge=1, le=100)
    sae_features: Whole = Field(10, ge=1, le=10_000)
    min_domain_class: Whole = Field(30, ge=1, le=1_000_000)
    tolerance: Real = Field(1e-6, ge=1e-12, le=1e-5)

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        """A seed twice would count its folds twice in the spread."""
        if len({self.seed, *self.fold_seeds}) <= len(self.fold_seeds):
            raise ValueError(f"fold_seeds {list(self.fold_seeds)}: each once, and not {self.seed}, the seed itself")
        return self


class TaskParams(_Params):
    """Parameters of ``prober.task``; each of them changes the figures.

    Attributes:
        task: Name of the task, for messages.
        seeds: Seeds of splits, control labels, shuffles and resamples; a value is the mean over them.
        c_values: Inverse regularisations that are chosen from on dev; without dev instances ``primary_c`` is used.
        primary_c: Inverse regularisation where nothing is chosen; also of the plain code length.
        control: Control task behind the selectivity: ``permuted`` or ``word_type``; None leaves it out.
        compression: Whether code lengths are computed.
        compression_c: Inverse regularisations that each block of the online code chooses from.
        num_bootstrap: Resamples of the groups of the test split.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    task: Label = ""
    seeds: Seeds = Field((0,), min_length=1)
    c_values: Regularisations = (0.01, 0.1, 1.0, 10.0)
    primary_c: Regularisation = 1.0
    control: Literal["permuted", "word_type"] | None = "permuted"
    compression: Flag = True
    compression_c: Regularisations = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    num_bootstrap: Whole = Field(1000, ge=0, le=100_000)
    tolerance: Real = Field(1e-5, ge=1e-12, le=1e-5)

    def choices(self, num_dev: int) -> tuple[float, ...]:
        """The values of C that a probe is fitted with: all where there are dev instances to choose on."""
        return self.c_values if num_dev >= 2 and self.c_values else (self.primary_c,)


class NullParams(_Params):
    """Parameters of ``prober.nulls``."""

    num_nulls: Whole = Field(20, ge=1, le=10_000)
    seed: Seed = 0
