"""Other ways to raise a concept, through the measures of the chosen vector.

Each direction is steered along at the layer of the vector, at the strengths of the run. Its strength is chosen on the
half of the openings that chose the vector, and its gain is read on the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.tables import PROMPTS as PROMPTS_TABLE
from poolbench.contracts.tables import directions_schema, table_from_rows, vector_matrix
from poolbench.directions.pairs import pairs_by_id
from poolbench.directions.registry import unit_direction
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.response import ResponseGrid, SteeredTables, align_openings, best_column, response_grids
from poolbench.statuses import Status
from poolbench.steps.extractor import DIRECTIONS, PASSAGES, TRAINED, TRAINED_DIRECTION, TrainedParams
from poolbench.steps.roles import Cell as CellRole
from poolbench.steps.roles import SplitCell
from poolbench.storage import Artifacts
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.page import Cell, Column, Heads, Line, Part, Table
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import LocalStep, openings_step, stored_rows
from poolbench_driver.find.figures import card_measure
from poolbench_driver.find.scoring import read_stage
from poolbench_driver.find.selection import Candidate, Selection
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.cosines import direction_vector
from poolbench_driver.measures.prompting import Scored, paired_gain
from poolbench_driver.measures.response import SteeringRules, gain_at, opening_interval, or_zeros
from poolbench_driver.pages.text import interval
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.scope import NULL_BASE
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import (
    NEUTRAL,
    PROMPTED,
    Texts,
    plan_along,
    plan_scores_of,
    unsteered_texts,
)
from poolbench_driver.vectors.card import CardMeasure, VectorCard

#: Null directions of the run that stand for random ones; passages before each opening.
NUM_RANDOM, NUM_SHOTS = 5, 3
RANDOM, ACTADD, FEW_SHOT, PROMPTING = "random", "actadd", "few_shot", "prompting"
#: Constructions of the pooled vectors that the chosen one is made of.
CONSTRUCTED = {"mean_difference": "C1", "pca": "C2", "probe": "C3", "pair_pca": "C4", "lda": "LDA", "sae": "C5"}


class LikelyKeys(NamedTuple):
    """Keys of texts with their likelihood, and of their scores."""

    texts: Texts
    scores: str


@dataclass(frozen=True)
class Baseline:
    """Texts of a baseline, the texts that they are compared with, and the directions that it steers along."""

    raised: LikelyKeys
    base: LikelyKeys
    table: str | None = None  # key of the directions
    direction_ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Baselines(Stage):
    """The baselines by name, each with an error if it cannot be measured, and the openings that gains are read on."""

    by_name: Mapping[str, Baseline | CellError]
    openings: Sequence[str]


def plan_baselines(plan: ConceptsPlan, best: Candidate, artifacts: Artifacts) -> Baselines:
    """Plan the texts and scores of all baselines of a vector. `plan` is the run that has steered along the vector."""
    scope, steering, (vectors,) = plan.scope, plan.steered, plan.vectors.concepts.values()
    draft, concept, passages = Draft(), vectors.concept, vectors.passages["train"]
    unsteered = LikelyKeys(steering.unsteered.texts, steering.scores.unsteered)
    by_name = dict[str, Baseline | CellError]()

    def scores(name: str, texts: Texts, scored: str | None = None) -> LikelyKeys:
        keys = plan_scores_of(draft, steering.scorers, [concept.id], {name: texts.texts}, {name: scored})
        return LikelyKeys(texts, keys[name])

    def steer(name: str, table: str, *direction_ids: str, texts_name: str | None = None) -> None:
        called = texts_name or name
        texts, scored = plan_along(
            scope, draft, steering.unsteered, steering.scorers, {called: table}, direction_ids, concept
        )
        raised = scores(called, texts[called], scored.get(called))
        by_name[name] = Baseline(raised, unsteered, table, direction_ids)

    (of_concept,) = steering.texts.concepts.values()
    steer(RANDOM, of_concept.nulls, *(f"null_{number:03}" for number in range(NUM_RANDOM)))
    params = TrainedParams(**scope.model_params, layer=best.layer, seed=scope.config.seed)
    trained = draft.add(TRAINED_DIRECTION, params, {PASSAGES(): passages}, [DIRECTIONS()])
    steer(TRAINED, trained[DIRECTIONS()], TRAINED)
    constructed = plan.probes.concepts[concept.id].directions[CellRole(best.strategy, best.layer)]
    for name, construction in CONSTRUCTED.items():
        if construction == "C5" and best.layer not in scope.saes:
            reason = f"the run has no sparse autoencoder of layer {best.layer}; name one under `saes`"
            by_name[name] = CellError(Status.NOT_IMPLEMENTED, reason)
        elif construction != best.construction:  # named as a run names it: texts that a run has serve here
            steer(name, constructed, construction, texts_name=best.strategy)
    try:
        pair = pair_step(artifacts, passages, vectors.vectors[SplitCell("train", NULL_BASE, best.layer)])
        steer(ACTADD, draft.add_local(pair), ACTADD)
    except CellError as error:
        by_name[ACTADD] = error
    openings = openings_step(scope.config.budget.opening_set, scope.config.budget.num_openings, 1, scope.config.seed)
    try:
        shots = draft.add_local(shots_step(artifacts, passages, openings))
        by_name[FEW_SHOT] = Baseline(scores(FEW_SHOT, unsteered_texts(scope, draft, shots)), unsteered)
    except CellError as error:
        by_name[FEW_SHOT] = error
    by_name[PROMPTING] = CellError(Status.NOT_IMPLEMENTED, "--set prompted=true measures it, for chat models")
    for prompted in steering.prompted.concepts.values():
        raised, base = (LikelyKeys(prompted.texts[name], prompted.scores[name]) for name in (PROMPTED, NEUTRAL))
        by_name[PROMPTING] = Baseline(raised, base)
    return Baselines(draft.work, by_name, _table(openings)["prompt_id"].to_pylist())


def _table(step: LocalStep) -> pa.Table:
    content = step.build()
    assert isinstance(content, pa.Table)
    return content


def baseline_measures(
    stage: Baselines, source: RowSource, scorer: GatedScorer, rules: SteeringRules
) -> Iterator[CardMeasure]:
    """Yield the gain of each baseline, or a null with its reason.

    Baselines without a vector have no strength to choose. Still, like all gains, their gain is read on the second half
    of the openings alone.
    """
    for name, baseline in stage.by_name.items():
        try:
            yield _gain(f"baseline.{name}", baseline, stage.openings, source, scorer, rules)
        except CellError as error:
            yield card_measure(Measure.failed(f"baseline.{name}", error))


def _gain(
    name: str,
    baseline: Baseline | CellError,
    openings: Sequence[str],
    source: RowSource,
    scorer: GatedScorer,
    rules: SteeringRules,
) -> CardMeasure:
    scorer.require_valid()
    if isinstance(baseline, CellError):
        raise baseline
    if baseline.table is None:
        raised, base = (_on(openings, keys, source) for keys in (baseline.raised, baseline.base))
        return card_measure(paired_gain(name, raised, base, scorer, rules))
    directions = source.required(baseline.table)
    for direction_id in baseline.direction_ids:
        direction_vector(directions, direction_id)
    steered, unsteered = (
        SteeredTables(*map(source.required, (keys.texts.texts, keys.scores, keys.texts.fluency)))
        for keys in (baseline.raised, baseline.base)
    )
    grids = response_grids(steered, unsteered, scorer.concept, rules.seed)
    return steered_gain(name, list(grids.values()), rules)


def _on(openings: Sequence[str], keys: LikelyKeys, source: RowSource) -> Scored:
    """Return the texts of some openings, and their scores."""
    texts, scores = source.required(keys.texts.texts), source.required(keys.scores)
    texts = texts.filter(pc.is_in(texts["prompt_id"], value_set=pa.array(openings)))
    return texts, scores.filter(pc.is_in(scores["text_id"], value_set=texts["text_id"]))


def steered_gain(name: str, grids: Sequence[ResponseGrid], rules: SteeringRules) -> CardMeasure:
    """Return the mean gain of directions on the second half of the openings, each at its best strength on the first.

    With one direction, the measure records the strength. Several directions are null directions: as in D2 and D3, a
    null direction without a fluent strength counts as 0. The interval is over openings, with the strengths fixed.
    Raise CellError in the cases in which `select` raises it for one candidate.
    """
    if not grids:
        raise CellError(Status.TOO_FEW, "no text was steered")
    aligned = align_openings(grids)
    _, read = aligned[0].halves
    weights_RP = np.vstack([np.ones(len(read)), bootstrap_counts(len(read), rules.num_bootstrap, rules.seed)])

    def gain(grid: ResponseGrid, shared: ResponseGrid) -> np.ndarray:
        column = best_column(grid.at_openings(grid.halves[0]), rules)
        return gain_at(shared.at_openings(read), column, weights_RP)

    if len(grids) == 1:
        gains_R = gain(grids[0], aligned[0])
        strength = float(grids[0].strengths[best_column(grids[0].at_openings(grids[0].halves[0]), rules)])
    else:
        pairs = zip(grids, aligned, strict=True)
        gains_R, strength = np.mean([or_zeros(partial(gain, *pair), len(weights_RP)) for pair in pairs], axis=0), None
    bounds = opening_interval(gains_R[1:], len(read), level=rules.level)
    return card_measure(Measure.of(name, gains_R[0], bounds, n=len(read)), strength)


def baselines_of(selection: Selection, plan: ConceptsPlan, session: Session, display: Display) -> list[CardMeasure]:
    """Return the gains of the baselines, by tasks that a repeated search does not send again.

    Args:
        plan: The run that has steered along the vector.
    """
    stage = plan_baselines(plan, selection.chosen, session.artifacts)
    return read_stage(plan, stage, partial(baseline_measures, stage), "baseline.random", session, display)


def baselines_part(card: VectorCard) -> Iterator[Part]:
    """Yield the table of the vector and its baselines, by falling gain. Yield nothing if the card has no baselines."""
    gains = [m for m in card.measures if m.name == "find.gain" or m.name.startswith("baseline.")]
    if len(gains) < 2:
        return

    def line(measure: CardMeasure) -> Line:
        is_vector = measure.name == "find.gain"
        label = f"the vector: {card.strategy}, {card.construction}" if is_vector else measure.name.partition(".")[2]
        if measure.value is None:
            return Line.of(label, Cell("null", note=f"{measure.status}: {measure.reason or ''}"), "", "", "")
        strength = card.strength.recommended if is_vector else measure.strength
        at = Cell() if strength is None else Cell(f"{strength:g}", strength)
        bounds = interval((measure.ci_low, measure.ci_high), "+.3f")
        return Line.of(label, Cell(f"{measure.value:+.3f}", measure.value), Cell(bounds), at, str(measure.n))

    gains.sort(key=lambda measure: (measure.value is None, -(measure.value or 0.0)))
    note = (
        "Directions are added at the layer of the vector. Their strengths are chosen on the openings of the choice, "
        "and all gains are read on the other openings. Each random direction has a strength of its own."
    )
    heads: Heads = [Column("method", is_text=True), "gain", "95 % interval", "strength", "openings"]
    table = Table.of(heads, [line(measure) for measure in gains], note=note)
    yield Part("baselines", "Against other methods", [table], "Others")


def pair_step(artifacts: Artifacts, passages: str, vectors: str) -> LocalStep:
    """Return the step that stores the difference of the vectors of the first pair of passages.

    Source: Turner et al. (2023), "Activation Addition". Their pairs are short prompts, whose difference is added at the
    positions of the prompts. Here, the difference of pooled vectors is added at all positions.

    Raises:
        CellError: There is no pair.
    """
    table, vector_table = artifacts.read_table(passages), artifacts.read_table(vectors)
    ids, labels = table["passage_id"].to_pylist(), np.array(table["label"].to_pylist())
    pairs = pairs_by_id(ids, table["pair_id"].to_pylist(), labels)
    if not len(pairs):
        raise CellError(Status.TOO_FEW, "the train passages lack a positive or a negative")
    matrix = vector_matrix(vector_table["vector"]).astype(np.float64)
    vector_of = dict(zip(vector_table["passage_id"].to_pylist(), matrix, strict=True))
    positive, negative = (vector_of[ids[row]] for row in pairs[0])
    direction = unit_direction(ACTADD, positive - negative)
    row = {"direction_id": ACTADD, "vector": direction.vector.tolist(), "raw_norm": direction.raw_norm}
    return stored_rows("difference of a pair", table_from_rows([row], directions_schema(matrix.shape[1])), "directions")


def shots_step(artifacts: Artifacts, passages: str, openings: LocalStep) -> LocalStep:
    """Return the step that stores openings, each after the shortest train passages with the concept.

    Raise CellError if there are too few passages.
    """
    rows = [row for row in artifacts.read_table(passages).to_pylist() if row["label"] == 1]
    shortest = sorted(rows, key=lambda row: (len(row["text"]), row["passage_id"]))[:NUM_SHOTS]
    if len(shortest) < NUM_SHOTS:
        raise CellError(Status.TOO_FEW, f"{len(shortest)} train passages with the concept; {NUM_SHOTS} are needed")
    examples = [row["text"] for row in shortest]
    prompts = [
        {"prompt_id": row["prompt_id"], "text": "\n\n".join([*examples, row["text"]])}
        for row in _table(openings).to_pylist()
    ]
    return stored_rows("openings after examples", table_from_rows(prompts, PROMPTS_TABLE), "openings")
