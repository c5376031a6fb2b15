"""From the settings of a run to its tasks: stories, autoencoders, their features, and what the prober compares."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from poolbench.config.models import EMBEDDING, EMBEDDING_INDEX
from poolbench.contracts.keys import digest
from poolbench.directions.sae import SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, read_folder
from poolbench.errors import InputError, LayerError
from poolbench.statistics.folds import components
from poolbench.steps import prober
from poolbench.steps.base import Keys, Step
from poolbench.steps.extractor import (
    AUTOENCODER,
    COORDINATES,
    FEATURES,
    FEATURES_OF,
    PASSAGES,
    RANDOM_FEATURES,
    RECOVERED,
    FeatureParams,
    RecoveredParams,
)
from poolbench_corpora.stories import Protocol, StoriesData, read_stories
from poolbench_driver.cluster.session import Session
from poolbench_driver.corpora.sources import LocalStep, stored_rows
from poolbench_driver.imports.saes import places_of, read_all, sae_step
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, Stage, joined
from poolbench_driver.suites.ce_bench.concepts import (
    SetPassages,
    SparseConceptProbes,
    plan_concepts,
    plan_sets,
    probing_scope,
    read_sets,
)
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.families import training_of

#: Where `import stories` writes, and where a run looks for names.
STORIES_FOLDER = Path("stories")
#: Stories of one task.
SHARD = 1000
#: Expected tokens of a story, for estimates.
_STORY_TOKENS = 120.0
Kind = Literal["autoencoder", "random", "coordinates"]


@dataclass(frozen=True)
class Autoencoder:
    """An autoencoder of a run, without its weights: its name in rows, layer and size.

    Attributes:
        family: Hash of the training settings shared with autoencoders of other seeds. None without a seed.
        seed: Seed of its training, None if its configuration names none.
    """

    name: str
    layer: int
    id: str
    architecture: str
    num_features: int
    step: LocalStep = field(repr=False)
    family: str | None = None
    seed: int | None = None


@dataclass(frozen=True)
class CeBenchScope:
    """A resolved run."""

    config: CeBenchConfig
    model: ModelInfo
    saes: tuple[Autoencoder, ...]
    by_protocol: Mapping[Protocol, StoriesData] = field(repr=False)
    left_out: tuple[str, ...] = ()
    probing: Scope | None = None
    sets: SetPassages = field(default_factory=SetPassages)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the problems of autoencoders, stories and probing sets."""
        return (*self.left_out, *map(str, self.stories.notes), *self.sets.notes)

    @property
    def stories(self) -> StoriesData:
        """Return the stories without tags, which the corrected figures and the page show."""
        return self.by_protocol["corrected"]

    @property
    def by_layer(self) -> dict[int, dict[str, Autoencoder]]:
        """Return the autoencoders of each layer by their number in the run."""
        layers = sorted({sae.layer for sae in self.saes})
        return {at: {str(n): sae for n, sae in enumerate(self.saes) if sae.layer == at} for at in layers}

    @property
    def facts(self) -> PlanFacts:
        """Return the facts of a plan of this scope that the frame reads."""
        revision = digest([self.stories.rows.to_pylist(), self.stories.passages.to_pylist()], 16)
        return PlanFacts(
            self.model, self.config.stories, revision, "stories", passage_tokens=_STORY_TOKENS, notes=self.notes
        )


class SparseCell(NamedTuple):
    """One cell of the comparison: an entrant under a protocol.

    Attributes:
        sae: Name of the autoencoder, or the layer for coordinates.
    """

    sae: str
    kind: Kind
    layer: int
    protocol: Protocol

    @property
    def entrant(self) -> str:
        """Return the name of the entrant in rows."""
        return null_of(self.sae) if self.kind == "random" else self.sae


@dataclass(frozen=True)
class CeBenchPlan(Plan):
    """Keys of measures, subjects and features by cell of the comparison, and of loss measures by entrant."""

    scope: CeBenchScope
    contrasts: Mapping[SparseCell, Keys]
    recovered: Mapping[str, str]
    concepts: SparseConceptProbes
    sets: SparseConceptProbes


def check(config: CeBenchConfig) -> None:
    """Raise an error for stories or autoencoders that are not there, or for probing sets that are not read."""
    places_of(config.saes)
    read_sets.cache_clear()  # files may have changed since an earlier run of this process
    read_sets(config)
    read_stories(config.stories, config.seed, folders=(STORIES_FOLDER,))


