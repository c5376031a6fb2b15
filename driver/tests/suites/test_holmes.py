"""The suite holmes: settings, shards, thinning, winning rates, controls, rows and page."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from driver.tests.page_reader import BLANK, opened, part_of, rendered, tables_of, texts_of
from driver.tests.run_folders import assembled
from driver.tests.submitted import require_without_scores, submitted

from poolbench.config import resolve_model
from poolbench.contracts import Row
from poolbench.contracts import tables as t
from poolbench.contracts.measures import Measure
from poolbench.errors import ConfigError, CorpusError, InputError, UnknownNameError
from poolbench.statuses import Status
from poolbench.steps import prober as steps
from poolbench.steps.extractor import EXTRACT, RandomWeights
from poolbench.storage import Artifacts, open_store
from poolbench_corpora.probing import PROBING_INSTANCES, PROBING_PASSAGES, ProbingData, ProbingSet, ProbingSets
from poolbench_driver.assemble import rank_rows
from poolbench_driver.cli.planning import plan_data
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.corpora.sources import chosen_sets
from poolbench_driver.evidence import evidence_of, keep_texts
from poolbench_driver.models import ModelInfo
from poolbench_driver.pages.boards.power import neighbours
from poolbench_driver.records import Run
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.report.making import page_of
from poolbench_driver.series import SeriesBoard, prepare_all, prepare_dry
from poolbench_driver.stages import probing_sets
from poolbench_driver.statistics.mcnemar import mcnemar_power, mcnemar_size
from poolbench_driver.suites.holmes import plan as planning
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope, ProbeCell, plan, strategies_of
from poolbench_driver.suites.holmes.rates import compared, published_rates, winning_rates
from poolbench_driver.suites.holmes.report import page_of_view
from poolbench_driver.suites.holmes.rows import entrant_of
from poolbench_driver.suites.holmes.thinning import thinned
from poolbench_driver.suites.holmes.view import Entrant, HolmesView, view_of, view_over

MODEL = ModelInfo(resolve_model("demo"), 6, 256)
SETS = ("planted-pos", "planted-role", "planted-random")


def sets_of(config: HolmesConfig) -> tuple[ProbingSets, list[ProbingSet]]:
    return chosen_sets(config.sets, config.corpus.source)


def _scope(**settings: Any) -> HolmesScope:
    config = HolmesConfig(suite="holmes", **{"sets": SETS, **settings})
    catalogue, sets = sets_of(config)
    data, _ = catalogue.read_all(sets, config.seed)
    data = {name: thinned(each, config) for name, each in data.items()}
    return HolmesScope(config, MODEL, tuple(strategies_of(config)), {each.id: each for each in sets}, data, ())


def planned(**settings: Any) -> HolmesPlan:
    return plan(_scope(**settings))


def test_a_share_is_a_fraction_or_a_number() -> None:
    shares = [load_run_config(None, {"suite": "holmes", "flash": share}).flash for share in ("1/32", 0.5)]
    assert shares == [1 / 32, 0.5]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"flash": share}, "flash") for share in ("1/0", "x", 0, 2)),
        ({"control": ["word-order"]}, "control"),
        ({"hidden": 0}, "hidden"),
        ({"hidden": 64, "protocol": "published"}, "linear; leave one out"),
        ({"bag_of_words": 0}, "bag_of_words"),
        ({"vectors": {"bag_of_words 5": "v.npz"}}, "names that begin with bag_of_words are those of bags of words"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run_config(None, {"suite": "holmes", **settings})


def configured(**settings: Any) -> HolmesConfig:
    config = load_run_config(None, {"suite": "holmes", "preset": "demo", **settings})
    assert isinstance(config, HolmesConfig)
    return config


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({}, ("planted", None, None)),
        ({"model": "planted"}, ("planted", None, None)),
        ({"model": "smollm2-135m"}, ("real", 1 / 32, 60)),
        ({"model": "owner/name", "preset": "small"}, ("real", 1 / 32, 60)),
        ({"model": "smollm2-135m", "sets": ["ud-*"]}, ("real", 1 / 32, 60)),
        ({"model": "smollm2-135m", "flash_eval": 200}, ("real", 1 / 32, 200)),
        ({"model": "smollm2-135m", "flash": 1}, ("real", 1, None)),
        ({"model": "smollm2-135m", "sets": ["planted-role"]}, ("planted", None, None)),
        ({"model": "smollm2-135m", "corpus": {"source": "planted"}}, ("planted", None, None)),
        ({"model": "smollm2-135m", "corpus": {"source": "real"}}, ("real", None, None)),
    ],
)
def test_a_pretrained_model_reads_the_sets_that_ship(settings: dict[str, Any], read: tuple[Any, ...]) -> None:
    config = configured(**settings)
    assert (config.corpus.source, config.flash, config.flash_eval) == read


def test_runs_with_settings_of_their_own_keep_their_names() -> None:
    """Recorded while planted sets were the default of every model."""
    real, planted = {"corpus": {"source": "real"}}, {"corpus": {"source": "planted"}}
    smollm2: dict[str, Any] = {"model": "smollm2-135m"}
    runs = [
        configured(),
        configured(**smollm2, **real),
        configured(**smollm2, sets=["planted-role", "planted-pos"], protocol="published"),
        configured(**smollm2, **planted, preset="small", flash="1/2"),
        configured(model="planted", sets=["planted-p*"]),
    ]
    hashes = ["53aff8f891761984", "bc674bf5559a41b3", "9ef8c1693b3ab2ce", "c1ee60d0c4c82fac", "217508331002e12f"]
    assert [run.config_hash() for run in runs] == hashes


def test_the_sets_that_ship_are_those_of_real_text() -> None:
    _, sets = sets_of(configured(model="smollm2-135m"))
    assert Counter(each.fidelity for each in sets) == {"same": 82, "rebuilt": 26}


def test_without_the_sets_that_ship_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POOLBENCH_ASSETS", str(tmp_path / "nowhere"))
    with pytest.raises(CorpusError, match=r"real are not here, and --corpus planted needs none.*set POOLBENCH_A"):
        sets_of(configured(model="smollm2-135m"))
    assert len(sets_of(configured(model="smollm2-135m", corpus={"source": "planted"}))[1]) == 15


def test_models_of_one_board_are_measured_on_one_corpus() -> None:
    both = [configured(), configured(model="smollm2-135m")]
    for prepared in (prepare_all, prepare_dry):
        with pytest.raises(ConfigError, match="demo on holmes-planted, smollm2-135m on holmes-real: name one"):
            prepared(both, None)  # type: ignore[arg-type]


def test_sets_are_chosen_by_id_pattern_or_corpus() -> None:
    _, planted = sets_of(HolmesConfig(suite="holmes"))
    assert len(planted) == 15 and {each.fidelity for each in planted} == {"planted"}
    assert {each.type for each in planted} == {"syntax", "morphology", "semantics", "reasoning", "discourse"}
    _, some = sets_of(HolmesConfig(suite="holmes", sets=("planted-p*", "planted-random")))
    assert {"planted-pos", "planted-random"} <= {each.id for each in some} < {each.id for each in planted}
    with pytest.raises(UnknownNameError, match="planted-pos"):
        sets_of(HolmesConfig(suite="holmes", sets=("planted-poss",)))


def test_planted_sets_are_never_chosen_beside_real_text(tmp_path: Path) -> None:
    _, planted = sets_of(HolmesConfig(suite="holmes", sets=("*",)))
    assert {each.fidelity for each in planted} == {"planted"}
    with pytest.raises(CorpusError, match=r"planted-pos: no such set in corpus real; name another corpus"):
        sets_of(HolmesConfig(suite="holmes", sets=("planted-pos",), corpus={"source": "real"}))
    definition = "id: own\ntype: syntax\nphenomenon: own\ninput: text\nsource: own\nrevision: '1'\nlicence: CC0-1.0\n"
    definition += "citation: none\nfidelity: same\nreader: table\nparameters: {file: own.csv}\n"
    (tmp_path / "own.yaml").write_text(definition)
    _, own = sets_of(HolmesConfig(suite="holmes", sets=("*",), corpus={"source": str(tmp_path)}))
    assert [each.id for each in own] == ["own"]


def test_strategies_that_read_annotations_have_texts_for_document_frequencies() -> None:
    """The pooler refuses passages without a column `split`, and all strategies of a shard would fail with it."""
    made = planned(strategies=("A1_mean", "L5_keyword"))
    (task,) = (task for task in made.tasks.values() if task.kind == "pooler.annotate")
    reference = made.local[task.inputs["idf_passages"]].build()
    texts = set(made.local[task.inputs["passages"]].build()["text"].to_pylist())
    assert set(reference["text"].to_pylist()) == texts and set(reference["split"].to_pylist()) == {"train"}


def test_a_strategy_that_reads_token_counts_is_refused() -> None:
    with pytest.raises(ConfigError, match="S4_sif: reads token counts"):
        strategies_of(HolmesConfig(suite="holmes", strategies=("A1_mean", "S4_sif")))


def test_every_text_is_read_once_and_every_set_is_probed_at_each_entrant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing_sets, "SHARD", 300)
    made = planned(strategies=("A1_mean", "P1_last_token"), layers=("embedding", "final"))
    shards = [made.local[task.inputs["passages"]].build() for task in made.tasks.values() if task.kind == EXTRACT.kind]
    texts = [set(shard["text"].to_pylist()) for shard in shards]
    assert len(shards) > 1 and sum(map(len, texts)) == len(set().union(*texts))
    probes = [task for task in made.tasks.values() if task.kind == steps.TASK.kind]
    assert len(probes) == 3 * 2 and len(made.probes) == 3 * 2 * 2
    for task in probes:
        (instances,) = (made.local[key].build() for role, key in task.inputs.items() if role == steps.INSTANCES())
        asked = {name for row in instances["first"].to_pylist() for name in row}
        read = {
            made.producers[key].inputs["passages"] for role, key in task.inputs.items() if role != steps.INSTANCES()
        }
        given = {name for key in read for name in made.local[key].build()["passage_id"].to_pylist()}
        assert asked <= given
    words = {steps.TASK.params_of(task).task: steps.TASK.params_of(task).control for task in probes}
    assert words["planted-pos"] == "word_type" and words["planted-random"] == "permuted"


def test_a_smaller_share_of_train_is_part_of_a_larger_one_in_whole_groups() -> None:
    def names(data: ProbingData, *splits: str) -> set[str]:
        rows = data.instances.to_pylist()
        return {row["instance_id"] for row in rows if not splits or row["split"] in splits}

    (whole,) = _scope(sets=("planted-role",)).data.values()
    full, half, tenth = (_scope(sets=("planted-role",), flash=share).data["planted-role"] for share in (1, 0.5, 0.1))
    assert names(full) == names(whole)
    assert names(tenth, "train") < names(half, "train") < names(full, "train")
    assert names(tenth, "dev", "test") == names(half, "dev", "test") == names(full, "dev", "test")
    sizes = {split: len(names(full, split)) / len(names(full)) for split in ("train", "dev", "test")}
    assert sizes == pytest.approx({"train": 0.7, "dev": 0.1, "test": 0.2}, abs=0.02)
    groups = {row["group"] for row in half.instances.to_pylist()}
    members = [row for row in whole.instances.to_pylist() if row["group"] in groups]
    assert len(members) == len(names(half))
    assert half.passages.num_rows < whole.passages.num_rows
    labels = [row["label"] for row in tenth.instances.to_pylist() if row["split"] == "train"]
    assert len(set(labels)) == 2 and abs(labels.count(labels[0]) * 2 - len(labels)) <= 2
    few = _scope(sets=("planted-role",), flash=0.5, flash_eval=20).data["planted-role"]
    assert len(names(few, "dev")) <= 20 and len(names(few, "test")) <= 20
    assert names(few, "test") < names(half, "test") and names(few, "train") == names(half, "train")


@pytest.mark.parametrize(("most", "sizes"), [(2, (5, 5)), (5, (5, 5)), (9, (5, 5)), (10, (10, 10)), (None, (10, 20))])
def test_dev_and_test_keep_a_group_that_is_larger_than_what_was_asked(most: int | None, sizes: tuple[int, int]) -> None:
    """Of 20 groups of five instances, dev has two and test four."""
    names = [(f"s/{group:02d}-{number}", f"{group:02d}") for group in range(20) for number in range(5)]
    instances = [
        {"instance_id": name, "first": [name], "second": [], "label": str(int(group) % 2), "group": group}
        for name, group in names
    ]
    passages = [{"passage_id": name, "text": name, "span": {"start": 0, "end": 1}} for name, _ in names]
    data = ProbingData(
        pa.Table.from_pylist(passages, PROBING_PASSAGES), pa.Table.from_pylist(instances, PROBING_INSTANCES)
    )
    found = thinned(data, HolmesConfig(suite="holmes", flash_eval=most)).instances["split"].to_pylist()
    assert (found.count("dev"), found.count("test")) == sizes


@pytest.mark.parametrize("num_labels", [2, 5])
def test_every_label_is_in_every_split_where_groups_are_named_by_label(num_labels: int) -> None:
    """With groups in order of their names, dev had one of two labels, and test one of five."""
    names = [(f"s/{label}-{number:03d}", str(label)) for label in range(num_labels) for number in range(100)]
    instances = [
        {"instance_id": name, "first": [name], "second": [], "label": label, "group": name} for name, label in names
    ]
    passages = [{"passage_id": name, "text": name, "span": {"start": 0, "end": 1}} for name, _ in names]
    data = ProbingData(
        pa.Table.from_pylist(passages, PROBING_PASSAGES), pa.Table.from_pylist(instances, PROBING_INSTANCES)
    )
    found = thinned(data, HolmesConfig(suite="holmes", flash=1)).instances.to_pylist()
    shares = {"train": 70, "dev": 10, "test": 20}
    counts = Counter((row["split"], row["label"]) for row in found)
    assert counts == {(split, str(label)): share for split, share in shares.items() for label in range(num_labels)}


def _scores(values: dict[str, tuple[float | None, ...]]) -> list[Row]:
    return [
        {
            "metric": "holmes.score", "entrant": entrant, "task": f"set-{number}", "value": value, "layer": 6,
            "strategy": "A1_mean", "strategy_version": 1,
        }
        for entrant, own in values.items()
        for number, value in enumerate(own)
    ]  # fmt: skip


def test_winning_rates_by_hand() -> None:
    """The example of three models on three sets: .700, .600 and .125."""
    rows = _scores({"A": (0.9, 0.5, 0.7), "B": (0.8, 0.6, 0.7), "C": (0.8, None, 0.4)})
    sets = {f"set-{number}": f"phenomenon {number}" for number in range(3)}
    types = {"set-0": "syntax", "set-1": "syntax", "set-2": "semantics"}
    found = {(row["metric"], row["entrant"]): row for row in winning_rates(rows, sets, types)}
    overall = [found["holmes.winning_rate", name]["value"] for name in "ABC"]
    assert overall == pytest.approx([0.7, 0.6, 0.125])
    assert found["holmes.winning_rate.semantics", "A"]["value"] == pytest.approx(0.75)
    assert found["holmes.winning_rate.semantics", "A"]["ci_low"] is None
    assert found["holmes.winning_rate", "A"]["ci_low"] <= 0.7 <= found["holmes.winning_rate", "A"]["ci_high"]
    counts = {name: (row["n"], row["num_groups"]) for (metric, name), row in found.items() if metric.endswith("rate")}
    assert counts == {"A": (3, 3), "B": (3, 3), "C": (2, 2)}, "an entrant counts the sets that it has a score on"
    assert {row["entrant"]: row["n"] for row in published_rates(rows)} == {"A": 3, "B": 3, "C": 2}


def test_a_rate_that_is_null_is_not_said_to_lead() -> None:
    rows = list(winning_rates(_scores({"A": (None,), "B": (None,)}), {"set-0": "x"}, {"set-0": "s"}))
    found = {row["entrant"]: row for row in rows if row["metric"] == "holmes.winning_rate"}
    entrants = [Entrant(name, name, "0", None, {"holmes.winning_rate": row}, {}, {}) for name, row in found.items()]
    answer = HolmesView(entrants, ["s"], [{"set": "set-0"}], []).answer()
    assert answer.startswith("No entrant can be compared on the 1 sets, too_few:") and "leads" not in answer


def test_nulls_of_rates_say_what_is_lacking() -> None:
    """A set of its own is too few, as is one entrant; two entrants that tie everywhere have ranks without spread."""
    apart = _scores({"A": (0.9, None, None), "B": (None, 0.8, 0.7), "C": (None, 0.6, 0.9)})
    sets, types = {f"set-{n}": f"x{n}" for n in range(3)}, {f"set-{n}": "s" for n in range(3)}
    of_a = [row for row in winning_rates(apart, sets, types) if row["entrant"] == "A"]
    assert {row["status"] for row in of_a} == {Status.TOO_FEW} and "no set" in of_a[0]["reason"]
    (alone, *_) = winning_rates(_scores({"A": (0.9, 0.5)}), {"set-0": "x", "set-1": "y"}, types)
    assert (alone["value"], alone["status"]) == (None, Status.TOO_FEW)
    tied = published_rates(_scores({"A": (0.9, 0.9), "B": (0.9, 0.9)}))
    assert {row["status"] for row in tied} == {Status.COLLAPSED}


def test_entrants_of_two_models_stand_on_one_board() -> None:
    """An entrant is one model at one layer: that others lack its model makes no cell incomplete."""
    rows = [{**row, "model": row["entrant"], "status": "ok"} for row in _scores({"a": (0.9, 0.8), "b": (0.7, 0.85)})]
    ranks, boards, _ = rank_rows(rows, SUITES.get("holmes").board)
    found = {row["entrant"]: row["value"] for row in ranks if json.loads(row["params"])["board"] == "all"}
    assert found == {"a": 1.5, "b": 1.5} and boards[0]["num_blocks"] == 2


def test_keys_of_a_set_do_not_depend_on_the_other_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards do: another choice of sets, or of their size, cuts the passages elsewhere."""
    alone, beside = planned(sets=("planted-pos",)), planned()
    monkeypatch.setattr(probing_sets, "SHARD", 100)
    cut = planned()
    read = [{key for task in each.tasks.values() if task.kind == EXTRACT.kind for key in task.outputs.values()}
            for each in (alone, beside, cut)]  # fmt: skip
    assert not read[0] & read[1] and not read[1] & read[2]
    assert beside.probes == cut.probes
    assert alone.probes == {at: keys for at, keys in beside.probes.items() if at.set == "planted-pos"}


