"""The command ``embed`` against the real extractor and pooler behind HTTP, in a thread, without Ray."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from tests.pages import REPOSITORY
from tests.servers.services import TOKEN, serving
from tests.system.driver.conftest import Command

import poolbench_driver as pb
from poolbench.contracts.tables import vector_matrix
from poolbench.worker.service import load_service
from poolbench_driver.cli.tables import print_shaded
from poolbench_driver.cluster.services import TokenRefusedError
from poolbench_driver.contract.page import Passage
from poolbench_driver.queries.embedding import Embedder

TEXTS = [
    "It rained, although the sun shone.",
    "The harbour was quiet because no ship came.",
    "Two.",
    "If the wind turns, then the boats will leave, but not before noon.",
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Extractor and pooler as one HTTP server."""
    with serving({name: load_service(name) for name in ("extractor", "pooler")}) as address:
        yield address


@pytest.fixture
def embed(command: Command, tmp_path: Path) -> Command:
    """Runs `embed` on texts.jsonl."""
    write_jsonl(tmp_path / "texts.jsonl", TEXTS)

    def run(output: str, *arguments: str) -> tuple[int, str, str]:
        done = command("embed", "--input", "texts.jsonl", "--output", output, *arguments)
        assert not list(tmp_path.glob(".*.part"))
        return done

    return run


def write_jsonl(file: Path, texts: list[str]) -> None:
    file.write_text("".join(json.dumps({"id": f"p{n}", "text": text}) + "\n" for n, text in enumerate(texts)), "utf-8")


def test_three_formats_carry_the_same(embed: Command, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "texts.jsonl", [TEXTS[0], "", *TEXTS[1:], "much too long " * 600])
    with (tmp_path / "texts.jsonl").open("a") as stream:
        stream.write('\n{"text": "half \\ud800 a pair"}\n')
    for name in ("v.npy", "v.parquet", "v.safetensors"):
        code, out, err = embed(name, "--strategy", "W2_last_k", "--params", "k=2", "--layer", "3")
        assert code == 1 and "4 vectors of width 256; 3 of 7 texts failed" in out, err
        for expected in ("line 2: failed: the text is empty", "line 6: failed:", "the window is", "line 8: failed:"):
            assert expected in err
    plain = np.load(tmp_path / "v.npy")
    table = pq.read_table(tmp_path / "v.parquet")
    assert plain.shape == (7, 256) and plain.dtype == np.float32
    np.testing.assert_array_equal(vector_matrix(table["vector"]), plain)
    assert [row is None for row in table["vector"].to_pylist()] == [n in (1, 5, 6) for n in range(7)]
    assert table["line"].to_pylist() == [1, 2, 3, 4, 5, 6, 8]
    assert table["id"].to_pylist() == ["p0", "p1", "p2", "p3", "p4", "p5", None]
    notes = {name.decode(): value.decode() for name, value in table.schema.metadata.items() if name != b"ARROW:schema"}
    assert (notes["model"], notes["strategy"], notes["params"]) == ("demo", "W2_last_k", '{"k": 2}')
    assert (notes["layer"], notes["strategy_version"], notes["width"]) == ("3", "1", "256")
    assert notes["model_revision"].startswith("local-")
    with safe_open(tmp_path / "v.safetensors", "numpy") as kept:
        np.testing.assert_array_equal(kept.get_tensor("vectors"), plain)
        assert kept.get_tensor("ok").tolist() == [not np.isnan(row).any() for row in plain]
        assert kept.get_tensor("line").tolist() == table["line"].to_pylist()
        assert notes.items() <= kept.metadata().items()
        assert json.loads(kept.metadata()["ids"]) == table["id"].to_pylist()