def resolve(config: CeBenchConfig, session: Session, model: ModelInfo | None = None) -> CeBenchScope:
    """Resolve the scope of a run. An autoencoder that cannot be used is reported in a note.

    Raises:
        InputError: No autoencoder can be used; the message has the first reason.
        CorpusError: The stories cannot be read.
    """
    model = model or describe_model(config, session.services)
    saes, notes = _usable(config, model)
    protocols: list[Protocol] = ["corrected", "published"] if config.protocol == "published" else ["corrected"]
    folders = (STORIES_FOLDER,)
    stories = {
        protocol: read_stories(config.stories, config.seed, protocol=protocol, folders=folders).first_pairs(
            config.num_pairs
        )
        for protocol in protocols
    }
    probing = probing_scope(config, session, model, {sae.layer: sae.step for sae in reversed(saes)})
    return CeBenchScope(config, model, saes, stories, notes, probing, read_sets(config))


def _usable(config: CeBenchConfig, model: ModelInfo) -> tuple[tuple[Autoencoder, ...], tuple[str, ...]]:
    """Return the autoencoders that fit the model, and why others do not. Raise InputError if none does."""
    autoencoders, notes, names = dict[str, Autoencoder](), list[str](), set[str]()
    places = places_of(config.saes)
    for name, sae, files in read_all(places):
        path = places[name]
        try:
            if isinstance(sae, InputError):
                raise sae
            layer = _layer_of(sae, path, config, model)
            entrant_names = {name, null_of(name)}
            if entrant_names & names or name == coordinates_of(layer):
                raise InputError(
                    f"{path}: {name} or its random twin has the name of another entrant; rename the folder"
                )
            if sae.id in autoencoders:
                raise InputError(f"{path}: it has the weights and the configuration of {autoencoders[sae.id].name}")
        except InputError as error:
            notes.append(f"left out: {error}")
            continue
        step = sae_step(f"autoencoder {name}", files, partial(read_folder, path))
        training = training_of(sae, files[CONFIG_FILE], model.ref.id, layer)
        autoencoders[sae.id] = Autoencoder(name, layer, sae.id, sae.architecture, sae.num_features, step, *training)
        names |= entrant_names
    if not autoencoders:
        raise InputError(notes[0].removeprefix("left out: "))
    return tuple(autoencoders.values()), tuple(notes)


def _layer_of(sae: SparseAutoencoder, path: Path, config: CeBenchConfig, model: ModelInfo) -> int:
    """Return the layer that an autoencoder reads. Raise InputError if the model lacks it, or has another width."""
    if sae.width != model.width:
        raise InputError(f"{path}: it reads width {sae.width}; the states of {model.ref.id} have {model.width}")
    layer = config.layer if sae.layer is None else EMBEDDING if sae.layer == EMBEDDING_INDEX else sae.layer
    if layer is None:
        raise InputError(f"{path}: its configuration names no layer; give --layer")
    try:
        return model.layer(layer)
    except LayerError as error:
        raise InputError(f"{path}: {error}") from None


def null_of(autoencoder: str) -> str:
    """Return the name of the random directions that an autoencoder is compared with, as an entrant."""
    return f"{autoencoder} random"


def coordinates_of(layer: int) -> str:
    """Return the name of the coordinates of a layer, as an entrant."""
    return f"coordinates {layer}"


def plan(scope: CeBenchScope) -> CeBenchPlan:
    """Return the plan of a run."""
    (stage, contrasts), (loss, recovered) = _plan_contrasts(scope), _plan_recovered(scope)
    concepts = plan_concepts(scope.probing, partial(_read_layer, scope))
    sets = plan_sets(scope.sets, scope.probing, partial(_read_layer, scope))
    work = joined([stage, loss, concepts, sets])
    return CeBenchPlan(scope.config, work, scope.facts, scope, contrasts, recovered, concepts, sets)


def _plan_contrasts(scope: CeBenchScope) -> tuple[Stage, dict[SparseCell, Keys]]:
    """Plan features of all autoencoders of a layer in one pass over the stories, and one comparison for each layer.

    Return the stage, and the keys of measures, subjects and features.
    """
    draft, contrasts = Draft(), dict[SparseCell, Keys]()
    for protocol, data in scope.by_protocol.items():
        stories = draft.add_local(stored_rows("pairs of stories", data.rows, "stories"))
        shards = [draft.add_local(stored_rows("stories", texts, "stories")) for texts in _shards(data.passages)]
        for layer, saes in scope.by_layer.items():
            entrants = {coordinates_of(layer): SparseCell(coordinates_of(layer), "coordinates", layer, protocol)}
            for sae in saes.values():
                entrants[sae.name] = SparseCell(sae.name, "autoencoder", layer, protocol)
                entrants[null_of(sae.name)] = SparseCell(sae.name, "random", layer, protocol)
            read = [_read_shard(scope, draft, key, layer, saes, protocol) for key in shards]
            numbers = {entrant: str(n) for n, entrant in enumerate(entrants)}
            inputs = {prober.STORIES(): stories}
            for shard, keys in enumerate(read):
                inputs |= {prober.STORY_FEATURES(numbers[name], f"{shard}"): key for name, key in keys.items()}
            params = prober.ContrastParams(
                protocol=protocol, num_bootstrap=scope.config.num_bootstrap, seed=scope.config.seed
            )
            roles = {at: _parts(at, numbers[name]) for name, at in entrants.items()}
            outputs = draft.add(
                prober.CONTRAST, params, inputs, [role for parts in roles.values() for role in parts.values()]
            )
            for at, parts in roles.items():
                contrasts[at] = {part: outputs[role] for part, role in parts.items()}
    return Stage(draft.work), contrasts


