"""What a card says of a vector that was erased, from texts, scores and probes by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.vector_cards import vector_of

from poolbench.contracts.measures import GatedScorer, Measure, measures_table
from poolbench.contracts.tables import PASSAGES, directions_schema, table_from_rows, vector_matrix
from poolbench.contracts.wire import UNSTEERED
from poolbench.statuses import Status
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.contract.source import RowSource
from poolbench_driver.find.necessity import (
    Necessity,
    directions_step,
    halves_step,
    necessity_measures,
    necessity_part,
)
from poolbench_driver.find.scoring import ScoredKeys
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.stages.stage import PlannedWork
from poolbench_driver.vectors.card import CardMeasure

RULES = SteeringRules(num_bootstrap=300)
#: Scores of eight openings by what is erased.
SCORES = {
    UNSTEERED: [0.9, 0.7, 0.8, 0.6, 0.9, 0.7, 0.8, 0.6],
    "vector": [0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.2, 0.2],
    "subspace": [0.0] * 8,
    "random_0": [0.8, 0.6, 0.7, 0.5, 0.8, 0.6, 0.7, 0.5],
    "random_1": [0.9, 0.7, 0.8, 0.6, 0.9, 0.7, 0.8, 0.6],
    "without": [0.1] * 8,
}
#: The passages that the openings are from, two of each of four documents.
OPENINGS = [{"passage_id": f"p{n}", "doc_id": f"d{n // 2}", "label": 1} for n in range(8)]
LEFT = {"nothing": 0.9, "vector": 0.6, "subspace": 0.55, "random_0": 0.9, "random_1": 0.8, "leace": 0.5}
LATER = {"nothing": 0.95, "vector": 0.7, "random_0": 0.94}


@pytest.fixture
def artifacts(tmp_path: Path) -> Artifacts:
    store = Artifacts(FolderStore(tmp_path))
    for name, scores in SCORES.items():
        ids, prompts = [f"{name}-{n}" for n in range(8)], [f"p{n}" for n in range(8)]
        store.write_table(f"texts.{name}", pa.table({"text_id": ids, "prompt_id": prompts}))
        store.write_table(f"scores.{name}", pa.table({"text_id": ids, "scorer": ["contrast"] * 8, "score": scores}))
    left = [Measure.of("necessity.auroc", value, params={"erased": name}) for name, value in LEFT.items()]
    store.write_table("left.a", measures_table(left))
    store.write_table("passages", table_from_rows(OPENINGS, PASSAGES))
    for name, value in LATER.items():
        row = Measure.of("necessity.auroc", value, params={"erased": "nothing"}, n=20)
        store.write_table(f"later.{name}", measures_table([row]))
    return store


def measured(artifacts: Artifacts, scorer: GatedScorer, left: str = "left.a") -> dict[str, CardMeasure]:
    keys = {name: ScoredKeys(f"texts.{name}", f"scores.{name}") for name in SCORES}
    later = {5: {name: f"later.{name}" for name in LATER}, 6: {"vector": "later.absent"}}
    stage = Necessity(PlannedWork(), keys, "passages", left, later)
    return {m.name: m for m in necessity_measures(stage, RowSource(artifacts, {}, {}), scorer, RULES)}


def test_drops_are_paired_over_openings_and_their_documents_are_drawn(artifacts: Artifacts) -> None:
    figures = measured(artifacts, GatedScorer("contrast"))
    drops = np.array(SCORES[UNSTEERED]) - np.array(SCORES["vector"])
    drop, random = figures["necessity.drop"], figures["necessity.random"]
    assert drop.value == pytest.approx(drops.mean()) and drop.n == 8
    assert drop.ci_low is not None and drop.ci_high is not None
    # Four documents lose .7, .5, .7 and .5: no percentile lies further out. Of eight openings the lowest would be .4.
    assert [drop.ci_low, drop.ci_high] == pytest.approx([0.5, 0.7])
    assert random.value == pytest.approx(0.05) and figures["necessity.drop_rank3"].value == pytest.approx(0.75)
    assert figures["necessity.score"].value == pytest.approx(0.75)
    assert figures["necessity.score_without_concept"].value == pytest.approx(0.1)
    assert figures["necessity.auroc"].value == 0.9 and figures["necessity.auroc_leace"].value == 0.5
    assert figures["necessity.auroc_random"].value == pytest.approx(0.85)
    ends = {"": 0.7, "_whole": 0.95, "_random": 0.94}
    assert {end: figures[f"necessity.auroc_later_5{end}"].value for end in ends} == ends
    absent = figures["necessity.auroc_later_6"]
    assert (absent.value, absent.status) == (None, "failed") and "is missing" in str(absent.reason)


def test_an_invalid_scorer_makes_drops_null_with_its_reason(artifacts: Artifacts) -> None:
    figures = measured(artifacts, GatedScorer("contrast", Status.SCORER_INVALID, "the gate failed"))
    drop = figures["necessity.drop"]
    assert (drop.value, drop.status, drop.reason) == (None, "scorer_invalid", "the gate failed")
    assert figures["necessity.score"].value is None and figures["necessity.auroc_erased"].value == 0.6


def test_the_page_has_one_line_for_each_erasing(artifacts: Artifacts) -> None:
    measures = tuple(measured(artifacts, GatedScorer("contrast")).values())
    card = vector_of(1, measures=measures).card
    (part,) = necessity_part(card)
    lines = [[cell.text for cell in line.cells] for line in part.blocks[0].lines]
    assert [line[1] for line in lines] == ["0.750", "0.150", "0.000", "0.700", "", "0.100"]
    assert [line[2] for line in lines] == ["", "+0.600", "+0.750", "+0.050", "", ""]
    assert [line[4] for line in lines] == ["0.900", "0.600", "0.550", "0.850", "0.500", ""]
    later = [[cell.text for cell in line.cells] for line in part.blocks[1].lines]
    assert later == [["5", "0.950", "0.700", "0.940"], ["6", "", "null", ""]]
    assert not list(necessity_part(card.model_copy(update={"measures": ()})))


def test_a_null_of_one_random_direction_makes_their_mean_null_with_its_reason(artifacts: Artifacts) -> None:
    left = [Measure.of("necessity.auroc", 0.9, params={"erased": "random_0"})]
    left += [Measure.null("necessity.auroc", Status.COLLAPSED, "no spread", params={"erased": "random_1"})]
    artifacts.write_table("left.null", measures_table(left))
    figures = measured(artifacts, GatedScorer("contrast"), "left.null")
    random = figures["necessity.auroc_random"]
    assert (random.value, random.status, random.reason, random.n) == (None, "collapsed", "no spread", 2)
    (part,) = necessity_part(vector_of(1, measures=tuple(figures.values())).card)
    assert part.blocks[0].lines[3].cells[4].text == "null" and "no spread" in part.blocks[0].lines[3].cells[4].note


def test_openings_are_drawn_by_the_seed_from_all_domains(tmp_path: Path) -> None:
    """Of 90 passages with the concept the first 40 by id are news; each domain gives at most 11 of 32."""
    domains = ["news"] * 40 + ["law"] * 40 + ["web"] * 10
    rows = [{"passage_id": f"{n:02}", "label": 1, "text": f"{n} a b c", "domain": d} for n, d in enumerate(domains)]
    rows += [{"passage_id": f"x{n}", "label": 0, "text": "a b", "domain": "news"} for n in range(5)]
    store = Artifacts(FolderStore(tmp_path))
    store.write_table("passages", table_from_rows(rows, PASSAGES))
    steps = [halves_step(store, "passages", 1, seed) for seed in (0, 1)]
    first, second = (set(step.build()["prompt_id"].to_pylist()) for step in steps)
    assert sorted(Counter(domains[int(name)] for name in first).values()) == [10, 11, 11]
    assert first != second and steps[0].key != steps[1].key
    assert set(halves_step(store, "passages", 1, 0).build()["prompt_id"].to_pylist()) == first
    assert halves_step(store, "passages", 1, 0).build()["text"].to_pylist()[0].endswith(" a")
    assert halves_step(store, "passages", 0, 0).build().num_rows == 5


def test_random_directions_have_nothing_of_the_vector(tmp_path: Path) -> None:
    store = Artifacts(FolderStore(tmp_path))
    schema = directions_schema(2)
    store.write_table("nulls", table_from_rows([{"direction_id": "null_000", "vector": [0.6, 0.8]}], schema))
    store.write_table("own", table_from_rows([{"direction_id": "C1", "vector": [1.0, 0.0]}], schema))
    step = directions_step(store, [("nulls", "null_000")], ("own", "C1"))
    np.testing.assert_allclose(vector_matrix(step.build()["vector"]), [[0, 1]], atol=1e-7)
    assert step.key != directions_step(store, [("nulls", "null_000")]).key
