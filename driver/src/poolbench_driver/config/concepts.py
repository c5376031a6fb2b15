"""The settings of suites that read the passages of concepts, pool and probe them, steer and score."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from poolbench.config import LayerChoice, StrictModel
from poolbench.contracts.bounds import SINK_RATIO, Seed, SinkRatio
from poolbench.errors import ConfigError
from poolbench_driver.config.run import RunConfig

D2_DEPTH = 0.5
#: Sources of passages that are not a folder.
NO_FOLDER = ("planted", "real")


class CorpusConfig(StrictModel):
    """Where passages come from: `planted` (the grammar), `real` (archives) or a folder of JSONL files."""

    source: str = "planted"
    scorer_texts: str | None = None  # source of texts that train scorers, where a folder has none of a concept
    window: tuple[int, int] | None = None  # tokens; None is the source's default
    seed: int = 0


class SteeringConfig(StrictModel):
    """How D2 and D3 steer and decode.

    Attributes:
        direction: Construction method of the steering directions.
        positions: `generated` (the last prompt position and all after it) or `all` (the whole prompt too).
        temperature: 0 decodes greedily; above it texts are sampled, with seeds drawn from the run's.
        num_samples: Texts sampled per opening and strength; their scores are averaged.
    """

    direction: str = "C1"
    positions: Literal["generated", "all"] = "generated"
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    num_samples: int = Field(default=1, gt=0, le=1_000)

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(f"num_samples {self.num_samples} needs a temperature above 0: greedy texts do not differ")
        return self

    def changed(self) -> dict[str, Any]:
        """Return the settings of generation that differ from their defaults; keys and rows hold them."""
        made = self.model_dump(exclude={"direction"})
        return {name: value for name, value in made.items() if value != SteeringConfig.model_fields[name].default}


class SaeConfig(StrictModel):
    """A sparse autoencoder of one layer, for direction C5."""

    layer: int | float  # block index or depth; one of the run's layers
    path: str  # folder with one .safetensors file and cfg.json, that file itself, or the key of one in the object store
    num_features: int = Field(default=10, ge=1, le=10_000)  # number of features that the direction is made of


class ConceptsConfig(RunConfig):
    """Settings of a suite that reads the passages of concepts: what the stages need.

    Attributes:
        concepts: Concept ids; neighbours need only their scorer, which the plan adds.
        strategies: Strategy ids, or `card` and `extended` for what these boards run by default; None takes the card.
            Strategies that run on request only must be named.
        fold_seeds: Further seeds for the folds of D1, to measure how much it depends on them.
        layers: Block indices, depths, `embedding` or `final` for D1; None takes depths .5, .75 and 1.
        layer_choice: `reported` gives D1 at every layer; `nested` adds D1 at the layer that is best inside the
            training folds.
        saes: Sparse autoencoders by layer; layers without one have no direction C5.
        steering_layer: Block index or depth of D2 and D3.
        metrics: Which of d1, d2, d3 to measure.
        scorer_mode: How scorers are trained: `head` (the last layer, on frozen lower ones: minutes on a CPU) or `full`
            (all of the base, as the card does); `import` takes published classifiers as they are, from the folder or
            Hugging Face id `scorer_base`.
        scorer_layers: Lower layers of `scorer_base` to build scorers on; all by default.
        scorer_revision: Hugging Face revision of `scorer_base`.
        scorer_subfolder: Folder of a concept's classifier; `{concept}` stands for the concept's id.
        scorer_positive_label: Label (or its index) that means the concept in a published classifier; `{concept}` as
            above.
        include_bos: Whether a BOS counts as a real token.
        add_bos: Whether every text begins with the BOS that the tokenizer defines and does not add.
        sinks: `exclude` leaves attention sinks out of every strategy but those that name a position.
        sink_ratio: A token is a sink if its norm exceeds this many times the median of its passage.
    """

    concepts: tuple[str, ...] = ()
    strategies: tuple[str, ...] | None = None
    layers: tuple[LayerChoice, ...] | None = None
    layer_choice: Literal["reported", "nested"] = "reported"
    fold_seeds: Annotated[tuple[Seed, ...], Field(max_length=100)] = ()
    saes: tuple[SaeConfig, ...] = ()
    steering_layer: int | float = D2_DEPTH
    steering: SteeringConfig = SteeringConfig()
    metrics: tuple[Literal["d1", "d2", "d3"], ...] = Field(default=("d1", "d2", "d3"), min_length=1)
    corpus: CorpusConfig = CorpusConfig()
    scorer_base: str = "minilm"
    scorer_mode: Literal["head", "full", "import"] = "head"
    scorer_layers: int | None = Field(default=None, ge=1, le=1_000)
    scorer_revision: str | None = None
    scorer_subfolder: str = "{concept}"
    scorer_positive_label: str | None = None
    annotator: str = "annotator"
    include_bos: bool = False
    add_bos: bool = False
    sinks: Literal["exclude", "include"] = "exclude"
    sink_ratio: SinkRatio = SINK_RATIO
    keep_activations: bool = False

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        """Refuse a repeated seed: it would count its folds twice in the spread."""
        seeds = (self.seed, *self.fold_seeds)
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"fold_seeds {list(self.fold_seeds)}: seeds from 0, each once, and not {self.seed} itself")
        return self

    @model_validator(mode="after")
    def _label_is_stated(self) -> Self:
        """Require the label of a published classifier: it is never guessed."""
        if (self.scorer_mode == "import") != (self.scorer_positive_label is not None):
            raise ValueError(
                "scorer_mode import needs scorer_positive_label, the label or index that means the concept (0 where "
                "a classifier has one output), and no other mode takes it"
            )
        return self

    @property
    def sink_settings(self) -> dict[str, Any]:
        """Return what is done with attention sinks, as far as it differs from the corrected protocol."""
        given = {"sinks": self.sinks, "sink_ratio": self.sink_ratio}
        return {name: value for name, value in given.items() if value != type(self).model_fields[name].default}

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names."""
        return self.concepts

    @property
    def data_name(self) -> str:
        """Return the source of the passages."""
        return self.corpus.source if self.corpus.source in NO_FOLDER else "corpus"

    def hashed(self) -> dict[str, Any]:
        """Return what the hash of the configuration is made of."""
        settings = super().hashed()
        for section, name in ((settings, "scorer_layers"), (settings["corpus"], "scorer_texts")):
            if section[name] is None:  # a later field
                del section[name]
        return settings


def of_concepts(config: RunConfig) -> ConceptsConfig:
    """Return the settings of a run that measured concepts; raise ConfigError for a run of another suite."""
    if not isinstance(config, ConceptsConfig):
        raise ConfigError(f"a run of the suite {config.suite} measures no concepts, which this command is about")
    return config
