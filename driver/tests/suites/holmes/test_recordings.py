"""Recorded tables of the public leaderboard: winning rates by hand and every mistake with file and line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from poolbench.errors import ConfigError, InputError
from poolbench_driver.cli.runs import leaderboard
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.suites.holmes.recordings import TYPES, board, read_scores

#: The example of the definitions: models A, B and C on three sets. One of the sets is unknown to the public suite.
BY_HAND = """,probing dataset,linguistic subfield,linguistic phenomena,probe type,train portion,probe,A,B,C
0,dep,syntax,dependency parsing,token(s) classification,1,dep,.9,.8,.8
1,upos,syntax,part of speech,token(s) classification,1,upos,.5,.6,
2,my-set,discourse,mine,sentence classification,1,my-set,.7,.7,.4
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "table.csv"
    file.write_text(text, "utf-8")
    return file


def test_the_board_has_the_rates_that_are_computed_by_hand(tmp_path: Path) -> None:
    rows = SUITES.get("holmes").load().recorded(written(tmp_path, BY_HAND)).rows
    assert [row["entrant"] for row in rows] == ["A", "B", "C"]
    found = {row["entrant"]: [row["winning_rate"][name] for name in ("pairs", "row", "column")] for row in rows}
    expected = {"A": [70.0, 200 / 3, 200 / 3], "B": [60.0, 200 / 3, 100 / 3], "C": [12.5, 0.0, 50.0]}
    assert found == {name: pytest.approx(values) for name, values in expected.items()}
    assert list(rows[0]["by_type"]) == list(TYPES)
    first = rows[0]["by_type"]
    # Syntax: A wins 2 of 3 pairs; its ranks are 3 and 1 within the type, and 3, 1, 3 over all sets.
    assert first["syntax"] == {"pairs": pytest.approx(200 / 3), "row": 50.0, "column": 50.0, "column_overall": 50.0}
    assert first["discourse"] == {"pairs": 75.0, "row": 100.0, "column": None, "column_overall": 100.0}
    assert set(first["reasoning"].values()) == {None}


def test_columns_have_any_order_and_standard_deviations_are_no_models(tmp_path: Path) -> None:
    plain = board(read_scores(written(tmp_path, BY_HAND)))
    lines = [line.split(",") for line in BY_HAND.splitlines()]
    moved = "\n".join(",".join([line[9], *line[1:4], line[7], line[5], line[8], "A std" if not n else ".01"])
                      for n, line in enumerate(lines))  # fmt: skip
    scores = read_scores(written(tmp_path, moved))
    assert list(scores.models) == ["C", "A", "B"] and board(scores) == plain
    assert "columns with standard deviations are not read: 1" in scores.notes


def test_a_set_without_a_type_is_looked_up_or_counts_overall_only(tmp_path: Path) -> None:
    text = "probing dataset,A,B\nblimp-causative,.9,.8\nmy-set,.5,.6\n"
    scores = read_scores(written(tmp_path, text))
    assert list(scores.types) == ["syntax", ""] and list(scores.phenomena) == ["argument structure", "my-set"]
    assert "sets that the public suite does not have: 1, such as my-set" in scores.notes
    assert "sets without a type, which count overall only: 1" in scores.notes
    (first, _) = board(scores)
    assert first["winning_rate"]["pairs"] == 50.0 and first["by_type"]["syntax"]["pairs"] in (0.0, 100.0)


