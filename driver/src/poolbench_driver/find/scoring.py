"""Texts and scores beside those of a search's runs, and figures of them that are null with a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import CellError, CorpusError, UnknownConceptError
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import absent_concepts
from poolbench_driver.find.figures import card_measure
from poolbench_driver.loop import RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.prompting import Scored
from poolbench_driver.measures.response import SteeringRules, rules_of
from poolbench_driver.records import run_id as id_of_run
from poolbench_driver.records.record import RunRecords
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.stages.stage import Draft, Plan, PlannedWork, Stage, committed_keys
from poolbench_driver.stages.steering import Scorers, plan_scorers, plan_scores_of
from poolbench_driver.vectors.card import CardMeasure

#: Reads measures of a stage that has run: committed artifacts and failures, the concept's scorer, and settings.
Reader = Callable[[RowSource, GatedScorer, SteeringRules], Iterable[CardMeasure]]


class ScoredKeys(NamedTuple):
    """Keys of texts and of their scores."""

    texts: str
    scores: str


def plan_scored(
    draft: Draft, scorers: Scorers, names: Sequence[str], texts: Mapping[str, str]
) -> dict[str, ScoredKeys]:
    """Plan one task in which the scorers of `names` read texts. Return the keys by the name of the texts."""
    scores = plan_scores_of(draft, scorers, names, texts)
    return {name: ScoredKeys(key, scores[name]) for name, key in texts.items()}


def send(plan: ConceptsPlan, session: Session, display: Display, *stages: Stage, run_id: str = "") -> RowSource:
    """Send the uncommitted tasks of stages that follow a run, and return the source of their tables.

    The record of the run names the artifacts of these stages, so that `gc` keeps the artifacts as long as the run.
    """
    work = Plan.of(plan.config, plan.facts, *stages)
    RunRecords(session.artifacts.store).keep(run_id or id_of_run(work.config), work.keys)
    loop = RunLoop(work, session.artifacts, session.queue, session.leases, display, run_id=run_id)
    return RowSource(session.artifacts, loop.run(), work.producers)


def read_stage(
    plan: ConceptsPlan, stage: Stage, read: Reader, first: str, session: Session, display: Display
) -> list[CardMeasure]:
    """Run a stage that follows a run and return its measures. If the stage cannot run, the measure `first` is null."""
    (concept,) = plan.vectors.concepts
    try:
        source = send(plan, session, display, Stage(plan.work), stage)
        return list(read(source, gated(concept, plan.steered.scorers, source), rules_of(plan.scope.config)))
    except CellError as error:  # what the driver itself makes could not be made, or the scorer has no gate
        return [card_measure(Measure.failed(first, error))]


def scored_of(source: RowSource, *keys: ScoredKeys) -> Scored:
    """Return texts and scores as two tables. Raise CellError, with the reason, if a table was not made."""
    texts, scores = ([source.required(key) for key in column] for column in zip(*keys, strict=True))
    return pa.concat_tables(texts), pa.concat_tables(scores)


def gated(concept: str, scorers: Scorers, source: RowSource) -> GatedScorer:
    """Return the scorer of a concept with its gate. Raise CellError if the gate has no figures."""
    return GatedScorer.from_gate(concept, source.required(scorers.concepts[concept].gate).to_pylist())


def figure(metric: str, read: Callable[[str], Measure]) -> CardMeasure:
    """Return a figure for a card. If reading raises CellError, the figure is null with the reason."""
    try:
        return card_measure(read(metric))
    except CellError as error:
        return card_measure(Measure.failed(metric, error))


def scorers_of(
    plan: ConceptsPlan, concept: str, names: Sequence[str], session: Session, *, train: bool
) -> tuple[Scorers, dict[str, str]]:
    """Return the scorers of other concepts, and by concept id the reasons why scorers are lacking.

    Args:
        plan: The plan of a run of `concept`.
        train: Whether to plan the training of scorers that the store does not have. Otherwise, these are lacking.
    """
    scope = plan.scope
    beside_own = bool(CONCEPTS.get(concept).corpus)
    lacking = absent_concepts(scope.config, names, beside_own=beside_own) if train else {}
    registered = [name for name in names if name not in lacking]
    config = scope.config.model_copy(update={"concepts": tuple(registered), "metrics": ("d2",)})
    try:
        scorers = plan_scorers(replace(scope, config=config))
    except (UnknownConceptError, CorpusError) as error:  # a concept that was removed, or has no passages
        return Scorers(PlannedWork(), {}), lacking | dict.fromkeys(registered, str(error))
    if train:
        return scorers, lacking
    present = committed_keys(session.artifacts)
    at_hand = {name: keys for name, keys in scorers.concepts.items() if {keys.scorer, keys.gate} <= present}
    remedy = "the store has no scorer of it; --side-effects names concepts whose scorers are trained"
    return Scorers(PlannedWork(), at_hand), lacking | {name: remedy for name in registered if name not in at_hand}
