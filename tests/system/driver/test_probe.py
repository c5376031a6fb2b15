"""The commands ``probe`` and ``direction`` against the real prober behind HTTP, in a thread, without Ray."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.servers.services import serving
from tests.system.driver.conftest import Command

import poolbench_driver as pb
from poolbench.errors import InputError
from poolbench.worker.service import load_service
from poolbench_driver.api.cluster import Cluster

ROWS = 90


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The prober as an HTTP server in a thread."""
    with serving({"prober": load_service("prober")}) as address:
        yield address


@pytest.fixture
def probe(command: Command) -> Command:
    """Saves arrays and runs the command on them."""

    def run(vectors: Any, labels: Any, *arguments: str, **columns: Any) -> tuple[int, str, str]:
        options: list[str] = []
        for name, array in {"vectors": vectors, "labels": labels, **columns}.items():
            np.save(f"{name}.npy", array)
            options += [f"--{name}", f"{name}.npy"] if name in columns else []
        return command("probe", "vectors.npy", "labels.npy", "--json", *options, *arguments)

    return run


def planted(num_classes: int = 2, shift: float = 3.0, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    codes = np.arange(ROWS) % num_classes
    noise = np.random.default_rng(0).normal(size=(ROWS, width))
    return noise + shift * np.eye(num_classes, width)[codes], codes


def figures(done: tuple[int, str, str]) -> dict[str, dict[str, Any]]:
    code, out, err = done
    assert code == 0, err
    rows = json.loads(out)["measures"]
    return {row["metric"]: row for row in rows if row["params"] == "{}" or row["metric"] == "d1.auroc_domain"}


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool", "float32"])
def test_a_concept_has_d1_whatever_the_type_of_its_labels(probe: Command, kind: str) -> None:
    vectors, codes = planted()
    done = probe(vectors.astype("float16"), codes.astype(kind), groups=np.arange(ROWS) // 2)
    found = figures(done)
    assert json.loads(done[1])["task"] == "concept"
    assert found["d1.auroc"]["value"] > 0.9 and found["d1.auroc"]["num_groups"] == 45


def test_pairs_and_domains_reach_the_probe(probe: Command) -> None:
    vectors, codes = planted()
    pairs = np.array(["" if row < 10 else f"p{row // 2}" for row in range(ROWS)])
    found = figures(probe(vectors, codes, pairs=pairs, domains=np.array(list("ab"))[np.arange(ROWS) // 2 % 2]))
    assert found["d1.within_pair"]["n"] == 40
    assert "10 of 90 passages have no partner" in found["d1.within_pair"]["reason"]
    assert found["d1.auroc_domain"]["status"] == "too_few"  # under 30 of a class in a domain


def test_several_classes_with_splits_and_control_words(probe: Command) -> None:
    vectors, codes = planted(3)
    splits = np.array(["train"] * 60 + ["dev"] * 10 + ["test"] * 20)
    words = np.array([f"w{row % 20}" for row in range(ROWS)])
    found = figures(probe(vectors, np.array(["noun", "verb", "other"])[codes], splits=splits, words=words))
    assert found["probe.macro_f1"]["value"] > 0.8 and found["probe.macro_f1"]["n"] == 20
    assert found["probe.selectivity"]["status"] == "ok"
    assert found["probe.compression"]["n"] == 60
    whole = figures(probe(vectors, codes, splits=splits))
    assert whole["probe.macro_f1"]["value"] == found["probe.macro_f1"]["value"]


VECTORS, CODES = planted()


@pytest.mark.parametrize(
    ("vectors", "labels", "columns", "arguments", "expected"),
    [
        (VECTORS, CODES[:9], {}, (), "labels has 9 entries for 90 vectors"),
        (VECTORS.astype(complex), CODES, {}, (), "vectors.npy holds complex128"),
        (VECTORS.astype("S4"), CODES, {}, (), "bfloat16: save as float32"),
        (VECTORS, CODES.astype("datetime64[D]"), {}, (), "labels.npy holds datetime64[D]"),
        (VECTORS, CODES, {"splits": np.array(["train"] * ROWS)}, (), "belong to a classification or regression"),
        (VECTORS, CODES.astype(str), {}, ("--task", "regression"), "a regression needs numbers"),
        (VECTORS, CODES, {"domains": np.array(["a"] * ROWS)}, ("--task", "classification"), "domains belong to"),
    ],
)
def test_mistakes_are_one_line(
    probe: Command, vectors: Any, labels: Any, columns: dict[str, Any], arguments: tuple[str, ...], expected: str
) -> None:
    code, out, err = probe(vectors, labels, *arguments, **columns)
    assert code == 2 and expected in err and not out
    assert err.count("\n") == 1


def embedded(file: str, matrix: np.ndarray, failed: int, layer: str = "15") -> None:
    """A file as `embed` writes it, with one row without vector."""
    rows = pa.array(
        [None if row == failed else vector for row, vector in enumerate(matrix.astype(np.float32).tolist())]
    )
    vectors = rows.cast(pa.list_(pa.float32(), matrix.shape[1]))
    table = pa.table({"id": [str(row) for row in range(len(matrix))], "vector": vectors})
    pq.write_table(table.replace_schema_metadata({"model": "smollm2-135m", "layer": layer}), file)


def test_the_file_of_embed_is_probed_and_the_figures_are_a_table(command: Command) -> None:
    vectors, codes = planted()
    embedded("vectors.parquet", vectors, failed=4)
    np.save("labels.npy", codes)
    code, out, err = command("probe", "vectors.parquet", "labels.npy", "--output", "all.json")
    assert code == 0, err
    whole = json.loads(Path("all.json").read_text())
    found = {row["metric"]: row for row in whole["measures"] if row["metric"] == "d1.auroc"}
    assert found["d1.auroc"]["n"] == ROWS - 1 and whole["scores"][4] is None
    assert f"{found['d1.auroc']['value']:.3f}" in out and "d1.auroc" in out and "scores" not in out
    assert "d1.selectivity" in out and "vectors without texts" in out
    assert "d1.direction.C1 " in out and "d1.direction.C1 C1" not in out


@pytest.mark.parametrize("method", ["C1", "LDA", "C3"])
def test_a_direction_of_two_files_is_that_of_their_labels(command: Command, method: str) -> None:
    vectors, codes = planted()
    embedded("positives.parquet", vectors[codes == 1], failed=3)
    np.save("negatives.npy", vectors[codes == 0])
    said = command("direction", "positives.parquet", "negatives.npy", "--output", "d.npy", "--method", method)
    assert said[0] == 0 and "44 positive and 45 negative vectors" in said[1] and "1 that failed" in said[1]
    assert "steer PROMPT --model smollm2-135m --edit d.npy:15:0.3 --unit residual_norm" in said[2]
    kept = np.delete(np.arange(ROWS), np.flatnonzero(codes == 1)[3])
    both = vectors.astype(np.float32)[kept] if method == "C1" else vectors[kept]
    np.save("both.npy", both)
    np.save("labels.npy", codes[kept])
    assert command("direction", "both.npy", "--labels", "labels.npy", "--output", "e.npy", "--method", method)[0] == 0
    found, again = np.load("d.npy"), np.load("e.npy")
    assert np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(found, again, atol=1e-3)
    if method == "C1":
        by_hand = both[codes[kept] == 1].mean(0) - both[codes[kept] == 0].mean(0)
        np.testing.assert_allclose(found, by_hand / np.linalg.norm(by_hand), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("v.npy", "--output", "d.npy"), "or --labels: one of the two"),
        (("v.npy", "v.npy", "--labels", "l.npy", "--output", "d.npy"), "or --labels: one of the two"),
        (("v.npy", "v.npy", "--output", "d.txt"), "written as .npy"),
        (("v.npy", "--labels", "l.npy", "--output", "d.npy"), "2 labels for 90 vectors"),
        (("v.npy", "v.npy", "--output", "d.npy", "--method", "C9"), "C9"),
        (("v.parquet", "v.npy", "--output", "d.npy"), "no column of vectors"),
    ],
)
def test_mistakes_of_a_direction_are_one_line(command: Command, arguments: tuple[str, ...], expected: str) -> None:
    np.save("v.npy", VECTORS)
    np.save("l.npy", np.array([0, 1]))
    pq.write_table(pa.table({"text": ["a"]}), "v.parquet")
    code, out, err = command("direction", *arguments)
    assert code == 2 and expected in err and not out and not Path("d.npy").exists()
    assert err.count("\n") == 1


def test_python_probes_arrays_as_the_command_probes_files(probe: Command) -> None:
    vectors, codes = planted()
    words = np.where(codes == 1, "yes", "no")
    _, out, _ = probe(vectors, words, "--task", "classification", groups=np.arange(ROWS))
    probed = Cluster().probe(vectors, words.tolist(), task="classification", groups=range(ROWS))
    assert probed.answer == json.loads(out) and len(probed.measures) == len(probed.answer["measures"])
    assert "classification" in probed._repr_html_() and probed.measures.columns[0] == "metric"
    of_bools = Cluster().probe(vectors, codes.astype(bool).tolist(), pairs=[None] * ROWS)
    assert of_bools.answer["task"] == "concept"


def test_python_makes_a_direction_and_says_of_what(command: Command) -> None:
    vectors, codes = planted()
    made = Cluster().direction(vectors[codes == 1], vectors[codes == 0])
    by_hand = vectors[codes == 1].mean(0) - vectors[codes == 0].mean(0)
    np.testing.assert_allclose(np.asarray(made), by_hand / np.linalg.norm(by_hand), atol=1e-5)
    assert (made.num_positive, made.num_negative, made.layer) == (45, 45, None)
    embedded("positives.parquet", vectors[codes == 1], failed=3)
    table = pb.Embeddings(pq.read_table("positives.parquet"))
    again = Cluster().direction(table, vectors[codes == 0])
    assert (again.layer, again.num_positive, again.num_left_out) == (15, 44, 1)
    other = pb.Embeddings(table.arrow.replace_schema_metadata({"model": "smollm2-135m", "layer": "3"}))
    with pytest.raises(InputError, match="differ in layer: embed both in the same way"):
        Cluster().direction(table, other)
