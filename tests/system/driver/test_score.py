"""The commands ``import scorers``, ``score`` and ``ls scorers`` against the real scorer behind HTTP, without Ray."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.scorer.tests.conftest import save_tiny_bert
from tests.servers.services import serving
from tests.system.driver.conftest import Command

from poolbench.library.scorers import record_gate
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_driver.api.cluster import Cluster
from poolbench_scorer.service import ScorerService

TEXTS = ["It rained, although the sun shone.", "Two.", "The boats left, but not before noon."]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as scorers are published: a random BERT a concept."""
    folder = tmp_path_factory.mktemp("published")
    for seed, concept in enumerate(("contrast", "hedging")):
        save_tiny_bert(folder / concept, seed=seed)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    """The scorer as an HTTP server in a thread."""
    with serving({"scorer": ScorerService(lambda: Artifacts(FolderStore(store)))}) as address:
        yield address


@pytest.fixture
def driver(command: Command, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs commands on the store of the scorer."""
    monkeypatch.setenv("POOLBENCH_STORE", str(store))
    (tmp_path / "state").mkdir()  # as of a local cluster: there the driver lists the folders that its user names
    return command


def test_a_published_folder_is_imported_and_scores(driver: Command, published: Path, tmp_path: Path) -> None:
    code, _, err = driver("import", "scorers", str(published))
    assert code == 1 and err.count("state which one means") == 2 and "LABEL_0 (0), LABEL_1 (1)" in err
    code, out, err = driver("import", "scorers", str(published), "--positive-label", "LABEL_1")
    assert code == 0, err
    assert out.splitlines() == [f"{one}@{published}: LABEL_1 means {one}" for one in ("contrast", "hedging")]
    code, out, _ = driver("ls", "scorers", "--json")
    listed = json.loads(out)
    assert [row["id"].rpartition(":")[0] for row in listed] == [f"contrast@{published}", f"hedging@{published}"]
    assert all(row["default"] for row in listed)

    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"text": t, "id": f"t{n}"}) + "\n" for n, t in enumerate(TEXTS))
    )
    (tmp_path / "t.txt").write_text("\n".join(TEXTS))
    names = ("--scorer", "contrast", "--scorer", f"hedging@{published}", "--json")
    by_file, by_line, by_argument = (
        json.loads(driver("score", *texts, *names)[1])
        for texts in (("--input", "t.jsonl"), ("--input", "t.txt"), TEXTS)
    )
    assert by_file["ids"] == ["t0", "t1", "t2"] and by_line == by_argument
    assert [one["scores"] for one in by_file["scorers"]] == [one["scores"] for one in by_line["scorers"]]
    assert [one["concept"] for one in by_file["scorers"]] == ["contrast", "hedging"]
    code, out, _ = driver("score", TEXTS[0], "--scorer", "contrast")
    assert code == 0 and f"{by_line['scorers'][0]['scores'][0]:.3f}" in out and TEXTS[0] in out
    assert "gate" not in out and by_line["scorers"][0]["gate"] is None, "no run judged it"


def test_a_scorer_whose_gate_failed_says_so_and_why(driver: Command, published: Path, store: Path) -> None:
    driver("import", "scorers", str(published), "--concepts", "contrast", "--positive-label", "1")
    (one,) = json.loads(driver("score", TEXTS[0], "--scorer", "contrast", "--json")[1])["scorers"]
    why = "part a: lower bound 0.438 of the AUROC misses 0.75"
    record_gate(FolderStore(store), "contrast", one["scorer"], "scorer.gate.1", passed=False, reason=why)
    code, out, _ = driver("score", TEXTS[0], "--scorer", "contrast")
    assert code == 0 and f"contrast: this scorer failed its gate, so its scores say little: {why}" in out
    (found,) = json.loads(driver("score", TEXTS[0], "--scorer", "contrast", "--json")[1])["scorers"]
    assert found["gate"] == {"passed": False, "reason": why}
    scores = Cluster().score(TEXTS, ["contrast", "contrast"])
    assert scores.columns == ["id", "text", "contrast"] and [row["text"] for row in scores] == TEXTS
    assert scores.to_pylist()[0]["contrast"] == pytest.approx(found["scores"][0], abs=1e-6)
    assert why in scores._repr_html_()


def test_more_texts_than_a_request_takes_come_back_in_order(driver: Command, published: Path, tmp_path: Path) -> None:
    driver("import", "scorers", str(published), "--concepts", "contrast", "--positive-label", "1")
    (tmp_path / "many.txt").write_text("\n".join(TEXTS[index % 3] for index in range(450)))
    code, out, _ = driver("score", "--input", "many.txt", "--scorer", "contrast", "--json")
    scores = json.loads(out)["scorers"][0]["scores"]
    assert code == 0 and len(scores) == 450
    assert scores[:3] * 150 == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("score", "a"), 2, "no --scorer"),
        (("score", "a", "--input", "x.txt", "--scorer", "contrast"), 2, "one of the two"),
        (("score", "--input", "none.txt", "--scorer", "contrast"), 2, "none.txt"),
        (("score", "a", "--scorer", "contrst"), 2, "did you mean contrast"),
        (("score", "a", "--scorer", "narrative"), 2, "this store has no scorer 'narrative'"),
        (("import", "scorers", "someone/somewhere"), 2, "--concepts"),
        (("import", "scorers", ".", "--concepts", "toxicity"), 1, "sensitive"),
    ],
)
def test_mistakes_are_one_line(driver: Command, arguments: tuple[str, ...], code: int, expected: str) -> None:
    ended, out, err = driver(*arguments)
    assert ended == code and expected in out + err


def test_who_watches_is_asked_for_the_label(driver: Command, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("LABEL_0\n"))
    code, out, err = driver("import", "scorers", str(published), "--concepts", "hedging")
    assert code == 0 and "LABEL_0 means hedging" in out and "state which one means hedging" in err