def _parts(at: SparseCell, number: str) -> dict[str, str]:
    """Return the roles of what is computed of an entrant; single features are of interest of autoencoders alone."""
    parts = {"measures": prober.CONTRAST_MEASURES(number), "subjects": prober.SUBJECTS(number)}
    if at.kind == "autoencoder" and at.protocol == "corrected":
        parts["features"] = prober.BY_FEATURE(number)
    return parts


def _read_layer(scope: CeBenchScope, draft: Draft, passages: str, layer: int) -> dict[str, str]:
    """Plan the features of all autoencoders of a layer on some passages; return their keys by entrant."""
    return _read_shard(scope, draft, passages, layer, scope.by_layer[layer], "corrected")


def _read_shard(
    scope: CeBenchScope, draft: Draft, passages: str, layer: int, saes: Mapping[str, Autoencoder], protocol: Protocol
) -> dict[str, str]:
    """Plan the features of one shard; return their keys by entrant."""
    params = FeatureParams(**scope.model.params | _reading(protocol), layer=layer, seed=scope.config.seed)
    return _of_entrants(draft, FEATURES_OF, params, passages, saes)


def _of_entrants(
    draft: Draft, step: Step[Any], params: FeatureParams, passages: str, saes: Mapping[str, Autoencoder]
) -> dict[str, str]:
    """Plan a step that reads all autoencoders of a layer; return the keys of its outputs by entrant."""
    inputs = {PASSAGES(): passages} | {AUTOENCODER(n): draft.add_local(sae.step) for n, sae in saes.items()}
    roles = {coordinates_of(params.layer): COORDINATES()}
    for number, sae in saes.items():
        roles |= {sae.name: FEATURES(number), null_of(sae.name): RANDOM_FEATURES(number)}
    keys = draft.add(step, params, inputs, roles.values())
    return {name: keys[role] for name, role in roles.items()}


def _plan_recovered(scope: CeBenchScope) -> tuple[Stage, dict[str, str]]:
    """Plan the loss and the dense features of all entrants, on the first distinct stories; return their keys too."""
    draft, keys = Draft(), dict[str, str]()
    if scope.config.num_loss_stories:
        texts = _distinct(scope.stories, scope.config.num_loss_stories)
        key = draft.add_local(stored_rows("stories of the loss", texts, "stories"))
        seed, num_bootstrap = scope.config.seed, scope.config.num_bootstrap
        for layer, saes in scope.by_layer.items():
            params = RecoveredParams(**scope.model.params, layer=layer, seed=seed, num_bootstrap=num_bootstrap)
            keys |= _of_entrants(draft, RECOVERED, params, key, saes)
    return Stage(draft.work), keys


def _distinct(stories: StoriesData, number: int) -> pa.Table:
    """Return the first stories with different texts, without their marks; the stories of a pair are one group."""
    passages = stories.passages.select(["passage_id", "text"])
    text_of = dict(zip(*(column.to_pylist() for column in passages.columns), strict=True))
    first = {text: row for row, text in reversed(list(enumerate(text_of.values())))}
    distinct_passages = passages.take(sorted(first.values())[:number])
    place = {text: number for number, text in enumerate(distinct_passages["text"].to_pylist())}
    pairs = [(text_of[row[side]], row["row_id"]) for row in stories.rows.to_pylist() for side in ("first", "second")]
    groups = components(((place[text], row) for text, row in pairs if text in place), len(distinct_passages))
    return distinct_passages.append_column("group", pa.array(groups.astype(str)))


def _reading(protocol: Protocol) -> dict[str, Any]:
    """Return how a protocol reads: the released code keeps all tokens of the tokenizer, and states in bfloat16."""
    if protocol == "published":
        return {"dtype": "bfloat16", "include_bos": True, "sinks": "include"}
    return {}


def _shards(passages: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, passages.num_rows, SHARD):
        yield passages.slice(start, SHARD).combine_chunks()
