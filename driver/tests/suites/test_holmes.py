"""The suite holmes: settings, shards of distinct passages, thinning, winning rates, rows."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.waiting import wait_until

from poolbench.config import resolve_model
from poolbench.contracts import Row
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench.statuses import Status
from poolbench.steps import prober as steps
from poolbench.steps.extractor import EXTRACT
from poolbench_corpora.probing import PROBING_INSTANCES, PROBING_PASSAGES, ProbingData
from poolbench_driver import waiting
from poolbench_driver.assemble import rank_rows
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.models import ModelInfo
from poolbench_driver.suites.holmes import plan as planning
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.plan import HolmesPlan, HolmesScope, chosen_sets, plan, strategies_of
from poolbench_driver.suites.holmes.rates import published_rates, winning_rates
from poolbench_driver.suites.holmes.thinning import thinned
from poolbench_driver.suites.holmes.view import Entrant, View

MODEL = ModelInfo(resolve_model("demo"), 6, 256)
SETS = ("planted-pos", "planted-role", "planted-random")


def _scope(**settings: Any) -> HolmesScope:
    config = HolmesConfig(suite="holmes", **{"sets": SETS, **settings})
    catalogue, sets = chosen_sets(config)
    data, _ = catalogue.read_all(sets, config.seed)
    data = {name: thinned(each, config) for name, each in data.items()}
    return HolmesScope(config, MODEL, tuple(strategies_of(config)), {each.id: each for each in sets}, data, ())


def planned(**settings: Any) -> HolmesPlan:
    return plan(_scope(**settings))


def test_a_share_is_a_fraction_or_a_number() -> None:
    assert load_run_config(None, {"suite": "holmes", "flash": "1/32"}).flash == 1 / 32
    assert load_run_config(None, {"suite": "holmes", "flash": 0.5}).flash == 0.5
    for wrong in ("1/0", "x", 0, 2):
        with pytest.raises(ConfigError, match="flash"):
            load_run_config(None, {"suite": "holmes", "flash": wrong})


def test_sets_are_chosen_by_id_pattern_or_corpus() -> None:
    _, planted = chosen_sets(HolmesConfig(suite="holmes"))
    assert len(planted) == 15 and {each.fidelity for each in planted} == {"planted"}
    assert {each.type for each in planted} == {"syntax", "morphology", "semantics", "reasoning", "discourse"}
    _, some = chosen_sets(HolmesConfig(suite="holmes", sets=("planted-p*", "planted-random")))
    assert {"planted-pos", "planted-random"} <= {each.id for each in some} < {each.id for each in planted}
    with pytest.raises(UnknownNameError, match="planted-pos"):
        chosen_sets(HolmesConfig(suite="holmes", sets=("planted-poss",)))


def test_planted_sets_are_never_chosen_beside_real_text(tmp_path: Path) -> None:
    _, planted = chosen_sets(HolmesConfig(suite="holmes", sets=("*",)))
    assert {each.fidelity for each in planted} == {"planted"}
    with pytest.raises(CorpusError, match=r"planted-pos: no such set in corpus real; name another corpus"):
        chosen_sets(HolmesConfig(suite="holmes", sets=("planted-pos",), corpus={"source": "real"}))
    definition = "id: own\ntype: syntax\nphenomenon: own\ninput: text\nsource: own\nrevision: '1'\nlicence: CC0-1.0\n"
    definition += "citation: none\nfidelity: same\nreader: table\nparameters: {file: own.csv}\n"
    (tmp_path / "own.yaml").write_text(definition)
    _, own = chosen_sets(HolmesConfig(suite="holmes", sets=("*",), corpus={"source": str(tmp_path)}))
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
    monkeypatch.setattr(planning, "SHARD", 300)
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


def test_a_rate_that_is_null_is_not_said_to_lead() -> None:
    rows = list(winning_rates(_scores({"A": (None,), "B": (None,)}), {"set-0": "x"}, {"set-0": "s"}))
    found = {row["entrant"]: row for row in rows if row["metric"] == "holmes.winning_rate"}
    entrants = [Entrant(name, name, "0", None, {"holmes.winning_rate": row}, {}, {}) for name, row in found.items()]
    answer = View("demo", entrants, ["s"], [{"set": "set-0"}], []).answer()
    assert answer.startswith("No entrant can be compared on the 1 sets, too_few:") and "leads" not in answer


def test_nulls_of_rates_say_what_is_lacking() -> None:
    """A has a set of its own, which is too few; and two entrants that tie everywhere have ranks without spread."""
    apart = _scores({"A": (0.9, None, None), "B": (None, 0.8, 0.7), "C": (None, 0.6, 0.9)})
    sets, types = {f"set-{n}": f"x{n}" for n in range(3)}, {f"set-{n}": "s" for n in range(3)}
    of_a = [row for row in winning_rates(apart, sets, types) if row["entrant"] == "A"]
    assert {row["status"] for row in of_a} == {Status.TOO_FEW} and "no set" in of_a[0]["reason"]
    tied = published_rates(_scores({"A": (0.9, 0.9), "B": (0.9, 0.9)}))
    assert {row["status"] for row in tied} == {Status.COLLAPSED}


def test_one_entrant_has_no_winning_rate() -> None:
    (row, *_) = winning_rates(_scores({"A": (0.9, 0.5)}), {"set-0": "x", "set-1": "y"}, {"set-0": "s", "set-1": "s"})
    assert (row["value"], row["status"]) == (None, Status.TOO_FEW)


def test_entrants_of_two_models_stand_on_one_board() -> None:
    """An entrant is one model at one layer: that others lack its model makes no cell incomplete."""
    rows = [{**row, "model": row["entrant"], "status": "ok"} for row in _scores({"a": (0.9, 0.8), "b": (0.7, 0.85)})]
    ranks, boards, _ = rank_rows(rows, SUITES.get("holmes").board)
    found = {row["entrant"]: row["value"] for row in ranks if json.loads(row["params"])["board"] == "all"}
    assert found == {"a": 1.5, "b": 1.5} and boards[0]["num_blocks"] == 2


def test_keys_of_a_set_do_not_depend_on_the_other_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards do: another choice of sets, or of their size, cuts the passages elsewhere."""
    alone, beside = planned(sets=("planted-pos",)), planned()
    monkeypatch.setattr(planning, "SHARD", 100)
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
    for settings in ({"flash": 0.5}, {"strategies": ("A2_max",)}, {"layers": (2,)}, {"add_bos": True}, {"seed": 1}):
        assert not plain & keys(**settings), settings


def test_document_frequencies_of_the_other_sets_enter_the_keys() -> None:
    alone, beside = (planned(sets=sets, strategies=("A1_mean", "L5_keyword")) for sets in (SETS[:1], SETS))
    same = {at.strategy: beside.probes[at] == keys for at, keys in alone.probes.items()}
    assert same == {"A1_mean": True, "L5_keyword": False}


def test_reading_is_said_on_stderr_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, session = HolmesConfig(suite="holmes", sets=("planted-p*",)), cast(Any, None)
    monkeypatch.setattr(waiting, "_QUIET_S", 60.0)
    planning.resolve(config, session, MODEL)
    assert not capsys.readouterr().err
    said = list[str]()

    def slow(data: ProbingData, config: HolmesConfig) -> ProbingData:
        wait_until(lambda: said.append(capsys.readouterr().err) or "".join(said))
        return thinned(data, config)

    monkeypatch.setattr(waiting, "_QUIET_S", 0.0)
    monkeypatch.setattr(planning, "thinned", slow)
    planning.resolve(config, session, MODEL)
    assert re.fullmatch(r"reading \d+ probing sets\n", "".join(said) + capsys.readouterr().err)
