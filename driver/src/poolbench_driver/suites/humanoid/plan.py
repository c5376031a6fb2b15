"""From the settings of a run to its tasks: words, fine-tunes, the states of the model, and what the prober compares."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from poolbench.config import asset_path, change_revision, local_folder
from poolbench.errors import ConfigError, UnknownNameError
from poolbench.steps import prober as steps
from poolbench.steps.base import Keys
from poolbench.steps.extractor import ChangeParams
from poolbench.steps.roles import Cell, SplitCell
from poolbench_driver.cluster.session import Session
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.models.training import RECORD_FILE, read_amounts
from poolbench_driver.stages.names import check_names
from poolbench_driver.stages.probes import Components, plan_neighbour_directions
from poolbench_driver.stages.resolve import resolve as resolve_concepts
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, Plan, PlanFacts, PlannedWork, Stage, joined
from poolbench_driver.stages.vectors import ModelState, plan_vectors, read_states
from poolbench_driver.suites.humanoid.config import POOLING, HumanoidConfig
from poolbench_driver.suites.humanoid.words import WordLists, read_words

#: The shipped fine-tunes of the demo model, and how the names of the neutral ones begin.
SHIPPED, NEUTRAL = "demo_personas", "neutral"
#: Tokens of a template with its word, for estimates.
_TEXT_TOKENS = 9.0
#: Fewest neutral fine-tunes that make a null.
MIN_NEUTRAL = 5
#: Readings of words: alone, as the reference does; and in templates, without the mean of neutral words.
READINGS = ("published", "corrected")


@dataclass(frozen=True)
class FineTune:
    """A fine-tune of the model."""

    name: str  # its name in rows
    neutral: bool
    change: ChangeParams
    amounts: Mapping[str, float]  # its numbers on the axes of the figure, such as epochs; empty if they are not known


@dataclass(frozen=True)
class HumanoidScope:
    """A resolved run. `probing` is the scope that computes the directions of its concepts."""

    config: HumanoidConfig
    model: ModelInfo
    words: WordLists
    tunes: tuple[FineTune, ...]
    probing: Scope | None

    @cached_property
    def layers(self) -> list[int]:
        """Return the layers that words are read at."""
        return self.model.layers(self.config.layers)

    @property
    def unplaced(self) -> list[str]:
        """Return a note on the fine-tunes that the figure of the change by epochs leaves out, if there are any."""
        names = [tune.name for tune in self.tunes if not (tune.neutral or tune.amounts)]
        what = f"no {RECORD_FILE} with epochs and sentences in {', '.join(names)}"
        return [f"{what}: the figure by epochs leaves them out; --axis epochs=... names them"] if names else []

    @property
    def facts(self) -> PlanFacts:
        """Return the facts of a plan of this scope that the frame reads."""
        neutral = sum(tune.neutral for tune in self.tunes)
        few = (
            f"{neutral} neutral fine-tunes (--null): below {MIN_NEUTRAL} there is no null"
            if neutral < MIN_NEUTRAL
            else ""
        )
        notes = (*self.words.notes, *self.unplaced, *([few] if few else []))
        return PlanFacts(
            self.model, self.words.name, self.words.revision, "preference", passage_tokens=_TEXT_TOKENS, notes=notes
        )


class ShiftCell(NamedTuple):
    """One cell of the comparison: fine-tune, layer, reading of `prober.valence`, and the concept of a direction."""

    tune: str
    layer: int
    reading: str
    concept: str | None = None


@dataclass(frozen=True)
class HumanoidPlan(Plan):
    """Keys of measures and words by cell of the comparison."""

    scope: HumanoidScope
    shifts: Mapping[ShiftCell, Keys]

    @property
    def num_random(self) -> int:
        """Return how many random changes are read."""
        return self.scope.config.num_random * sum(not tune.neutral for tune in self.scope.tunes)


def check(config: HumanoidConfig) -> None:
    """Raise ConfigError or UnknownNameError for words, fine-tunes or concepts that cannot be read."""
    read_words(config.words)
    fine_tunes(config)
    if config.concepts:
        check_names(config.probing)


def resolve(config: HumanoidConfig, session: Session, model: ModelInfo | None = None) -> HumanoidScope:
    """Return the scope of a run."""
    model = model or describe_model(config, session.services)
    probing = resolve_concepts(config.probing, session, model) if config.concepts else None
    return HumanoidScope(config, model, read_words(config.words), tuple(fine_tunes(config)), probing)


def fine_tunes(config: HumanoidConfig) -> list[FineTune]:
    """Return the fine-tunes of a run, the neutral fine-tunes last.

    Raises:
        UnknownNameError: A name is neither a folder nor a shipped fine-tune.
        ConfigError: No fine-tune is named, two have one name, or an axis does not have one number for each.
        ModelError: A folder holds no fine-tune.
    """
    shipped = sorted(path.name for path in asset_path(SHIPPED).iterdir() if path.is_dir())
    after, null = config.after, config.null
    if not after and config.model == "demo":
        after = tuple(name for name in shipped if not name.startswith(NEUTRAL))
        null = null or tuple(name for name in shipped if name.startswith(NEUTRAL))
    if not after:
        raise ConfigError(f"--after: name the fine-tunes of {config.model}, as folders of checkpoints or LoRA adapters")
    folders = {name: _folder(name, shipped) for name in (*after, *null)}
    names = {source: Path(source).name or folder.name for source, folder in folders.items()}
    counts = Counter(names[source] for source in (*after, *null))
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(
            f"--after and --null: {', '.join(twice)} is named twice, or two have one name: name each fine-tune once, "
            "and rename a folder"
        )
    changes = {
        name: ChangeParams(source=str(folder), revision=change_revision(folder)) for name, folder in folders.items()
    }
    for axis, numbers in config.axis.items():
        if len(numbers) != len(after):
            raise ConfigError(
                f"--axis {axis}: {len(numbers)} numbers for {len(after)} fine-tunes of --after; give one for each"
            )
    amounts = {name: read_amounts(folders[name]) for name in after}
    if config.axis:
        amounts = {name: {axis: n[place] for axis, n in config.axis.items()} for place, name in enumerate(after)}
    return [FineTune(names[name], name in null, changes[name], amounts.get(name, {})) for name in (*after, *null)]


def _folder(name: str, shipped: Iterable[str]) -> Path:
    if name in shipped:
        return asset_path(SHIPPED) / name
    folder = local_folder(name)
    if folder is None:
        raise UnknownNameError("fine-tune", name, shipped)
    return folder


def plan(scope: HumanoidScope) -> HumanoidPlan:
    """Return the plan of a run."""
    words, shifts = _plan_words(scope)
    stages = [words]
    if scope.probing is not None:
        concept_stages, concept_shifts = _plan_concepts(scope, scope.probing)
        stages += concept_stages
        shifts |= concept_shifts
    return HumanoidPlan(scope.config, joined(stages), scope.facts, scope, shifts)


def _plan_words(scope: HumanoidScope) -> tuple[Stage, dict[ShiftCell, Keys]]:
    """Plan the readings of the words by every state of the model, and their valences. Return their keys."""
    draft = Draft()
    texts = draft.add_local(scope.words.step())
    # Sinks stay in: a span of a word has none beside others.
    reading = {**_reading(scope), "sinks": "include"}
    states = _read(draft, scope, reading, texts, scope.layers, random=scope.config.num_random)
    keys = dict[ShiftCell, Keys]()
    for tune, layer in product(scope.tunes, scope.layers):
        inputs = {steps.WORD_TEXTS(): texts} | _compared(states, tune, layer)
        for name, keys_of_reading in _compare(draft, scope, tune, inputs, READINGS).items():
            keys[ShiftCell(tune.name, layer, name)] = keys_of_reading
    return Stage(draft.work), keys


def _plan_concepts(scope: HumanoidScope, probing: Scope) -> tuple[list[Stage], dict[ShiftCell, Keys]]:
    """Plan the shift of test passages along the directions of concepts, at the deepest layer."""
    layer = probing.layers[-1]
    vectors = plan_vectors(probing)
    directions = plan_neighbour_directions(probing, vectors, Components(PlannedWork(), {}))
    draft, keys = Draft(), dict[ShiftCell, Keys]()
    for concept, concept_vectors in vectors.concepts.items():
        # Vectors before are those of the probes, so sinks are left out of the others as they are of these.
        reading = {**_reading(scope), **scope.config.sink_settings}
        states = _read(draft, scope, reading, concept_vectors.passages["test"], [layer], random=0)
        states[ModelState()] = {layer: concept_vectors.vectors[SplitCell("test", POOLING, layer)]}
        for tune in scope.tunes:
            inputs = {
                steps.WORD_TEXTS(): concept_vectors.passages["test"],
                steps.READ_DIRECTION(): directions.concepts[concept][Cell(POOLING, layer)],
                **_compared(states, tune, layer),
            }
            keys_by_reading = _compare(draft, scope, tune, inputs, ["direction"])
            keys[ShiftCell(tune.name, layer, "direction", concept)] = keys_by_reading["direction"]
    return [vectors, directions, Stage(draft.work)], keys


def _read(
    draft: Draft, scope: HumanoidScope, reading: Mapping[str, Any], texts: str, layers: Sequence[int], *, random: int
) -> dict[ModelState, dict[int, str]]:
    """Plan the reading of texts by all states of the model."""
    changes: dict[ModelState, ChangeParams | None] = {ModelState(): None}
    for tune in scope.tunes:
        changes[ModelState(tune.name)] = tune.change
        for seed in range(0 if tune.neutral else random):
            changes[ModelState(tune.name, seed)] = tune.change.model_copy(
                update={"random_seed": scope.config.seed + seed}
            )
    return read_states(draft, texts, reading, layers, changes, POOLING)


def _reading(scope: HumanoidScope) -> dict[str, Any]:
    """Return the parameters that name the model, and how it reads text."""
    add_bos = {"add_bos": True} if scope.config.add_bos else {}
    return {**scope.model.params, **add_bos, "include_bos": scope.config.include_bos}


def _compared(states: Mapping[ModelState, Mapping[int, str]], tune: FineTune, layer: int) -> dict[str, str]:
    """Return the vectors of one fine-tune by role: before, after, and after random changes."""
    roles = {ModelState(): "before", ModelState(tune.name): "after"}
    for state in states:
        if state.tune == tune.name and state.random_seed is not None:
            roles[state] = f"random/{state.random_seed}"
    return {steps.STATE_VECTORS(role): states[state][layer] for state, role in roles.items()}


def _compare(
    draft: Draft, scope: HumanoidScope, tune: FineTune, inputs: Keys, readings: Sequence[str]
) -> dict[str, Keys]:
    """Plan the comparison of two states; return the keys of its parts by reading."""
    params = steps.ValenceParams(name=tune.name, num_bootstrap=scope.config.num_bootstrap, seed=scope.config.seed)
    parts = {reading: _parts(reading) for reading in readings}
    keys = draft.add(steps.VALENCE, params, inputs, [role for roles in parts.values() for role in roles.values()])
    return {reading: {part: keys[role] for part, role in roles.items()} for reading, roles in parts.items()}


def _parts(reading: str) -> dict[str, str]:
    """Return the outputs of a comparison by name, as roles. Each output is an artifact of its own."""
    roles = {"measures": steps.SHIFT_MEASURES(reading), "words": steps.WORD_SHIFTS(reading)}
    return roles | ({"cosines": steps.WORD_COSINES(reading)} if reading in READINGS else {})
