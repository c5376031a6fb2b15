"""`steer` against a small HTTP server that answers as the steerer does."""

import asyncio
import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from driver.tests.suites.test_ce_bench import config_of, put_sae
from driver.tests.vector_cards import vector_of
from rich.console import Console
from tests.servers.answering import answering
from tests.servers.services import cluster_environment

from poolbench.config import resolve_model
from poolbench.directions.registry import DirectionContext, compute_direction
from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import InputError
from poolbench_driver import Piece
from poolbench_driver.api.cluster import Cluster
from poolbench_driver.cli.steer import parse_edit, show
from poolbench_driver.records.features import FEATURES_SCHEMA
from poolbench_driver.records.folder import create_run, write_table
from poolbench_driver.vectors.card import Application, Strength

KEY = "0123456789abcdef" * 2
RECEIPT = {"vector_ids": [KEY], "layers": [2], "alphas": [1.5], "positions_changed": 3, "positions_expected": 3}


def chunk(index: int, text: str, finish: str | None = None, receipt: Any = None) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
    return {"choices": [choice | ({"steering_receipt": receipt} if finish else {})]}


EVENTS = [
    chunk(1, " two"), chunk(0, " o"), chunk(1, "!", "stop"), chunk(0, "ne"), chunk(0, ".", "length", RECEIPT)
]  # fmt: skip


def pieces_of(events: list[dict[str, Any]]) -> list[Piece]:
    return [Piece.of(choice) for event in events for choice in event["choices"]]


def answer(path: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any] | str]:
    """Completions: a stream of EVENTS, or all of them at once; a prompt "broken" ends in an error."""
    if asked["prompt"] == ["refused"]:
        return 404, {"error": {"code": "unknown_vector", "message": "vector is not registered"}}
    if not asked.get("stream"):
        choices = [chunk(index, f" text {index}", "length", RECEIPT)["choices"][0] for index in (0, 1)]
        return 200, {"model": "demo", "seed": asked["seed"], "usage": {}, "choices": choices}
    events = [json.dumps(event) for event in EVENTS]
    if asked["prompt"] == ["broken"]:
        events = [json.dumps({"error": {"code": "stream_broken", "message": "the engine died"}})]
    elif asked["prompt"] != ["cut", "off"]:
        events.append("[DONE]")
    return 200, "".join(f"data: {event}\n\n" for event in events)


@pytest.fixture
def steerer(tmp_path: Path) -> Iterator[tuple[dict[str, str], list[dict[str, Any]]]]:
    """The environment of a cluster whose steerer answers so, and what that was asked."""
    with answering(answer) as (address, seen):
        yield os.environ | cluster_environment(address, tmp_path), seen


def test_texts_stream_in_order_with_their_receipts(driver, steerer, tmp_path):
    environment, seen = steerer
    np.save(tmp_path / "v.npy", np.array([0.5, -1.0]))
    (tmp_path / "more.txt").write_text("Second\n")
    edits = ["--edit", f"{tmp_path / 'v.npy'}:2:1.5", "--edit", f"{KEY}:3:0.5:clamp"]
    options = ["--input", str(tmp_path / "more.txt"), "--temperature", "0.7", "--seed", "9", "--stop", "END"]
    done = driver(environment, "steer", "First", *edits, *options)
    assert (done.returncode, done.stdout) == (0, "First one.\nSecond two!\n")
    assert "3 of 3 positions changed (01234567 at 2 by 1.5), ended by length" in " ".join(done.stderr.split())
    (asked,) = seen
    assert asked["path"] == "/steerer/v1/completions"
    assert (asked["prompt"], asked["seed"], asked["temperature"]) == (["First", "Second"], 9, 0.7)
    assert asked["stop"] == ["END"]
    assert asked["steering"] == {
        "positions": "generated",
        "edits": [
            {"vector": [0.5, -1.0], "layer": 2, "alpha": 1.5, "operation": "add"},
            {"vector_id": KEY, "layer": 3, "alpha": 0.5, "operation": "clamp"},
        ],
    }


def test_scores_of_a_concept_are_shown_under_each_text():
    direction = {"concept": "contrast", "strategy": "A1_mean"}
    events = [chunk(0, " one"), chunk(0, ".", "stop")]
    events[0]["choices"][0]["reading"] = {"scores": [1.25, -3.0]}
    events[1]["choices"][0]["reading"] = {"scores": [0.5], "layer": 3, "direction": direction}
    output, notes = io.StringIO(), io.StringIO()
    show(["First"], pieces_of(events), output, Console(file=notes, width=200))
    assert output.getvalue() == "First one.\n"
    assert "contrast by A1_mean at layer 3, by token: 1.25 -3.00 0.50" in notes.getvalue()