def test_linguistic_strategies_are_annotated_first(embed: Command, tmp_path: Path) -> None:
    code, _, err = embed("l1.parquet", "--strategy", "L1_pos_filtered")
    assert code == 0, err
    table = pq.read_table(tmp_path / "l1.parquet")
    assert table["applied"].to_pylist()[0] and table["token_share"].to_pylist()[0] < 1
    assert table.schema.metadata[b"annotator"] == b"annotator"
    page = (REPOSITORY / "docs" / "embedding.md").read_text("utf-8").partition("| column |")[2]
    columns, _, metadata = page.partition("The metadata has")
    named = [name for row in re.findall(r"^\| (`.+?) \|", columns, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert named == table.column_names
    kept = {name.decode() for name in table.schema.metadata} - {"ARROW:schema"}
    assert set(re.findall(r"`(\w+)`", metadata.partition("\n\n")[0])) == kept
    (tmp_path / "idf.txt").write_text("the rain\nthe sun\nthe boats\n")
    code, _, err = embed("l5.parquet", "--strategy", "L5_keyword", "--idf-texts", "idf.txt")
    assert code == 0 and "document frequencies (L5): 3 texts of idf.txt" in err
    notes = pq.read_schema(tmp_path / "l5.parquet").metadata
    assert notes[b"idf_source"] == b"3 texts of idf.txt"


@pytest.mark.parametrize(
    ("output", "arguments", "expected"),
    [
        ("nowhere/v.npy", (), "its folder does not exist"),
        ("v.npy", ("--strategy", "S3_iti_probe"), "is supervised"),
        ("v.npy", ("--layer", "99"), "blocks 0..5"),
        ("v.npy", ("--padding-side", "middle"), "left, right"),
        ("v.npy", ("--batch-size", "0"), "batch-size"),
        ("v.npy", ("--idf-texts", "texts.jsonl"), "reads no annotations"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(
    embed: Command, tmp_path: Path, output: str, arguments: tuple[str, ...], expected: str
) -> None:
    code, _, err = embed(output, *arguments)
    assert code == 2 and expected in err
    assert not (tmp_path / output).exists()


def test_an_interrupt_leaves_what_was_there(embed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "v.npy").write_bytes(b"before")
    monkeypatch.setattr(Embedder, "run", interrupted)
    code, _, err = embed("v.npy")
    assert code == 130 and "interrupted; v.npy was not written" in err
    assert (tmp_path / "v.npy").read_bytes() == b"before"


def test_python_embeds_and_explains_as_the_commands_do(embed: Command, command: Command, tmp_path: Path) -> None:
    assert embed("v.npy", "--strategy", "W2_last_k", "--params", "k=2", "--layer", "3")[0] == 0
    cluster = pb.connect()
    vectors = cluster.embed([*TEXTS, ""], strategy="W2_last_k", params={"k": 2}, layer=3)
    np.testing.assert_array_equal(np.asarray(vectors)[:-1], np.load(tmp_path / "v.npy"))
    assert np.isnan(vectors.vectors[-1]).all() and [row["line"] for row in vectors.failed] == [5]
    assert (vectors.notes["model"], vectors.notes["layer"]) == ("demo", "3") and "vector" not in vectors._repr_html_()
    keywords = cluster.embed(TEXTS, strategy="L5_keyword", idf_texts=["the rain", "the sun"])
    assert keywords.notes["idf_source"] == "2 texts of idf_texts"

    direction = np.random.default_rng(0).normal(size=256)
    np.save(tmp_path / "direction.npy", direction)
    options = ("--layer", "2", "--direction", "direction.npy", "--json")
    by_command = json.loads(command("explain", TEXTS[0], *options)[1])
    assert "the sum of the contributions" in command("explain", TEXTS[0], *options[:-1])[1]
    markup = "<b>It</b> rained."
    for along in (direction, list(direction), tmp_path / "direction.npy"):
        by_call = cluster.explain(TEXTS[0], layer=2, direction=along)
        assert [one["text"] for one in by_call.tokens] == [one["text"] for one in by_command["texts"][0]["tokens"]]
        assert by_call.projection == pytest.approx(by_command["texts"][0]["projection"], rel=1e-6)
    result = cluster.explain(markup, layer=2, direction=direction)
    assert sum(token["contribution"] for token in result.tokens) == pytest.approx(result.projection, abs=1e-5)
    html = result._repr_html_()
    assert html.count('<span class="') > 2 and "<b>" not in html and "&lt;" in html and "<script" not in html
    assert "| token | weight | contribution |" in str(result)

    async def both() -> tuple[pb.Embeddings, pb.Explained]:
        return await asyncio.gather(cluster.aio.embed(TEXTS, layer=3), cluster.aio.explain(markup, layer=2))

    awaited, _ = asyncio.run(both())
    np.testing.assert_array_equal(awaited.vectors, cluster.embed(TEXTS, layer=3).vectors)


def test_python_connects_with_its_address_and_token(command: Command, address: str) -> None:
    assert repr(pb.connect(address + "/", TOKEN)) == f"Cluster({address!r})"
    with pytest.raises(TokenRefusedError, match=r"connect\(\) differs from the cluster's"):
        pb.connect(address, "wrong")  # although another token is known here
    with pytest.raises(TokenRefusedError):
        pb.connect(token="wrong")


def test_tokens_are_coloured_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    print_shaded(Passage("one two three", [(0, 3), (4, 7), (8, 13)], [8, -1, 0]))
    printed = capsys.readouterr().out
    assert "\x1b[30;48;2;111;111;255mone" in printed and "\x1b[30;48;2;255;237;219mtwo" in printed
    assert printed.rstrip("\n").endswith(" three")
