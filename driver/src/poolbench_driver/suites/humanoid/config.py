"""The settings of a run of preference shift."""

from typing import Annotated, Literal

from pydantic import Field

from poolbench.config import FINAL, LayerChoice
from poolbench_driver.config import OF_STEERING, ConceptsConfig

#: The strategy whose vectors are compared, as the reference pools the tokens of a word.
POOLING = "A1_mean"


class HumanoidConfig(ConceptsConfig):
    """What a run of preference shift is asked."""

    unread = OF_STEERING | {"strategies"}

    after: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Fine-tunes of the model: folders of checkpoints or LoRA adapters, or names of shipped ones. Without any, the
    shipped fine-tunes of the demo model.
    """
    null: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Neutral fine-tunes, which nothing was preferred in: the null of the shift."""
    words: str | None = None
    """YAML file with the words (docs/suites/humanoid.md), or `reference` for those of the Humanoid benchmark; by
    default the shipped furniture words."""
    num_random: int = Field(default=20, ge=0, le=1000)
    """Random changes of the weights for each fine-tune, of equal norm."""
    num_bootstrap: int = Field(default=1000, ge=0, le=100_000)
    """Resamples of the words."""
    concepts: tuple[str, ...] = ()
    """Concepts whose direction the same shift is measured along."""
    layers: tuple[LayerChoice, ...] | None = (FINAL,)
    """Layers to read: block indices, depths, `embedding` or `final` (the states after the last norm)."""
    metrics: tuple[Literal["d1", "d2", "d3"], ...] = Field(default=("d1",), min_length=1)

    @property
    def data_name(self) -> str:
        """Return the suite's name: it brings its words."""
        return self.suite