def test_keys_of_a_set_depend_on_how_and_what_is_read() -> None:
    def keys(**settings: Any) -> set[str]:
        return {key for own in planned(sets=("planted-pos",), **settings).probes.values() for key in own.values()}

    plain = keys()
    strategy, layer = {"strategies": ("A2_max",)}, {"layers": (2,)}
    for settings in ({"flash": 0.5}, strategy, layer, {"add_bos": True}, {"seed": 1}, {"hidden": 64}):
        assert not plain & keys(**settings), settings


def test_document_frequencies_of_the_other_sets_enter_the_keys() -> None:
    alone, beside = (planned(sets=sets, strategies=("A1_mean", "L5_keyword")) for sets in (SETS[:1], SETS))
    same = {at.strategy: beside.probes[at] == keys for at, keys in alone.probes.items()}
    assert same == {"A1_mean": True, "L5_keyword": False}


def test_controlled_entrants_stand_beside_the_others_whose_keys_stay() -> None:
    plain, made = planned(), planned(control=("word_order", "random_weights"))
    assert all(made.probes[at] == keys for at, keys in plain.probes.items())
    assert len(made.probes) == 3 * len(plain.probes)
    assert len({key for own in made.probes.values() for key in own.values()}) == 2 * len(made.probes)
    names = {entrant_of(made.scope, at) for at in made.probes}
    assert names == {f"demo{control} A1_mean final" for control in ("", "/word_order", "/random_weights")}
    changes = [EXTRACT.params_of(task).change for task in made.tasks.values() if task.kind == EXTRACT.kind]
    assert Counter(map(str, changes)) == {"None": 2, str(RandomWeights(seed=0)): 1}


