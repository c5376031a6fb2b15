"""What the vector of a search does to text that is not to be steered: the texts, the tasks, and what they measured.

The texts are passages of the test split without the concept. No choice of a search reads these: strategies are screened
and directions made on the train split, vector and strength are chosen on openings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status
from poolbench.steps.extractor import CALIBRATION, DAMAGE, DIRECTIONS, LENS, PASSAGES, STEERED_TEXTS, DamageParams
from poolbench.steps.steerer import PROMPTS
from poolbench_corpora.probing import PROBING_SETS, Sample, are_shipped, samples_of
from poolbench_corpora.reading import is_missing, read_rows, text_in
from poolbench_driver.cluster.session import Session
from poolbench_driver.corpora.sources import passages_step, stored_rows
from poolbench_driver.find.figures import card_measure, pair_accuracy, text_damage
from poolbench_driver.find.scoring import send
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.response import rules_of
from poolbench_driver.queries.texts import read_texts
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import Texts, generate
from poolbench_driver.vectors.card import CardMeasure, Lens, LensToken, Vector

#: Passages of the corpus that damage is measured on, and pairs of each paradigm of BLiMP.
NUM_TEXTS, PER_PARADIGM = 64, 3
#: Further strengths, as shares of the smallest one of the run: 1 % of damage mostly lies below it.
FURTHER_STRENGTHS = (0.125, 0.25, 0.5)
_BLIMP, STEERED = "blimp-", "steered"
Pair = tuple[str, str]  # acceptable, unacceptable
_TEXTS = pa.schema([("passage_id", pa.string()), ("text", pa.string()), ("group", pa.string())])


@dataclass(frozen=True)
class UserTexts:
    """Texts of the user that replace those of the corpus: `passage_id`, `text`, `group`; pairs as in `pairs_table`."""

    texts: pa.Table | None = None
    pairs: pa.Table | None = None

    @classmethod
    def read(cls, texts: Path | None, pairs: Path | None) -> UserTexts:
        """Read the texts of two files. Raise InputError or CorpusError, with file and line, if a file is wrong."""
        return cls(None if texts is None else _read_texts(texts), None if pairs is None else read_pairs(pairs))


def _read_texts(file: Path) -> pa.Table:
    lines = read_texts(file)
    for line in lines:
        if line.invalid:
            raise InputError(f"{line.where}: {line.invalid}")
    rows = [{"passage_id": line.id or f"line-{line.number}", "text": line.text} for line in lines]
    return pa.Table.from_pylist(rows, _TEXTS)


def read_pairs(file: Path) -> pa.Table:
    """Return the minimal pairs of a file: columns `good` and `bad`, or `sentence_good` and `sentence_bad` as in BLiMP.

    Raise InputError if a sentence is empty or the two sentences are equal, CorpusError if the file lacks these columns.
    """
    pairs = []
    for row in read_rows(file):
        prefix = "sentence_" if "sentence_good" in row.values else ""
        good, bad = (text_in(row.values, f"{prefix}{side}", row.where) for side in ("good", "bad"))
        if is_missing(good) or is_missing(bad) or good == bad:
            raise InputError(f"{row.where}: a pair needs two sentences that differ, got {good!r} and {bad!r}")
        pairs.append((f"line-{row.number}", (good, bad)))
    return pairs_table(pairs)


def pairs_table(grouped_pairs: Iterable[tuple[str, Pair]]) -> pa.Table:
    """Return the sentences of pairs, each with the group of its pair. Ids are `<number>/good` and `<number>/bad`."""
    rows = [
        {"passage_id": f"{number}/{side}", "text": text, "group": group}
        for number, (group, pair) in enumerate(grouped_pairs)
        for side, text in zip(("good", "bad"), pair, strict=True)
    ]
    return pa.Table.from_pylist(rows, _TEXTS)


def pairs_of(source: str, user_texts: UserTexts) -> pa.Table:
    """Return the pairs of the user, or of BLiMP where the corpus is `real`. Raise CellError without any."""
    if user_texts.pairs is not None:
        return user_texts.pairs
    if source != "real" or not are_shipped():
        lacking = f"the corpus {source} has no minimal pairs" if source != "real" else "the sets that ship are not here"
        raise CellError(Status.NO_COVERAGE, f"{lacking}; name a file of some with --pairs")
    return pairs_table(blimp_pairs(PER_PARADIGM))


def blimp_pairs(per_paradigm: int) -> Iterator[tuple[str, Pair]]:
    """Yield the first pairs of each paradigm of BLiMP, in whose sets the two sentences of a pair follow each other."""
    for definition in PROBING_SETS.choose([f"{_BLIMP}*"]):
        first = islice(samples_of(definition), 2 * per_paradigm)
        texts = [sample.first[0].text for sample in first if isinstance(sample, Sample)]
        for pair in zip(texts[::2], texts[1::2], strict=True):  # acceptable, unacceptable
            yield definition.id.removeprefix(_BLIMP), pair


def benign_of(plan: ConceptsPlan, user_texts: UserTexts, session: Session) -> pa.Table:
    """Return the texts of the user, or test passages without the concept, spread over the split, by document."""
    if user_texts.texts is not None:
        return user_texts.texts
    (concept,) = plan.scope.concepts
    rows = session.artifacts.read_table(passages_step(plan.scope.config, concept, "test").key).to_pylist()
    benign = [row | {"group": row["doc_id"]} for row in rows if row["label"] == 0]
    if not benign:
        raise CellError(Status.TOO_FEW, f"the test split of {concept.id} has no passage without the concept")
    places = np.linspace(0, len(benign) - 1, min(NUM_TEXTS, len(benign))).round().astype(int)
    return pa.Table.from_pylist([{name: benign[place][name] for name in _TEXTS.names} for place in places], _TEXTS)


@dataclass(frozen=True)
class Damage:
    """Damage of a vector: measures of its card, lenses, and the largest strength that benign text leaves safe."""

    measures: tuple[CardMeasure, ...]
    lenses: tuple[Lens, ...] = ()
    safe_high: float | None = None


@dataclass(frozen=True)
class DamageTask:
    """A vector whose damage is measured on texts, at the layer of a run.

    Attributes:
        plan: The plan of the run.
        run_id: The id of the run.
        vector: The vector, whose card names its artifact.
        construction: The row of the vector in this artifact.
        strength: The chosen strength, at which the lens is measured.
    """

    plan: ConceptsPlan
    run_id: str
    vector: Vector
    construction: str
    strength: float

    def measure(self, user_texts: UserTexts, session: Session, display: Display) -> Damage:
        """Send the tasks that are not committed, and return the figures. A failed figure is null with its reason."""
        rules = rules_of(self.plan.scope.config)
        measures, lenses, safe_high = list[CardMeasure](), tuple[Lens, ...](), None
        try:
            texts = benign_of(self.plan, user_texts, session)
            rows, tokens = self._read(texts, session, display)
            measures, safe_high = text_damage(rows, _groups(texts), rules)
            lenses = lenses_of(tokens, self.strength)
        except CellError as error:
            names = ("damage.kl", "damage.perplexity_ratio", "damage.strength_at_1_percent")
            measures, lenses = [card_measure(Measure.failed(name, error)) for name in names], (Lens(reason=str(error)),)
        try:
            pairs = pairs_of(self.plan.scope.config.corpus.source, user_texts)
            rows, _ = self._read(pairs, session, display)
            measures += pair_accuracy(rows, _groups(pairs), rules)
        except CellError as error:
            measures.append(card_measure(Measure.failed("damage.pair_accuracy", error)))
        return Damage(tuple(measures), lenses, safe_high)

    def plan_texts(self, draft: Draft, openings: str, strengths: Sequence[float], **changes: Any) -> dict[str, Texts]:
        """Plan texts of the openings of a key, along the vector and unsteered, with changed parameters of a run."""
        scope, inputs = self.plan.scope, {**self.plan.steered.unsteered.inputs, PROMPTS(): openings}
        directions = {STEERED: self.vector.card.source.artifact}
        unsteered = generate(scope, draft, inputs, {UNSTEERED: None}, (0.0,), **changes)
        return unsteered | generate(scope, draft, inputs, directions, strengths, (self.construction,), **changes)

    def _read(self, texts: pa.Table, session: Session, display: Display) -> tuple[list[Row], list[Row]]:
        """Return the rows of DAMAGE and LENS on some texts. Raise CellError if their task failed."""
        assert self.vector.card.source.artifact is not None
        scope, budget, draft = self.plan.scope, self.plan.scope.config.budget, Draft()
        below = (round(share * min(budget.strengths), 6) for share in FURTHER_STRENGTHS)
        params = DamageParams(
            **scope.model_params,
            layer=scope.steering_layer,
            direction_ids=(self.construction,),
            strengths=tuple(sorted({*below, *budget.strengths})),
            alpha_unit=budget.alpha_unit,
        )
        norms = {role: key for role, key in self.plan.steered.unsteered.inputs.items() if role == CALIBRATION()}
        stored = draft.add_local(stored_rows("texts for damage", texts, "damage"))
        inputs = {**norms, PASSAGES(): stored, DIRECTIONS(): self.vector.card.source.artifact}
        keys = draft.add(STEERED_TEXTS, params, inputs, [DAMAGE(), LENS()])
        source = send(self.plan, session, display, Stage(draft.work), run_id=self.run_id)
        return source.required(keys[DAMAGE()]).to_pylist(), source.required(keys[LENS()]).to_pylist()


def _groups(texts: pa.Table) -> Mapping[str, str]:
    return dict(zip(texts["passage_id"].to_pylist(), texts["group"].to_pylist(), strict=True))


def lenses_of(rows: list[Row], strength: float) -> tuple[Lens, ...]:
    """Return the lens of a vector, and its lens measured on texts at a strength, from rows of LENS."""
    lenses = []
    for at in (None, strength):
        of_strength = [row for row in rows if row["strength"] == at]
        promoted, suppressed = (
            tuple(LensToken(token=row["token"], value=row["value"]) for row in of_strength if row["promoted"] is side)
            for side in (True, False)
        )
        if of_strength:
            reason = of_strength[0]["reason"]
            lenses.append(Lens(strength=at, promoted=promoted, suppressed=suppressed, reason=reason))
    return tuple(lenses)
