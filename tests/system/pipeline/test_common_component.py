"""D1 from texts on the demo model, through the plan and the services' own handlers, without a cluster."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from transformers import AutoTokenizer

from poolbench.config import ConceptSettings, asset_path, resolve_model
from poolbench.contracts.measures import Measure
from poolbench.contracts.tables import parts_of, vector_matrix
from poolbench.pooling.batch import Request
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.prober import ProbeParams
from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_corpora.own import Made, TextFiles, make_concept
from poolbench_corpora.planted import build_planted
from poolbench_corpora.reading import SentFile
from poolbench_driver.assemble import assemble
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.corpora.sources import at_most
from poolbench_driver.models import annotator_version, describe_model
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.scope import Scope
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts as Texts
from poolbench_extractor.models.load import load_decoder
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

pytestmark = pytest.mark.lane(name="series")

LAYER = 3
SETTINGS: dict[str, Any] = {
    "preset": "demo",
    "concepts": ["contrast", "causation"],
    "metrics": ["d1"],
    "layers": [LAYER],
    "budget": {"num_train": 40, "num_test": 20, "num_bootstrap": 50},
}
Finished = tuple[ConceptsPlan, Artifacts]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of the mean and S4 over two concepts."""
    from poolbench_extractor.service import create as extractor
    from poolbench_pooler.service import create as pooler
    from poolbench_prober.service import create as prober

    handlers = {**extractor().handlers, **pooler().handlers, **prober().handlers}
    artifacts, config = Artifacts(FolderStore(tmp_path_factory.mktemp("store"))), load_run_config(None, SETTINGS)
    model = describe_model(config, None)  # type: ignore[arg-type]  # a local model: nobody is asked
    specs = [STRATEGIES.get(name) for name in ("A1_mean", "S4_sif")]
    plan = make_plan(Scope(config, model, specs, annotator_version("annotator")))
    for step in plan.local.values():
        artifacts.write_table(step.key, step.build())
    for task in plan.tasks.values():
        io = TaskIO(task, artifacts)
        handlers[task.kind](task, io)
        assert not io.missing
    return plan, artifacts