def test_the_words_of_a_text_are_shuffled_alike_in_all_sets() -> None:
    """A text stays one text, so that it is read once."""
    made = planned(sets=("planted-pos", "planted-role"), control=("word_order",))
    before, after = ({row["text"] for each in made.scope.data_of(name).values() for row in each.passages.to_pylist()}
                     for name in ("", "word_order"))  # fmt: skip
    assert len(after) <= len(before) and after != before


def test_linear_probes_and_those_with_a_hidden_layer_stand_on_one_board(tmp_path: Path) -> None:
    settings = {**SETTINGS, "protocol": "corrected"}
    folders = [finished(planned(**settings, hidden=hidden), tmp_path) for hidden in (None, 64)]
    units = [{row["hidden"] for row in folder.read_table("entrants").to_pylist()} for folder in folders]
    assert units == [{None}, {64}]
    shown = SeriesBoard.of(folders).shown()
    assert "demo A1_mean final MLP 64" in shown and "demo A1_mean embedding" in shown


# Entrants without a model


def vectors_file(path: Path, ids: list[str], matrix: np.ndarray) -> str:
    np.savez(path, ids=np.array(ids), vectors=matrix)
    return str(path)


def test_the_page_ranks_entrants_without_a_model_and_keeps_them_out_of_the_poolings(tmp_path: Path) -> None:
    run = finished(planned(**{**SETTINGS, "protocol": "corrected"}, bag_of_words=50), tmp_path)
    page = page_of(run)
    assert "vectors bag_of_words 50" in [texts[0] for texts in texts_of(page.board)]
    view = view_of(run)
    assert view.layers == ["embedding", "final"] and None not in {entrant.strategy for entrant in view.pooled}
    rendered(page)