def test_json_has_texts_and_receipts(driver, steerer, tmp_path):
    environment, seen = steerer
    np.save(tmp_path / "v.npy", np.ones(2))
    single = ["--vector", str(tmp_path / "v.npy"), "--layer", "2", "--alpha", "3", "--unit", "residual_norm"]
    done = driver(environment, "steer", "a", "b", *single, "--positions", "4", "--read", "contrast", "--json")
    answer = json.loads(done.stdout)
    assert [row["prompt"] for row in answer["texts"]] == ["a", "b"]
    assert answer["texts"][0]["receipt"] == RECEIPT
    edit = {"vector": [1.0, 1.0], "layer": 2, "strength": 3.0, "operation": "add"}
    assert seen[0]["steering"] == {"edits": [edit], "positions": 4}
    assert seen[0]["reading"] == {"concept": "contrast"}


@pytest.mark.parametrize(
    ("prompts", "code", "expected"),
    [
        (["refused"], 2, "error: steerer: vector is not registered"),
        (["broken"], 1, "error: steerer: the engine died"),
        (["cut", "off"], 1, "without saying that it was done"),
        ([], 2, "give prompts, or --input FILE"),
        (["a", "--vector", "v.npy"], 2, "v.npy cannot be read"),
        (["a", "--alpha", "2"], 2, "--alpha belongs to --vector"),
        (["a", "--edit", "v.npy:2"], 2, "is not FILE:LAYER:STRENGTH"),
        (["a", "--edit", "v.npy:2:1:ad"], 2, "did you mean add"),
        (["a", "--edit", "nowhere.npy:2:1"], 2, "nowhere.npy"),
        (["a", "--edit", f"{KEY}:2:1", "--unit", "norm"], 2, "did you mean residual_norm"),
        (["Caf\udce9"], 2, "the request holds '\\udce9', which is not valid Unicode; give texts in UTF-8"),
    ],
)
def test_mistakes_are_one_line(driver, steerer, prompts, code, expected):
    done = driver(steerer[0], "steer", *prompts)
    assert done.returncode == code
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_edits_are_read_from_the_right(tmp_path):
    odd = tmp_path / "a:b.npy"
    np.save(odd, np.ones(3))
    expected = {"vector": [1.0, 1.0, 1.0], "layer": -1, "strength": -2.5, "operation": "clamp"}
    assert parse_edit(f"{odd}:-1:-2.5:clamp", "residual_norm") == expected
    assert parse_edit(f"{odd}:2:1:erase", "residual_norm")["alpha"] == 1.0  # a share, whatever the unit
    assert parse_edit(f"{odd}:4:1e1", "absolute")["alpha"] == 10.0
    with pytest.raises(InputError, match=r"of shape \(3, 3\); numbers of shape \[width\] are needed"):
        np.save(odd, np.ones((3, 3)))
        parse_edit(f"{odd}:4:1", "absolute")


def test_a_text_of_several_waits_for_those_before_it():
    output, notes = io.StringIO(), Console(file=io.StringIO())
    seen = []
    for number in range(1, len(EVENTS) + 1):
        output = io.StringIO()
        show(["A", "B"], pieces_of(EVENTS[:number]), output, notes)
        seen.append(output.getvalue())
    assert seen == ["A", "A o", "A o", "A one", "A one.\nB two!\n"]


@pytest.fixture
def measured(steerer, tmp_path):
    """The cluster of `steerer` after a run that measured contrast."""
    from poolbench.config import resolve_model
    from poolbench.contracts.wire import RUN_FILES, run_path
    from poolbench.library.directions import TABLE, table_of

    row = {"model": "demo", "model_revision": resolve_model("demo").revision, "concept": "contrast"}
    row |= {"strategy": "A1_mean", "layer": 3, "construction": "C1"}
    figures = {"key": "prober.probe.1", "d1": 0.9, "gain": 0.3, "gain_where_chosen": 0.4, "fluent_strength": 0.5}
    file = tmp_path / "store" / run_path("run-1", f"{RUN_FILES}{TABLE}.parquet")
    file.parent.mkdir(parents=True)
    pq.write_table(table_of([row | figures]), file)
    return steerer


def test_a_concept_steers_by_the_direction_of_the_latest_run(driver, measured):
    environment, seen = measured
    done = driver(environment, "steer", "First", "Second", "--concept", "contrast", "--strength", ".6")
    assert (done.returncode, done.stdout) == (0, "First one.\nSecond two!\n")
    said = " ".join(done.stderr.split())
    assert said.startswith(
        "model demo, direction: contrast by A1_mean at layer 3, of run run-1 warning: strength 0.6: the run's"
    )
    assert "texts were fluent up to 0.5" in said
    named = {"concept": "contrast", "strategy": "A1_mean", "layer": 3, "run": "run-1"}
    assert seen[0]["steering"] == named | {"strength": 0.6, "positions": "generated"}