def test_of_several_portions_the_one_of_the_site_is_read_and_seeds_are_averaged(tmp_path: Path) -> None:
    text = "probing dataset,train portion,seed,A,B\ndep,0.03125,0,.2,.3\ndep,0.03125,1,.4,\ndep,.5,0,.9,.9\n"
    scores = read_scores(written(tmp_path, text))
    assert scores.portion == 1 / 32 and "rows of other portions are not read: 1" in scores.notes
    np.testing.assert_allclose(scores.scores, [[0.3], [0.3]])
    whole = read_scores(written(tmp_path, text + "dep,1,0,.5,.6\n"))
    assert whole.portion == 1 and whole.scores.tolist() == [[0.5], [0.6]]
    assert read_scores(written(tmp_path, text.replace("0.03125", "0.25"))).portion == 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("probing dataset,A,B\n", "is empty"),
        ("probing dataset,A\ndep,.5\n", "line 1: columns of models: 1"),
        ("set,A,B\ndep,.5,.6\n", "line 1: no column 'probing dataset'; the first columns are 'set', 'A', 'B'"),
        ("probing dataset,A,A\ndep,.5,.6\n", "the column 'A' is there twice"),
        ("probing dataset,A,B\ndep,.5,.6\n\nupos,good,.6\n", "line 4, column 'A': 'good' is not a number"),
        ("probing dataset,A,B\ndep,inf,.6\n", "line 2, column 'A': 'inf' is not a number"),
        ("probing dataset,A,B\ndep,.5\n", "line 2: another number of fields than the 3 columns: 2"),
        ("probing dataset,A,B\ndep,.5,.6\ndep,.5,.6\n", "line 3: 'dep' is there already, with the same portion: "),
        ("probing dataset,A,B\n,.5,.6\n", "line 2: the column 'probing dataset' is empty"),
        ("probing dataset,train portion,A,B\ndep,2,.5,.6\n", "line 2: the train portion '2' is not between 0 and 1"),
        ("probing dataset,train portion,A,B\ndep,,.5,.6\n", "line 2: the train portion '' is not between 0 and 1"),
        (
            "probing dataset,linguistic subfield,A,B\ndep,grammar,.5,.6\n",
            "line 2: unknown type of phenomenon 'grammar'",
        ),
        ('probing dataset,A,B\n"dep,.5,.6\n', "line 2: unexpected end of data"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, text: str, expected: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InputError) as caught:
        SUITES.get("holmes").load().recorded(file)
    assert expected in str(caught.value) and str(file) in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.csv").write_bytes(b"probing dataset,A,B\ndep,\xff,.5\n")
    for name, expected in (("none.csv", "no such file"), ("", "directory"), ("bytes.csv", "not UTF-8 in line 2")):
        with pytest.raises(InputError, match=expected):
            SUITES.get("holmes").load().recorded(tmp_path / name)


def test_the_command_prints_text_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, BY_HAND)
    leaderboard(suite="holmes", table=file, as_json=True)
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert found == SUITES.get("holmes").load().recorded(file).rows
    leaderboard(suite="holmes", table=file)
    printed = capsys.readouterr().out
    assert "| 1 | A | 70.0 |" in printed and "recorded by others in table.csv" in printed
    with pytest.raises(ConfigError, match="give --suite"):
        leaderboard(table=file)
    with pytest.raises(ConfigError, match="does not read recorded tables"):
        leaderboard(suite="humanoid", table=file)
    with pytest.raises(ConfigError, match="give --table too"):
        leaderboard(suite="holmes")


def test_rates_agree_with_the_data_frames_of_the_public_site(tmp_path: Path) -> None:
    """The site ranks the rows of a pandas table with ties at the maximum, and scales each column."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(rng.integers(0, 9, size=(24, 6)) / 10, columns=list("ABCDEF"))
    frame = frame.mask(rng.random(frame.shape) < 0.1)
    frame.insert(0, "linguistic subfield", [TYPES[number % 5] for number in range(24)])
    frame.insert(0, "probing dataset", [f"set-{number}" for number in range(24)])
    frame.to_csv(tmp_path / "frame.csv")
    found = {row["entrant"]: row for row in board(read_scores(tmp_path / "frame.csv"))}
    for kind in ("", *TYPES):
        part = frame[frame["linguistic subfield"] == kind] if kind else frame
        ranks = part[list("ABCDEF")].rank(axis=1, method="max")
        scaled = 100 * ((ranks - ranks.min()) / (ranks.max() - ranks.min())).mean()
        for model in "ABCDEF":
            rates = found[model]["by_type"][kind] if kind else found[model]["winning_rate"]
            assert rates["column"] == pytest.approx(scaled[model])