def test_entrants_without_a_model_stand_once_on_the_board_of_several_models(tmp_path: Path) -> None:
    settings = {**SETTINGS, "protocol": "corrected"}
    scope = _scope(**settings, bag_of_words=50)
    other = replace(scope, model=ModelInfo(replace(MODEL.ref, id="second"), 6, 256))
    runs = [finished(plan(each), tmp_path / each.model.ref.id) for each in (scope, other)]
    view = view_over(runs)
    names = [entrant.name for entrant in view.entrants]
    assert names.count("vectors bag_of_words 50") == 1 and len(names) == len(set(names)) == 2 * 8 + 1
    table = runs[1].read_table("results")
    rows = [
        {**row, "value": 0.1} if row["entrant"].startswith("vectors") and row["value"] is not None else row
        for row in table.to_pylist()
    ]
    write_table(runs[1], "results", pa.Table.from_pylist(rows, table.schema))
    with pytest.raises(ConfigError, match="vectors bag_of_words 50 has different scores in two runs: name"):
        view_over(runs)


def test_the_size_of_a_bag_of_words_moves_its_keys() -> None:
    plans = [planned(sets=("planted-role",), bag_of_words=size) for size in (10, 20)]
    small, large = ({key for at, own in made.probes.items() if at.vectors for key in own.values()} for made in plans)
    assert small and not small & large


