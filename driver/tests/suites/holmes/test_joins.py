"""A run, or a result file of the reference's tool, ranked among recorded models on the sets in common."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.run_folders import MadeRun

from poolbench.errors import ConfigError, InputError
from poolbench_corpora.probing import ProbingSets, suite_sets
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.contract.abilities import Recorded
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.suites.holmes.metrics import SCORE

RECORDED = """,probing dataset,linguistic subfield,linguistic phenomena,train portion,A,B
0,dep,syntax,dependency parsing,1,.9,.8
1,upos,syntax,part of speech,1,.5,.6
2,sentiment,semantics,sentiment,1,.7,.4
3,dep,syntax,dependency parsing,.03125,.3,.2
"""
HEAD = ",probing_dataset,model_name,encoding,control_task_type,sample_size,seed,num_hidden_layers,score\n"


def run_of(scores: dict[str, float], fidelity: str = "rebuilt", **settings: Any) -> FinishedRun:
    """A finished run of protocol `published` with one entrant; its sets stand for those of the suite."""
    sets = [{"set": f"ewt-{name}", "stands_for": name, "fidelity": fidelity} for name in scores]
    sets.append({"set": "planted-pos", "stands_for": None, "fidelity": "planted"})
    rows = [
        {"metric": SCORE, "task": f"ewt-{name}", "entrant": "demo A11_mean_all final", "value": value}
        for name, value in scores.items()
    ]
    config = load_run_config(None, {"suite": "holmes", "protocol": "published", **settings})
    tables = {"sets": pa.Table.from_pylist(sets), "published": pa.Table.from_pylist(rows)}
    return MadeRun("run-1", config, tables)


def among(folder: Path, *origins: FinishedRun | Path, table: str = RECORDED) -> Recorded:
    file = folder / "table.csv"
    file.write_text(table, "utf-8")
    return SUITES.get("holmes").load().among_recorded(file, origins)


def output(folder: Path, *lines: str) -> Path:
    file = folder / "results_holmes.csv"
    file.write_text(HEAD + "".join(f"{number},{line}\n" for number, line in enumerate(lines)), "utf-8")
    return file


def pairs_of(recorded: Recorded) -> dict[str, float]:
    return {row["entrant"]: row["winning_rate"]["pairs"] for row in recorded.rows}


def test_a_run_is_ranked_on_the_sets_in_common_by_hand(tmp_path: Path) -> None:
    recorded = among(tmp_path, run_of({"dep": 0.85, "upos": 0.6, "role": 0.9}))
    # dep: A .9, run .85, B .8; upos: B .6 and run .6 tie, A .5.
    expected = {"A": 100 * (2 + 0) / 4, "demo A11_mean_all final": 100 * (1 + 1.5) / 4, "B": 100 * (0 + 1.5) / 4}
    assert pairs_of(recorded) == pytest.approx(expected)
    assert [row["joined"] for row in recorded.rows] == [True, False, False]
    assert "on the 2 sets in common of 3" in recorded.notes[0] and "2 of them rebuilt" in recorded.notes[0]
    assert "| 1 | **demo A11_mean_all final** | 62.5 |" in recorded.markdown and "in common of 3" in recorded.markdown
    assert "never ranked" not in recorded.markdown
    same = among(tmp_path, run_of({"dep": 0.85, "upos": 0.6}, fidelity="same"))
    assert "rebuilt" not in same.notes[0] and pairs_of(same) == pairs_of(recorded)


def test_the_share_of_the_training_data_is_that_of_the_run(tmp_path: Path) -> None:
    assert pairs_of(among(tmp_path, run_of({"dep": 0.25}, flash="1/32"))) == {
        "A": 100, "demo A11_mean_all final": 50, "B": 0
    }  # fmt: skip
    with pytest.raises(InputError, match=r"no rows of 0\.5 of the training data, which is joined; it has 0\.03125, 1"):
        among(tmp_path, run_of({"dep": 0.25}, flash=0.5))


def test_the_sets_that_ship_are_joined_to_those_of_the_public_suite(tmp_path: Path) -> None:
    """59 paradigms of BLiMP, 17 of Zorro, upos, xpos and dep have the texts of the suite; 25 others are rebuilt."""
    shipped = [definition for definition in ProbingSets().all() if definition.fidelity != "planted"]
    sets = [{"set": d.id, "stands_for": d.stands_for, "fidelity": d.fidelity} for d in shipped]
    entrant = "smollm2-135m A11_mean_all final"
    rows = [{"metric": SCORE, "task": d.id, "entrant": entrant, "value": 0.7} for d in shipped]
    model: dict[str, Any] = {"model": "smollm2-135m", "preset": "demo"}
    config = load_run_config(None, {"suite": "holmes", "protocol": "published", **model})
    tables = {"sets": pa.Table.from_pylist(sets), "published": pa.Table.from_pylist(rows)}
    head, *_ = RECORDED.partition("\n")
    lines = [f"0,{one.id},{one.type},{one.phenomenon},.03125,.9,.5" for one in suite_sets().values()]
    recorded = among(tmp_path, MadeRun("run-1", config, tables), table="\n".join([head, *lines]))
    assert recorded.notes[0].startswith(f"joined: {entrant}, on the 104 sets in common of 208; 25 of them rebuilt")
    assert pairs_of(recorded) == {"A": 100, entrant: 50, "B": 0}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (run_of({"role": 0.9}), "no set in common: the table has dep and 2 others, what is joined has role"),
        (MadeRun("r", load_run_config(None, {"suite": "holmes"}), {}), "run it with --protocol published to join"),
        (run_of({"dep": 0.9}, fidelity="planted"), "none of its sets is, or stands for, a set of the public suite"),
        (MadeRun("r", load_run_config(None, {"suite": "humanoid"}), {}), "of the suite humanoid: --join takes"),
    ],
)
def test_a_run_that_cannot_be_joined_says_why(tmp_path: Path, run: FinishedRun, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        among(tmp_path, run)


def test_the_output_of_the_reference_s_tool_is_read_without_its_control_tasks(tmp_path: Path) -> None:
    file = output(
        tmp_path,
        "dep,bert,full,NONE,0,0,0,.84", "dep,bert,full,NONE,0,1,0,.86", "dep,bert,full,NONE,0,0,1,.95",
        "dep,bert,full,PERMUTATION,0,0,0,.1", "upos,bert,full,NONE,0,0,0,.6",
    )  # fmt: skip
    recorded = among(tmp_path, file, table=RECORDED)
    joined = [row["entrant"] for row in recorded.rows if row["joined"]]
    assert joined == ["bert MLP (1 hidden)", "bert"] and "on the 1 set in common" in recorded.notes[0]
    table = SUITES.get("holmes").load().recorded(file)
    assert pairs_of(table) == {"bert MLP (1 hidden)": 100, "bert": 0}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["dep,bert,full,NONE,0,0,0,high"], "line 2, column 'score': 'high' is not a number"),
        (["dep,bert,full,NONE,0,0,0,.8"] * 2, "line 3: 'dep' is there already: .*line 2"),
        (["dep,bert,full,NONE,400,0,0,.8"], "line 2: the sample size '400' is not a share from 0 to 1"),
        (["dep,bert,full,PERMUTATION,0,0,0,.8"], "every row is of a control task"),
    ],
)
def test_mistakes_in_it_name_file_and_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        among(tmp_path, output(tmp_path, *lines))
    one = output(tmp_path, "dep,bert,full,NONE,0,0,0,.8")
    with pytest.raises(InputError, match="models: 1; at least two are needed: --join it to a recorded table"):
        SUITES.get("holmes").load().recorded(one)


def test_the_command_joins_a_file_and_refuses_what_has_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = output(tmp_path, "dep,bert,full,NONE,0,0,0,.85")
    (tmp_path / "table.csv").write_text(RECORDED, "utf-8")
    leaderboard(suite="holmes", table=tmp_path / "table.csv", join=[str(file)], as_json=True)
    printed = capsys.readouterr()
    assert [row["entrant"] for row in json.loads(printed.out)] == ["A", "bert", "B"]
    assert "1 set in common of 3" in printed.err
    with pytest.raises(ConfigError, match="give their --table"):
        leaderboard(join=["latest"])
    with pytest.raises(ConfigError, match="'ce-bench' joins no runs with recorded tables; leave out --join"):
        leaderboard(suite="ce-bench", table=tmp_path / "table.csv", join=[str(file)])
