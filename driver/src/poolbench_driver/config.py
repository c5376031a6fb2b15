"""The settings of a run: those that every suite has, those of suites that read passages of concepts, and `--set`."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, model_validator

from poolbench.config import (
    BUDGETS,
    REAL_CORPUS,
    Budget,
    LayerChoice,
    NamedBudget,
    StrictModel,
    amounts,
    asset_path,
    completed,
)
from poolbench.contracts.bounds import SINK_RATIO, Seed, SinkRatio
from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, UnknownNameError, shown

#: What is measured where nothing names a suite.
DEFAULT_SUITE = "poolbench"

#: Settings that say how many passages of concepts are read.
SIZES_OF_PASSAGES = ("budget.num_train", "budget.num_test")


class RunConfig(StrictModel):
    """One run. What is not named here, or in the settings of its suite, has no influence on results."""

    suite: str = DEFAULT_SUITE
    """What is measured; its settings are a subclass of these."""
    protocol: Literal["corrected", "published"] = "corrected"
    """`published` also makes rows by the reference's own definitions, beside the corrected ones, in a table of their
    own that is never ranked. The run then begins with the reference's way to measure.
    """
    budget: NamedBudget = NamedBudget(name="demo")
    """How much is measured; result rows hold its name. Each suite has the amounts that it reads."""
    model: str = "demo"
    """Preset id, folder, Hugging Face id, or `import:NAME`."""
    model_revision: str | None = None
    """Revision of a Hugging Face model."""
    dtype: str | None = None
    """Number type of the model's weights, such as `bfloat16`; by default what the model says."""
    seed: Seed = 0
    """Seed of everything that is drawn at random."""
    evidence: int = Field(default=0, ge=0, le=1_000)
    """Texts that the run's folder keeps for each cell of the results, wrong ones first; no figure depends on it."""

    #: Settings of protocol `published`: how the reference of the suite reads and steers.
    published: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def amounts(cls, preset: str) -> dict[str, Any]:
        """Return the amounts of a preset that the suite reads."""
        return amounts(type(cls.model_fields["budget"].default), preset).model_dump(mode="json")

    @classmethod
    def preset(cls, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a named preset; `given` is what file and command line say."""
        return {"budget": cls.amounts(name)}

    @classmethod
    def real_text(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings by which a pretrained model reads real text, where `given` names no corpus.

        They are the corpus that ships, if `given` names concepts or probing sets, and none of these is planted.
        """
        has_source = "corpus" in cls.model_fields and (given.get("concepts") or given.get("sets"))
        return REAL_TEXT if has_source and not names_planted(given.get("sets", ())) else {}

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names: none in a suite without this setting."""
        concepts: tuple[str, ...] = getattr(self, "concepts", ())
        return concepts

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the settings that this run has no use for, although others of its suite have."""
        return ()

    @property
    def data_name(self) -> str:
        """Return one word for the measured data. It is a part of the run's name."""
        return self.suite

    def config_hash(self) -> str:
        """Return the hash of the whole configuration."""
        return digest(self.hashed(), 16)

    def hashed(self) -> dict[str, Any]:
        """Return what the hash is made of: fields that came later are left out at their default, so old hashes stay."""
        return self.model_dump(mode="json", exclude={"evidence"})


#: Settings of a file that are not fields of a run: they change other settings.
BESIDE_FIELDS = ("preset", "limit")


@dataclass(frozen=True)
class Assignment:
    """One setting by its path, such as `budget.max_tokens`, and its value."""

    path: str
    value: Any

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings as a file would have them: a setting of a section is a mapping with one entry."""
        section, _, name = self.path.rpartition(".")
        return {section: {name: self.value}} if section else {name: self.value}

    def __str__(self) -> str:
        return f"{self.path}={json.dumps(self.value, default=str)}"


def setting_paths(of: type[StrictModel]) -> list[str]:
    """Return the paths of all settings: the fields of a run, those of its sections, `preset` and `limit`."""
    paths = list(BESIDE_FIELDS)
    for name, field in of.model_fields.items():
        paths.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, StrictModel):
            paths += [f"{name}.{inner}" for inner in field.annotation.model_fields]
    return paths


def read_assignments(texts: Iterable[str]) -> list[Assignment]:
    """Return the settings of texts such as `budget.max_tokens=100`; the value is whatever YAML can say.

    Raises:
        ConfigError: For a text without `=`, a value that is not YAML, or a path that is given twice.
    """
    assignments = dict[str, Assignment]()
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals:
            raise ConfigError(f"--set {shown(text)}: write it as path=value, such as budget.max_tokens=100")
        if path in assignments:
            raise ConfigError(f"--set {path} is given twice; give it once")
        assignments[path] = Assignment(path, _value(path, value))
    return list(assignments.values())


def _value(path: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # the first for dates and numbers that cannot be
        reason = str(error).split("\n")[0]
        raise ConfigError(f"--set {path}={shown(text)}: the value is not YAML ({reason})") from None


D2_DEPTH = 0.5
#: Sources of texts that have a name; all others are folders.
NAMED_SOURCES = ("planted", "real")
#: The settings by which a run reads real text.
REAL_TEXT: Mapping[str, Any] = {"corpus": {"source": "real"}}
#: What a model reads in place of a set as it is: its words in a drawn order, or the set with untrained weights.
Control = Literal["word_order", "random_weights"]
WORD_ORDER: Control = "word_order"
RANDOM_WEIGHTS: Control = "random_weights"
#: Settings of `--scorers`: fine-tuned as the card's, published ones as they are, and the encoder that ships.
SCORERS: dict[str, dict[str, Any]] = {
    "bert": {"scorer_base": "bert-base-uncased", "scorer_mode": "full"},
    "published": {
        "scorer_base": "nips234678/poolbench-bert-scorers",
        "scorer_mode": "import",
        "scorer_positive_label": "1",  # by index: the reference trains them with 1 for the concept
    },
    "minilm": {"scorer_base": "minilm", "scorer_mode": "head"},
}


def corpus_folder(source: str) -> Path:
    """Return the folder of a source of passages that are not planted. Raise ConfigError without assets."""
    return asset_path(REAL_CORPUS) if source == "real" else Path(source)


def names_planted(sets: Any) -> bool:
    """Return whether probing sets, as settings name them, are planted ones."""
    names = [sets] if isinstance(sets, str) else list(sets)
    return any(str(name).startswith("planted") for name in names)


class CorpusSource(StrictModel):
    """Where texts come from: `planted` (the grammar), `real` (real text in the repository) or a folder."""

    source: str = "planted"
    """`planted`, `real` or the folder."""

    @property
    def kind(self) -> str:
        """Return the source as names of runs and rows say it, `folder` for any folder."""
        return self.source if self.source in NAMED_SOURCES else "folder"


class PassagesSource(CorpusSource):
    """Where passages of concepts come from; a folder holds JSONL files."""

    window: tuple[int, int] | None = None
    """Fewest and most tokens of a planted passage."""
    seed: int = 0
    """Seed of the planted passages."""


class CorpusConfig(PassagesSource):
    """Where passages come from, and texts that train scorers."""

    scorer_texts: str | None = None
    """Source of texts that train scorers, where a folder has none of a concept."""
    mask: str | None = Field(default=None, max_length=100)
    """Text in place of each seed word of a concept in its train and test passages: the ablation of keywords. An empty
    one leaves the words out; a visible one, such as `[MASK]`, marks the positives. By default passages are read as they
    are.
    """


#: Between a strategy and the further direction that it steers along, in the name of an entrant.
ALONG = ":direction="


class SteeringConfig(StrictModel):
    """Settings of steering and decoding in D2 and D3."""

    direction: str = "C1"
    """Construction method of the steering directions."""
    further: tuple[str, ...] = ()
    """Further construction methods: D2 and D3 of every strategy along them too, each as an entrant of its own."""
    positions: Literal["generated", "all"] = "generated"
    """`generated` (the last prompt position and all after it) or `all` (the whole prompt too)."""
    temperature: float = Field(default=0.0, ge=0.0, le=2.0, allow_inf_nan=False)
    """0 decodes greedily; above it texts are sampled, with seeds drawn from the run's."""
    num_samples: int = Field(default=1, gt=0, le=1_000)
    """Texts sampled per opening and strength; their scores are averaged."""
    reading: Literal["lazy", "whole"] = "lazy"
    """Half of the openings choose a strength, the others read the gain. `lazy` steers the latter at that strength and
    those of the null directions alone; `whole` at every strength."""

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(f"num_samples {self.num_samples} needs a temperature above 0: greedy texts do not differ")
        return self

    @property
    def directions(self) -> tuple[str, ...]:
        """Return the construction methods, each once."""
        return tuple(dict.fromkeys([self.direction, *self.further]))

    def entrant(self, strategy: str, direction: str) -> str:
        """Return the name of the entrant: the strategy, and the direction if it is a further one."""
        return strategy if direction == self.direction else f"{strategy}{ALONG}{direction}"

    def changed(self) -> dict[str, Any]:
        """Return the generation settings that differ from their defaults. Task keys and result rows contain them."""
        settings = self.model_dump(exclude={"direction", "further", "reading"})
        return {name: value for name, value in settings.items() if value != SteeringConfig.model_fields[name].default}


class SaeConfig(StrictModel):
    """A sparse autoencoder of one layer, for direction C5."""

    layer: int | float  # block index or depth; one of the run's layers
    path: str  # folder with one .safetensors file and cfg.json, that file itself, or the key of one in the object store
    num_features: int = Field(default=10, ge=1, le=10_000)  # number of features that the direction is made of


class ReadingConfig(RunConfig):
    """Settings of a suite that pools what a model reads of a corpus."""

    corpus: CorpusSource = CorpusSource()
    """Where texts come from: `planted`, `real`, or a folder."""
    annotator: str = "annotator"
    """spaCy pipeline that annotates passages."""
    include_bos: bool = False
    """Whether a BOS counts as a real token."""
    add_bos: bool = False
    """Whether every text begins with the BOS that the tokenizer defines and does not add."""
    sinks: Literal["exclude", "include"] = "exclude"
    """`exclude` leaves attention sinks out of every strategy but those that name a position."""
    sink_ratio: SinkRatio = SINK_RATIO
    """A token is a sink if its norm exceeds this many times the median of its passage."""

    @property
    def sink_settings(self) -> dict[str, Any]:
        """Return the settings of attention sinks that differ from the corrected protocol."""
        settings = {"sinks": self.sinks, "sink_ratio": self.sink_ratio}
        return {name: value for name, value in settings.items() if value != type(self).model_fields[name].default}


class ConceptsConfig(ReadingConfig):
    """Settings of the stages that read the passages of concepts, pool and probe them, steer and score."""

    budget: Budget = BUDGETS["demo"]
    """How much is measured; result rows hold its name."""

    concepts: tuple[str, ...] = ()
    """Concept ids, or `all`; neighbours need only their scorer, which the plan adds."""
    strategies: tuple[str, ...] | None = None
    """Strategy ids, or `card` and `extended` for what these boards run by default; by default the card. Strategies
    that run on request only must be named.
    """
    layers: tuple[LayerChoice, ...] | None = None
    """Block indices, depths, `embedding` or `final`; by default depths .5, .75 and 1."""
    layer_choice: Literal["reported", "nested"] = "reported"
    """`reported` gives D1 at every layer; `nested` adds D1 at the layer that is best inside the training folds."""
    fold_seeds: Annotated[tuple[Seed, ...], Field(max_length=100)] = ()
    """Further seeds for the folds of D1, to measure how much it depends on them."""
    hidden: int | None = Field(default=None, ge=1, le=10_000)
    """Units of the hidden layer of a further probe, which says how far a linear one suffices; none by default."""
    saes: tuple[SaeConfig, ...] = ()
    """Sparse autoencoders by layer; layers without one have no direction C5."""
    steering_layer: int | float = D2_DEPTH
    """Block index or depth of D2 and D3."""
    steering: SteeringConfig = SteeringConfig()
    """How steered texts are generated."""
    steered_texts: str | None = None
    """Folder of texts that others steered, such as the published ones: they are read instead of generated, scored and
    compared with null directions of this run.
    """
    prompted: bool = False
    """Whether prompting for each concept is measured beside steering (`d2.prompted`); for chat models."""
    metrics: tuple[Literal["d1", "d2", "d3"], ...] = Field(default=("d1", "d2", "d3"), min_length=1)
    """Which of d1, d2, d3 to measure."""
    corpus: CorpusConfig = CorpusConfig()
    """Where passages come from: `planted`, `real`, or a folder."""
    scorer_base: str = "minilm"
    """Encoder that scorers are built on: `minilm`, a folder or a Hugging Face id."""
    scorer_mode: Literal["head", "full", "import"] = "head"
    """How scorers are trained: `head` (the last layer, on frozen lower ones: minutes on a CPU) or `full` (all of the
    base, as the card does); `import` takes published classifiers as they are, from the folder or Hugging Face id
    `scorer_base`.
    """
    scorer_layers: int | None = Field(default=None, ge=1, le=1_000)
    """Lower layers of `scorer_base` to build scorers on; all by default."""
    scorer_revision: str | None = None
    """Hugging Face revision of `scorer_base`."""
    scorer_subfolder: str = "{concept}"
    """Folder of a concept's classifier; `{concept}` stands for the concept's id."""
    scorer_positive_label: str | None = None
    """Label (or its index) that means the concept in a published classifier; `{concept}` as above."""
    keep_activations: bool = False
    """Whether the hidden states of all tokens are stored too."""

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

    @model_validator(mode="after")
    def _published_curves_are_whole(self) -> Self:
        """Refuse published definitions on half of the openings."""
        if self.protocol == "published" and self.steering.reading == "lazy":
            raise ValueError("protocol published reads every opening at every strength: steering.reading must be whole")
        return self

    @property
    def data_name(self) -> str:
        """Return the source of the passages."""
        return self.corpus.source if self.corpus.source in NAMED_SOURCES else "corpus"

    def hashed(self) -> dict[str, Any]:
        """Return what the hash of the configuration is made of."""
        settings = super().hashed()
        corpus = settings["corpus"]
        later = ((settings, "scorer_layers"), (settings, "hidden"), (corpus, "scorer_texts"), (corpus, "mask"))
        for section, name in (
            *later,
            (settings, "prompted"),
            (settings, "steered_texts"),
            (settings["steering"], "further"),
        ):
            if section[name] in (None, False, []):  # a later field
                del section[name]
        steers = {"d2", "d3"} & set(self.metrics)
        if self.steering.reading == "whole" or not steers:  # as all runs were before there was another way
            del settings["steering"]["reading"]
        return settings


def as_concepts(config: RunConfig, **settings: Any) -> ConceptsConfig:
    """Return the settings of the stages for another suite: what it has in common, and defaults for all else."""
    shared = {name: value for name, value in config.model_dump().items() if name in ConceptsConfig.model_fields}
    steering = {"reading": "whole", **settings.pop("steering", {})}  # what no such suite does enters no hash
    return ConceptsConfig.model_validate(
        {**shared, "budget": completed(config.budget), "steering": steering, **settings}
    )


def scorer_settings(name: str | None) -> dict[str, Any]:
    """Return the settings of a kind of scorers; none for None. Raise UnknownNameError for another kind."""
    if name is not None and name not in SCORERS:
        raise UnknownNameError("kind of scorers", name, SCORERS)
    return SCORERS[name] if name else {}


def of_concepts(config: RunConfig) -> ConceptsConfig:
    """Return the settings of a run that measured concepts; raise ConfigError for a run of another suite."""
    if not isinstance(config, ConceptsConfig):
        raise ConfigError(f"a run of the suite {config.suite} measures no concepts, which this command is about")
    return config
