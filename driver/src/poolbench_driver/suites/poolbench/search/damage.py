"""What the vector of a search does to text that is not to be steered: its texts, its tasks, and its figures.

The texts are passages of the test split without the concept. No choice of a search reads these: strategies are screened
and directions made on the train split, vector and strength are chosen on openings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from poolbench.contracts import Row
from poolbench.errors import CellError, InputError
from poolbench.statuses import Status
from poolbench.steps.extractor import CALIBRATION, DAMAGE, DIRECTIONS, LENS, PASSAGES, STEERED_TEXTS, DamageParams
from poolbench_corpora.probing.readers.pairs import ARCHIVE, blimp_members, blimp_pairs
from poolbench_corpora.reading import is_missing, read_rows, text_in
from poolbench_corpora.real.documents import ARCHIVES_VARIABLE, has_archive
from poolbench_driver.adhoc.texts import read_texts
from poolbench_driver.cluster.session import Session
from poolbench_driver.corpora.sources import passages_step, stored_rows
from poolbench_driver.loop import Failure, RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.stage import Draft, Plan, PlannedWork
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.search.figures import pair_accuracy, text_damage
from poolbench_driver.vectors.card import CardMeasure, Lens, LensToken, Vector

#: Passages of the corpus that damage is measured on, and pairs of each paradigm of BLiMP.
NUM_TEXTS, PER_PARADIGM = 64, 3
#: Further strengths, as shares of the smallest one of the run: 1 % of damage mostly lies below it.
FURTHER_STRENGTHS = (0.125, 0.25, 0.5)
_TEXTS = pa.schema([("passage_id", pa.string()), ("text", pa.string()), ("group", pa.string())])
_VECTOR = "vector"


@dataclass(frozen=True)
class UserTexts:
    """Texts of the user in place of those of the corpus.

    Attributes:
        texts: Benign texts, with `passage_id`, `text` and `group`.
        pairs: Minimal pairs, as `pairs_table`.
    """

    texts: pa.Table | None = None
    pairs: pa.Table | None = None

    @classmethod
    def read(cls, texts: Path | None, pairs: Path | None) -> UserTexts:
        """Return the texts of files. Raise InputError or CorpusError, with file and line, for a wrong one."""
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

    Raises:
        InputError: A sentence is empty, or both are the same.
        CorpusError: The file cannot be read, or a record lacks a column.
    """
    pairs = []
    for row in read_rows(file):
        prefix = "sentence_" if "sentence_good" in row.values else ""
        good, bad = (text_in(row.values, f"{prefix}{side}", row.where) for side in ("good", "bad"))
        if is_missing(good) or is_missing(bad) or good == bad:
            raise InputError(f"{row.where}: a pair needs two sentences that differ, got {good!r} and {bad!r}")
        pairs.append((f"line-{row.number}", good, bad))
    return pairs_table({"": pairs})


def pairs_table(pairs_by_group: Mapping[str, list[tuple[str, str, str]]]) -> pa.Table:
    """Return the sentences of pairs (name, good, bad), with ids `<group>/<name>/good` and `.../bad`.

    Pairs of the group "" are groups of their own.
    """
    rows = [
        {"passage_id": f"{group}/{name}/{side}", "text": text, "group": group or name}
        for group, pairs in pairs_by_group.items()
        for name, good, bad in pairs
        for side, text in (("good", good), ("bad", bad))
    ]
    return pa.Table.from_pylist(rows, _TEXTS)


def pairs_of(source: str, user_texts: UserTexts) -> pa.Table:
    """Return the minimal pairs of a user, or of the archives if the corpus is of these. Raise CellError without any.

    Args:
        source: Where the passages of the corpus come from.
    """
    if user_texts.pairs is not None:
        return user_texts.pairs
    if source != "real":
        raise CellError(Status.NO_COVERAGE, f"the corpus {source} has no minimal pairs; name some with --pairs")
    if not has_archive(None, ARCHIVE):
        reason = f"{ARCHIVES_VARIABLE} has no archive {ARCHIVE!r} with BLiMP; name pairs with --pairs"
        raise CellError(Status.NO_COVERAGE, reason)
    by_paradigm = {name: list(blimp_pairs(None, name))[:PER_PARADIGM] for name in blimp_members(None)}
    numbered = {
        name: [(str(number), good, bad) for number, (good, bad) in enumerate(pairs)]
        for name, pairs in by_paradigm.items()
    }
    return pairs_table(numbered)


def _benign_of(plan: PoolBenchPlan, user_texts: UserTexts, session: Session) -> pa.Table:
    """Return the texts of a user, or test passages without the concept, spread over the split."""
    if user_texts.texts is not None:
        return user_texts.texts
    (concept,) = plan.scope.concepts
    rows = session.artifacts.read_table(passages_step(plan.scope.config, concept, "test").key).to_pylist()
    benign = [row for row in rows if row["label"] == 0]
    if not benign:
        raise CellError(Status.TOO_FEW, f"the test split of {concept.id} has no passage without the concept")
    places = np.linspace(0, len(benign) - 1, min(NUM_TEXTS, len(benign))).round().astype(int)
    texts = [{**benign[place], "group": benign[place]["doc_id"]} for place in places]
    return pa.Table.from_pylist([{name: text[name] for name in _TEXTS.names} for text in texts], _TEXTS)


@dataclass(frozen=True)
class DamageWork:
    """The tasks that measure a vector on texts, and what was to be measured on each kind of text."""

    work: PlannedWork
    tables: Mapping[str, pa.Table]  # texts by kind: `texts`, `pairs`
    keys: Mapping[str, Mapping[str, str]]  # keys of the outputs, by kind and role
    refused: Mapping[str, CellError]  # why there are none of a kind


