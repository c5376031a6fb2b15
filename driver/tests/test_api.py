"""What Python code calls: public names, tables, and runs that threads drive."""

import copy
import inspect
import json
import pickle
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from driver.tests.conftest import SteeredArtifacts
from driver.tests.loop_bench import Bench, job_of
from tests.waiting import PATIENCE_S, wait_until

import poolbench_driver as pb
from poolbench.contracts.tasks import Task
from poolbench.errors import CellError, ConfigError, EndpointError, InputError, NotFoundError, UnknownNameError
from poolbench.settings import ClusterSettings
from poolbench.worker.taskio import TaskIO
from poolbench_driver.api import driving
from poolbench_driver.api.cluster import AsyncCluster, Cluster
from poolbench_driver.api.driving import RunHandle, _live, _stop_all, configured
from poolbench_driver.cli import run as command
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.page import Cell, Column, Line, Table
from poolbench_driver.loop import TooManyFailuresError
from poolbench_driver.loop.progress import open_display
from poolbench_driver.records.folder import create_run

Complete = tuple[SteeredArtifacts, dict[str, pa.Table]]


def test_public_names_are_listed_and_imported_when_they_are_used() -> None:
    assert set(pb.__all__) <= set(dir(pb)) and all(callable(getattr(pb, name)) for name in pb.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        pb.conect  # noqa: B018


def test_a_run_shows_what_is_read_of_it_and_nothing_that_writes_it() -> None:
    data = {"answer", "board", "config", "id", "is_here", "model", "page", "path", "picture", "record", "results"}
    data |= {"state", "suite", "tables", "unfinished"}
    calls = {"behind", "compare", "direction", "file", "passages", "read_state", "read_table", "rows", "table", "texts"}
    assert {name for name in (*dir(pb.Run), *vars(pb.Run(Path("r")))) if not name.startswith("_")} == data | calls


def _public_functions() -> Iterator[tuple[str, Any]]:
    """Yield the public functions of the Python interface and the methods of its classes, by name."""
    for name in pb.__all__:
        item = getattr(pb, name)
        members = [("", item)] if inspect.isfunction(item) else inspect.getmembers(item, inspect.isroutine)
        for member, function in members:
            if not member.startswith("_") and (function.__module__ or "").startswith("poolbench_driver.api."):
                yield f"{name}.{member}".rstrip("."), function


@pytest.mark.parametrize(("name", "function"), [pytest.param(*pair, id=pair[0]) for pair in _public_functions()])
def test_docstrings_say_what_each_argument_is(name: str, function: Any) -> None:
    arguments = set(inspect.signature(function).parameters) - {"self", "cls"}
    text = (inspect.getdoc(function) or "").partition("Args:\n")[2]
    documented = set(re.findall(r"^ {4}\*{0,2}(\w+): ", text, re.MULTILINE))
    assert arguments <= documented, f"{name}: Args lacks {', '.join(sorted(arguments - documented))}"


def test_rows_go_to_arrow_pandas_and_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"concept": ["a", "b", None], "value": [0.5, None, 1.25]})
    rows = pb.Rows(table)
    assert rows.to_pandas().equals(pd.DataFrame({"concept": ["a", "b", None], "value": [0.5, None, 1.25]}))
    assert pa.table(rows).equals(table) and len(rows) == 3 and rows.columns == ["concept", "value"]
    assert rows.where(concept="a").to_pylist() == [{"concept": "a", "value": 0.5}] == [*rows.where(value=0.5)]
    assert rows.where(concept=None).to_pylist() == [{"concept": None, "value": 1.25}]
    for wrong, message in (({"concep": "a"}, "did you mean concept"), ({"concept": "c"}, "unknown concept 'c'")):
        with pytest.raises(UnknownNameError, match=message):
            rows.where(**wrong)
    for package, convert in (("pandas", rows.to_pandas), ("polars", rows.to_polars)):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=f"this needs {package}, which is not installed here: pip install"):
            convert()


def test_the_command_and_both_calls_start_a_run_with_the_same_defaults() -> None:
    options = ("config", "output", "display", "max_failures", "track")

    def defaults(function: Any) -> dict[str, Any]:
        parameters = inspect.signature(function).parameters
        values = {name: parameters[name].default for name in options}
        return values | {"output": Path(values["output"]), "track": tuple(values["track"] or ())}

    assert defaults(pb.run) == defaults(Cluster.run) == defaults(command.run)


