"""Sparse probing on concepts in the suite ce-bench: the plan, its rows, and the readers of the page."""

from pathlib import Path
from typing import Any

import pytest
from driver.tests.page_reader import heads_of, tables_of, texts_of

from poolbench.config import resolve_model
from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.steps.prober import PROBE, SPARSE
from poolbench.storage import Artifacts, open_store
from poolbench_corpora.stories import read_stories
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.source import RowSource
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.imports.saes import SaeInput
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.suites.ce_bench.concepts import POOLING, ConceptProbes, concept_rows, readers
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.plan import Autoencoder, CeBenchPlan, CeBenchScope, plan
from poolbench_driver.suites.ce_bench.report import reader_parts

MODEL = ModelInfo(resolve_model("demo"), 6, 256)
LAYER = 3


def _plan(concepts: tuple[str, ...] = ("hedging", "narrative")) -> CeBenchPlan:
    config = CeBenchConfig(suite="ce-bench", concepts=concepts)
    saes = tuple(
        Autoencoder(name, LAYER, name, "topk", 512, LocalStep(f"import.sae.{name}", name, dict)) for name in ("a", "b")
    )
    probing = None
    if concepts:
        own = ConceptsConfig(concepts=concepts, strategies=(POOLING,), layers=(LAYER,), metrics=("d1",))
        names, strategies = resolve_names(own.model_copy(update={"fold_seeds": (1, 2, 3, 4)}))
        probing = Scope(names, MODEL, tuple(strategies), saes={LAYER: SaeInput(saes[0].step.key, 10, saes[0].step)})
    return plan(CeBenchScope(config, MODEL, saes, {"corrected": read_stories("planted", 0)}, probing=probing))


def test_the_command_line_names_concepts_and_corpus() -> None:
    flags = {"suite": "ce-bench", "concepts": ["hedging"], "corpus": {"source": "real"}}
    config = load_run_config(None, flags)
    assert isinstance(config, CeBenchConfig)
    assert (config.concept_ids, config.corpus.source) == (("hedging",), "real")


def test_every_entrant_probes_every_concept_on_the_passages_of_d1() -> None:
    made = _plan()
    tasks = [task for task in made.tasks.values() if task.kind == SPARSE.kind]
    probes = [task for task in made.tasks.values() if task.kind == PROBE.kind]
    assert len(tasks) == len(probes) == 2
    for sparse, dense in zip(tasks, probes, strict=True):
        assert {role: sparse.inputs[role] for role in ("passages/train", "passages/test")} == {
            role: dense.inputs[role] for role in ("passages/train", "passages/test")
        }
        assert dense.inputs[f"sae/{LAYER}"] == "import.sae.a"
        own, others = SPARSE.params_of(sparse), PROBE.params_of(dense)
        for name in ("seed", "fold_seeds", "folds", "num_bootstrap", "primary_c", "tolerance"):
            assert getattr(own, name) == getattr(others, name), name
    entrants = {"coordinates 3", "a", "a random", "b", "b random"}
    assert set(made.concepts.sparse) == {(c, LAYER, name) for c in ("hedging", "narrative") for name in entrants}
    assert set(made.concepts.sparse.values()) <= set(made.producers)
    read = [task for task in made.tasks.values() if task.kind == "extractor.features"]
    assert len(read) == 1 + 2 * 2  # the stories, and both splits of each concept; all autoencoders in one pass


def test_without_concepts_nothing_is_added() -> None:
    made = _plan(())
    assert made.concepts == ConceptProbes(made.concepts.work) and not made.concepts.work.tasks
    kinds = {"extractor.features", "extractor.recovered", "prober.contrast"}
    assert {task.kind for task in made.tasks.values()} == kinds


def _table(*measures: Measure) -> Any:
    return t.table_from_rows([measure.to_row() for measure in measures], t.MEASURES)


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """Rows of two concepts: the pooled vectors, and one entrant that failed on the second concept."""
    store = Artifacts(open_store(str(tmp_path)))
    for n, concept in enumerate(("hedging", "narrative")):
        dense = [Measure.of("d1.auroc", 0.9 - n / 10), Measure.of("d1.seed_spread", 0.02)]
        dense.append(Measure.of("d1.direction.C1", 0.95, direction="C1"))
        store.write_table(f"d1.{concept}", _table(*dense))
    sparse = [Measure.of("sparse.auroc", 0.7, params={"k": 1}), Measure.of("sparse.auroc", 0.8, params={"k": 2})]
    sparse.append(Measure.of("sparse.seed_spread", 0.01, params={"k": 2}))
    store.write_table("sparse.hedging", _table(*sparse))
    nulls = [Measure.null("sparse.auroc", "collapsed", "no feature is active", params={"k": k}) for k in (1, 2)]
    store.write_table("sparse.narrative", _table(*nulls))
    planned = ConceptProbes(
        _plan(()).work,
        {(concept, 3): f"d1.{concept}" for concept in ("hedging", "narrative")},
        {
            ("hedging", 3, "a"): "sparse.hedging",
            ("narrative", 3, "a"): "sparse.narrative",
            ("hedging", 3, "b"): "sparse.absent",
        },
    )
    return list(concept_rows(planned, RowSource(store, {}, {})))


def test_rows_name_entrant_concept_and_layer(rows: list[Row]) -> None:
    assert {(row["entrant"], row["concept"], row["layer"]) for row in rows if row["metric"] == "d1.auroc"} == {
        (POOLING, "hedging", 3),
        (POOLING, "narrative", 3),
    }
    (absent,) = (row for row in rows if row["entrant"] == "b")
    assert absent["status"] == "failed" and absent["value"] is None


def test_readers_stand_on_one_board_the_best_first(rows: list[Row]) -> None:
    found = {each.name: each for each in readers(rows)}
    assert list(found)[:2] == [f"{POOLING} along C1", f"{POOLING}, probe of all dimensions"]
    dense, sparse = found[f"{POOLING}, probe of all dimensions"], found["a, k = 2"]
    assert dense.mean == pytest.approx(0.85) and dense.text("hedging") == "0.900 ± 0.020"
    assert sparse.text("hedging") == "0.800 ± 0.010" and sparse.text("narrative") == "collapsed"
    assert sparse.mean is None and found["a, k = 1"].text("hedging") == "0.700"
    assert not any(name.startswith("b") for name in found)


def test_the_section_of_the_page_shows_readers_and_why_a_figure_is_missing(rows: list[Row]) -> None:
    (part,) = reader_parts(readers(rows))
    (table,) = tables_of(*part.blocks)
    assert heads_of(table) == ["reader", "layer", "mean", "hedging", "narrative"]
    lines = texts_of(table)
    assert lines[0][:3] == ["A1_mean along C1", "3", "0.950"]
    assert ["a, k = 2", "3", "", "0.800 ± 0.010", "collapsed"] in lines
