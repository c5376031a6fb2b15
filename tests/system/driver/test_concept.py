"""Concepts of users: from flags or a file to a run, and wrong input named by file and line."""

import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from corpus.tests import test_own_concepts as of_texts
from corpus.tests.test_own_concepts import made, write_texts
from driver.tests.conftest import Driver, invoke
from driver.tests.test_estimate import DEMO, plan_of, work_of
from tests.servers.services import TOKEN, serving
from typer.testing import Result

from poolbench.concepts import CONCEPTS
from poolbench.errors import ConfigError, UnknownConceptError
from poolbench.library.concepts import Library, attach
from poolbench.storage import Artifacts, open_store
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_driver.assemble import why_empty
from poolbench_driver.config import ConceptsConfig, CorpusConfig
from poolbench_driver.corpora.sources import absent_concepts, passages_step, require_one_kind, run_dataset
from poolbench_driver.records import recall_concepts, run_id
from poolbench_driver.records.folder import create_run
from poolbench_driver.release.run import passages_source
from poolbench_driver.release.source import releasable_concepts
from poolbench_driver.stages.scope import neighbours_of
from poolbench_driver.suites.poolbench.metrics import BOARD
from poolbench_pooler.service import PoolerService

files = of_texts.files


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    before = CONCEPTS.find
    yield attach(open_store(str(tmp_path / "store")))
    CONCEPTS.find = before


def test_a_run_reads_the_passages_of_the_store(files: dict[str, str], library: Library) -> None:
    one, config = made(files), ConceptsConfig(concepts=("mine",))
    library.add(one.concept, one.passages)
    step = passages_step(config, CONCEPTS.get("mine"), "train")
    table = step.build()
    assert isinstance(table, pa.Table) and table.num_rows == 60
    assert run_dataset(config, [one.concept]) == {"source": "own", "revision": f"mine {one.concept.corpus}"}
    assert run_id(config).startswith("demo-own-")
    other = replace(one.concept, corpus="0" * 16)
    assert passages_step(config, other, "train").key != step.key, "other passages have other keys"


@pytest.mark.parametrize("limit", [None, 60])
def test_a_dry_run_counts_the_passages_that_there_are(
    files: dict[str, str], library: Library, tmp_path: Path, limit: int | None
) -> None:
    one = made(files)
    library.add(one.concept, one.passages)
    asked = {"num_train": 40, "num_test": 20} if limit else {"num_train": 60, "num_test": 30}  # the budget: 200 and 200
    plan = plan_of(DEMO, preset="demo", corpus={"source": "planted"}, concepts=["mine"], limit=limit)
    assert work_of(plan, "pooler.annotate") == work_of(plan, "extractor.extract") == sum(asked.values())
    assert work_of(plan, "prober.probe") == sum(asked.values()) * len(plan.scope.strategies) * len(plan.scope.layers)
    folder = tmp_path / "corpus"
    few = build_planted("contrast", seed=0, num_train=120, num_test=60, num_scorer=30)
    write_corpus(few, folder, CorpusManifest(revision="r", tokenizer="words", window=(90, 140)))
    of_folder = {"corpus": {"source": str(folder)}, "concepts": ["contrast"], "metrics": ["d1"]}
    plan = plan_of(DEMO, preset="demo", limit=limit, **of_folder)
    assert work_of(plan, "extractor.extract") == (sum(asked.values()) if limit else 180)


def test_keys_of_the_built_in_concepts_do_not_depend_on_own_ones(files: dict[str, str], library: Library) -> None:
    config = ConceptsConfig()
    before = passages_step(config, CONCEPTS.get("contrast"), "train").key
    one = made(files)
    library.add(one.concept, one.passages)
    assert passages_step(config, CONCEPTS.get("contrast"), "train").key == before


def test_own_and_planted_concepts_are_not_ranked_together(files: dict[str, str], library: Library) -> None:
    concepts = [made(files).concept, CONCEPTS.get("hedging")]
    with pytest.raises(ConfigError, match=r"mine would be ranked with planted passages of hedging"):
        require_one_kind(ConceptsConfig(), concepts)
    real = ConceptsConfig(corpus=CorpusConfig(source="real"))
    require_one_kind(real, concepts)
    require_one_kind(ConceptsConfig(), concepts[:1])
    assert run_dataset(real, concepts)["source"] == "real_corpus+own"


