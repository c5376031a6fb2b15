"""Side effects of a vector that was found: scorers of other concepts are trained, gated and read as ordinary tasks."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from driver.tests.find.test_baselines import LAYER, plan_of
from driver.tests.loop_bench import Bench, Consumer, Notes, consuming, job_of
from driver.tests.test_find import simulated

from poolbench.concepts import CONCEPTS, Neighbours
from poolbench.contracts.measures import GatedScorer
from poolbench.contracts.tables import SCORES, TEXTS, table_from_rows
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, ConfigError, UnknownConceptError
from poolbench.worker.worker import Worker
from poolbench_corpora.planted import build_planted
from poolbench_driver.cluster.session import Session
from poolbench_driver.find.held_out import HeldOutText, held_out_texts, text_keys
from poolbench_driver.find.scoring import scorers_of
from poolbench_driver.find.selection import Candidate, Selection, select
from poolbench_driver.find.side_effects import SideEffects, checked_concepts, side_effect
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_scorer.classifiers.scorer import load_scorer
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.service import ScorerService

CONCEPT, STRATEGY, STRENGTH = "contrast", "A1_mean", 0.2
OTHER, LACKING = CONCEPTS.get(CONCEPT).neighbours
OPENINGS = [f"o{number}" for number in range(10)]
READ = OPENINGS[3:]


@pytest.fixture
def plan() -> ConceptsPlan:
    sizes = ("budget.num_train=40", "budget.num_test=60", "budget.num_scorer=80", "budget.num_bootstrap=200")
    return plan_of(sizes)


@pytest.fixture
def selection() -> Selection:
    selection = select(simulated(np.random.default_rng(0), np.array([0.4])), SteeringRules(num_bootstrap=100))
    return replace(selection, chosen=Candidate(LAYER, STRATEGY, STRATEGY, "C1"), strength=STRENGTH, openings=READ)


@pytest.fixture
def bench(tmp_path: Path, plan: ConceptsPlan) -> Bench:
    """A store with texts: the steered ones are passages with another concept, the unsteered ones are without it."""
    bench = Bench(tmp_path)
    bench.service = ScorerService(lambda: bench.artifacts)  # type: ignore[assignment]
    test = build_planted(OTHER, num_train=2, num_test=60, num_scorer=2, seed=9).to_pylist()
    sides = [[row["text"] for row in test if row["label"] == label and row["split"] == "test"] for label in (0, 1)]
    for name, key in text_keys(plan, CONCEPT, STRATEGY).items():
        strengths = (0.0,) if name == UNSTEERED else (0.1, STRENGTH)
        rows = [
            {
                "text_id": f"{name}/{strength}/{opening}", "prompt_id": opening, "strength": strength,
                "prompt": f"Opening {opening}", "text": sides[strength == STRENGTH][number],
            }
            for number, opening in enumerate(OPENINGS)
            for strength in strengths
        ]  # fmt: skip
        bench.artifacts.write_table(key, table_from_rows(rows, TEXTS))
    return bench


@pytest.fixture
def folder(tmp_path: Path, plan: ConceptsPlan, bench: Bench) -> Run:
    folder = create_run(tmp_path / "runs", plan.scope.config)
    rows = [
        {
            "concept": None if name == UNSTEERED else CONCEPT, "name": name, "scorer": scorer, "score": score,
            "text_id": row["text_id"], "prompt_id": row["prompt_id"], "strength": row["strength"],
        }
        for name, key in text_keys(plan, CONCEPT, STRATEGY).items()
        for row in bench.artifacts.read_table(key).to_pylist()
        for scorer, score in ((CONCEPT, row["strength"]), ("another", 0.0))
    ]  # fmt: skip
    write_table(folder, "text_scores", pa.Table.from_pylist(rows))
    return folder


@pytest.fixture
def texts(plan: ConceptsPlan, folder: Run, bench: Bench, selection: Selection) -> list[HeldOutText]:
    return held_out_texts(plan, folder, bench.artifacts, CONCEPT, selection)


def test_the_texts_are_those_of_the_held_out_openings_at_the_chosen_strength(texts: list[HeldOutText]) -> None:
    assert [text.prompt_id for text in texts] == [*READ, *READ]
    assert [text.is_steered for text in texts] == [True] * 7 + [False] * 7
    assert {(text.is_steered, text.score) for text in texts} == {(True, STRENGTH), (False, 0.0)}
    assert texts[0].prompt == "Opening o3" and texts[0].text_id == f"{STRATEGY}/{STRENGTH}/o3"


@pytest.mark.lane(name="series")
def test_scorers_are_trained_on_request_and_read_the_texts_in_one_task(
    bench: Bench, plan: ConceptsPlan, texts: list[HeldOutText]
) -> None:
    effects, session = SideEffects(plan, "run", CONCEPT, STRATEGY, texts), job_of(bench, plan).session
    notes = Notes()
    assert [m.status for m in effects.measures((), session, notes)] == ["no_scorer"] * 2 and not notes.finished

    scorers, _ = scorers_of(plan, CONCEPT, [OTHER], session, train=True)
    keys = scorers.concepts[OTHER]
    test = build_planted(OTHER, num_train=2, num_test=60, num_scorer=2, seed=0).to_pylist()
    continued = [
        {"text_id": f"c{number}", "prompt_id": row["passage_id"], "text": row["text"][-200:]}
        for number, row in enumerate(row for row in test if row["split"] == "test")
    ]
    bench.artifacts.write_table(keys.continuations, table_from_rows(continued, TEXTS))
    (measure,) = run(bench, effects, [OTHER], session, notes)
    assert len(notes.finished) == 3 and len(notes.reused) == 1, notes.failures
    files = bench.artifacts.manifest(keys.scorer).files
    scorer = load_scorer(lambda name: bench.artifacts.read(keys.scorer, name), list(files), torch.device("cpu"))
    scores = score_texts({OTHER: scorer}, [text.text for text in texts])[OTHER]
    assert measure.name == f"side_effects.{OTHER}" and measure.n == 7
    assert measure.value == pytest.approx(scores[:7].mean() - scores[7:].mean(), abs=1e-5)
    assert measure.ci_low is not None and measure.ci_low > 0.2

    again = Notes()
    assert effects.measures([OTHER], session, again) == [measure]
    assert not again.finished and len(again.reused) == 4
    lacking, same = effects.measures((), session, Notes())
    assert same == measure and (lacking.name, lacking.status) == (f"side_effects.{LACKING}", "no_scorer")
    assert "--side-effects names concepts" in str(lacking.reason)


def run(bench: Bench, effects: SideEffects, names: list[str], session: Session, notes: Notes) -> list:  # type: ignore[type-arg]
    with consuming([Consumer(bench.queue, Worker(bench.service, bench.artifacts, bench.leases))]):
        return effects.measures(names, session, notes)


def test_the_rise_is_paired_and_needs_a_valid_scorer_and_openings(texts: list[HeldOutText]) -> None:
    rng = np.random.default_rng(1)
    rows = [{"text_id": text.text_id, "scorer": s, "score": rng.random()} for text in texts for s in (OTHER, CONCEPT)]
    rows += [{"text_id": "of/another/opening", "scorer": OTHER, "score": 1.0}]
    table, rules = table_from_rows(rows, SCORES), SteeringRules(num_bootstrap=200)
    score_of = {row["text_id"]: row["score"] for row in rows if row["scorer"] == OTHER}
    rises = [score_of[a.text_id] - score_of[b.text_id] for a, b in zip(texts[:7], texts[7:], strict=True)]
    assert side_effect(GatedScorer(OTHER), texts, table, rules).value == pytest.approx(np.mean(rises))
    few = [text for text in texts if text.is_steered or text.prompt_id in READ[:3]]
    with pytest.raises(CellError, match="only 3 openings"):
        side_effect(GatedScorer(OTHER), few, table, rules)
    with pytest.raises(CellError, match="failed its gate") as caught:
        side_effect(GatedScorer(OTHER, "scorer_invalid", "it failed its gate"), texts, table, rules)  # type: ignore[arg-type]
    assert caught.value.status == "scorer_invalid"


def test_a_neighbour_that_was_removed_is_a_null(
    bench: Bench, plan: ConceptsPlan, texts: list[HeldOutText], monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = replace(CONCEPTS.get(CONCEPT), id="lonely", neighbours=Neighbours("removed"))
    monkeypatch.setattr(CONCEPTS, "find", lambda name: lonely if name == "lonely" else None)
    effects = SideEffects(plan, "run", "lonely", STRATEGY, texts)
    (measure,) = effects.measures((), job_of(bench, plan).session, Notes())
    assert measure.status == "no_scorer" and "unknown concept 'removed'" in str(measure.reason)


def test_names_are_checked_before_any_work() -> None:
    assert checked_concepts([OTHER, OTHER], CONCEPT) == (OTHER,)
    with pytest.raises(ConfigError, match="name other concepts"):
        checked_concepts([CONCEPT], CONCEPT)
    with pytest.raises(UnknownConceptError, match="hedging"):
        checked_concepts(["hedgin"], CONCEPT)
