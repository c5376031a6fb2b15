"""The damage of a vector that was found: planned, sent through queue and store, and read, with the real extractor."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from driver.tests.find.test_baselines import LAYER, plan_of
from driver.tests.loop_bench import Bench, Consumer, Notes, consuming, job_of
from driver.tests.vector_cards import vector_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import resolve_model
from poolbench.contracts.tables import CALIBRATION, directions_schema, table_from_rows
from poolbench.contracts.wire import run_path
from poolbench.steps.extractor import CALIBRATION as NORMS
from poolbench.worker.worker import Worker
from poolbench_driver.corpora.sources import passages_step
from poolbench_driver.find.damage import (
    NUM_TEXTS,
    Damage,
    DamageTask,
    UserTexts,
    benign_of,
    pairs_table,
)
from poolbench_driver.records.record import RunRecords, encode_keys
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.vectors.card import Source, Vector
from poolbench_extractor.service import create

NORM = 2.0
SENTENCES = ("The cats are here.", "The cats is here.")


@pytest.fixture
def plan() -> ConceptsPlan:
    """The plan of a run that steers at one layer."""
    return plan_of()


@pytest.fixture
def vector(plan: ConceptsPlan) -> Vector:
    return vector_of(LAYER, source=Source(tool="test", artifact="prober.probe.1"))


@pytest.fixture
def bench(tmp_path: Path, plan: ConceptsPlan, vector: Vector) -> Bench:
    """A store with what the runs of a search leave there."""
    bench = Bench(tmp_path)
    bench.service = create()  # type: ignore[assignment]
    rows = [{"direction_id": "C1", "vector": vector.vectors[LAYER].tolist()}]
    bench.artifacts.write_table("prober.probe.1", table_from_rows(rows, directions_schema(plan.scope.model.width)))
    assert plan.steering is not None
    norms = table_from_rows([{"layer": LAYER, "median_residual_norm": NORM, "num_tokens": 9}], CALIBRATION)
    bench.artifacts.write_table(plan.steering.unsteered.inputs[NORMS()], norms)
    (concept,) = plan.scope.concepts
    step = passages_step(plan.scope.config, concept, "test")
    table = step.build()
    assert isinstance(table, pa.Table)
    bench.artifacts.write_table(step.key, table)
    return bench


def measured(bench: Bench, plan: ConceptsPlan, vector: Vector, texts: UserTexts) -> tuple[Damage, Notes]:
    session, notes = job_of(bench, plan).session, Notes()
    consumer = Consumer(bench.queue, Worker(bench.service, bench.artifacts, bench.leases))
    with consuming([consumer]):
        damage = DamageTask(plan, "run", vector, "C1", 0.2).measure(texts, session, notes)
    return damage, notes


def log_probs(
    model: torch.nn.Module, tokenizer: object, text: str, delta: torch.Tensor
) -> tuple[np.ndarray, list[int]]:
    """Log-probabilities before each token but the first, with a hook on the block."""
    ids = tokenizer(text)["input_ids"]  # type: ignore[operator]
    hook = model.model.layers[LAYER].register_forward_hook(lambda _m, _a, output: output + delta)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1]
    hook.remove()
    return logits.double().log_softmax(-1).numpy(), ids[1:]


def test_figures_are_those_of_a_hook_on_test_passages_without_the_concept(
    bench: Bench, plan: ConceptsPlan, vector: Vector
) -> None:
    damage, notes = measured(bench, plan, vector, UserTexts())
    texts = benign_of(plan, UserTexts(), job_of(bench, plan).session)
    assert len(notes.finished) == 1 and not notes.failures
    (concept,) = plan.scope.concepts
    table = bench.artifacts.read_table(passages_step(plan.scope.config, concept, "test").key)
    negatives = {row["passage_id"] for row in table.to_pylist() if row["label"] == 0}
    assert set(texts["passage_id"].to_pylist()) <= negatives and texts.num_rows == min(NUM_TEXTS, len(negatives))
    folder = resolve_model("demo").source
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    unit = torch.tensor(vector.vectors[LAYER])
    sums = np.zeros(4)
    for text in texts["text"].to_pylist():
        before, ids = log_probs(model, tokenizer, text, 0 * unit)
        after, _ = log_probs(model, tokenizer, text, 0.2 * NORM * unit)
        places = range(len(ids)), ids
        divergence = (np.exp(before) * (before - after)).sum()
        sums += before[places].sum(), after[places].sum(), divergence, len(ids)
    figures = {(measure.name, measure.strength): measure for measure in damage.measures}
    assert figures["damage.perplexity", 0.0].value == pytest.approx(np.exp(-sums[0] / sums[3]), rel=1e-5)
    assert figures["damage.kl", 0.2].value == pytest.approx(sums[2] / sums[3], rel=1e-4)
    assert figures["damage.perplexity_ratio", 0.2].value == pytest.approx(
        np.exp((sums[0] - sums[1]) / sums[3]), rel=1e-4
    )
    strengths = {strength for name, strength in figures if name == "damage.kl"}
    assert strengths == {0.0125, 0.025, 0.05, 0.1, 0.2, 0.3}
    assert figures["damage.pair_accuracy", None].status == "no_coverage"
    assert "planted has no minimal pairs" in str(figures["damage.pair_accuracy", None].reason)
    direct, at_strength = damage.lenses
    head = model.lm_head.weight @ (model.model.norm.weight * unit)
    assert direct.promoted[0].token == tokenizer.decode([int(head.argmax())]) and at_strength.strength == 0.2


def test_a_second_call_sends_nothing_and_pairs_one_task_more(bench: Bench, plan: ConceptsPlan, vector: Vector) -> None:
    few = pa.table({"passage_id": ["a", "b"], "text": ["Rain fell.", "The tide was high."], "group": ["a", "b"]})
    first, notes = measured(bench, plan, vector, UserTexts(texts=few))
    again, second_notes = measured(bench, plan, vector, UserTexts(texts=few))
    assert again == first and len(notes.finished) == 1 and not second_notes.finished and len(second_notes.reused) == 1
    pairs = UserTexts(texts=few, pairs=pairs_table([("1", SENTENCES)]))
    damage, notes = measured(bench, plan, vector, pairs)
    assert len(notes.finished) == 1 and len(notes.reused) == 1
    accuracy = [measure for measure in damage.measures if measure.name == "damage.pair_accuracy"]
    assert [measure.strength for measure in accuracy] == [0.0, 0.0125, 0.025, 0.05, 0.1, 0.2, 0.3]
    assert {measure.value for measure in accuracy} <= {0.0, 1.0}
    records = RunRecords(bench.artifacts.store)
    records.store.put(run_path("run", "keys.json.gz"), encode_keys([]))
    kept = {key for key in records.keys("run") if bench.artifacts.exists(key)}  # by gc
    assert len(kept) == 6 and sum(key.startswith("extractor.damage.") for key in kept) == 4


def test_a_task_that_fails_leaves_nulls_with_its_reason(bench: Bench, plan: ConceptsPlan, vector: Vector) -> None:
    rows = [{"direction_id": "C3", "vector": vector.vectors[LAYER].tolist()}]
    bench.artifacts.write_table("prober.probe.2", table_from_rows(rows, directions_schema(plan.scope.model.width)))
    source = vector.card.source.model_copy(update={"artifact": "prober.probe.2"})
    other = Vector(vector.card.model_copy(update={"source": source}), vector.vectors)
    few = pa.table({"passage_id": ["a"], "text": ["Rain fell."], "group": ["a"]})
    damage, notes = measured(bench, plan, other, UserTexts(texts=few))
    assert len(notes.failures) == 1 and damage.safe_high is None
    for measure in damage.measures:
        assert measure.value is None and measure.reason
    assert "has no C1; it has C3" in str(damage.lenses[0].reason)