def test_planted_neighbours_do_not_judge_real_texts(files: dict[str, str], library: Library) -> None:
    one = made(files, "other")
    library.add(one.concept, one.passages)
    absent = absent_concepts(ConceptsConfig(), ["hedging", "other"], beside_own=True)
    assert list(absent) == ["hedging"] and "--corpus real" in absent["hedging"]
    assert absent_concepts(ConceptsConfig(), ["hedging"]) == {}


def rows(*values: float | None, metric: str = "d1.auroc") -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"metric": metric, "value": v, "status": "ok" if v else "too_few", "reason": None if v else "few"}
            for v in values
        ],
        schema=pa.schema(
            [("metric", pa.string()), ("value", pa.float64()), ("status", pa.string()), ("reason", pa.string())]
        ),
    )


def test_a_run_without_any_figure_says_why() -> None:
    assert why_empty(rows(None, None), BOARD.ranked) == "few (too_few)"
    assert why_empty(rows(None, 0.5), BOARD.ranked) == ""
    assert why_empty(rows(None, metric="scorer.gate"), BOARD.ranked) == ""


def test_a_neighbour_that_was_removed_is_named(files: dict[str, str], library: Library) -> None:
    other = made(files, "other")
    library.add(other.concept, other.passages)
    mine = made(files, neighbours=("other", "hedging"))
    library.add(mine.concept, mine.passages)
    library.remove("other")
    with pytest.raises(ConfigError, match="concept mine has the neighbour other, which is not registered"):
        neighbours_of(ConceptsConfig(concepts=("mine",)))
    assert neighbours_of(ConceptsConfig(concepts=("mine",), metrics=("d1",))) == []