def test_vectors_are_the_weighted_means_of_the_states(finished: Finished) -> None:
    """One passage a concept, from its token ids and the states of the model as Transformers gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    plan, artifacts = finished
    folder = Path(asset_path("demo_lm"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).float()
    trains = [
        artifacts.read_table(cells.passages["train"])["text"].to_pylist() for cells in plan.vectors.concepts.values()
    ]
    counts = Counter(
        t for texts in trains for text in texts for t in tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    total = sum(counts.values())
    for cells in plan.vectors.concepts.values():
        text = artifacts.read_table(cells.passages["test"])["text"][0].as_py()
        batch = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
        real = ~batch.pop("special_tokens_mask")[0].bool().numpy()
        with torch.inference_mode():
            h_TD = model(**batch, output_hidden_states=True).hidden_states[LAYER + 1][0].double().numpy()[real]
        ids = batch["input_ids"][0].numpy()[real]
        weights = np.array([1e-3 / (1e-3 + counts[int(token)] / total) for token in ids])
        table = artifacts.read_table(cells.vectors["test", "S4_sif", LAYER])
        np.testing.assert_allclose(vector_matrix(table["vector"])[0], weights @ h_TD / len(ids), rtol=1e-4, atol=1e-5)


def test_directions_are_free_of_the_component_of_both_concepts(
    finished: Finished,
) -> None:
    plan, artifacts = finished
    keys = [cells.vectors["train", "S4_sif", LAYER] for cells in plan.vectors.concepts.values()]
    stacked = np.vstack([vector_matrix(artifacts.read_table(key)["vector"]) for key in keys]).astype(np.float64)
    first = np.linalg.svd(stacked, full_matrices=False)[2][0]
    component = vector_matrix(artifacts.read_table(plan.components.keys["S4_sif", LAYER])["vector"])[0]
    assert abs(component @ first) == pytest.approx(1, abs=1e-6)
    for cells in plan.probes.concepts.values():
        table = artifacts.read_table(cells.directions["S4_sif", LAYER])
        matrix = vector_matrix(table["vector"])[table["direction_id"].to_pylist().index("C1")]
        assert abs(matrix @ first) < 1e-5
    rows = assemble(plan, artifacts, {}, "run")["results"].to_pylist()
    found = {(r["concept"], r["strategy"]): r for r in rows if r["metric"] == "d1.auroc"}
    assert len(found) == 4 and {row["status"] for row in found.values()} == {"ok"}
    assert all(found[concept, "S4_sif"]["value"] > 0.5 for concept in plan.probes.concepts)


PARAMS = ProbeParams(num_bootstrap=50, num_permutations=3, num_control_words=1)


@pytest.fixture(scope="module")
def cells():
    """Design, passages and vectors of S3 by split, of a small planted corpus."""
    corpus = build_planted("causation", seed=0, num_train=40, num_test=20, num_scorer=0)
    decoder = load_decoder(resolve_model("demo"))
    wanted = {LAYER: [Request.of("S3_iti_probe")]}
    splits, tables = {}, {}
    for split in ("train", "test"):
        table = corpus.filter([name == split for name in corpus["split"].to_pylist()])
        splits[split] = Passages.from_table(table)
        tables[split] = extract(decoder, Texts(table["passage_id"].to_pylist(), table["text"].to_pylist()), wanted)
    return Design.build(splits["train"], splits["test"], PARAMS), splits, tables


def probed(cells, strategy):
    design, splits, tables = cells
    train, test = (PooledVectors.from_table(tables[s][f"{strategy}/{LAYER}"], splits[s].ids) for s in ("train", "test"))
    result = probe_cell(design, train, test, PARAMS)
    return result, {measure.metric: measure for measure in result.measures}


def test_heads_become_a_vector_inside_the_folds(cells):
    assert parts_of(cells[2]["train"][f"S3_iti_probe/{LAYER}"]) == (4, "best_heads")
    result, found = probed(cells, "S3_iti_probe")
    assert found["d1.auroc"].status == found["d1.auroc_test"].status == "ok"
    assert found["d1.auroc"].value > 0.65
    assert [len(fold["heads"]) for fold in found["d1.auroc"].details["readouts"]] == [1] * 5
    assert found["d1.auroc_permuted"].value < found["d1.auroc"].value
    assert result.directions["C1"].vector.shape == (256,)


WORDS = [f"word{number}" for number in range(3000)]
WIDTH = 16


def texts(seed: int, count: int = 90) -> SentFile:
    rng = random.Random(seed)
    lines = ["text", *(" ".join(rng.sample(WORDS, 20)) for _ in range(count))]
    return SentFile("texts.csv", "\n".join(lines).encode())


def split_of(made: Made, split: str) -> Passages:
    """The passages of a split, fewer than it has: a run with a limit chooses."""
    rows = made.passages.filter(pc.equal(made.passages["split"], split))
    return Passages.from_table(at_most(rows, 2 * rows.num_rows // 3))


def random_half(name: str, text: str, label: int) -> np.ndarray:
    """A7, which draws its tokens, of states that depend on the words alone."""
    states_TD = np.stack([np.random.default_rng(int(word[4:])).normal(size=WIDTH) for word in text.split()])
    states_TD[::3, 0] += label
    context = TokenContext(name, np.zeros((len(states_TD), 2), dtype=int), np.zeros(len(states_TD), dtype=bool))
    weights = STRATEGIES.get("A7_random").weigh(context)
    assert isinstance(weights, Weights)
    return np.asarray(weights.values @ states_TD)


def pooled(passages: Passages) -> PooledVectors:
    rows = zip(passages.ids, passages.texts, passages.labels.tolist(), strict=True)
    return PooledVectors.from_matrix(np.stack([random_half(*row) for row in rows]))


def d1(name: str) -> list[Measure]:
    made = make_concept(ConceptSettings(id=name), TextFiles(positives=texts(1), negatives=texts(2)))
    train, test = (split_of(made, split) for split in ("train", "test"))
    params = ProbeParams(num_bootstrap=50, num_permutations=2, fold_seeds=(1,), min_domain_class=5)
    return probe_cell(Design.build(train, test, params), pooled(train), pooled(test), params).measures


def test_the_same_texts_under_another_name_have_the_same_d1() -> None:
    first, second = d1("gratitude"), d1("thanks")
    assert first == second
    assert {m.metric for m in first if m.status == "ok"} >= {"d1.auroc", "d1.auroc_test", "d1.auroc_seed"}