def test_files_of_vectors_that_cannot_be_used(tmp_path: Path) -> None:
    """What a file of vectors may hold is tested with the suite data requirements, which reads it in the same way."""
    scope = _scope(sets=("planted-role",))
    for ids, message in (
        (["another"], "240 of 240 examples of planted-role have no vector, such as 'planted-"),
        (["a", "b"], r"2 ids and vectors of the shape \(1, 2\); one vector for each id"),
    ):
        file = vectors_file(tmp_path / "v.npz", ids, np.ones((1, 2)))
        config = scope.config.model_copy(update={"vectors": {"mine": file}})
        with pytest.raises(InputError, match=rf"v\.npz: {message}"):
            plan(replace(scope, config=config, files=planning.files_of(config)))
    with pytest.raises(InputError, match=r"absent\.npz is not a \.npz file"):
        SUITES.get("holmes").load().check(
            scope.config.model_copy(update={"vectors": {"mine": str(tmp_path / "absent.npz")}})
        )


SETTINGS: dict[str, Any] = {
    "strategies": ("A1_mean", "P1_last_token"),
    "layers": ("embedding", "final"),
    "control": ("random_weights",),
    "protocol": "published",
}


def _skill(at: ProbeCell) -> float:
    """Return the share of test instances that an entrant has right."""
    if at.control or at.set == "planted-random":
        return 0.5
    if at.vectors:
        return 0.7
    return {("A1_mean", 6): 0.95, ("P1_last_token", 6): 0.6, ("A1_mean", -1): 0.7, ("P1_last_token", -1): 0.8}[at[1:3]]