def test_commands_show_and_refuse(files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not invoke("concept", "init", "mine").exception
    flags = ["--positives", files["positives"], "--negatives", files["negatives"], "--json"]
    shown = json.loads(invoke("concept", "check", "mine", *flags).stdout)
    assert (shown["id"], shown["usable"], len(shown["splits"])) == ("mine", True, 3)
    few = write_texts(tmp_path / "few.jsonl", 3, 9)
    result = invoke("concept", "check", "mine.yaml", "--positives", few, "--negatives", files["negatives"])
    assert "error: a class has" in result.stdout
    assert result.return_value == 1
    again = invoke("concept", "init", "mine")
    assert isinstance(again.exception, ConfigError) and "exists already" in str(again.exception)


def test_add_forecasts_as_check_does(files: dict[str, str], library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poolbench_driver.cluster.session.open_artifacts", lambda: Artifacts(library.store))
    flags = ["mine", "--positives", files["positives"], "--negatives", files["negatives"]]
    checked, added = (invoke("concept", verb, *flags).stdout for verb in ("check", "add"))
    assert "will be `short`" in checked
    assert added == checked


def test_settings_with_a_concept_of_a_user_are_checked_over_the_address_alone(
    files: dict[str, str], library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(files)
    library.add(one.concept, one.passages)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("mine", "mein"):
        Path(f"{name}.yaml").write_text(f"preset: demo\nconcepts: [{name}]\n")

    def check(name: str) -> Result:
        CONCEPTS.find = None  # as in a new process
        return invoke("config", "check", f"{name}.yaml")

    error = check("mine").exception
    assert isinstance(error, UnknownConceptError)
    assert re.search("unknown concept 'mine'.*; concepts of users are in a cluster, and no cluster found", str(error))
    with serving({"pooler": PoolerService(lambda: library)}) as address:
        monkeypatch.setenv("POOLBENCH_HTTP", address)
        monkeypatch.setenv("POOLBENCH_TOKEN", TOKEN)
        assert check("mine").stdout.startswith("mine.yaml: run demo-own-")
        assert str(check("mein").exception).startswith("unknown concept 'mein'")


def test_a_run_keeps_the_definitions_of_its_own_concepts(
    files: dict[str, str], library: Library, tmp_path: Path
) -> None:
    """After `concept rm`, and after another concept took the name: what reads the run finds its own."""
    found = made(files, definition="The first one.")
    library.add(found.concept, found.passages)
    folder = create_run(tmp_path / "runs", ConceptsConfig(concepts=("mine",)))
    library.remove("mine")
    with pytest.raises(UnknownConceptError):
        CONCEPTS.get("mine")
    recall_concepts(folder)
    assert CONCEPTS.get("mine") == found.concept
    assert releasable_concepts(["mine"], None) == ["mine"]
    assert (
        passages_source(folder.config) == "own" and passages_source(ConceptsConfig(concepts=("contrast",))) == "planted"
    )
    assert folder.file("config.resolved.yaml").read_text().startswith("# The texts of mine are the user's; ")
    swapped = {"positives": files["negatives"], "negatives": files["positives"]}
    other = made(swapped, definition="Another one.")
    library.add(other.concept, other.passages)
    assert CONCEPTS.get("mine").corpus == found.concept.corpus != other.concept.corpus
    folder.file("concepts.json").write_bytes(b"[{")
    with pytest.raises(ConfigError, match=r"concepts\.json is damaged"):
        recall_concepts(folder)
    plain = create_run(tmp_path / "runs", ConceptsConfig(concepts=("contrast",)))
    recall_concepts(plain)
    assert CONCEPTS.get("mine").corpus == other.concept.corpus and not plain.file("concepts.json").exists()


Refused = Callable[..., str]


@pytest.fixture
def refused(driver: Driver, environment: dict[str, str]) -> Refused:
    """``refused(*arguments)``: what `concept add` said; it must be one line, and the store must stay as it is."""
    store = open_store(environment["POOLBENCH_STORE"])

    def add(*arguments: str) -> str:
        before = sorted(info.path for info in store.list(""))
        done = driver(environment, "concept", "add", *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert sorted(info.path for info in store.list("")) == before
        error = done.stderr.strip()
        assert error.startswith("error: ") and "\n" not in error and len(error) < 3000
        return error

    return add


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--negatives", "mixed.jsonl"), "mixed.jsonl, line 3: no 'text'"),
        (("--pairs", "pairs.csv"), "pairs.csv, line 2: no 'negative'; the record has positive, other"),
        (("--neighbours", "mine,hedging"), "name two different concepts"),
        (("--neighbours", "hedging,narrative,contrast"), "neighbours: "),
        (("--licence", "a\nb"), "licence: "),
        (("--seed", "-1"), "seed: "),
    ],
)
def test_wrong_files_and_settings_are_named(
    refused: Refused,
    files: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mixed.jsonl").write_bytes(b'{"text": "a"}\r\n{"text": "b"}\r{"body": "c"}\n')
    Path("pairs.csv").write_bytes(b"positive,other\none,two\n")
    texts = {"--positives": files["positives"], "--negatives": files["negatives"]} | dict([arguments])
    assert said in refused("mine", *(word for option in texts.items() for word in option))


#: Fourteen lines whose aliases stand for nine to the fourteenth values.
ALIASES = "a: &a [x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{chr(ord(name) - 1)}'] * 9)}]\n" for name in "bcdefghijklmno"
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"- id\n", "expected a mapping of settings"),
        (b"id: [\n", "mine.yaml"),
        (b"id: caf\xe9\n", "utf-8"),
        (ALIASES.encode(), "aliases included"),
        (b"[" * 5000, "mine.yaml"),
        (b"x" * 1_000_001, "at most 1,000,000 characters"),
    ],
)
def test_a_wrong_yaml_file_is_one_line(refused: Refused, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    assert said in refused(str(tmp_path / "mine.yaml")).replace("\\n", " ")


@pytest.mark.parametrize("name", ["big.jsonl", "big.csv", "big.yaml"])
def test_a_line_of_a_gibibyte_takes_little_memory(
    refused: Refused, files: dict[str, str], tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(1 << 30)  # zeros, which take no disk
    of_texts = ["mine", "--positives", str(path), "--negatives", files["negatives"]]
    tracemalloc.start()
    try:
        error = refused(*([str(path)] if name.endswith("yaml") else of_texts))
        assert str(path) in error and "000,000 characters" in error
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
