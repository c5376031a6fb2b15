"""Whether the gain of a vector holds elsewhere: behind context, in other words, at other temperatures, beside others.

All gains are those of the held-out openings at the recommended strength, over unsteered texts of the same prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.concepts import CONCEPTS, refuse_sensitive
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import PROMPTS as PROMPTS_TABLE
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, ConfigError, InputError, UnknownConceptError, shown
from poolbench.statuses import Status
from poolbench.steps.steerer import PROMPTS
from poolbench.texts import load_openings
from poolbench_corpora.reading import name_in, read_rows, text_in
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import SteeringConfig
from poolbench_driver.corpora.sources import stored_rows
from poolbench_driver.find import scoring
from poolbench_driver.find.damage import STEERED, DamageTask, UserTexts, benign_of
from poolbench_driver.find.scoring import ScoredKeys
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.prompting import paired_gain
from poolbench_driver.measures.response import rules_of
from poolbench_driver.queries.texts import TextLine
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.stage import Draft, PlannedWork, Stage
from poolbench_driver.stages.steering import Scorers, generate
from poolbench_driver.vectors.card import CardMeasure, Vector
from poolbench_driver.vectors.importing import import_vector

#: Words of benign text before an opening; temperatures; vectors that are added at most.
CONTEXTS, TEMPERATURES, MAX_OTHERS = (0, 64, 256, 1024), (0.0, 0.7, 1.0), 4
#: Other forms of an opening, which ends them all so that a text goes on from it. Forms that mean the same change what
#: models answer (Sclar et al. 2024, "Quantifying Language Models' Sensitivity to Spurious Features in Prompt Design").
FRAMINGS: Mapping[str, Callable[[str], str]] = {
    "plain": str,
    "labelled": "Text: {}".format,
    "requested": "Continue this text.\n\n{}".format,
    "quoted": '"{}'.format,
    "lower_case": str.lower,
}
_SPREAD, _WORD = "robustness.framing_spread", re.compile(r"\S+\s*")
#: Openings as they are sent, ids and texts. The scores of several texts of one id are averaged.
Prompts = Sequence[tuple[str, str]]
#: The texts that a gain compares, and the concept whose scorer reads them.
Gain = tuple[ScoredKeys, ScoredKeys, str]


@dataclass(frozen=True)
class Robustness:
    """Further openings and vectors that a vector is tried with."""

    paraphrases: Path | None = None  # a table with `text`, and `prompt_id` or `opening`
    others: Sequence[Path] = ()  # vectors that are added to it, one at a time

    def require_fit(self, scope: Scope) -> None:
        """Raise the errors of `paraphrased` and `vectors`."""
        self.paraphrased(scope)
        self.vectors(scope)

    def paraphrased(self, scope: Scope) -> Prompts:
        """Return ids of openings of the run, and these in other words.

        Raise InputError or CorpusError, with file and line, for a row without a text or of another opening.
        """
        budget, prompts = scope.config.budget, dict[tuple[str, str], None]()
        rows = load_openings(budget.opening_set, budget.num_openings).to_pylist()
        ids = {row[name]: row["prompt_id"] for name in ("text", "prompt_id") for row in rows}
        for row in read_rows(self.paraphrases) if self.paraphrases else ():
            opening = name_in(row.values, "prompt_id", row.where) or name_in(row.values, "opening", row.where)
            if opening not in ids:
                first, last = rows[0]["prompt_id"], rows[-1]["prompt_id"]
                what = f"no opening of this search is {shown(opening)}; ids are {first} to {last}"
                raise InputError(f"{row.where}: {what}, in the column prompt_id")
            text = text_in(row.values, "text", row.where)
            if invalid := TextLine(row.number, text).invalid:
                raise InputError(f"{row.where}: {invalid}")
            prompts[ids[opening], text] = None
        return list(prompts)

    def vectors(self, scope: Scope) -> list[Vector]:
        """Return the vectors to add.

        Raises:
            ConfigError: There are too many vectors, or two vectors have one name.
            InputError: A vector cannot be read, or is of another model.
            RestrictedError: A vector is of a sensitive concept.
        """
        remedy = "--with takes vectors of the search's model"
        vectors = [import_vector(path, scope.model, remedy=remedy) for path in self.others]
        names = {vector.card.name for vector in vectors}
        if len(names) < len(vectors) or len(names) > MAX_OTHERS:
            raise ConfigError(f"--with: name at most {MAX_OTHERS} vectors of different names, not {len(vectors)}")
        refuse_sensitive(filter(None, map(_concept_of, vectors)))
        return vectors

    def measures(
        self, task: DamageTask, openings: Mapping[str, str], benign: UserTexts, session: Session, display: Display
    ) -> list[CardMeasure]:
        """Send the tasks that are not committed, and return the gains. A failed gain is null with its reason.

        Args:
            task: The vector, and the run that has steered along it.
            openings: The held-out openings by id.
            benign: Texts that context is taken from, in place of test passages without the concept.
        """
        plan, scope, draft = task.plan, task.plan.scope, Draft()
        vectors, (concept,) = self.vectors(scope), plan.vectors.concepts
        seconds = dict.fromkeys(filter(None, map(_concept_of, vectors)))
        trained, lacking = scoring.scorers_of(plan, concept, list(seconds), session, train=False)
        scorers = Scorers(PlannedWork(), {**trained.concepts, **plan.steered.scorers.concepts})
        try:
            passages = benign_of(plan, benign, session)["text"].to_pylist()
        except CellError:  # then no context is long enough
            passages = []
        gains = dict[str, Gain | CellError]()
        for name, prompts, changes in variants_of(openings, self.paraphrased(scope), passages, scope.config.steering):
            why = "the benign texts have fewer words" if "context" in name else "no paraphrase is of a held-out opening"
            gains[name] = plan_gain(draft, task, prompts, changes) if prompts else CellError(Status.TOO_FEW, why)
        for vector in vectors:
            gains |= plan_composition(draft, task, vector, list(openings.items()), scorers)
        source = scoring.send(plan, session, display, Stage(draft.work), run_id=task.run_id)

        def read(metric: str) -> Measure:
            gain = gains[metric.removeprefix("robustness.")]
            if isinstance(gain, CellError):
                raise gain
            reader = gain[2]
            if reader not in scorers.concepts:
                raise CellError(Status.NO_SCORER, lacking.get(reader, "its concept is not registered here"))
            raised, base = (scoring.scored_of(source, of_texts) for of_texts in gain[:2])
            return paired_gain(
                metric, raised, base, scoring.gated(reader, scorers, source), rules_of(plan.scope.config)
            )

        measures = [scoring.figure(f"robustness.{name}", read) for name in gains]
        return [*measures, spread_of(measures)]


def variants_of(
    openings: Mapping[str, str], paraphrases: Prompts, passages: Sequence[str], steering: SteeringConfig
) -> Iterator[tuple[str, Prompts, Mapping[str, Any]]]:
    """Yield the name, the prompts and the changed parameters of generation of each gain."""
    for num_words in CONTEXTS:
        yield f"context_{num_words}_words", with_context(openings, passages, num_words), {}
    for name, form in FRAMINGS.items():
        yield f"framing_{name}", [(prompt_id, form(text)) for prompt_id, text in openings.items()], {}
    if paraphrases:
        yield "framing_paraphrases", [prompt for prompt in paraphrases if prompt[0] in openings], {}
    for temperature in TEMPERATURES:
        changes = {"temperature": temperature, "num_samples": steering.num_samples if temperature else 1}
        is_run = temperature == steering.temperature  # then the same texts as without context
        yield f"temperature_{temperature:g}", list(openings.items()), {} if is_run else changes


def with_context(openings: Mapping[str, str], passages: Sequence[str], num_words: int) -> Prompts:
    """Return each opening after the last `num_words` words of the passages, or nothing if they have fewer words.

    The passages are rotated by one place for each opening, so that contexts differ. Words are separated by white space.
    A shorter context is the end of a longer context.
    """
    prompts = []
    for place, (prompt_id, text) in enumerate(openings.items()):
        first = place % max(1, len(passages))
        words = _WORD.findall("\n\n".join([*passages[first:], *passages[:first]]))
        if len(words) >= num_words:
            context = "".join(words[len(words) - num_words :]).rstrip()
            prompts.append((prompt_id, f"{context}\n\n{text}" if context else text))
    return prompts


def plan_gain(draft: Draft, task: DamageTask, prompts: Prompts, changes: Mapping[str, Any]) -> Gain:
    """Plan the texts of prompts along the vector and unsteered, and their scores."""
    (concept,) = task.plan.vectors.concepts
    texts = task.plan_texts(draft, _stored(draft, prompts), (task.strength,), **changes)
    text_keys = {name: of_name.texts for name, of_name in texts.items()}
    keys = scoring.plan_scored(draft, task.plan.steered.scorers, [concept], text_keys)
    return keys[STEERED], keys[UNSTEERED], concept


def plan_composition(
    draft: Draft, task: DamageTask, other: Vector, prompts: Prompts, scorers: Scorers
) -> dict[str, Gain | CellError]:
    """Plan the texts along both vectors and along the other vector alone. Return the gains of both concepts by name.

    At one layer, two vectors act as one direction, which is the sum of both vectors at their recommended strengths.
    """
    scope, steering, name = task.plan.scope, task.plan.steered, f"composition.{other.card.name[:200]}"
    (concept,), second = task.plan.vectors.concepts, _concept_of(other) or ""
    names = (name, f"{name}.alone", f"{name}.other", f"{name}.other_alone")
    inputs, texts = {PROMPTS(): _stored(draft, prompts)}, {UNSTEERED: steering.unsteered.texts.texts}
    try:
        other_D = _added(other, other.card.strength.recommended, scope.steering_layer)
        both_D = other_D + _added(task.vector, task.strength, scope.steering_layer)
        for label, added_D in {"both": both_D, "alone": other_D}.items():
            alpha = float(np.linalg.norm(added_D))
            if alpha == 0:
                raise CellError(Status.NO_EFFECT, "the two vectors cancel each other")
            rows = [{"direction_id": label, "vector": (added_D / alpha).tolist(), "raw_norm": alpha}]
            table = table_from_rows(rows, directions_schema(len(added_D)))
            direction = {STEERED: draft.add_local(stored_rows("sum of vectors", table, "directions"))}
            texts[label] = generate(scope, draft, inputs, direction, (alpha,), alpha_unit="absolute")[STEERED].texts
    except CellError as error:
        return dict.fromkeys(names, error)
    concepts = [one for one in dict.fromkeys((concept, second)) if one in scorers.concepts]
    keys = scoring.plan_scored(draft, scorers, concepts, texts)
    gains = [(keys[label], keys[UNSTEERED], one) for one in (concept, second) for label in ("both", "alone")]
    return dict(zip(names, gains, strict=True))


def _concept_of(vector: Vector) -> str | None:
    """Return the concept of a vector, or None if its card names no concept that is registered here."""
    try:
        return CONCEPTS.get(vector.card.concept or "").id
    except UnknownConceptError:
        return None


def _stored(draft: Draft, prompts: Prompts) -> str:
    rows = [{"prompt_id": prompt_id, "text": text} for prompt_id, text in prompts]
    return draft.add_local(stored_rows("openings in other forms", table_from_rows(rows, PROMPTS_TABLE), "openings"))


def _added(vector: Vector, strength: float | None, layer: int) -> np.ndarray:
    """Return the vector that steering adds at a layer, float64 [width]. Raise CellError without layer or strength."""
    card = vector.card
    if card.layers != (layer,):
        layers = ", ".join(map(str, card.layers))
        why = f"layers differ: {shown(card.name)} is of layer {layers}, and one task steers at one, here {layer}"
        raise CellError(Status.NOT_IMPLEMENTED, why)
    alpha = None if strength is None else card.alpha(strength, layer)
    if alpha is None:
        raise CellError(Status.FAILED, f"the card of {shown(card.name)} has no strength, or not the unit of it")
    return alpha * vector.vectors[layer].astype(np.float64)


def spread_of(measures: Sequence[CardMeasure]) -> CardMeasure:
    """Return the largest minus the smallest gain of the framings that all openings have."""
    framed = [one for one in measures if one.name.startswith("robustness.framing_") and one.value is not None]
    num_openings = max((one.n or 0 for one in framed), default=0)
    gains = [one.value for one in framed if one.value is not None and one.n == num_openings]
    if len(gains) < 2:
        return CardMeasure(name=_SPREAD, status=Status.TOO_FEW, reason="fewer than two framings have a gain")
    return CardMeasure(name=_SPREAD, value=max(gains) - min(gains), n=len(gains))