def test_several_strengths_stand_below_the_unsteered_text(driver, measured):
    environment, seen = measured
    done = driver(environment, "steer", "a", "b", "--concept", "contrast", "--strength", "0,.1,.3")
    assert [line.split()[1:4:2] for line in done.stdout.splitlines() if line.startswith("│")] == [
        [strength, "text"] for _ in range(2) for strength in ("unsteered", "0.1", "0.3")
    ]
    assert "warning" not in done.stderr
    assert sorted(body.get("steering", {"strength": 0})["strength"] for body in seen) == [0, 0.1, 0.3]
    done = driver(environment, "steer", "a", "b", "--concept", "contrast", "--strength", "0,.1", "--json")
    answer = json.loads(done.stdout)
    assert answer["direction"]["run"] == "run-1"
    assert [(row["prompt"], row["strength"]) for row in answer["texts"]] == [("a", 0), ("a", 0.1), ("b", 0), ("b", 0.1)]
    before = len(seen)
    driver(environment, "steer", "a", "b", "--concept", "contrast", "--strength", ".1", "--json")
    assert [body["steering"]["strength"] for body in seen[before:]] == [0.1]  # as without --json


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--concept", "contrast"], "a direction needs a strength"),
        (["--concept", "contrast", "--strength", ".1", "--edit", f"{KEY}:1:1"], "--concept takes --strength"),
        (["--concept", "hedging", "--strength", ".1"], "there are those of contrast"),
        (["--concept", "contrast", "--strength", ".1", "--layer", "9"], "there are A1_mean at layer 3"),
        (["--concept", "contrast", "--strength", ".1", "--unit", "residual_norm"], "--concept takes --strength"),
        (["--strength", ".1"], "belongs to --concept or --sae"),
        (["--strategy", "A1_mean"], "strategy and run belong to a concept"),
    ],
)
def test_names_that_mean_nothing_are_refused(driver, measured, options, said):
    environment, seen = measured
    done = driver(environment, "steer", "a", *options)
    assert (done.returncode, seen) == (2, [])
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("options", [(), ("--csv",), ("--concept", "contrast", "--strength", ".1,.2")])
def test_characters_that_an_output_lacks_are_escaped(driver, measured, monkeypatch, encoding, options):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding=encoding))
    done = driver(measured[0], "steer", "Café", "so 😀", *options)
    assert done.returncode == 0, done.stderr
    shown = written.getvalue().decode(encoding)
    assert ("Caf\\xe9" if encoding == "ascii" else "Café") in shown
    assert "so \\U0001f600" in shown


def test_directions_are_listed(driver, measured):
    environment, _ = measured
    (row,) = json.loads(driver(environment, "ls", "directions", "--json").stdout)
    of = {"model": "demo", "concept": "contrast", "strategy": "A1_mean", "layer": 3, "run": "run-1"}
    assert row == of | {"d1": 0.9, "gain": 0.3, "fluent up to": 0.5}


@pytest.fixture
def cluster(measured, monkeypatch):
    """The cluster of `measured` as Python code reaches it."""
    environment, _ = measured
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Cluster()


def test_python_steers_by_name_and_texts_stream(cluster, measured):
    _, seen = measured
    streamed = cluster.steer(["First", "Second"], concept="contrast", strength=0.6, stream=True)
    assert seen == [] and streamed.direction["run"] == "run-1" and "fluent up to 0.5" in streamed.notes[1]
    pieces = list(streamed)
    assert [(piece.prompt, piece.text) for piece in pieces] == [(1, " two"), (0, " o"), (1, "!"), (0, "ne"), (0, ".")]
    assert streamed.texts == [" one.", " two!"] and pieces[-1].receipt == RECEIPT
    copied = pickle.loads(pickle.dumps(cluster.steer(["First", "Second"], stream=True)))
    assert copied.texts == [" one.", " two!"] and "two!" in copied._repr_html_() and seen.pop()
    assert [row["receipt"] for row in streamed.to_pylist()] == [RECEIPT, None] and len(seen) == 1
    html = streamed._repr_html_()
    assert "strength 0.6, 3 of 3 positions changed" in html and "<mark> one.</mark>" in html
    several = cluster.steer(["a<b>", "b"], concept="contrast", strength=[0.1, 0.3])
    assert [(row["prompt"], row["strength"]) for row in several.to_pylist()] == [
        (prompt, strength) for prompt in ("a<b>", "b") for strength in (0, 0.1, 0.3)
    ]
    assert "unsteered" in several._repr_html_() and "a&lt;b&gt;" in several._repr_html_()
    assert several.rows.columns == ["strength", "prompt", "text", "finish_reason", "receipt"]
    with pytest.raises(InputError, match=r"strength \[0\]: give a number other than 0"):
        cluster.steer("a", concept="contrast", strength=[0])