@pytest.mark.parametrize("start", [pb.run, lambda **settings: Cluster().run(**settings)], ids=["run", "Cluster.run"])
def test_no_run_starts_on_a_cluster_whose_services_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    monkeypatch.setenv("POOLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POOLBENCH_BROKER", f"filesystem://{tmp_path}/queue")
    monkeypatch.setenv("POOLBENCH_HTTP", "http://127.0.0.1:9")
    monkeypatch.setenv("POOLBENCH_TOKEN", "secret")
    with pytest.raises(EndpointError, match=r"does not answer at http://127\.0\.0\.1:9/.*is the cluster up\?"):
        start(output=tmp_path / "runs", concepts=["contrast"], metrics=["d1"])
    assert not (tmp_path / "runs").exists()


def test_what_a_notebook_draws_is_static_and_escaped() -> None:
    rows = pb.Rows(pa.table({"text": ["<script>alert(1)</script>", "b" * 500], "n": [1.23456789, None]}))
    html = rows._repr_html_()
    assert "&lt;script&gt;" in html and "<script" not in html and "b" * 101 not in html and "1.23457" in html
    first = Line([Cell("A", opens="entrants/A"), Cell("1.00", 1.0, 0.5, 1.5), Cell("0.9", 0.9)])
    second = Line([Cell("B"), Cell("2.00", 2.0, 1.5, 2.5), Cell("collapsed", opens="cells/1")])
    board = pb.Board(Table([Column("strategy"), Column("rank", has_intervals=True), Column("d1")], [first, second]))
    assert board.to_pylist() == [
        {"strategy": "A", "rank": 1.0, "rank low": 0.5, "rank high": 1.5, "d1": 0.9},
        {"strategy": "B", "rank": 2.0, "rank low": 1.5, "rank high": 2.5, "d1": None},
    ]
    html = board._repr_html_()
    assert "collapsed" in html and "href" not in html and "| A |" in str(board)
    assert html.startswith('<div class="poolbench mathjax_ignore tex2jax_ignore">')  # `$5 to $10` stays text
    for theme in ("prefers-color-scheme: dark", '[data-jp-theme-light="false"] .poolbench', ".vscode-dark .poolbench"):
        assert theme in html
    assert not [rule for rule in ("\nhtml {", "\nbody {", "\n:root", "<link", "://") if rule in html], html


def test_a_list_has_the_entries_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    strategies = pb.ls("strategies")
    assert {"id", "family", "summary"} <= set(strategies.columns) and strategies.where(id="A1_mean").to_pylist()
    assert pb.ls("runs", tmp_path).to_pylist() == []
    with pytest.raises(UnknownNameError, match="strategies"):
        pb.ls("strategy")


def test_the_same_settings_name_the_same_run_as_the_command() -> None:
    settings = {"concepts": ["contrast"]}
    assert configured(None, settings) == load_run_config(None, {"preset": "demo", **settings})
    config = configured({"preset": "small"}, {"seed": 3})
    assert config.budget.name == "small" and configured(config, {}) is config
    with pytest.raises(ConfigError, match="takes no further settings, got seed"):
        configured(config, {"seed": 4})
    with pytest.raises(ConfigError, match="did you mean concepts"):
        configured(None, {"concept": ["contrast"]})


@pytest.fixture
def handle(bench: Bench, complete: Complete) -> Iterator[RunHandle]:
    """A run of a whole plan of which one task is to do."""
    yield from started(bench, complete)


def started(bench: Bench, complete: Complete, max_failures: int | None = None) -> Iterator[RunHandle]:
    artifacts, _ = complete
    (cells,) = artifacts.plan.probes.concepts.values()
    artifacts.artifacts.delete(next(iter(cells.measures.values())))
    folder = create_run(bench.root / "runs", artifacts.plan.config)
    handle = RunHandle(job_of(bench, artifacts.plan), folder, open_display("none"), max_failures)
    yield handle
    if handle.running:
        handle._events.is_stopped = True
        wait_until(lambda: not handle.running)


@pytest.mark.lane(name="series")
def test_an_interrupted_cell_stops_waiting_and_the_run_goes_on(bench: Bench, handle: RunHandle) -> None:
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.1 s"):
        handle.wait(0.1)
    wait_until(lambda: handle.state == "running")
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
        handle.wait()
    assert handle.running and "of" in repr(handle) and "running" in repr(handle)
    with pytest.raises(NotFoundError, match=r"\(state: running\) has no table 'results'; it has none"):
        handle.run.results  # noqa: B018
    assert "running" in handle.run._repr_html_()
    bench.consume()
    events = [event["event"] for event in handle.events()]
    run = handle.wait()
    assert events[0] == "start" and events.count("done") > 3 and "times" in events
    assert (run.state, handle.state, handle.running) == ("done", "done", False)
    assert handle.outcome is not None and handle.outcome.done
    assert len(run.results) == len(handle.outcome.tables["results"]) and run.answer.text in handle.outcome.answer


