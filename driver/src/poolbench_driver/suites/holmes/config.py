"""The settings of a run of linguistic probing."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from poolbench.config import FINAL, LayerChoice, ResampledBudget, amounts
from poolbench_driver.config import (
    REAL_TEXT,
    Control,
    CorpusSource,
    ReadingConfig,
    as_concepts,
    names_planted,
)

#: What the names of bags of words begin with.
BAG_OF_WORDS = "bag_of_words"
#: How much of each set is read by default of the sets that ship: the share of train of FlashHolmes, and of dev and test
#: what keeps the order of the entrants as well (docs/results/holmes.md).
FLASH: dict[str, Any] = {"flash": "1/32", "flash_eval": 60}
#: Two strategies at three layers, for a board.
COMPARED: dict[str, Any] = {"strategies": ["A1_mean", "P1_last_token"], "layers": ["embedding", 0.5, "final"]}
#: Fields that came later, with their defaults.
_LATER: dict[str, Any] = {"control": [], "recipe": "released", "hidden": None, "vectors": {}, "bag_of_words": None}


def _fraction(value: Any) -> Any:
    """Return a fraction such as `1/32` as a number."""
    try:
        return float(Fraction(value)) if isinstance(value, str) else value
    except (ValueError, ZeroDivisionError):
        raise ValueError("a share such as 1/32 is needed") from None


class HolmesConfig(ReadingConfig):
    """Settings of a run of linguistic probing."""

    budget: ResampledBudget = amounts(ResampledBudget, "demo")
    """How much is measured; result rows hold its name."""
    sets: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    """Ids of probing sets, or patterns such as `blimp-*`; without any, all sets of the corpus."""
    corpus: CorpusSource = CorpusSource()
    """Where the sets come from: `planted`, `real` (those that ship), or a folder of definitions."""
    strategies: tuple[str, ...] | None = ("A1_mean",)
    """Pooling strategies, each at every layer an entrant of its own."""
    layers: tuple[LayerChoice, ...] | None = (FINAL,)
    """Block indices, depths, `embedding` or `final` (the states after the last norm)."""
    flash: Annotated[Annotated[float, Field(gt=0, le=1)] | None, BeforeValidator(_fraction)] = None
    """Share of the training groups that is probed, such as 1/32; by default all. Dev and test stay whole."""
    flash_eval: int | None = Field(default=None, ge=2)
    """Most instances of dev, and of test; by default all. One group of each is read whatever its size."""
    control: tuple[Control, ...] = ()
    """Controls whose entrants stand beside the others: `word_order` shuffles the words of every text, `random_weights`
    reads with an untrained model of the same architecture.
    """
    recipe: Literal["released", "paper"] = "released"
    """How protocol `published` trains its probes: as the released code does, or as the paper says."""
    hidden: int | None = Field(default=None, ge=1, le=10_000)
    """Units of the hidden layer of the probes; without it they are linear. Not with protocol `published`."""
    vectors: dict[str, str] = Field(default={}, json_schema_extra={"shown": "NAME=FILE"})
    """Files of vectors by name, each an entrant: `.npz` with `ids` and `vectors`, or Parquet with `id` and `vector`."""
    bag_of_words: int | None = Field(default=None, ge=1, le=10_000)
    """Dimensions of a bag of words, an entrant: TF-IDF of each set's texts, reduced by what its training texts have."""
    seeds: int = Field(default=1, ge=1, le=20)
    """Number of seeds of control labels and shuffles. The run's seed draws the splits."""

    #: The reference pools over all positions of a text.
    published: ClassVar[Mapping[str, Any]] = {"strategies": ["A11_mean_all"]}

    @classmethod
    def preset(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the amounts of a preset. The demo compares entrants, to have a board."""
        return super().preset(name, given) | (COMPARED if name == "demo" else {})

    @classmethod
    def real_text(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings that read the shipped sets, with the budget of FlashHolmes and a board.

        If `given` names planted sets, the settings are empty.
        """
        if names_planted(given.get("sets", ())):
            return {}
        return {**REAL_TEXT, **COMPARED, **({} if "flash" in given else FLASH)}

    @model_validator(mode="after")
    def _hidden_is_ours(self) -> Self:
        """Refuse a hidden layer beside the reference's probes, which are linear: both would have one name."""
        if self.hidden is not None and self.protocol == "published":
            raise ValueError(f"hidden is {self.hidden}: the probes of protocol published are linear; leave one out")
        return self

    @model_validator(mode="after")
    def _names_of_vectors(self) -> Self:
        """Refuse a name that bags of words have."""
        if wrong := [name for name in self.vectors if name.startswith(BAG_OF_WORDS)]:
            raise ValueError(f"--vectors {wrong[0]}: names that begin with {BAG_OF_WORDS} are those of bags of words")
        return self

    @property
    def data_name(self) -> str:
        """Return the source of the sets."""
        return f"{self.suite}-{self.corpus.kind}"

    def hashed(self) -> dict[str, Any]:
        """Return the settings from which the hash of the configuration is computed.

        Earlier versions also had settings of concepts, which nothing read. The defaults of these settings stay in the
        hash, so that runs keep their names.
        """
        settings = {**super().hashed(), **as_concepts(self).hashed()}
        return {name: value for name, value in settings.items() if value != _LATER.get(name, ...)}
