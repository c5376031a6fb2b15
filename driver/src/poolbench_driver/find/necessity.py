"""Necessity of a vector: what is lost when it is erased from the model's states.

A vector that raises a concept need not be what the model uses. So texts are carried on from openings that call for the
concept (first halves of its test passages), with the vector erased at every position of its layer, and scored. Beside
it stand a subspace of the best vectors of the layer, and random directions. The same are erased from the vectors of the
test passages, and probes read what is left.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.tables import PROMPTS as PROMPTS_TABLE
from poolbench.contracts.tables import directions_schema, table_from_rows
from poolbench.contracts.wire import UNSTEERED
from poolbench.directions.erasure import without_directions
from poolbench.errors import CellError
from poolbench.statistics.folds import connected_groups
from poolbench.steps import prober
from poolbench.steps.extractor import ANNOTATIONS, EXTRACT, FREQUENCIES, PASSAGES, VECTORS
from poolbench.steps.extractor import DIRECTIONS as DIRECTIONS_ROLE
from poolbench.steps.local import DIRECTIONS as DIRECTIONS_STEP
from poolbench.steps.local import HALVES, TABLE, DirectionsParams, HalvesParams
from poolbench.steps.roles import Cell as CellRole
from poolbench.steps.roles import SplitCell
from poolbench.steps.steerer import PROMPTS
from poolbench.storage import Artifacts
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.page import Cell, Column, Heads, Line, Part, Table
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.find.figures import card_measure
from poolbench_driver.find.scoring import (
    ScoredKeys,
    figure,
    plan_scored,
    read_stage,
    scored_of,
)
from poolbench_driver.find.selection import Candidate, Selection
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.cosines import direction_vector
from poolbench_driver.measures.prompting import Scored, paired_gain
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.pages.plain import number
from poolbench_driver.pages.text import interval
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import generate
from poolbench_driver.stages.vectors import extract_params
from poolbench_driver.vectors.card import CardMeasure, VectorCard

#: Random directions; openings of each class at most; vectors of the subspace.
NUM_RANDOM, NUM_OPENINGS, RANK = 5, 32, 3
VECTOR, SUBSPACE, RANDOM = "vector", "subspace", "random"
#: Name of the texts on openings without the concept.
_WITHOUT = "without"
#: Key of a table of directions, and the id of one of them.
_Source = tuple[str, str]


@dataclass(frozen=True)
class Necessity(Stage):
    """Keys of texts and scores by erased direction, and keys of the D1 after erasing, also at later layers.

    `passages` is the key of the test passages, whose halves are the openings. `UNSTEERED` and `without` erase nothing:
    `UNSTEERED` continues openings with the concept, `without` continues openings without the concept.
    """

    scored: Mapping[str, ScoredKeys]
    passages: str
    auroc: str
    later: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


def plan_necessity(
    plan: ConceptsPlan, candidates: Sequence[Candidate], artifacts: Artifacts, reads_later: bool = False
) -> Necessity:
    """Plan the directions to erase, the texts generated without them, the scores of these texts, and the probes.

    Args:
        plan: The complete run that has steered along the vector.
        candidates: The vector, then the best other candidates of its layer.
        artifacts: The store that has the directions of the run.
        reads_later: Whether the test passages are read again without the vector, for D1 at later layers.
    """
    draft, scope, steering = Draft(), plan.scope, plan.steered
    (concept,) = plan.vectors.concepts
    probes, vectors, best = plan.probes.concepts[concept], plan.vectors.concepts[concept], candidates[0]
    nulls = steering.texts.concepts[concept].nulls
    sources = [(probes.directions[CellRole(one.strategy, one.layer)], one.construction) for one in candidates]
    erased = {VECTOR: directions_step(artifacts, sources[:1])}
    if len(sources) >= 2:
        erased[SUBSPACE] = directions_step(artifacts, sources[:RANK])
    for place in range(NUM_RANDOM):
        erased[f"{RANDOM}_{place}"] = directions_step(artifacts, [(nulls, f"null_{place:03}")], sources[0])
    directions = {name: draft.add_local(step) for name, step in erased.items()}

    erasing: dict[str, Any] = {"operation": "erase", "alpha_unit": "absolute", "positions": "all"}
    passages, seed = vectors.passages["test"], scope.config.seed
    halves = {label: draft.add_local(halves_step(artifacts, passages, label, seed)) for label in (0, 1)}

    def texts_of(label: int, named: Mapping[str, str | None]) -> dict[str, str]:
        share = 0.0 if UNSTEERED in named else 1.0
        texts = generate(scope, draft, {PROMPTS(): halves[label]}, named, (share,), **erasing)
        return {name: keys.texts for name, keys in texts.items()}

    texts = texts_of(1, {UNSTEERED: None}) | texts_of(1, directions)
    texts[_WITHOUT] = texts_of(0, {UNSTEERED: None})[UNSTEERED]
    scored = plan_scored(draft, steering.scorers, [concept], texts)

    probing = {prober.ERASED(name): key for name, key in directions.items()}
    for split in ("train", "test"):
        at = SplitCell(split, best.strategy, best.layer)
        probing |= {prober.PASSAGES(split): vectors.passages[split], prober.VECTORS(*at): vectors.vectors[at]}
    component = plan.components.keys.get(CellRole(best.strategy, best.layer))
    probing |= {} if component is None else {prober.COMPONENT(best.strategy, best.layer): component}
    few: dict[str, Any] = {"sensitivity_c": (), "num_permutations": 1, "num_control_words": 1}
    few |= {"num_bootstrap": scope.config.budget.num_bootstrap, **scope.config.sink_settings}
    params = prober.ProbeParams(concept=concept, seed=seed, **few)
    auroc = draft.add(prober.ERASE, params, probing, [prober.ERASED_MEASURES()])[prober.ERASED_MEASURES()]
    later = _plan_later(plan, draft, best, directions, params) if reads_later else {}
    return Necessity(draft.work, scored, passages, auroc, later)


def _plan_later(
    plan: ConceptsPlan, draft: Draft, best: Candidate, directions: Mapping[str, str], params: prober.ProbeParams
) -> dict[int, dict[str, str]]:
    """Plan D1 at the run's later layers, or else at the last block, while a direction is erased from the model.

    Return the keys by layer and by erased direction. Strategies that read the states of every token have no keys.
    """
    scope, (vectors,), last = plan.scope, plan.vectors.concepts.values(), plan.scope.model.num_blocks - 1
    above = [layer for layer in scope.layers if layer > best.layer] or [last] * (last > best.layer)
    if not above or best.strategy in {spec.id for spec in scope.state_readers}:
        return {}
    inputs = {PASSAGES(): vectors.passages["test"], ANNOTATIONS(): vectors.annotations["test"]}
    inputs |= {FREQUENCIES(): plan.vectors.frequencies} if plan.vectors.frequencies else {}
    reading, keys = extract_params(scope, vectors.concept.triggers, above), dict[int, dict[str, str]]()
    erasing = reading.model_copy(update={"erased_layer": best.layer})
    for name in (prober.ERASED_NOTHING, VECTOR, f"{RANDOM}_0"):
        erased = {DIRECTIONS_ROLE(): directions[name]} if name in directions else {}
        roles = {layer: VECTORS(best.strategy, layer) for layer in above}
        pooled = draft.add(EXTRACT, erasing if erased else reading, {**inputs, **erased}, roles.values())
        for layer, role in roles.items():
            at = SplitCell("test", best.strategy, layer)
            probing = {prober.PASSAGES("test"): vectors.passages["test"], prober.VECTORS(*at): pooled[role]}
            if (component := plan.components.keys.get(at.cell)) is not None:
                probing[prober.COMPONENT(*at.cell)] = component
            outputs = draft.add(prober.ERASE, params, probing, [prober.ERASED_MEASURES()])
            keys.setdefault(layer, {})[name] = outputs[prober.ERASED_MEASURES()]
    return keys


def necessity_measures(
    stage: Necessity, source: RowSource, scorer: GatedScorer, rules: SteeringRules
) -> Iterator[CardMeasure]:
    """Yield the measures of necessity for the card.

    These are the drops of the concept's score after the vector, random directions or the subspace is erased, the mean
    scores of openings with and without the concept, and the AUROCs of probes after each erasure.
    """

    def scored(*names: str) -> Scored:
        return scored_of(source, *(stage.scored[name] for name in names))

    def drop(*names: str) -> Callable[[str], Measure]:
        return lambda metric: paired_gain(
            metric, scored(UNSTEERED), scored(*names), scorer, rules, _groups(source.required(stage.passages))
        )

    figures = {
        "drop": drop(VECTOR),
        RANDOM: drop(*(name for name in stage.scored if name.startswith(RANDOM))),
        "score": lambda metric: _mean_score(metric, scored(UNSTEERED)[1], scorer),
        "score_without_concept": lambda metric: _mean_score(metric, scored(_WITHOUT)[1], scorer),
    }
    if SUBSPACE in stage.scored:
        figures[f"drop_rank{RANK}"] = drop(SUBSPACE)
    for name, read in figures.items():
        yield figure(f"necessity.{name}", read)
    yield from _aurocs(stage, source)
    for layer, keys in stage.later.items():
        for erased, key in keys.items():
            name = f"necessity.auroc_later_{layer}{_LATER[erased]}"
            try:
                (row,) = source.required(key).to_pylist()
                yield CardMeasure.of_row(name, row)
            except CellError as error:
                yield card_measure(Measure.failed(name, error))


def _aurocs(stage: Necessity, source: RowSource) -> Iterator[CardMeasure]:
    """Yield the AUROC after each erasure. For random directions, yield the mean of their AUROCs."""
    try:
        rows = {json.loads(row["params"])["erased"]: row for row in source.required(stage.auroc).to_pylist()}
    except CellError as error:
        yield card_measure(Measure.failed("necessity.auroc", error))
        return
    for suffix, name in _AUROCS.items():
        if name in rows:
            yield CardMeasure.of_row(f"necessity.auroc{suffix}", rows[name])
    random = [row for name, row in rows.items() if name.startswith(RANDOM)]
    if not random:
        return
    metric, null = "necessity.auroc_random", next((row for row in random if row["value"] is None), None)
    if null is None:
        yield card_measure(Measure.of(metric, np.mean([row["value"] for row in random]), n=len(random)))
    else:
        yield card_measure(Measure.null(metric, null["status"], null["reason"], n=len(random)))


#: Ends of the names of measures at later layers, by what is erased.
_LATER = {prober.ERASED_NOTHING: "_whole", VECTOR: "", f"{RANDOM}_0": "_random"}
_AUROCS = {"": prober.ERASED_NOTHING, "_erased": VECTOR, f"_rank{RANK}": SUBSPACE, "_leace": prober.LEACE}


def _mean_score(metric: str, scores: pa.Table, scorer: GatedScorer) -> Measure:
    scorer.require_valid()
    values = scores.filter(pc.equal(scores["scorer"], scorer.concept))["score"].drop_null()
    return Measure.of(metric, float(np.mean(values.to_numpy())) if len(values) else np.nan, n=len(values))


def necessity_of(
    selection: Selection, plan: ConceptsPlan, session: Session, display: Display, *, reads_later: bool = False
) -> list[CardMeasure]:
    """Measure how necessary the chosen vector is. A repeated search does not send the tasks again.

    Args:
        plan: The run that has steered along the vector.
        reads_later: See `plan_necessity`.
    """
    others = [one for one in selection.gains if one.layer == selection.chosen.layer and one != selection.chosen]
    stage = plan_necessity(plan, [selection.chosen, *others], session.artifacts, reads_later)
    return read_stage(plan, stage, partial(necessity_measures, stage), "necessity.drop", session, display)


def necessity_part(card: VectorCard) -> Iterator[Part]:
    """Yield the table of losses when the vector is erased. Yield nothing if the card does not have these measures."""
    by_name = {measure.name.removeprefix("necessity."): measure for measure in card.measures}
    if "drop" not in by_name:
        return
    score = by_name["score"].value if "score" in by_name else None

    def cells(drop: str, auroc: str) -> list[Cell]:
        measure, left = by_name.get(drop), _figure(by_name.get(auroc))
        if measure is None or measure.value is None or score is None:
            return [Cell(), _figure(measure), Cell(), left]
        bounds = interval((measure.ci_low, measure.ci_high), "+.3f")
        return [number(score - measure.value), Cell(f"{measure.value:+.3f}", measure.value), Cell(bounds), left]

    lines = [
        Line.of("nothing", _figure(by_name.get("score")), "", "", _figure(by_name.get("auroc"))),
        Line.of("the vector", *cells("drop", "auroc_erased")),
        Line.of(f"up to {RANK} best vectors of the layer", *cells(f"drop_rank{RANK}", f"auroc_rank{RANK}")),
        Line.of(f"a random direction, mean of {NUM_RANDOM}", *cells(RANDOM, "auroc_random")),
        Line.of("all that a linear probe reads (LEACE)", *cells("", "auroc_leace")),
        Line.of("nothing, on openings without the concept", _figure(by_name.get("score_without_concept")), "", "", ""),
    ]
    note = (
        "Texts carry on first halves of test passages with the concept, drawn from all domains, while the layer's "
        "states lose what is named, at every position. Intervals resample pairs and documents. Probes are fitted and "
        "read in folds of the test passages, at the same layer. Random directions are those of permuted labels without "
        "their projection on the vector. LEACE takes all that a linear probe reads of the train passages (Belrose et "
        "al. 2023); fitted on few, it takes less from others."
    )
    heads: Heads = [Column("erased", is_text=True), "score", "drop", "95 % interval", "AUROC left"]
    tables = [Table.of(heads, lines, note=note)]
    layers = [int(name.rpartition("_")[2]) for name in by_name if re.fullmatch(r"auroc_later_\d+", name)]
    if layers:
        later_lines = [
            Line.of(str(layer), *(_figure(by_name.get(f"auroc_later_{layer}{end}")) for end in _LATER.values()))
            for layer in layers
        ]
        note = "AUROC at later layers, while the model reads the test passages without it at the layer of the vector."
        columns: Heads = ["layer", "nothing erased", "the vector", "a random direction"]
        tables.append(Table.of(columns, later_lines, note=note))
    yield Part("necessity", "What is lost without it", tables, "Necessity")


def _figure(measure: CardMeasure | None) -> Cell:
    """Return the cell of a figure, or of null with the reason. The cell is empty if the card lacks the figure."""
    if measure is None:
        return Cell()
    if measure.value is None:
        return Cell("null", note=f"{measure.status}: {measure.reason or ''}")
    return number(measure.value)


def directions_step(artifacts: Artifacts, sources: Sequence[_Source], free_of: _Source | None = None) -> LocalStep:
    """Return the step that stores directions to erase together, without their projection on `free_of` if given."""
    params = DirectionsParams(ids=[name for _, name in sources], free_of=free_of[1] if free_of else None)
    inputs = {f"directions/{number}": key for number, (key, _) in enumerate(sources)}
    inputs |= {"free_of": free_of[0]} if free_of else {}

    def build() -> pa.Table:
        vectors = [direction_vector(artifacts.read_table(key), name) for key, name in sources]
        matrix_kD = np.stack(vectors)
        if free_of is not None:
            other = direction_vector(artifacts.read_table(free_of[0]), free_of[1])
            matrix_kD = without_directions(matrix_kD, other[None])
            matrix_kD /= np.linalg.norm(matrix_kD, axis=1, keepdims=True)
        rows = [
            {"direction_id": f"{number}", "vector": vector.tolist(), "raw_norm": 1.0}
            for number, vector in enumerate(matrix_kD.astype(np.float32))
        ]
        return table_from_rows(rows, directions_schema(matrix_kD.shape[1]))

    return LocalStep(DIRECTIONS_STEP.key(TABLE(), params, inputs), "directions to erase", build, lambda: len(sources))


def _groups(passages: pa.Table) -> dict[str, int]:
    """Return the group of each passage, the connected components of matched pair and document that D1 resamples."""
    groups = connected_groups(passages["pair_id"].to_pylist(), passages["doc_id"].to_pylist())
    return dict(zip(passages["passage_id"].to_pylist(), groups.tolist(), strict=True))


def halves_step(artifacts: Artifacts, passages: str, label: int, seed: int) -> LocalStep:
    """Return the step that stores the first halves of some passages of a class, in words, as openings.

    Passages are drawn from the domains in turn, because neighbouring passages are of one domain and of few documents.
    """
    params = HalvesParams(label=label, count=NUM_OPENINGS, seed=seed)

    def build() -> pa.Table:
        table = artifacts.read_table(passages).filter(pc.field("label") == label).sort_by("passage_id")
        by_domain = defaultdict[str, list[Row]](list)
        for row in table.take(np.random.default_rng(seed).permutation(table.num_rows)).to_pylist():
            by_domain[row["domain"]].append(row)
        in_turn = filter(None, chain.from_iterable(zip_longest(*by_domain.values())))  # one of each domain
        rows = list(islice(in_turn, NUM_OPENINGS))
        words = [row["text"].split() for row in rows]
        halves = [" ".join(some[: max(1, len(some) // 2)]) for some in words]
        openings = [{"prompt_id": row["passage_id"], "text": half} for row, half in zip(rows, halves, strict=True)]
        return table_from_rows(openings, PROMPTS_TABLE)

    key = HALVES.key(TABLE(), params, {"passages": passages})
    return LocalStep(key, "halves of passages", build, lambda: NUM_OPENINGS)