def test_python_steers_along_vectors_of_its_own(cluster, measured, tmp_path):
    _, seen = measured
    np.save(tmp_path / "v.npy", np.array([0.5, -1.0]))
    for vector in ([0.5, -1.0], np.array([0.5, -1.0]), tmp_path / "v.npy", str(tmp_path / "v.npy")):
        cluster.steer(["a", "b"], vector=vector, layer=2, strength=np.float64(0.3), positions="all")
    edit = {"vector": [0.5, -1.0], "layer": 2, "operation": "add"}
    sizes = [{"strength": 0.3}] * 2 + [{"alpha": 0.3}] * 2
    assert [body["steering"] for body in seen] == [{"edits": [edit | size], "positions": "all"} for size in sizes]
    edit["alpha"] = 0.3
    cluster.steer(["a", "b"], edits=[edit | {"operation": "clamp"}], stop="END")
    assert seen[-1]["steering"]["edits"][0]["operation"] == "clamp" and seen[-1]["stop"] == ["END"]
    assert "steering" not in cluster.steer(["a", "b"]).to_dict() and "steering" not in seen[-1]


def test_the_command_adds_the_same_vector_as_python(cluster, driver, measured, tmp_path):
    environment, seen = measured
    with_card = vector_of(
        2, 4, model_revision=resolve_model("demo").revision, strength=Strength(recommended=0.2),
        apply=Application(positions="all"),
    )  # fmt: skip
    with_card.save(tmp_path / "card")
    np.save(tmp_path / "v.npy", np.array([0.5, -1.0]))
    calls: list[tuple[list[str], dict[str, Any], dict[str, float]]] = [
        (["card"], {}, {"strength": 0.2}),
        (["card", "--alpha", ".3"], {"strength": 0.3}, {"strength": 0.3}),
        (["card", "--unit", "absolute"], {"unit": "absolute"}, {"alpha": 1.0}),
        (["v.npy", "--layer", "2"], {"layer": 2}, {"alpha": 1.0}),
        (["v.npy", "--layer", "2", "--alpha", "3"], {"layer": 2, "strength": 3.0}, {"alpha": 3.0}),
    ]
    for (name, *options), settings, size in calls:
        path = tmp_path / name
        cluster.steer(["a", "b"], vector=path, **settings)
        for form in ([], ["--json"]):
            done = driver(environment, "steer", "a", "b", "--vector", str(path), *options, *form)
            assert done.returncode == 0, done.stderr
        first, *others = (body["steering"] for body in seen[-3:])
        assert others == [first, first] and first["positions"] == ("all" if name == "card" else "generated")
        assert all(size.items() <= edit.items() for edit in first["edits"])
    driver(environment, "steer", "a", "b", "--vector", str(tmp_path / "card"), "--positions", "4")
    assert seen[-1]["steering"]["positions"] == 4


def test_texts_are_awaited_or_stream_asynchronously(cluster):
    async def steer():
        streamed = await cluster.aio.steer(["First", "Second"], stream=True)
        pieces = [piece.text async for piece in streamed]
        whole = await cluster.aio.steer(["a", "b"], concept="contrast", strength=0.1)
        return pieces, whole.texts

    pieces, texts = asyncio.run(steer())
    assert pieces == [" two", " o", "!", "ne", "."] and texts == [" text 0", " text 1"]


@pytest.fixture
def autoencoder(tmp_path, monkeypatch):
    """An autoencoder of block 3 with width 256 in `saes/mine`, its decoder, and a run that measured it on stories."""
    monkeypatch.chdir(tmp_path)
    folder = put_sae(tmp_path / "saes/mine", 5)
    run = create_run(tmp_path / "runs", config_of("mine"))
    differences = {"winter": {0: 0.5, 3: -2.0, 7: 0.25}, "trust": {2: 1.0}}
    rows = [
        {"autoencoder": "mine", "subject": subject, "feature": feature, "first": 0.0, "second": -value,
         "difference": value, "z": abs(value)}
        for subject, values in differences.items()
        for feature, value in values.items()
    ]  # fmt: skip
    write_table(run, "features", pa.Table.from_pylist(rows, FEATURES_SCHEMA))
    sae, _ = SparseAutoencoder.from_folder(folder)
    write_table(run, "entrants", pa.Table.from_pylist([{"entrant": "mine", "autoencoder": sae.id}]))
    return run, sae.w_dec.astype(np.float64)


