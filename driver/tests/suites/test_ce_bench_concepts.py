"""Concepts, families and probing sets in the suite ce-bench: plans, rows, columns, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver.tests.page_reader import heads_of, tables_of, texts_of
from driver.tests.suites import test_ce_bench as of_suite
from driver.tests.suites.test_ce_bench import MODEL, config_of

from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench.steps.prober import PROBE, SPARSE
from poolbench.storage import Artifacts, open_store
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.source import RowSource
from poolbench_driver.suites.ce_bench.concepts import POOLING, SparseConceptProbes, concept_rows, read_sets, readers
from poolbench_driver.suites.ce_bench.config import CeBenchConfig
from poolbench_driver.suites.ce_bench.families import SaeEntrant, families_of
from poolbench_driver.suites.ce_bench.plan import CeBenchPlan, check, plan, resolve
from poolbench_driver.suites.ce_bench.report import reader_parts
from poolbench_driver.suites.ce_bench.view import CeBenchView


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
    sparse.append(Measure.of("sparse.auroc_test", 0.75, params={"k": 2}))
    sparse.append(Measure.of("sparse.seed_spread", 0.01, params={"k": 2}))
    store.write_table("sparse.hedging", _table(*sparse))
    nulls = [Measure.null("sparse.auroc", "collapsed", "no feature is active", params={"k": k}) for k in (1, 2)]
    store.write_table("sparse.narrative", _table(*nulls))
    planned = SparseConceptProbes(
        SparseConceptProbes(SimpleNamespace()).work,  # type: ignore[arg-type]
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
    splits = {row["metric"]: row["split"] for row in rows if row["value"] is not None}
    assert splits.pop("sparse.auroc_test") == "test" and set(splits.values()) == {"train"}
    (absent,) = (row for row in rows if row["entrant"] == "b")
    # A cell keeps its identity when it fails, and the split is a part of it.
    assert (absent["status"], absent["value"], absent["split"]) == ("failed", None, "train")


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


saes = of_suite.saes
ONE_TRAINING = "the figures of one training say nothing about another"


def entrant(name: str, family: str | None, seed: int | None, score: float | None, **sparse: float | None) -> SaeEntrant:
    """Return an autoencoder with one score for all figures; `k1` is the mean of its sparse probes of one feature."""
    metrics = ("ce.interpretability", "ce.contrastive", "ce.held_out", "ce.unexplained_variance")
    row = {"value": score, "status": "ok" if score is not None else "too_few", "coverage": 1.0, "reason": ""}
    columns = ("interpretability", "contrastive", "held_out")
    subjects = {str(n): {"subject": str(n), **dict.fromkeys(columns, score)} for n in range(3)}
    means = {int(k[1:]): value for k, value in sparse.items()}
    return SaeEntrant(name, "autoencoder", 3, "topk", dict.fromkeys(metrics, row), subjects, family, seed, sparse=means)


def test_mean_deviation_range_and_separated_pairs_by_hand() -> None:
    """a has 1 and 3: mean 2, deviation 1.414. b overlaps a; c lies above both."""
    found = families_of(
        [
            entrant("c", "C", 0, 5.0, k1=0.9), entrant("c-s1", "C", 1, 6.0, k1=0.8),
            entrant("a-s1", "A", 1, 3.0, k1=0.5), entrant("a", "A", 0, 1.0, k1=0.5),
            entrant("b", "B", 0, 2.0, k1=0.6), entrant("b-s2", "B", 2, 4.0, k1=None),
        ]
    )  # fmt: skip
    assert [(each.name, each.seeds) for each in found.all] == [("c", (0, 1)), ("a", (0, 1)), ("b", (0, 2))]
    assert found.all[1].text("interpretability") == "2.000 ± 1.414 (1.000 to 3.000)"
    assert [found.apart(name) for name in found.figures] == [(2, 3)] * 4 + [(1, 1)]
    assert found.all[2].text("sparse probing, k = 1") == "not of all seeds"
    (part,) = found.parts()
    (table,) = tables_of(*part.blocks)
    assert texts_of(table)[-1] == ["pairs that ranges separate", "", *["2 of 3"] * 4, "1 of 1"]
    assert list(found.limits()) == [
        "Over seeds of training, ranges of interpretability separate 2 of 3 pairs of families."
    ]


def test_ranges_that_touch_are_not_separated() -> None:
    touching = [entrant("a", "A", 0, 1.0), entrant("a1", "A", 1, 2.0), entrant("b", "B", 0, 2.0)]
    assert families_of([*touching, entrant("b1", "B", 1, 3.0)]).apart("interpretability") == (0, 1)


def test_one_training_says_nothing_about_another() -> None:
    alone = [entrant("a", "A", 0, 1.0), entrant("b", "B", 0, 2.0), entrant("c", None, None, 3.0)]
    assert families_of(alone).all == [] and list(families_of(alone).parts()) == []
    twins = [SaeEntrant(f"{each.name} random", "random", 3, None, {}, null_of=each.name) for each in alone]
    assert sum(ONE_TRAINING in each.text for each in CeBenchView("demo", "own", [*alone, *twins]).problems()) == 1
    untrained = CeBenchView("demo", "own", [entrant("a", "A", 0, None)])
    assert not any(ONE_TRAINING in each.text for each in untrained.problems())


def test_two_trainings_that_say_one_seed_are_no_family() -> None:
    found = families_of([entrant("a", "A", 0, 1.0), entrant("b", "A", 0, 2.0), entrant("c", "A", 1, 2.0)])
    assert not found.all and found.unclear == ["a", "b", "c"]
    assert next(found.limits()).startswith("a, b, c: the same seed")


def plan_with(tmp_path: Path, saes: Path, **settings: Any) -> CeBenchPlan:
    """Return the plan of a run with an empty store."""
    session: Any = SimpleNamespace(services=None, artifacts=Artifacts(open_store(str(tmp_path / "store"))))
    return plan(resolve(config_of(saes, **settings), session, MODEL))


def test_the_command_line_names_sets() -> None:
    config = load_run_config(None, {"suite": "ce-bench", "sets": ["planted-nu*"]})
    assert isinstance(config, CeBenchConfig) and list(read_sets(config).by_set) == ["planted-number"]
    assert config.hashed()["sets"] == ["planted-nu*"] and "sets" not in CeBenchConfig(suite="ce-bench").hashed()


def test_sets_are_refused_by_name_before_anything_runs(saes: Path) -> None:
    """The message has each set with its reason, and those that could be named."""
    with pytest.raises(ConfigError) as caught:
        check(config_of(saes, sets=("planted-*",)))
    said = str(caught.value)
    for reason in (
        "planted-relation: it has 3 labels (cause, concession, time)",
        "planted-depth: it asks for values",
        "planted-pos: its input is span",
        "planted-next-sentence: its input is text_pair",
        "planted-role: its input is span",
        "of the named ones: planted-agreement, planted-bigram-shift, planted-comparison, planted-number",
    ):
        assert reason in said
    with pytest.raises(UnknownNameError, match="planted-number"):
        check(config_of(saes, sets=("planted-numbr",)))
    with pytest.raises(CorpusError, match="no such set in corpus real"):
        check(config_of(saes, sets=("planted-number",), corpus={"source": "real"}))


OWN = """id: {id}
type: syntax
phenomenon: own
input: text
source: own
revision: '1'
licence: CC0-1.0
citation: none
fidelity: same
reader: table
parameters: {{file: {id}.csv}}
"""


def test_sets_of_a_folder_are_read_and_a_damaged_one_is_left_out(saes: Path, tmp_path: Path) -> None:
    """The readers of the suite holmes read them. A set may not have the name of a concept of the run."""
    folder = tmp_path / "sets"
    folder.mkdir()
    for name in ("own", "hedging", "damaged"):
        (folder / f"{name}.yaml").write_text(OWN.format(id=name))
        lines = [f"{n},A text {n}.,{'ab'[n % 2]}" for n in range(40)]
        (folder / f"{name}.csv").write_text("\n".join(["id,text,label", *lines, "x,,a"]))
    (folder / "damaged.csv").write_text("nothing")
    config = config_of(saes, sets=("own", "damaged"), corpus={"source": str(folder)})
    found = read_sets(config)
    assert {split: table.num_rows for split, table in found.by_set["own"].items()} == {"train": 28, "test": 8}
    assert any("damaged" in note for note in found.notes) and len(found.notes) == 2
    assert set(found.notes) < set(plan_with(tmp_path, saes, sets=config.sets, corpus=config.corpus).scope.notes) | {""}
    with pytest.raises(ConfigError, match="hedging: a concept of the run has this name"):
        read_sets(config_of(saes, sets=("hedging",), concepts=("hedging",), corpus={"source": str(folder)}))
    with pytest.raises(CorpusError, match="no probing set can be read"):
        read_sets(config_of(saes, sets=("damaged",), corpus={"source": str(folder)}))


@pytest.mark.parametrize(
    ("kind", "names"), [("concepts", ("hedging", "narrative")), ("sets", ("planted-number", "planted-random"))]
)
def test_every_entrant_probes_every_concept_and_set_on_the_texts_of_d1(
    saes: Path, tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    made = plan_with(tmp_path, saes, **{kind: names})
    tasks = [task for task in made.tasks.values() if task.kind == SPARSE.kind]
    probes = [task for task in made.tasks.values() if task.kind == PROBE.kind]
    assert len(tasks) == len(probes) == 2 * 2  # names and layers
    for sparse, dense in zip(tasks, probes, strict=True):
        own, others = SPARSE.params_of(sparse), PROBE.params_of(dense)
        for name in ("concept", "seed", "fold_seeds", "folds", "num_bootstrap", "primary_c", "tolerance"):
            assert getattr(own, name) == getattr(others, name), name
        for role in ("passages/train", "passages/test"):
            assert sparse.inputs[role] == dense.inputs[role] in made.local
        assert any(role.startswith("sae/") for role in dense.inputs)
    entrants = {"coordinates 3": 3, "coordinates 1": 1, "one": 3, "two": 3, "low": 1}
    entrants |= {f"{name} random": layer for name, layer in entrants.items() if not name.startswith("coord")}
    probed = {each: getattr(made, each).sparse for each in ("concepts", "sets")}
    sparse_keys = probed.pop(kind)
    assert set(sparse_keys) == {(name, layer, entrant) for name in names for entrant, layer in entrants.items()}
    assert set(sparse_keys.values()) <= set(made.producers) and not any(probed.values())
    read = [task for task in made.tasks.values() if task.kind == "extractor.features"]
    assert len(read) == 2 + 2 * 2 * 2  # of each layer the stories, and both splits of each name
    inputs = {key for task in made.tasks.values() for key in task.inputs.values()}
    assert inputs <= set(made.local) | set(made.producers)


def test_a_set_leaves_the_keys_of_concepts_and_stories_alone(saes: Path, tmp_path: Path) -> None:
    alone = plan_with(tmp_path, saes / "one", concepts=("hedging",))
    both = plan_with(tmp_path, saes / "one", concepts=("hedging",), sets=("planted-number",))
    assert set(alone.producers) < set(both.producers) and both.concepts.sparse == alone.concepts.sparse
    params = {PROBE.params_of(task).concept: task.params for task in both.tasks.values() if task.kind == PROBE.kind}
    assert params["hedging"] | {"concept": "planted-number"} == params["planted-number"]


def test_sets_are_columns_beside_concepts(tmp_path: Path) -> None:
    """A set is the task of its rows, since a concept would have to be registered."""
    store = Artifacts(open_store(str(tmp_path)))
    for name, value in (("hedging", 0.9), ("planted-number", 0.7)):
        measures = [Measure.of("d1.auroc", value), Measure.of("d1.direction.C1", value - 0.1, direction="C1")]
        store.write_table(f"d1.{name}", t.table_from_rows([each.to_row() for each in measures], t.MEASURES))
        sparse = [Measure.of("sparse.auroc", value, params={"k": 1})]
        store.write_table(f"sparse.{name}", t.table_from_rows([each.to_row() for each in sparse], t.MEASURES))
    work = SparseConceptProbes(SimpleNamespace()).work  # type: ignore[arg-type]
    source, rows = RowSource(store, {}, {}), []
    for name, column in (("hedging", "concept"), ("planted-number", "task")):
        planned = SparseConceptProbes(work, {(name, 3): f"d1.{name}"}, {(name, 3, "one"): f"sparse.{name}"})
        rows += [{"task": "stories", **row} for row in concept_rows(planned, source, column)]
    assert {row["task"] for row in rows} == {"stories", "planted-number"}
    found = {each.name: each for each in readers(rows)}
    assert {name: dict(each.values) for name, each in found.items()} == {
        f"{POOLING}, probe of all dimensions": {"hedging": 0.9, "planted-number": 0.7},
        f"{POOLING} along C1": {"hedging": 0.8, "planted-number": pytest.approx(0.6)},
        "one, k = 1": {"hedging": 0.9, "planted-number": 0.7},
    }
    assert found["one, k = 1"].mean == pytest.approx(0.8)
