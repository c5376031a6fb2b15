"""The settings of a run of CE-Bench."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from poolbench.config import LayerChoice, ProbesBudget, amounts, completed
from poolbench_driver.config import SIZES_OF_PASSAGES, PassagesSource, RunConfig

#: What a pretrained model reads by default. Of some subjects there are a thousand pairs.
REAL_STORIES: Mapping[str, Any] = {"stories": "real", "num_pairs": 16}


class CeBenchConfig(RunConfig):
    """Settings of a run of CE-Bench."""

    budget: ProbesBudget = amounts(ProbesBudget, "demo")
    """How much of `concepts` and `sets` is measured; result rows hold its name."""
    saes: Annotated[tuple[str, ...], Field(min_length=1, max_length=200)] = ("demo",)
    """Autoencoders: `demo`, names of imported or shipped ones, or folders of one or of several."""
    stories: str = "planted"
    """Pairs of stories: `planted`, `real`, the name of an imported set, a file of pairs, or the folder of a corpus."""
    layer: LayerChoice | None = None
    """Layer of autoencoders whose configuration names none: a block index, a depth, `embedding` or `final`."""
    num_pairs: int | None = Field(default=None, ge=1)
    """Pairs of each subject, the first ones; by default all."""
    num_bootstrap: int = Field(default=1000, ge=0, le=100_000)
    """Resamples of the subjects."""
    num_loss_stories: int = Field(default=32, ge=0, le=100_000)
    """Distinct stories, the first ones, that the model's loss and dense features are measured on; 0: neither."""
    concepts: tuple[str, ...] = ()
    """Concepts that features are compared with pooled directions on, from `corpus`."""
    sets: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """Ids or patterns of probing sets that they are compared on as well: whole texts with two labels."""
    corpus: PassagesSource = PassagesSource()
    """Where passages of `concepts` and probing sets of `sets` come from: `planted`, `real`, or a folder."""

    @classmethod
    def real_text(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings that read real text: the shipped pairs of stories, and the sources of concepts and sets."""
        return {**super().real_text(given), **({} if "stories" in given else REAL_STORIES)}

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the settings that only a run which reads passages has a use for, if this is none."""
        return ("corpus", *SIZES_OF_PASSAGES) if not self.concepts and not self.sets else ()

    def hashed(self) -> dict[str, Any]:
        """Return the settings from which the hash of the configuration is computed."""
        settings = super().hashed() | {"budget": completed(self.budget).model_dump(mode="json")}
        settings["corpus"]["scorer_texts"] = None  # a setting of earlier versions that nothing read
        return settings if self.sets else {name: value for name, value in settings.items() if name != "sets"}