def _measures(score: float, seeds: int) -> pa.Table:
    values = [score + 0.01 * number for number in range(seeds)]
    found = Measure.of("probe.macro_f1", float(np.mean(values)), n=60)
    rows = [found.to_row(), Measure.of("probe.collapsed", float(score < 0.55)).to_row()]
    rows += [Measure.of("probe.selectivity", score / 2).to_row(), Measure.of("probe.seen_share", 0.0).to_row()]
    details = [json.dumps({"values": values}), None, None, None]
    return t.table_from_rows(rows, t.MEASURES).append_column("details", pa.array(details, pa.string()))


def _predictions(plan: HolmesPlan, at: ProbeCell) -> pa.Table:
    tested = [row for row in plan.scope.data[at.set].instances.to_pylist() if row["split"] == "test"]
    labels = sorted({row["label"] for row in tested})
    wrong = dict(zip(labels, labels[1:] + labels[:1], strict=True))
    rows = [
        {
            "instance_id": row["instance_id"],
            "split": "test",
            "seed": 0,
            "truth": row["label"],
            "predicted": row["label"] if number < _skill(at) * len(tested) else wrong[row["label"]],
        }
        for number, row in enumerate(tested)
    ]  # fmt: skip
    return t.table_from_rows(rows, t.predictions_schema(pa.string()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return the folder of a run with two strategies at two layers, a control, and the published protocol."""
    return finished(planned(**SETTINGS), tmp_path_factory.mktemp("holmes"))


def finished(plan: HolmesPlan, tmp_path: Path) -> Run:
    """Return the folder of a run whose figures are made up by `_skill`."""
    artifacts = Artifacts(open_store(str(tmp_path / "store")))
    for found, seeds in ((plan.probes, 1), (plan.published, 5)):
        for at, keys in found.items():
            artifacts.write_table(keys["measures"], _measures(_skill(at), seeds))
            artifacts.write_table(keys["predictions"], _predictions(plan, at))
    return assembled(SimpleNamespace(plan=plan, artifacts=artifacts), tmp_path / "runs")


def test_published_probes_are_planned_beside_ours_by_the_recipe() -> None:
    plain, made, paper = planned(), planned(protocol="published"), planned(protocol="published", recipe="paper")
    assert made.probes == plain.probes and not plain.published
    assert made.published.keys() == made.probes.keys()
    tasks = {made.producers[keys["measures"]].task_id: at.set for at, keys in made.published.items()}
    params = {name: made.tasks[task].params for task, name in tasks.items()}
    assert {each["protocol"] for each in params.values()} == {"released"}
    assert {tuple(each["seeds"]) for each in params.values()} == {(0, 1, 2, 3, 4)}
    assert {name: each["float16"] for name, each in params.items()} == {
        "planted-pos": False, "planted-role": False, "planted-random": True
    }  # fmt: skip
    assert not {key for own in made.published.values() for key in own.values()} & {
        key for own in paper.published.values() for key in own.values()
    }


def test_published_rows_are_in_a_table_of_their_own(folder: Run) -> None:
    published, results = (folder.read_table(name).to_pylist() for name in ("published", "results"))
    assert {row["protocol"] for row in published} == {"published"}
    assert {row["protocol"] for row in results} == {"corrected"}
    rates = {(row["metric"], row["entrant"]): row["value"] for row in published if "winning_rate" in row["metric"]}
    assert {metric for metric, _ in rates} == {"holmes.winning_rate.row", "holmes.winning_rate.column"}
    # All entrants tie on the random set, which has no scale; the leader has the highest rank on the two others.
    assert rates["holmes.winning_rate.row", "demo A1_mean final"] == 1.0
    assert rates["holmes.winning_rate.row", "demo/random_weights A1_mean final"] == 0.0


def test_the_leader_is_tested_against_every_other_entrant(folder: Run) -> None:
    rows = folder.read_table("comparisons").to_pylist()
    assert {row["entrant"] for row in rows} == {"demo A1_mean final"} and len(rows) == 7 * 3
    view = view_of(folder)
    found = {each.name: view.tested(each) for each in view.entrants}
    assert found["demo A1_mean final"] == "" and found["demo/random_weights A1_mean final"] == "2 : 0"
    assert "beats demo P1_last_token embedding significantly in 2 of 3 sets, and loses in 0" in view.certainty()


def test_comparisons_by_hand() -> None:
    """Nine instances are discordant, one of them for the other entrant: 2 (1 + 9) / 512; Holm doubles the smaller."""

    def row(name: str, entrant: str, number: int, right: bool = True) -> Row:
        predicted = "1" if right else "0"
        return {"set": name, "entrant": entrant, "instance_id": f"{name}{number}", "truth": "1", "predicted": predicted}

    rows = [row("values", "x", 0), row("a", "y", 99)]
    for name, only_first, only_second in (("a", 8, 1), ("b", 3, 3)):
        for number in range(20):
            rows.append(row(name, "x", number, number < only_first or number > 15))
            rows.append(row(name, "y", number, only_first <= number < only_first + only_second or number > 15))
    first, second = compared("x", rows, ["a", "b"]).to_pylist()
    assert (first["set"], first["n"], first["only_entrant"], first["only_other"]) == ("a", 20, 8, 1)
    assert first["p"] == pytest.approx(20 / 512) and first["p_holm"] == pytest.approx(40 / 512)
    assert (second["p"], second["p_holm"]) == (1.0, 1.0)


def test_one_set_is_opened_with_right_and_wrong_instances(folder: Run) -> None:
    rows = folder.read_table("examples").to_pylist()
    assert {row["set"] for row in rows} < {"planted-pos", "planted-role"}
    assert 0 < sum(row["right"] for row in rows) <= 3 and 0 < sum(not row["right"] for row in rows) <= 3
    for row in rows:
        assert row["right"] == (row["truth"] == row["predicted"])
        (text,) = row["texts"]
        assert all(text["text"][span["start"] : span["end"]].strip() for span in text["spans"]) and text["spans"]


def test_a_score_opens_its_instances_wrong_ones_first(tmp_path: Path) -> None:
    """Under a control too, whose texts are others: the predictions say which are wrong, the plan what they were."""
    plan = planned(**SETTINGS | {"control": ("word_order",), "evidence": 3})
    folder = finished(plan, tmp_path)
    assert keep_texts(plan, Artifacts(open_store(str(tmp_path / "store"))), folder.tables, folder) == []
    for entrant, control in (("demo A1_mean final", None), ("demo/word_order A1_mean final", "word_order")):
        (row,) = folder.rows("results", metric="holmes.score", entrant=entrant, task="planted-pos")
        part = evidence_of(folder, row["cell_id"])[-1]
        (table,) = tables_of(*part.blocks)
        predictions = folder.rows("predictions", set="planted-pos", entrant=entrant)
        wrong = sorted(row["instance_id"] for row in predictions if row["predicted"] != row["truth"])
        assert f" {len(predictions) - len(wrong)} of {len(predictions)} are right" in part.note
        data = plan.scope.data_of(control)["planted-pos"]
        passages = {row["passage_id"]: row["text"] for row in data.passages.to_pylist()}
        texts = {row["instance_id"]: passages[row["first"][0]] for row in data.instances.to_pylist()}
        shown = [line.cells[3].passages[0].text for line in table.lines]
        right = sorted({row["instance_id"] for row in predictions} - set(wrong))
        assert shown == [texts[name] for name in [*wrong, *right][:3]]
    assert {path.partition("/")[0] for path in opened(folder)} == {"cells", "entrants"}


def test_the_page_says_what_carries_what_and_what_is_wrong(folder: Run) -> None:
    page = page_of(folder)
    html, markdown = rendered(page)
    assert page.answer.text.startswith("demo A1_mean final leads: it wins ") and "<em>demo A1_mean final</em>" in html
    for part in ("Which pooling carries what", "One set opened", "By the published definition"):
        assert part in html and part in markdown
    assert "<mark>" in html
    (published,) = tables_of(*part_of(page, "published").blocks)
    # two sets at .97 and one at .52, each over five values .01 apart
    assert "0.820 ± 0.016" in [texts[1] for texts in texts_of(published)]
    assert "| syntax | P1_last_token" in markdown
    problems = view_of(folder).problems
    assert any("predict one label for all instances" in line for line in problems)


def test_the_power_of_items_is_of_the_stated_difference_at_the_discordance_of_plan_data(
    folder: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The differences of the first two are .15, .15 and 0: .02 is an effect of .231, for which 7.85 / .231^2 is 147."""
    page = page_of(folder)
    assert page.answer.sentences[-1] == (
        "3 probing sets are too few to find a difference of 0.02 in holmes.score between the first two (demo A1_mean "
        "final and demo P1_last_token embedding; a paired t-test has a power of .04): 150 would be enough."
    )
    pairs = neighbours(SUITES.get("holmes"), [folder])
    assert len(pairs) == 7 and pairs[0].difference == pytest.approx(0.1)
    plan_data(
        [folder.id], output=folder.path.parent, compare=pairs[0].entrant, with_entrant=pairs[0].next, as_json=True
    )
    planned_sets = {row["on"]: row for row in json.loads(capsys.readouterr().out)["comparisons"]}
    assert {item.block for item in pairs[0].items} == set(planned_sets)
    for item in pairs[0].items:
        row = planned_sets[item.block]
        discordant = max(row["p01"] + row["p10"], 0.02)
        shares = (discordant - 0.02) / 2, (discordant + 0.02) / 2
        assert (item.n, item.items_needed) == (row["n"], mcnemar_size([shares], most=100_000))
        assert item.power == pytest.approx(mcnemar_power(*shares, row["n"]).power)
        assert item.difference == pytest.approx(-row["difference"])  # here the first minus the second


def test_a_run_of_an_earlier_version_is_still_shown(folder: Run, tmp_path: Path) -> None:
    folder = Run(Path(shutil.copytree(folder.path, tmp_path / folder.id)))
    for name in ("comparisons", "examples", "seeds", "published"):
        folder.file(f"{name}.parquet").unlink()
    page = page_of(folder)
    assert [part.anchor for part in page.parts] == [
        "pooling", "sets", "reliability", "types", "words", "nulls", "made"
    ]  # fmt: skip
    rendered(page)


def test_several_runs_share_one_board(folder: Run, tmp_path: Path) -> None:
    """Of one run it is the run's own; of two, the entrants of both are compared on all sets."""
    alone, own = view_over([folder]), view_of(folder)
    for kind in ("", *own.types):
        assert {each.name: each.value(kind) for each in alone.entrants} == {
            each.name: each.value(kind) for each in own.entrants
        }
    other = create_run(tmp_path / "others", folder.config)

    def copy_renamed(name: str, **columns: Any) -> None:
        """Write a table of the other model's run: the same rows, whose entrants are those of that model."""
        table = folder.read_table(name)
        rows = [row for row in table.to_pylist() if name != "results" or row["metric"] == "holmes.score"]
        rows = [{**row, "entrant": row["entrant"].replace("demo", "second", 1), **columns} for row in rows]
        write_table(other, name, pa.Table.from_pylist(rows, table.schema))

    write_table(other, "sets", folder.read_table("sets"))
    copy_renamed("results", model="second", value=0.1)
    copy_renamed("entrants")
    both = view_over([folder, other])
    assert len(both.entrants) == 2 * len(own.entrants)
    assert both.entrants[0].name == "demo A1_mean final" and both.entrants[-1].name.startswith("second")
    assert (both.entrants[0].value() or 0) > (own.entrants[0].value() or 0)
    board = page_of_view(both, BLANK).board
    assert "second A1_mean final" in [texts[0] for texts in texts_of(board)]
    copy_renamed("predictions")
    tested = view_over([folder, other])  # on the test instances that both models have
    found = {each.name: tested.tested(each) for each in tested.entrants}
    assert found["second A1_mean final"] == "0 : 0" and found["second P1_last_token embedding"] == "2 : 0"


@pytest.mark.parametrize("lost", [("planted-random",), ("planted-random", "planted-role")])
def test_entrants_that_lack_sets_are_not_said_to_lead(folder: Run, tmp_path: Path, lost: tuple[str, ...]) -> None:
    """The leader loses one or two of its three scores: it stands last though it wins on the others."""
    rows = folder.read_table("results").to_pylist()
    leader = "demo A1_mean final"
    for row in rows:
        if row["metric"] == "holmes.score" and row["entrant"] == leader and row["task"] in lost:
            row |= {"value": None, "status": "no_coverage"}
            row["reason"] = f"applied to {len(row['task'])} % of the passages"
    other = create_run(tmp_path / "few", folder.config)
    write_table(other, "results", pa.Table.from_pylist(rows, folder.read_table("results").schema))
    for name in ("sets", "entrants"):
        write_table(other, name, folder.read_table(name))
    view = view_over([other])
    assert view.entrants[-1].name == leader and view.entrants[-1].value() == 1.0
    assert view.carried()["all sets"]["final"][0] == ("P1_last_token",)
    assert f"scores on fewer sets than others, and so not said to lead: {leader}" in view.problems


def test_a_run_is_submitted_without_its_examples_and_verified(folder: Run, tmp_path: Path) -> None:
    verdict, tables = submitted(folder, tmp_path)
    require_without_scores(verdict)
    assert "predictions" in tables and "examples" not in tables and folder.file("examples.parquet").is_file()
