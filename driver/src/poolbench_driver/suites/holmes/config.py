"""The settings of a run of linguistic probing."""

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from poolbench.config import FINAL, LayerChoice
from poolbench_driver.config import NO_FOLDER, ConceptsConfig

#: Fields that came later, with their defaults.
_LATER: dict[str, Any] = {"control": [], "recipe": "released"}


def _fraction(value: Any) -> Any:
    """Return a fraction such as `1/32` as a number."""
    try:
        return float(Fraction(value)) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        raise ValueError("a share such as 1/32 is needed") from None


class HolmesConfig(ConceptsConfig):
    """What a run of linguistic probing is asked. Concepts, steering and scorers are not read.

    Attributes:
        sets: Ids of probing sets, or patterns such as `blimp-*`; without any, all sets of the corpus.
        corpus: Its source is `planted`, `real` (the archives), or a folder of definitions.
        strategies: Pooling strategies, each at every layer an entrant of its own.
        layers: Layers, by default the states after the last norm.
        flash: Share of the training groups that is probed; dev and test stay whole.
        flash_eval: Most instances of dev, and of test.
        control: Controls whose entrants stand beside the others: `word_order` shuffles the words of every text,
            `random_weights` reads with an untrained model of the same architecture.
        recipe: How protocol `published` trains its probes: as the released code does, or as the paper says.
        seeds: Number of seeds of control labels and shuffles. The run's seed draws the splits.
    """

    sets: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    strategies: tuple[str, ...] | None = ("A1_mean",)
    layers: tuple[LayerChoice, ...] | None = (FINAL,)
    flash: Annotated[Annotated[float, Field(gt=0, le=1)] | None, BeforeValidator(_fraction)] = None
    flash_eval: int | None = Field(default=None, ge=2)
    control: tuple[Literal["word_order", "random_weights"], ...] = ()
    recipe: Literal["released", "paper"] = "released"
    seeds: int = Field(default=1, ge=1, le=20)

    @property
    def data_name(self) -> str:
        """Return the source of the sets."""
        source = self.corpus.source
        return f"{self.suite}-{source if source in NO_FOLDER else 'folder'}"

    def hashed(self) -> dict[str, Any]:
        """Return what the hash of the configuration is made of."""
        settings = super().hashed()
        return {name: value for name, value in settings.items() if value != _LATER.get(name, ...)}
