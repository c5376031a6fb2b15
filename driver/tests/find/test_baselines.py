"""Baselines beside a vector: how their gains are read, what is sent for them, and the table of the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.test_find import RULES, grid, lazily_read, simulated
from driver.tests.vector_cards import vector_of

from poolbench.contracts.measures import GatedScorer
from poolbench.contracts.tables import (
    FLUENCY,
    PASSAGES,
    SCORES,
    TEXTS,
    directions_schema,
    table_from_rows,
    vector_matrix,
    vectors_schema,
)
from poolbench.directions.pairs import pairs_by_id
from poolbench.errors import CellError
from poolbench.pooling.registry import STRATEGIES
from poolbench.statuses import Status
from poolbench.steps.roles import Cell, SplitCell
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import openings_step
from poolbench_driver.find.baselines import (
    Baseline,
    Baselines,
    LikelyKeys,
    baseline_measures,
    baselines_part,
    pair_step,
    plan_baselines,
    shots_step,
    steered_gain,
)
from poolbench_driver.find.necessity import plan_necessity
from poolbench_driver.find.selection import Candidate, select
from poolbench_driver.find.settings import FindSettings
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_driver.stages.steering import Texts
from poolbench_driver.vectors.card import CardMeasure, Strength

LAYER, BEST = 3, Candidate(3, "A1_mean", "A1_mean", "C1")
#: Rows of passages: ids, labels and pairs. The first positive by id has its pair at the end.
ROWS = [("b", 1, "2"), ("a", 1, "1"), ("c", 0, "2"), ("d", 0, "1")]


def test_the_gain_of_one_direction_is_that_of_a_vector() -> None:
    grids = simulated(np.random.default_rng(3), np.array([0.4]))
    selection, measure = select(grids, RULES), steered_gain("baseline.pca", list(grids.values()), RULES)
    assert (measure.strength, measure.n) == (selection.strength, selection.num_openings)
    assert measure.value == pytest.approx(selection.gain)
    assert (measure.ci_low, measure.ci_high) == pytest.approx(selection.interval)


def test_the_gain_of_random_directions_is_their_mean_each_at_its_strength() -> None:
    grids = list(simulated(np.random.default_rng(4), np.array([0.1, 0.3, -0.2])).values())
    measures = [steered_gain("x", [one], RULES) for one in grids]
    mean = steered_gain("baseline.random", grids, RULES)
    assert mean.value == pytest.approx(np.mean([one.value for one in measures])) and mean.strength is None
    rng = np.random.default_rng(0)
    broken = grid(np.array([0, 2, 2, 2.0]), np.zeros((40, 4)), rng.normal(0.3, 0.1, 40), ratio=3.0)
    half = steered_gain("baseline.random", [grids[0], broken], RULES)  # as in D2, one that is not fluent gains 0
    assert half.value == pytest.approx(measures[0].value / 2)
    with pytest.raises(CellError, match="not fluent"):
        steered_gain("baseline.pca", [broken], RULES)
    with pytest.raises(CellError, match="no text was steered"):
        steered_gain("baseline.random", [], RULES)


def test_an_opening_that_one_direction_lacks_does_not_move_the_strength_of_another() -> None:
    """The good one gains .3 at its own strength .2, the weak one .05."""
    assert steered_gain("baseline.random", lazily_read(), RULES).value == pytest.approx((0.3 + 0.05) / 2)


def test_pairs_are_matched_ones_or_follow_the_ids() -> None:
    ids, labels, pair_ids = ([row[n] for row in ROWS] for n in range(3))
    matched = pairs_by_id(ids, pair_ids, np.array(labels))
    assert [(ids[p], ids[n]) for p, n in matched] == [("a", "d"), ("b", "c")]
    unmatched = pairs_by_id(ids, [None] * 4, np.array(labels))
    assert [(ids[p], ids[n]) for p, n in unmatched] == [("a", "c"), ("b", "d")]
    assert len(pairs_by_id(ids, [None] * 4, np.ones(4, dtype=int))) == 0


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    store = Artifacts(FolderStore(tmp_path))
    rows = [{"passage_id": i, "label": label, "pair_id": pair, "text": i * 5} for i, label, pair in ROWS]
    store.write_table("passages", table_from_rows(rows, PASSAGES))
    numbers = {"d": [1.0, 1.0], "c": [9.0, 9.0], "b": [7.0, 7.0], "a": [4.0, 5.0]}
    vectors = [{"passage_id": name, "vector": vector, "status": "ok"} for name, vector in numbers.items()]
    store.write_table("vectors", table_from_rows(vectors, vectors_schema(2)))
    return store


def test_one_pair_gives_its_difference_as_a_unit_vector(artifacts: Artifacts) -> None:
    table = pair_step(artifacts, "passages", "vectors").build()
    np.testing.assert_allclose(vector_matrix(table["vector"]), [[0.6, 0.8]], rtol=1e-6)
    assert table["direction_id"].to_pylist() == ["actadd"] and table["raw_norm"].to_pylist() == [5.0]
    failed = [{"passage_id": name, "vector": None, "status": "failed", "reason": "window"} for name in "abcd"]
    artifacts.write_table("failed", table_from_rows(failed, vectors_schema(2)))
    with pytest.raises(CellError) as refused:
        pair_step(artifacts, "passages", "failed")
    assert refused.value.status == Status.NON_FINITE


def test_examples_stand_before_each_opening(artifacts: Artifacts) -> None:
    openings = openings_step("neutral-54", 4, 1, 0)
    with pytest.raises(CellError, match="2 train passages with the concept; 3 are needed"):
        shots_step(artifacts, "passages", openings)
    rows = [
        {"passage_id": f"p{n}", "label": int(n != 3), "text": "word " * length}
        for n, length in enumerate((9, 2, 3, 1, 2))
    ]
    artifacts.write_table("more", table_from_rows(rows, PASSAGES))
    table = shots_step(artifacts, "more", openings).build()
    for row, opening in zip(table.to_pylist(), openings.build().to_pylist(), strict=True):
        assert row["prompt_id"] == opening["prompt_id"]
        assert row["text"] == "\n\n".join(["word " * 2, "word " * 2, "word " * 3, opening["text"]])


SIZES = ("budget.num_train=40", "budget.num_test=20", "budget.num_bootstrap=50")


def plan_of(sets: tuple[str, ...] = SIZES, **settings: Any) -> ConceptsPlan:
    search = FindSettings(concept="contrast", model="demo", budget="small", corpus="planted", sets=sets, **settings)
    config = search.steering(LAYER, ["A1_mean"])
    model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: nobody is asked
    return make_plan(Scope(config, model, (STRATEGIES.get("A1_mean"),), annotator_version("annotator")))


@pytest.fixture
def store(tmp_path: Path) -> Artifacts:
    """A store with what plans of `plan_of` read."""
    store, plan = Artifacts(FolderStore(tmp_path / "store")), plan_of()
    (vectors,) = plan.vectors.concepts.values()
    table = plan.local[vectors.passages["train"]].build()
    assert isinstance(table, pa.Table)
    store.write_table(vectors.passages["train"], table)
    numbers = np.random.default_rng(0).normal(size=(table.num_rows, 4)).astype(np.float32)
    rows = [
        {"passage_id": name, "vector": vector.tolist(), "status": "ok"}
        for name, vector in zip(table["passage_id"].to_pylist(), numbers, strict=True)
    ]
    store.write_table(vectors.vectors[SplitCell("train", "A1_mean", LAYER)], table_from_rows(rows, vectors_schema(4)))
    return store


def test_what_a_run_has_steered_along_is_not_sent_again(store: Artifacts) -> None:
    plan = plan_of()
    stage = plan_baselines(plan, BEST, store)
    assert set(stage.by_name) == {
        "random", "trained", "pca", "probe", "pair_pca", "lda", "sae", "actadd", "few_shot", "prompting",
    }  # fmt: skip
    with_further = plan_of(constructions=("C1", "C2"))
    run_keys = {key for task in with_further.tasks.values() for key in task.outputs.values()}
    keys = {name: one for name, one in stage.by_name.items() if isinstance(one, Baseline)}
    assert {keys["pca"].raised.texts.texts, keys["pca"].raised.scores} <= run_keys
    assert keys["lda"].raised.texts.texts not in run_keys
    assert keys["pca"].table == plan.probes.concepts["contrast"].directions[Cell("A1_mean", LAYER)]
    again = plan_baselines(plan, BEST, store)
    assert again.work.tasks.keys() == stage.work.tasks.keys() and again.by_name.keys() == stage.by_name.keys()
    half = plan.scope.config.budget.num_openings // 2
    assert len(stage.openings) == half
    other = plan_baselines(plan, replace(BEST, construction="LDA"), store)
    assert "lda" not in other.by_name and isinstance(other.by_name["mean_difference"], Baseline)


def test_later_layers_are_read_from_the_run_and_once_more_without_the_direction(store: Artifacts) -> None:
    plan = plan_of(layers=(2, LAYER, 4))
    stage = plan_necessity(plan, [BEST], store, reads_later=True)
    assert not plan_necessity(plan, [BEST], store).later
    assert stage.later.keys() == {4} and stage.later[4].keys() == {"nothing", "vector", "random_0"}
    run_keys = {key for task in plan.tasks.values() for key in task.outputs.values()}
    by_key = {key: task for task in stage.work.tasks.values() for key in task.outputs.values()}
    for name, key in stage.later[4].items():
        pooled = by_key[key].inputs["test/A1_mean/4"]
        extracting = by_key[pooled]
        assert (pooled in run_keys) is (name == "nothing") and set(extracting.outputs) == {"A1_mean/4"}
        assert extracting.params.get("erased_layer") == (None if name == "nothing" else LAYER)
        assert ("directions" in extracting.inputs) is (name != "nothing")
    last = plan.scope.model.num_blocks - 1
    assert plan_necessity(plan_of(layers=(2,)), [BEST], store, reads_later=True).later.keys() == {last}
    assert not plan_necessity(plan_of(layers=(last,)), [replace(BEST, layer=last)], store, reads_later=True).later


def test_a_prompted_run_has_its_own_figure(store: Artifacts) -> None:
    assert isinstance(plan_baselines(plan_of(), BEST, store).by_name["prompting"], CellError)
    prompting = plan_baselines(plan_of((*SIZES, "prompted=true")), BEST, store).by_name["prompting"]
    assert isinstance(prompting, Baseline) and prompting.table is None


def test_measures_read_held_out_openings_and_nulls_have_reasons(artifacts: Artifacts) -> None:
    names = [f"o{n:02}" for n in range(16)]
    openings = names[8:]

    def write(name: str, scores: list[float], strength: float = 0.0) -> LikelyKeys:
        texts = [
            {
                "text_id": f"{name}-{p}", "prompt_id": p, "direction_key": name, "strength": strength,
                "num_tokens": 5, "repeated_4grams": 0.0,
            }
            for p in names
        ]  # fmt: skip
        artifacts.write_table(f"{name}.texts", table_from_rows(texts, TEXTS))
        fluency = [{"text_id": row["text_id"], "mean_nll": 2.0, "num_tokens": 5} for row in texts]
        artifacts.write_table(f"{name}.fluency", table_from_rows(fluency, FLUENCY))
        rows = [
            {"text_id": row["text_id"], "scorer": "contrast", "score": score}
            for row, score in zip(texts, scores, strict=True)
        ]
        artifacts.write_table(f"{name}.scores", table_from_rows(rows, SCORES))
        return LikelyKeys(Texts(f"{name}.texts", f"{name}.fluency"), f"{name}.scores")

    base = write("base", [0.2] * 16)
    raised, steered = write("few", [0.9] * 8 + [0.5] * 8), write("lda", [0.4] * 16, 0.5)
    rows = [
        {"direction_id": "LDA", "vector": [1.0, 0.0], "status": "ok"},
        {"direction_id": "C2", "vector": None, "status": "collapsed", "reason": "all the same"},
    ]
    artifacts.write_table("directions", table_from_rows(rows, directions_schema(2)))
    by_name = {
        "few_shot": Baseline(raised, base),
        "lda": Baseline(steered, base, "directions", ("LDA",)),
        "pca": Baseline(steered, base, "directions", ("C2",)),
        "sae": CellError(Status.NOT_IMPLEMENTED, "no autoencoder"),
    }
    stage = Baselines(plan_of().work, by_name, openings)
    source, rules = RowSource(artifacts, {}, {}), SteeringRules(num_bootstrap=100)
    few, lda, pca, sae = baseline_measures(stage, source, GatedScorer("contrast"), rules)
    assert (few.name, few.n, few.strength) == ("baseline.few_shot", 8, None) and few.value == pytest.approx(0.3)
    assert (lda.strength, lda.n) == (0.5, 8) and lda.value == pytest.approx(0.2)
    assert (pca.value, pca.status, pca.reason) == (None, "collapsed", "all the same")
    assert (sae.value, sae.status, sae.reason) == (None, "not_implemented", "no autoencoder")
    invalid = GatedScorer("contrast", Status.SCORER_INVALID, "the gate failed")
    assert {m.reason for m in baseline_measures(stage, source, invalid, rules)} == {"the gate failed"}


def test_the_page_has_the_vector_among_them_by_falling_gain() -> None:
    measures = (
        CardMeasure(name="find.gain", value=0.3, ci_low=0.2, ci_high=0.4, n=10),
        CardMeasure(name="baseline.random", value=0.01, n=10),
        CardMeasure(name="baseline.lda", value=0.35, strength=0.5, n=10),
        CardMeasure(name="baseline.sae", status="not_implemented", reason="no autoencoder"),
    )
    best = {"strategy": "A1_mean", "construction": "C1", "strength": Strength(recommended=0.6)}
    card = vector_of(1, **best, measures=measures).card
    (part,) = baselines_part(card)
    lines = [[cell.text for cell in line.cells] for line in part.blocks[0].lines]
    assert [line[1] for line in lines] == ["+0.350", "+0.300", "+0.010", "null"]
    assert lines[1][0] == "the vector: A1_mean, C1" and [line[3] for line in lines] == ["0.5", "0.6", "", ""]
    assert not list(baselines_part(card.model_copy(update={"measures": measures[:1]})))