@pytest.mark.lane(name="series")
def test_two_cells_that_start_one_run_wait_for_the_same(
    bench: Bench, complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is made by hand, so that no corpus has to be there."""
    artifacts, _ = complete
    (cells,) = artifacts.plan.probes.concepts.values()
    artifacts.artifacts.delete(next(iter(cells.measures.values())))
    job = job_of(bench, artifacts.plan)
    monkeypatch.setattr(driving, "prepare_all", lambda configs, session, track: [job])
    with ThreadPoolExecutor(2) as cells_of_a_notebook:
        start = partial(driving.start, job.config, job.session, bench.root / "runs", "none")
        first, second = (future.result() for future in [cells_of_a_notebook.submit(start) for _ in range(2)])
    assert first is second and first.running
    bench.consume()
    assert first.wait(PATIENCE_S).state == "done"
    again = start()
    assert again is not first and again.wait(PATIENCE_S).id == first.id
    assert all(event.get("reused") for event in again.events() if event["event"] == "done")


@pytest.mark.lane(name="series")
def test_a_run_is_cancelled_as_by_the_command(handle: RunHandle) -> None:
    handle.cancel()
    assert handle.wait(PATIENCE_S).state == "cancelled"
    handle.cancel()  # what has ended stays as it is


@pytest.mark.lane(name="series")
def test_the_end_of_the_process_leaves_an_interrupted_run(
    handle: RunHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: handle.state == "running")
    monkeypatch.setitem(_live, handle.run.path, handle)
    _stop_all()
    assert not handle.running and handle.state == "interrupted"
    assert "the same call continues it" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        handle.wait()


@pytest.mark.lane(name="series")
def test_what_stops_a_run_is_raised_where_it_is_waited_for(bench: Bench, complete: Complete) -> None:
    def fail(task: Task, io: TaskIO) -> None:
        raise CellError("too_few", "only 3 passages; 20 are needed")

    bench.service.handlers = dict.fromkeys(bench.service.handlers, fail)
    for handle in started(bench, complete, max_failures=0):
        bench.consume()
        with pytest.raises(TooManyFailuresError):
            handle.wait(PATIENCE_S)
        assert handle.state == "stopped" and handle.outcome is None


def test_a_cluster_is_named_or_the_error_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no cluster found in"):
        pb.connect()
    with pytest.raises(ConfigError, match=r"no token for http://127\.0\.0\.1:9 is known here"):
        pb.connect("http://127.0.0.1:9")
    with pytest.raises(EndpointError, match=r"pooler does not answer at http://127\.0\.0\.1:9/.*is the cluster up\?"):
        pb.connect("http://127.0.0.1:9/", "secret")
    remote = Cluster(ClusterSettings("", "", "http://127.0.0.1:9", "secret", http_from="connect()"))
    assert "secret" not in repr(remote)
    with pytest.raises(ConfigError, match="needs the queue and the object store of the cluster, and connect"):
        remote.run(concepts=["contrast"])


def test_requests_that_cannot_be_sent_are_refused_at_once() -> None:
    cluster = Cluster(ClusterSettings("", "", "http://127.0.0.1:9", "secret"))
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
        (cluster.embed, ([],), {}, "no texts"),
        (cluster.embed, ([3],), {}, "text 1 is int; texts are strings"),
        (cluster.embed, ("a",), {"strategy": "A1_meen"}, "did you mean A1_mean"),
        (cluster.embed, ("a",), {"idf_texts": ["a"]}, "reads no annotations"),
        (cluster.score, ("a", []), {}, "no scorer"),
        (cluster.score, (["a", " "], "contrast"), {}, "text 2 is empty"),
        (cluster.probe, ([[1.0], [2.0, 3.0]], [0, 1]), {}, "vectors is not an array of 2 dimensions"),
        (cluster.probe, ([[1.0]], [0]), {"task": "rank"}, "allowed: concept, classification, regression"),
        (cluster.direction, ([[1.0]],), {}, "or the labels of both"),
        (cluster.steer, ([],), {}, "nothing to continue"),
        (cluster.steer, ("a",), {"concept": "contrast"}, "needs a strength"),
        (cluster.steer, ("a",), {"strength": 0.1}, "a strength belongs to"),
        (cluster.steer, ("a",), {"vector": [1.0], "strength": 0.1}, r"at a layer, got shape \(1,\), layer None"),
        (cluster.steer, ("a",), {"vector": [1.0], "layer": 2, "unit": "norm", "strength": 0.1}, "did you mean"),
        (cluster.steer, ("a",), {"vector": [1.0], "concept": "contrast", "strength": 0.1}, "are two directions"),
        (cluster.explain, ("a",), {"direction": "nowhere.npy"}, "nowhere.npy"),
        (cluster.explain, (["a", "b"],), {}, "the text is a list; give one text"),
        (cluster.embed, ({"a", "b"},), {}, "texts: set is not a list of them"),
        (
            cluster.embed,
            (pd.DataFrame({"text": ["a"]}),),
            {},
            "texts: DataFrame is not a list of them; give a list, or",
        ),
        (cluster.embed, (pa.table({"text": ["a"]}),), {}, "texts: Table is not a list"),
        (cluster.embed, ({"a": "b"},), {}, "texts: dict is not a list"),
        (cluster.embed, (3,), {}, "texts: int is not a list"),
        (cluster.score, ("a", {"contrast"}), {}, "scorers: set is not a list"),
        (cluster.probe, (pd.DataFrame({"x": [1.0]}), [0]), {}, "vectors is a DataFrame; give an array of the columns"),
        (cluster.probe, ({1.0, 2.0}, [0]), {}, "vectors has shape"),
        (cluster.probe, ([["a"]], [0]), {}, "vectors holds <U1"),
        (cluster.steer, ({"a"},), {}, "prompts: set is not a list"),
        (cluster.steer, ([b"a"],), {}, "prompts: bytes is not a text"),
        (cluster.steer, ("a",), {"vector": [1.0], "layer": 2, "strength": [0.1, 0.1]}, "one of them stands twice"),
        (cluster.steer, ("a",), {"vector": [1.0], "layer": 2, "strength": {0.1, 0.2}}, "strength: set is not a list"),
        (cluster.steer, ("a",), {"vector": [1.0], "layer": 2, "strength": "0.1"}, "'0.1': give a number"),
        (cluster.steer, ("a",), {"edits": [3]}, "an edit is int; give dictionaries"),
        (cluster.steer, ("a",), {"edits": [{"vector": [np.nan]}]}, "the request cannot be sent"),
        (cluster.steer, ("a",), {"seed": object()}, "the request cannot be sent: Object of type object"),
    ]
    for call, args, options, message in calls:
        with pytest.raises((ConfigError, InputError), match=message):
            call(*args, **options)


class SentError(Exception):
    """A request that a fake service has received."""


class Receiving:
    """Services that raise what they are sent, as JSON says it."""

    def post(self, service: str, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        raise SentError(json.dumps(body, sort_keys=True))

    post_table = post


TEXTS, SIZES = ["It rained.", "We stayed."], np.float32([0.5, -1.0])
MATRIX, CLASSES = np.arange(12, dtype=np.float32).reshape(4, 3), [0, 1, 0, 1]
#: A verb with plain values, and the same call with values of NumPy, PyTorch, Arrow and pandas.
SAME: list[tuple[str, tuple[Any, ...], dict[str, Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = [
    (
        "embed", (TEXTS,), {"layer": 3, "strategy": "W2_last_k", "params": {"k": 4}},
        [
            ((np.array(TEXTS),), {"layer": np.int64(3), "params": {"k": np.int64(4)}}),
            ((pa.chunked_array([TEXTS]),), {"layer": torch.tensor(3)}),
            ((pd.Series(TEXTS),), {"layer": pa.scalar(3)}),
            ((list(pa.array(TEXTS)),), {"layer": np.array(3)}),
        ],
    ),
    (
        "explain", (TEXTS[0],), {"layer": 3, "direction": SIZES.tolist()},
        [
            ((np.str_(TEXTS[0]),), {"layer": np.int64(3), "direction": torch.tensor(SIZES).bfloat16()}),
            ((pa.scalar(TEXTS[0]),), {"direction": torch.nn.Parameter(torch.tensor(SIZES))}),
            ((TEXTS[0],), {"direction": pa.array(SIZES)}),
        ],
    ),
    (
        "steer", (TEXTS,), {"vector": SIZES.tolist(), "layer": 3, "strength": 0.5, "max_tokens": 3, "seed": 5},
        [
            ((pd.Series(TEXTS),), {"vector": torch.tensor(SIZES, requires_grad=True), "strength": np.float32(0.5)}),
            ((TEXTS,), {"vector": list(torch.tensor(SIZES)), "strength": torch.tensor(0.5), "seed": np.int64(5)}),
            ((TEXTS,), {"vector": SIZES.astype(np.float16), "strength": np.array(0.5), "max_tokens": np.int64(3)}),
        ],
    ),
    (
        "steer", (TEXTS,), {"edits": [{"vector": SIZES.tolist(), "layer": 3, "alpha": 1.0}], "temperature": 0.5},
        [((TEXTS,), {"edits": [{"vector": SIZES, "layer": np.int64(3), "alpha": np.float64(1)}],
                     "temperature": np.float32(0.5)})],
    ),
    (
        "probe", (MATRIX.tolist(), CLASSES), {},
        [
            ((torch.tensor(MATRIX).bfloat16(), torch.tensor(CLASSES)), {}),
            ((torch.tensor(MATRIX, requires_grad=True), np.array(CLASSES, bool)), {}),
            ((list(torch.tensor(MATRIX)), pd.Series(CLASSES, dtype="Int64")), {}),
            ((pa.array(MATRIX.tolist()), np.array(CLASSES, object)), {}),
            ((pd.Series(list(MATRIX)), pa.array(CLASSES)), {}),
        ],
    ),
    (
        "direction", (MATRIX[:2].tolist(), MATRIX[2:].tolist()), {"seed": 3},
        [((MATRIX[:2], MATRIX[2:]), {"seed": np.int64(3)})],
    ),
    ("score", (TEXTS, ["contrast", "hedging"]), {}, [((pd.Series(TEXTS), np.array(["contrast", "hedging"])), {})]),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "args", "options", "others"), SAME)
def test_values_of_other_packages_are_what_they_mean(
    verb: str, args: tuple[Any, ...], options: dict[str, Any], others: list[tuple[tuple[Any, ...], dict[str, Any]]]
) -> None:
    cluster = Cluster(ClusterSettings("", "", "http://127.0.0.1:9", "secret"))
    cluster.__dict__["services"] = Receiving()

    def sent(*args: Any, **options: Any) -> str:
        with pytest.raises(SentError) as raised:
            getattr(cluster, verb)(*args, **options)
        return str(raised.value)

    expected = sent(*args, **options)
    for other_args, other_options in others:
        assert sent(*other_args, **options | other_options) == expected


def test_rows_are_chosen_by_one_value_of_any_package() -> None:
    rows = pb.Rows(pa.table({"layer": [3, 4], "concept": ["a", "b"]}))
    for layer in (4, np.int64(4), torch.tensor(4), pa.scalar(4)):
        assert rows.where(layer=layer).to_pylist() == [{"layer": 4, "concept": "b"}]
    for wrong in ({"layer": "4"}, {"concept": 4}):
        with pytest.raises(UnknownNameError):
            rows.where(**wrong)
    with pytest.raises(InputError, match="layer is a list; give one value"):
        rows.where(layer=[3, 4])


def test_arrays_that_are_returned_may_be_changed() -> None:
    table = pa.table({"vector": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})
    for embeddings in (pb.Embeddings(table), pb.Embeddings(table.slice(1))):
        vectors = embeddings.vectors
        vectors -= vectors.mean(axis=0)
        assert np.asarray(embeddings)[-1].tolist() == [3.0, 4.0]
    direction = pb.Direction(np.ones(2, np.float32), "C1", 1.0, 1, 1)
    np.array(direction)[:] = 0
    assert direction.vector.tolist() == [1.0, 1.0]


def test_handles_are_pickled_and_copied_without_their_connection() -> None:
    cluster = Cluster(ClusterSettings("", "", "http://127.0.0.1:9", "secret"))
    assert cluster.services and cluster.aio
    for made in (pickle.loads(pickle.dumps(cluster)), copy.deepcopy(cluster), copy.copy(cluster)):
        assert made.settings == cluster.settings and made.services is not cluster.services
    assert pickle.loads(pickle.dumps(cluster.aio)).cluster.settings == cluster.settings


def test_each_verb_has_an_asynchronous_twin() -> None:
    verbs = {name for name, value in vars(Cluster).items() if callable(value) and not name.startswith("_")}
    assert verbs == {name for name in vars(AsyncCluster) if not name.startswith("_")}
