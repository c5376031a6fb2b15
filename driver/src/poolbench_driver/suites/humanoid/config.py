"""The settings of a run of preference shift."""

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, field_validator

from poolbench.config import FINAL, LayerChoice, PassagesBudget, amounts
from poolbench_driver.config import SIZES_OF_PASSAGES, ConceptsConfig, PassagesSource, ReadingConfig, as_concepts

#: The strategy whose vectors are compared, as the reference pools the tokens of a word.
POOLING = "A1_mean"


class HumanoidConfig(ReadingConfig):
    """Settings of a run of preference shift."""

    protocol: Literal["corrected"] = "corrected"
    """Every run has the reading of the reference beside the corrected one."""
    budget: PassagesBudget = amounts(PassagesBudget, "demo")
    """How many passages of `concepts` are read; result rows hold its name."""

    after: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Fine-tunes of the model: folders of checkpoints or LoRA adapters, or names of shipped ones. Without any, the
    shipped fine-tunes of the demo model.
    """
    null: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Neutral fine-tunes, which nothing was preferred in: the null of the shift."""
    axis: dict[str, tuple[FiniteFloat, ...]] = Field(
        default={}, max_length=2, json_schema_extra={"shown": "NAME=NUMBER,..."}
    )
    """Numbers of the fine-tunes of `after`, in its order, such as `epochs=4,15,10`: the figure shows how the change
    depends on them, with a line for each number of a second axis. By default epochs and sentences, as the fine-tunes
    record them."""
    words: str | None = None
    """YAML file with the words (docs/suites/humanoid.md), or `reference` for those of the Humanoid benchmark; by
    default the shipped furniture words."""
    num_random: int = Field(default=20, ge=0, le=1000)
    """Random changes of the weights for each fine-tune, of equal norm."""
    num_bootstrap: int = Field(default=1000, ge=0, le=100_000)
    """Resamples of the words."""
    concepts: tuple[str, ...] = ()
    """Concepts whose direction the same shift is measured along."""
    corpus: PassagesSource = PassagesSource()
    """Where passages of `concepts` come from: `planted`, `real`, or a folder."""
    keep_activations: bool = False
    """Whether the hidden states of all tokens of `concepts` are stored too."""
    layers: tuple[LayerChoice, ...] | None = (FINAL,)
    """Layers to read: block indices, depths, `embedding` or `final` (the states after the last norm)."""

    @field_validator("axis", mode="before")
    @classmethod
    def _numbers(cls, axes: Any) -> Any:
        """Read the numbers of an axis from a text too, as the command line gives them."""
        if not isinstance(axes, dict):
            return axes
        return {name: numbers.split(",") if isinstance(numbers, str) else numbers for name, numbers in axes.items()}

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the settings that only a run which reads passages has a use for, if this is none."""
        return ("corpus", "keep_activations", *SIZES_OF_PASSAGES) if not self.concepts else ()

    @property
    def probing(self) -> ConceptsConfig:
        """Return the settings of the stages that compute the directions of the concepts."""
        return as_concepts(self, strategies=(POOLING,), metrics=("d1",))

    def hashed(self) -> dict[str, Any]:
        """Return the settings from which the hash of the configuration is computed.

        Earlier versions also had settings of concepts, which nothing read. The defaults of these settings stay in the
        hash, so that runs keep their names. The axis came later and counts only if set.
        """
        settings = {**super().hashed(), **as_concepts(self, metrics=("d1",)).hashed()}
        return settings if self.axis else {name: value for name, value in settings.items() if name != "axis"}