def test_features_and_subjects_steer_along_decoder_rows(driver, steerer, autoencoder):
    environment, seen = steerer
    run, decoder = autoencoder
    (subjects, other) = (["--sae", "mine", "--subject", "winter"], ["--sae", "mine", "--features", "2, 6"])
    done = driver(environment, "steer", "a", "b", *subjects, "--strength", ".2")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert f"features 3, 0, 7 of mine at layer 3 that answer to winter, of run {run.id}" in said
    done = driver(environment, "steer", "a", "b", *other, "--strength", "-.4", "--layer", "4")
    assert done.returncode == 0 and "direction: features 2, 6 of mine at layer 4" in done.stderr
    expected = (0.5 * decoder[0] - 2 * decoder[3] + 0.25 * decoder[7], decoder[2] + decoder[6])
    for asked, direction, (layer, strength) in zip(seen, expected, ((3, 0.2), (4, -0.4)), strict=True):
        steering = asked["steering"]
        assert steering.pop("vector") == pytest.approx(direction / np.linalg.norm(direction))
        assert steering == {"layer": layer, "strength": strength, "positions": "generated"}
    Path("runs").rename("elsewhere")
    done = driver(environment, "steer", "a", "b", *subjects, "--strength", ".2", "--output", "elsewhere")
    assert done.returncode == 0 and f"of run {run.id}" in " ".join(done.stderr.split())


def test_the_direction_of_a_subject_is_c5_of_its_stories(driver, steerer, autoencoder):
    """C5 of pooled vectors with the same differences of features is the same direction."""
    environment, seen = steerer
    differences = np.array([0.5, 0, 0, -2.0, 0, 0, 0, 0.25])
    sae, _ = SparseAutoencoder.from_folder(Path("saes/mine"))
    context = DirectionContext(
        np.ones((2, 256)), np.array([1, 0]), np.empty((0, 2), int), sae=sae,
        features_nF=np.stack([differences, np.zeros(8)]),
    )  # fmt: skip
    named = ("--sae", "mine", "--subject", "winter", "--strength", ".1,.2")
    done = driver(environment, "steer", "a", "b", *named, "--json")
    assert done.returncode == 0, done.stderr
    (asked,) = (each for each in seen if each.get("steering", {}).get("strength") == 0.2)
    assert asked["steering"]["vector"] == pytest.approx(compute_direction("C5", context).vector)
    answer = json.loads(done.stdout)
    assert answer["direction"]["features"] == {"3": -2.0, "0": 0.5, "7": 0.25}
    assert [row["strength"] for row in answer["texts"]] == [0, 0.1, 0.2] * 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--subject", "winter"], "belongs to --concept or --sae"),
        (["--sae", "mine"], "takes a subject or numbers of features, one of them"),
        (["--sae", "mine", "--subject", "a", "--features", "1"], "one of them"),
        (["--sae", "mine", "--features", "1,8"], "give numbers from 0 to 7, each once"),
        (["--sae", "mine", "--features", "1,,2"], "give numbers with commas"),
        (["--sae", "mine", "--features", "1", "--run", "x"], "features read none"),
        (["--sae", "none", "--features", "1"], "sae none: there is no such path"),
        (["--sae", "demo", "--features", "1"], "several autoencoders; name one of"),
        (["--sae", "mine", "--subject", "wintr"], "did you mean winter"),
        (["--sae", "mine", "--subject", "winter", "--run", "none"], "no run 'none'"),
        (["--sae", "mine", "--subject", "winter", "--model", "smollm2-135m"], "measured demo; steer that with --model"),
        (["--sae", "topk-512", "--subject", "winter"], "no run in runs has features of topk-512 by subject"),
    ],
)  # fmt: skip
def test_mistakes_in_features_are_one_line(driver, steerer, autoencoder, arguments, expected):
    done = driver(steerer[0], "steer", "a", *arguments, "--strength", ".2")
    assert done.returncode == 2 and expected in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_an_autoencoder_that_has_changed_since_the_run_is_refused(driver, steerer, autoencoder, tmp_path):
    shutil.rmtree(tmp_path / "saes/mine")
    put_sae(tmp_path / "saes/mine", 6)
    done = driver(steerer[0], "steer", "a", "--sae", "mine", "--subject", "winter", "--strength", ".2")
    assert done.returncode == 2 and "measured another autoencoder called mine" in done.stderr
