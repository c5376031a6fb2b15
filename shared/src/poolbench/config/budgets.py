"""How much a run measures, as named presets; every row has the name."""

from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from poolbench.config.base import StrictModel
from poolbench.errors import ConfigError


class NamedBudget(StrictModel):
    """The amounts of a run, by name; each suite has the amounts that it reads."""

    name: str
    """What result rows call it."""


class ResampledBudget(NamedBudget):
    """Amounts of a suite that resamples."""

    num_bootstrap: int = Field(default=1000, ge=0, le=100_000)
    """Resamples of intervals."""


class PassagesBudget(NamedBudget):
    """Amounts of a suite that reads passages of concepts."""

    num_train: int = Field(gt=0)
    """Train passages per concept, both classes together."""
    num_test: int = Field(gt=0)
    """Test passages per concept."""


class ProbesBudget(PassagesBudget, ResampledBudget):
    """Amounts of a suite that probes concepts."""


class Budget(ProbesBudget):
    """Amounts of a suite that steers as well: all that a preset names."""

    num_scorer: int = Field(gt=0)
    """Passages per concept that its scorer is trained on."""
    strengths: tuple[float, ...]
    """Strengths of D2 and D3 in `alpha_unit`, without 0."""
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    """Unit of strengths: `residual_norm` of the layer, or `absolute`, of the unit vector, as published."""
    null_strengths: tuple[float, ...] = (0.06, 0.125, 0.25)
    """Strengths of the null directions."""
    reference_strength: float = 0.125
    """Strength that the metrics at one strength are read at, such as `d2.scp_1`."""
    num_openings: int = Field(gt=1)
    """Openings that are continued."""
    opening_set: str = "neutral-54"
    """Set that the openings are taken from."""
    max_tokens: int = Field(gt=0, le=100_000)
    """New tokens of a steered text."""
    num_nulls: int = Field(default=20, ge=20, le=10_000)
    """Null directions per concept."""
    num_continuations: int = Field(default=100, gt=0, le=1_000_000)
    """Passages that the model continues, to check the scorer on its own texts."""

    @model_validator(mode="after")
    def _strengths_fit(self) -> Self:
        """Refuse wrong strengths before the run, not when its rows are made."""
        if min(self.strengths, default=0) <= 0:
            raise ValueError(f"strengths {self.strengths} must be greater than 0, and at least one")
        if not {self.reference_strength} <= set(self.null_strengths) <= set(self.strengths):
            raise ValueError("reference_strength must be among null_strengths, and these among strengths")
        return self


AnyPassagesBudget = TypeVar("AnyPassagesBudget", bound=PassagesBudget)


def limited(budget: AnyPassagesBudget, num_passages: int) -> AnyPassagesBudget:
    """Return the budget with at most `num_passages` passages per concept, in the same ratio of train to test.

    At least 20 of the passages are for test.
    """
    total = budget.num_train + budget.num_test
    if num_passages >= total:
        return budget
    if num_passages < MIN_PASSAGES:
        raise ConfigError(f"a limit of {num_passages} passages is too small for five folds; use {MIN_PASSAGES} or more")
    num_test = max(20, round(num_passages * budget.num_test / total / 2) * 2)
    sizes = {"num_train": num_passages - num_test, "num_test": num_test, "name": f"{budget.name}-limit{num_passages}"}
    return budget.model_copy(update=sizes)


#: Fewest passages of a limited run. With the shares of `demo` half of them are train passages, 6 per fold.
MIN_PASSAGES = 60

_CARD_STRENGTHS = (0.02, 0.03, 0.045, 0.06, 0.09, 0.125, 0.18, 0.25, 0.35, 0.5, 0.7, 1.0)

BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            name="demo",
            num_train=200,
            num_test=200,
            num_scorer=400,
            # Strengths that move the small demo model and leave its texts fluent. The null directions have one of
            # them, because excess over them is computed at strengths that both have.
            strengths=(0.35, 0.5, 0.6),
            null_strengths=(0.35,),
            reference_strength=0.35,
            num_openings=20,
            max_tokens=40,
            num_continuations=200,
        ),
        Budget(
            name="small",
            num_train=140,
            num_test=100,
            num_scorer=400,
            # From a strength that a text hardly shows to one that breaks some texts. On smollm2-135m at half its depth
            # texts of every concept are fluent at .1 and those of most at .2; at .4 few are.
            strengths=(0.1, 0.2, 0.3),
            null_strengths=(0.2,),
            reference_strength=0.2,
            num_openings=8,
            max_tokens=32,
            num_continuations=100,
        ),
        Budget(
            name="card", num_train=1400, num_test=600, num_scorer=1400, strengths=_CARD_STRENGTHS,
            num_openings=10, max_tokens=200,
        ),
        Budget(
            name="full", num_train=1400, num_test=600, num_scorer=1400, strengths=_CARD_STRENGTHS,
            num_openings=50, max_tokens=200,
        ),
    )
}  # fmt: skip


def completed(budget: NamedBudget) -> Budget:
    """Return a complete budget. Amounts that are not set come from the preset that the budget's name begins with."""
    return BUDGETS[preset_of(budget)].model_copy(update=budget.model_dump())


def preset_of(budget: NamedBudget) -> str:
    """Return the preset that the name of a budget begins with, or `demo`."""
    return next((name for name in BUDGETS if budget.name.startswith(name)), "demo")


Amounts = TypeVar("Amounts", bound=NamedBudget)


def amounts(of: type[Amounts], name: str) -> Amounts:
    """Return the amounts of a preset that a suite reads."""
    return of.model_validate(BUDGETS[name].model_dump(include=set(of.model_fields)))
