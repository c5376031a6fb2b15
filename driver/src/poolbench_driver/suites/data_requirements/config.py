"""The settings of a run that asks how much data a comparison of two probes needs."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, model_validator

from poolbench.config import EMBEDDING, FINAL, LayerChoice, NamedBudget, StrictModel
from poolbench.contracts.bounds import Seed
from poolbench_driver.config import REAL_TEXT, Control, CorpusSource, ReadingConfig, names_planted

#: What a pretrained model is compared on by default: two sets of changed sentences, and one of a property of the verb.
REAL_SETS = ("ewt-bigram-shift", "ewt-coordination-inversion", "ewt-tense")
#: What help shows as the value of an option.
_KEYS: dict[str, Any] = {"shown": "KEY=VALUE,..."}


class Configuration(StrictModel):
    """One side of a comparison: what is read, and what probes it."""

    model: str | None = None
    """Preset id, folder or Hugging Face id; by default the model of the run."""
    adapter: str | None = None
    """Folder of a fine-tune of the model: a whole checkpoint or a LoRA adapter."""
    vectors: str | None = None
    """Name of a file of vectors (`--vectors`), which stands in place of a model."""
    strategy: str = "A1_mean"
    """Pooling strategy."""
    layer: LayerChoice = FINAL
    """Block index, depth, `embedding` (static vectors of words) or `final`."""
    hidden: int | None = Field(default=None, ge=1, le=10_000)
    """Units of the hidden layer of the probe; without it the probe is a logistic regression."""
    code_length: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the linear probe has the C with the shortest code of the training labels, which development does not
    choose."""
    control: Control | None = None
    """`word_order` shuffles the words of every text, `random_weights` reads with an untrained model."""
    noise: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False)
    """Standard deviation of normal noise that is added to every number of a vector."""
    label_noise: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    """Share of the training and development labels that another class replaces."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        """Read `key=value,...` as the command line has it."""
        if not isinstance(value, str):
            return value
        entries: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in value.split(","))):
            key, equals, text = part.partition("=")
            if not equals:
                raise ValueError(f"{part!r}: write key=value, such as layer=final,noise=0.3")
            if key.strip() in entries:
                raise ValueError(f"{key.strip()} is given twice")
            entries[key.strip()] = text if key.strip() in _TEXTS else yaml.safe_load(text)
        return entries

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        """Refuse what vectors of a file cannot have, and a fine-tune of weights that are drawn."""
        read = [name for name in _OF_A_MODEL if getattr(self, name) != type(self).model_fields[name].default]
        if self.vectors is not None and read:
            raise ValueError(f"vectors of a file are used as they are; leave out {', '.join(read)}")
        if self.code_length and self.hidden is not None:
            raise ValueError("code_length chooses the C of a linear probe; leave out hidden")
        if self.adapter is not None and self.control == "random_weights":
            raise ValueError("random_weights replaces all weights, those of the adapter too; leave one out")
        return self

    def columns(self, model: str) -> dict[str, Any]:
        """Return the configuration as columns of a table, where `model` is the model of the run."""
        settings = {**self.model_dump(mode="json"), "code_length": self.code_length}
        if self.vectors is not None:
            return settings | {"model": None, "strategy": None, "layer": None}
        adapter = None if self.adapter is None else PurePath(self.adapter).name  # wherever its folder lies
        return settings | {"model": self.model or model, "adapter": adapter, "layer": str(self.layer)}


#: Fields that say what a model reads.
_OF_A_MODEL = ("model", "adapter", "strategy", "layer", "control")
#: Fields whose values are texts, whatever YAML would make of them.
_TEXTS = ("model", "adapter", "vectors", "strategy", "control")


def display_name(columns: Mapping[str, Any], model: str, beside: Mapping[str, Any] | None = None) -> str:
    """Return the display name of a configuration from its columns, without the model if this is the model of the run.

    Args:
        beside: Columns of a second configuration. The name then has only the settings that differ from these.
    """
    first = beside or dict.fromkeys(columns)

    def differs(*names: str) -> bool:
        return any(columns[name] != first[name] for name in names)

    parts = list[str]()
    if columns["vectors"]:
        parts = [f"vectors {columns['vectors']}"] if differs("vectors") else []
    elif differs("model", "vectors") and (columns["model"] != model or (beside and not first["vectors"])):
        parts.append(columns["model"])
    if differs("adapter"):
        parts.append(f"adapter {columns['adapter']}" if columns["adapter"] else "no adapter")
    if differs("strategy", "layer") and not columns["vectors"]:
        layer = "static words" if columns["layer"] == EMBEDDING else columns["layer"]
        parts.append(f"{columns['strategy']} {layer}")
    if differs("control"):
        parts.append(columns["control"] or "no control")
    if differs("hidden"):
        parts.append(f"MLP {columns['hidden']}" if columns["hidden"] else "logistic regression")
    if columns["code_length"] != bool(first["code_length"]):
        parts.append("C by code length" if columns["code_length"] else "C by development")
    for name, word in (("noise", "noise"), ("label_noise", "label noise")):
        if columns[name] != (first[name] or 0.0):
            parts.append(f"{word} {columns[name]:g}" if columns[name] else f"no {word}")
    return ", ".join(parts)


class DataRequirementsConfig(ReadingConfig):
    """Settings of a run of data requirements."""

    budget: NamedBudget = NamedBudget(name="demo")
    """Name of the preset, which sets seeds, folds and sizes; result rows hold it."""
    sets: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)] = (
        "planted-bigram-shift",
        "planted-relation",
        "planted-role",
    )
    """Ids of probing sets or patterns such as `ewt-*`, and of concepts."""
    corpus: CorpusSource = CorpusSource()
    """Where sets and passages of concepts come from: `planted`, `real`, or a folder."""
    compare: Configuration = Field(default=Configuration(), json_schema_extra=_KEYS)
    """First configuration, with the keys model, adapter, vectors, strategy, layer, hidden, code_length, control, noise
    and label_noise; those that are left out keep their defaults."""
    against: Annotated[tuple[Configuration, ...], Field(max_length=100)] = Field(
        default=(
            Configuration(control="word_order"),
            Configuration(strategy="P1_last_token"),
            Configuration(hidden=20),
            Configuration(noise=1.0),
        ),
        json_schema_extra={"option": "--with", **_KEYS},
    )
    """Second configurations, each compared with the first; the option may come several times."""
    vectors: dict[str, str] = Field(default={}, json_schema_extra={"shown": "NAME=FILE"})
    """Files of vectors by name: `.npz` with `ids` and `vectors`, or Parquet with `id` and `vector`."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=100)] = (0, 1, 2, 3, 4)
    """Seeds of samples, folds and noise; both sides of a comparison have the same."""
    folds: int = Field(default=6, ge=1, le=100)
    """Folds in rotation: one is test, the next development, the others training. 1 keeps the split of a set."""
    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(max_length=20)] = ()
    """Examples of each sample, of training, development and test together; by default all of a set, and halves."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Level of McNemar's test."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        """Refuse what would count twice, or compare a configuration with itself."""
        for name in ("seeds", "sizes"):
            if len(set(values := getattr(self, name))) < len(values):
                raise ValueError(f"{name} {list(values)}: name each once")
        if self.folds == 2:
            raise ValueError("folds 2: three at least are needed for training, development and test; or 1")
        if self.folds > 1 and self.sizes and min(self.sizes) < 2 * self.folds:
            raise ValueError(f"sizes {min(self.sizes)}: {self.folds} folds need {2 * self.folds} examples at least")
        if not self.against:
            raise ValueError("--with: name what the first configuration is compared with")
        sides = [self.compare, *self.against]
        names = [display_name(side.columns(self.model), self.model) for side in sides]
        if twice := [name for number, name in enumerate(names) if name in names[:number]]:
            raise ValueError(f"{twice[0]} is named twice, or two have one name: each is compared once, under its own")
        files = {side.vectors for side in sides if side.vectors is not None}
        if lacking := sorted(files - self.vectors.keys()):
            raise ValueError(f"vectors={lacking[0]}: name its file with --vectors {lacking[0]}=FILE")
        if unread := sorted(self.vectors.keys() - files):
            raise ValueError(f"--vectors {unread[0]}: no side of a comparison reads it (vectors={unread[0]})")
        return self

    @classmethod
    def real_text(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings that read real text: three treebank sets, or the source of the sets that `given` names.

        If `given` names planted sets, the settings are empty.
        """
        if names_planted(sets := given.get("sets", REAL_SETS)):
            return {}
        return {"sets": sets, **REAL_TEXT}

    @property
    def sides(self) -> tuple[Configuration, ...]:
        """Return everything that is compared, the first configuration first."""
        return (self.compare, *self.against)

    @property
    def data_name(self) -> str:
        """Return the source of the sets."""
        return f"{self.suite}-{self.corpus.kind}"