def plan_damage(
    plan: PoolBenchPlan, vector: Vector, construction: str, user_texts: UserTexts, session: Session
) -> DamageWork:
    """Plan a task for benign texts and one for minimal pairs, at the strengths of the run and some below.

    Args:
        plan: The plan of the run that the vector comes from.
    """
    assert plan.steering is not None and vector.card.source.artifact is not None
    scope, budget = plan.scope, plan.scope.config.budget
    lowest = min(budget.strengths)
    strengths = sorted({*(round(share * lowest, 6) for share in FURTHER_STRENGTHS), *budget.strengths})
    params = DamageParams(
        **scope.model_params,
        layer=scope.steering_layer,
        direction_ids=(construction,),
        strengths=tuple(strengths),
        alpha_unit=budget.alpha_unit,
    )
    shared = {DIRECTIONS(_VECTOR): vector.card.source.artifact}
    if CALIBRATION() in plan.steering.unsteered.inputs:
        shared[CALIBRATION()] = plan.steering.unsteered.inputs[CALIBRATION()]
    draft = Draft()
    tables, keys, refused = dict[str, pa.Table](), dict[str, Mapping[str, str]](), dict[str, CellError]()
    for kind, roles in (("texts", [DAMAGE(_VECTOR), LENS(_VECTOR)]), ("pairs", [DAMAGE(_VECTOR)])):
        try:
            if kind == "pairs":
                table = pairs_of(scope.config.corpus.source, user_texts)
            else:
                table = _benign_of(plan, user_texts, session)
        except CellError as error:
            refused[kind] = error
            continue
        stored = draft.add_local(stored_rows(f"{kind} for damage", table, "damage"))
        tables[kind] = table
        keys[kind] = draft.add(STEERED_TEXTS, params, {**shared, PASSAGES(): stored}, roles)
    return DamageWork(draft.work, tables, keys, refused)


@dataclass(frozen=True)
class Damage:
    """Damage of a vector: measures of its card, lenses, and the largest strength that benign text leaves safe."""

    measures: tuple[CardMeasure, ...]
    lenses: tuple[Lens, ...] = ()
    safe_high: float | None = None


def measure_damage(
    plan: PoolBenchPlan, work: DamageWork, session: Session, display: Display, run_id: str, strength: float
) -> Damage:
    """Send what is not committed, and return the figures; a failure is a null with its reason.

    Args:
        run_id: Id of the run that the vector comes from.
        strength: The strength that was chosen, at which the lens is measured on texts.
    """
    todo = Plan(plan.config, work.work, plan.facts)
    try:
        failures = RunLoop(todo, session.artifacts, session.queue, session.leases, display, run_id=run_id).run()
    finally:
        display.close()
    config = plan.scope.config
    rules = SteeringRules(num_bootstrap=config.budget.num_bootstrap, seed=config.seed)
    reader = _Reader(todo, work, session, failures)
    measures, lenses, safe_high = list[CardMeasure](), tuple[Lens, ...](), None
    try:
        on_texts = text_damage(*reader.rows("texts"), rules)
        measures, safe_high = list(on_texts.measures), on_texts.safe_high
        lenses = lenses_of(reader.table("texts", LENS(_VECTOR)), strength)
    except CellError as error:
        names = ("damage.kl", "damage.perplexity_ratio", "damage.strength_at_1_percent")
        measures = [_null(name, error) for name in names]
        lenses = (Lens(reason=str(error)),)
    try:
        measures += pair_accuracy(*reader.rows("pairs"), rules)
    except CellError as error:
        measures.append(_null("damage.pair_accuracy", error))
    return Damage(tuple(measures), lenses, safe_high)


@dataclass(frozen=True)
class _Reader:
    plan: Plan
    work: DamageWork
    session: Session
    failures: Mapping[str, Failure]

    def rows(self, kind: str) -> tuple[list[Row], dict[str, str]]:
        """Return the rows of DAMAGE on a kind of text, and the groups of the texts. Raise CellError without any."""
        rows = self.table(kind, DAMAGE(_VECTOR))
        texts = self.work.tables[kind]
        return rows, dict(zip(texts["passage_id"].to_pylist(), texts["group"].to_pylist(), strict=True))

    def table(self, kind: str, role: str) -> list[Row]:
        if kind in self.work.refused:
            raise self.work.refused[kind]
        key = self.work.keys[kind][role]
        failure = self.failures.get(self.plan.producers[key].task_id)
        if failure is not None:
            raise failure.error
        rows: list[Row] = self.session.artifacts.read_table(key).to_pylist()
        return rows


def _null(name: str, error: CellError) -> CardMeasure:
    return CardMeasure(name=name, status=error.status, reason=str(error)[:1000])


def lenses_of(rows: list[Row], strength: float) -> tuple[Lens, ...]:
    """Return the lens of a vector, and the one measured on texts at a strength, from rows of LENS."""
    lenses = []
    for at in (None, strength):
        of_strength = [row for row in rows if row["strength"] == at]
        if of_strength and of_strength[0]["reason"]:
            lenses.append(Lens(strength=at, reason=of_strength[0]["reason"]))
        elif of_strength:
            promoted, suppressed = (
                tuple(
                    LensToken(token=row["token"], value=row["value"]) for row in of_strength if row["promoted"] == side
                )
                for side in (True, False)
            )
            lenses.append(Lens(strength=at, promoted=promoted, suppressed=suppressed))
    return tuple(lenses)
